"""A report says the same in every format, escapes what machines told, and leads from every decision to its evidence."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from farm.judge import judge
from farm.model import (
    Arm,
    ArmResult,
    ArmTiming,
    Cell,
    CellResult,
    Comparison,
    Control,
    Decision,
    Drill,
    Environment,
    EnvironmentRefused,
    Evidence,
    Examination,
    Figure,
    Gate,
    Host,
    Judgement,
    LockedPackage,
    Measuring,
    Memory,
    Outcome,
    Output,
    Plan,
    Rehearsal,
    Release,
    Restart,
    RunState,
    Side,
    Tier,
    Validity,
    Window,
    pack_ns,
)
from farm.report.html import to_html
from farm.report.markdown import to_markdown
from farm.report.table import decision_table, summary
from farm.report.text import anchor, figure_text
from farm.report.view import decision_views, report_view
from tests import evidence as made

HOST = Host(
    name="bench-1",
    platform="x86_64-unknown-linux-gnu",
    os="Linux 6.8",
    cpu="EPYC 9554",
    cores=8,
    memory_bytes=64 * 2**30,
    capabilities=("cpu",),
    python="3.11",
)
COMMAND = ("farm", "submit", "--candidate", "2.13.0", "--baseline", "2.12.1", "--matrix", "our matrix.toml")
HOSTILE = "warming up\n<script>alert('x')</script>\n\x1b[31mred\x1b[0m"
VOID = {"meta", "br", "hr", "img", "input", "link"}


def environment(version: str) -> Environment:
    release = Release(
        version=version,
        local="cpu",
        variant="cpu",
        platform=HOST.platform,
        wheel=f"torch-{version}+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        sha256=version.replace(".", "") * 8,
        origin="wheels.example.org",
        requirement=f"torch==={version}+cpu",
    )
    torch = LockedPackage(name="torch", version=version, wheel=release.wheel, sha256=release.sha256, url="")
    return Environment(release=release, python="3.11", packages=(torch,))


ENVIRONMENTS = {side: environment(version) for side, version in ((Side.BASELINE, "2.12.1"), (Side.CANDIDATE, "2.13.0"))}


def arm(name: str, path: str) -> Arm:
    side = Side(name.partition("+")[0])
    return Arm(name=name, side=side, path=path, environments={HOST.target: ENVIRONMENTS[side].key})


def cell(workload: str, *paths: str, kind: str = "measure") -> Cell:
    """A cell whose further ``paths`` are features of the candidate."""
    arms = (arm("baseline", "old"), arm("candidate", "old"), *(arm(f"candidate+{path}", path) for path in paths))
    return Cell(
        id=f"{workload}/infer-fp32@cpu",
        kind=kind,  # type: ignore[arg-type]
        backend="cpu",
        capability="cpu",
        workload=workload,
        case="infer-fp32",
        parameters={"batch": 2, "dtype": "float32"},
        arms=arms,
        control=Control(workload_digest="ab" * 32, seed=7, environment_variables={"OMP_NUM_THREADS": "1"}),
        measuring=Measuring(looks=(6,), p50_limits=(1.03, 1.15)),
        gates=(Gate.ROLLBACK,) if kind == "rehearsal" else (Gate.CORRECTNESS, Gate.LATENCY, Gate.THROUGHPUT),
    )


def examined() -> ArmResult:
    same = Comparison(
        finite=True,
        reference_finite=True,
        same_shape=True,
        bitwise_equal=True,
        rms_error=0.0,
        max_error=0.0,
        reference_rms=1.0,
        gain=1.0,
    )
    output = Output(dtype="float32", shape=(2, 64), sha256="cd" * 32, against_oracle=same, against_reference=same)
    memory = Memory(allocator_peak_bytes=2**21, reserved_peak_bytes=None, process_peak_bytes=(2**28,))
    examination = Examination(
        outputs={"y": output},
        repeat_digests=("ef",) * 5,
        memory=memory,
        items_per_step=128.0,
        item="tokens",
        path_ran="old",
        warnings=("a kernel without a deterministic form",),
    )
    return ArmResult(
        outcome=Outcome.OK,
        facts={"torch": "2.13.0+cpu", "stranger_libraries": []},
        command=("python", "-s", "-m", "runner"),
        log_tail=HOSTILE,
        examination=examination,
    )


def restarts(factors: dict[str, float]) -> tuple[Restart, ...]:
    """Six restarts of two blocks; ``factors`` are step times over 3 ms."""
    generator = np.random.default_rng(20260701)
    found = []
    for index in range(6):
        arms = {}
        for name, factor in factors.items():
            windows = []
            for block in range(2):
                steps = 3e6 * factor * generator.lognormal(0.0, 0.01, 40)
                total = int(steps.sum())
                packed = pack_ns(steps.astype(np.uint64))
                windows.append(
                    Window(block=block, position=0, steps_ns=packed, wall_ns=total, cpu_ns=total, minor_faults=0)
                )
            arms[name] = ArmTiming(
                import_ns=10**9,
                setup_ns=10**8,
                first_step_ns=10**7,
                warmup_ns=10**9,
                steady=True,
                output_digest="ef",
                windows=tuple(windows),
            )
        found.append(Restart(index=index, order=tuple(factors), arms=arms))
    return tuple(found)


def result(of: Cell, arms: dict[str, ArmResult], **more: object) -> CellResult:
    return CellResult(
        run_id="r-1",
        cell_id=of.id,
        attempt=1,
        worker="w-1",
        host=HOST,
        started="2026-07-01T10:00:00+00:00",
        validity=more.pop("validity", Validity(valid=True)),  # type: ignore[arg-type]
        arms=arms,
        moved_packages=("triton 3.6.0 -> 3.7.0",),
        wall_ns=40 * 10**9,
        phases_ns={"examine": 3 * 10**9},
        **more,  # type: ignore[arg-type]
    )


def tier(name: str, p50_ratio: float) -> Tier:
    return Tier(
        name=name,
        description=f"what {name} is",
        backends=("cpu", "cuda"),
        required=(Gate.CORRECTNESS, Gate.LATENCY),
        p50_ratio=p50_ratio,
        p95_ratio=None,
        throughput_ratio=0.9,
        peak_memory_ratio=1.2,
        compile_ratio=2.0,
        graph_breaks=0,
        rollback_s=60.0,
        feature_gain=0.9,
        reason={"p50_ratio": "people wait for results"},
    )


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """A block that is as fast, an attention that crashes, a feature that pays, an invalid cell, one never run."""
    block, attention = cell("transformer_block"), cell("flex_attention")
    feature, noisy, lost = cell("linear_cross_entropy", "lce"), cell("noisy"), cell("lost")
    back = cell("rollback", kind="rehearsal")
    ok = examined()
    crashed = ArmResult(outcome=Outcome.CRASHED, reason="signal 11 (SIGSEGV) in its first step", log_tail=HOSTILE)
    rehearsal = Rehearsal(
        outcome=Outcome.OK,
        steps_ns={"prepare": 10**9, "reinstall": 4 * 10**9, "control": 2 * 10**9},
        network_off_by="network namespace",
        reinstalled=("torch 2.13.0 -> 2.12.1",),
        control_equal=True,
    )
    results = (
        result(
            block,
            {"baseline": ok, "candidate": ok},
            restarts=restarts({"baseline": 1.0, "candidate": 1.004}),
            measured_ns=30 * 10**9,
            stopped_because="settled",
        ),
        result(attention, {"baseline": ok, "candidate": crashed}),
        result(
            feature,
            {"baseline": ok, "candidate": ok, "candidate+lce": ok},
            restarts=restarts({"baseline": 1.0, "candidate": 1.0, "candidate+lce": 0.6}),
            measured_ns=20 * 10**9,
        ),
        result(noisy, {"baseline": ok, "candidate": ok}, validity=Validity(valid=False, reasons=("never steady",))),
        result(back, {"baseline": ok, "candidate": ok}, rehearsal=rehearsal),
    )
    plan = Plan(
        created="2026-07-01T09:59:00+00:00",
        suite="smoke",
        requested={"candidate": "2.13", "baseline": "by default"},
        command=COMMAND,
        resolution_notes=("both sides as +cpu builds",),
        aa=False,
        releases={f"{side}@{HOST.target}": e.release for side, e in ENVIRONMENTS.items()},
        environments={e.key: e for e in ENVIRONMENTS.values()},
        requested_backends=("cpu",),
        unserved_backends={"cuda": "no worker"},
        matrix_digest="12" * 32,
        matrix_source="the farm's own",
        versions={"current_baseline": "2.12"},
        tiers=(tier("serving", 1.03), tier("research", 1.15)),
        caveats=("a verdict holds for the processors it was measured on",),
        cells=(block, attention, feature, noisy, lost, back),
        seed=7,
    )
    unfinished = {lost.id: "no worker for bench.cpu"}
    return Evidence(run_id="r-1", state=RunState.INCOMPLETE, plan=plan, results=results, unfinished=unfinished)


@pytest.fixture(scope="module")
def judgement(evidence: Evidence) -> Judgement:
    return judge(evidence)


@pytest.fixture(scope="module")
def page(evidence: Evidence, judgement: Judgement) -> str:
    return to_html(evidence, judgement)


class Page(HTMLParser):
    """Collects what a page holds, and fails where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.decision_links: list[str | None] = []
        self.decision_rows = 0
        self.in_decision = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "tr" and given.get("class") == "decision":
            self.in_decision = True
            self.decision_rows += 1
        if tag == "a" and self.in_decision:
            self.decision_links.append(given.get("href"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "tr":
            self.in_decision = False


# -- words ---------------------------------------------------------------------------------------------------------


def test_a_figure_reads_as_value_interval_and_limit() -> None:
    figure = Figure(name="p50 ratio", value=1.004, low=0.991, high=1.012, limit=1.03)
    assert figure_text(figure) == "1.004 [0.991, 1.012] limit 1.030"
    limits = [(1.15, "research"), (1.03, "serving")]
    assert figure_text(figure, limits) == "1.004 [0.991, 1.012] limit 1.030 serving, 1.150 research"
    assert figure_text(figure, limits, short=True) == "1.004 [0.991, 1.012] limit 1.030 to 1.150"


def test_a_figure_without_interval_or_limit_says_only_what_is_known() -> None:
    assert figure_text(Figure(name="p50 ratio", value=1.2)) == "1.200"
    assert figure_text(Figure(name="rehearsal", value=10.21, limit=120, unit="s")) == "10.2 s limit 120.0 s"
    assert figure_text(Figure(name="distinct results", value=3, limit=1)) == "3 limit 1"
    assert figure_text(Figure(name="error of 'y' over the allowed", value=math.inf, limit=1)) == "inf limit 1"
    assert figure_text(None) == ""


def test_names_that_differ_have_anchors_that_differ() -> None:
    assert len({anchor("cell", name) for name in ("a/b@cpu", "a-b@cpu", "a_b@cpu", "a b@cpu")}) == 4


def test_coverage_is_told_before_any_decision(evidence: Evidence, judgement: Judgement) -> None:
    head = "2 of 5 comparable, 1 missing on the candidate, 1 invalid, 1 not run"
    assert judgement.coverage.head == head
    text = summary(evidence, judgement)
    assert text.index(head) < text.index("decided by")
    assert "untested backends: cuda (no worker)" in text


# -- the table -----------------------------------------------------------------------------------------------------


def test_tiers_that_decide_alike_share_a_row(judgement: Judgement) -> None:
    block = [view for view in decision_views(judgement.rows) if view.subject == "transformer_block"]
    assert [(view.tiers, view.decision) for view in block] == [("serving, research", "defer (would adopt)")]
    assert block[0].short_figure.endswith("limit 1.030 to 1.150")


def test_tiers_that_decide_differently_keep_their_rows(judgement: Judgement) -> None:
    rows = tuple(
        row.model_copy(update={"decision": Decision.ADOPT, "would": None}) if row.tier == "research" else row
        for row in judgement.rows
    )
    block = [view for view in decision_views(rows) if view.subject == "transformer_block"]
    assert [(v.tiers, v.decision) for v in block] == [("serving", "defer (would adopt)"), ("research", "adopt")]


def test_what_would_change_a_shared_row_is_said_for_each_tier_whose_limit_differs() -> None:
    of = made.cell()
    limits = [made.tier(name, p50_ratio=limit, required=(Gate.LATENCY,)) for name, limit in (("a", 1.03), ("b", 1.04))]
    found = made.evidence([(of, made.result(of, times={"candidate": 12.0}))], *limits)
    (view,) = decision_views(judge(found).rows)
    assert view.tiers == "a, b"
    words = "latency of block/infer@cpu within its limit (+{}.0 %): it is +20.0 % [+20.0 %, +20.0 %]"
    assert view.would_change == f"a: {words.format(3)}; b: {words.format(4)}"


def test_every_format_says_what_is_kept_apart_and_what_would_change_a_tier() -> None:
    slow, fine = made.cell("slow", features=("new",)), made.cell("fine", features=("new",))
    lags = {"candidate+new": 10.0}
    given = [(slow, made.result(slow, times={"candidate": 12.0})), (fine, made.result(fine, times=lags))]
    found = made.evidence(given, made.tier(required=(Gate.LATENCY,)))
    judged = judge(found)
    assert [row.kept_apart for row in judged.rows] == ["workload slow", "", "", "path new of fine"]
    for text in (summary(found, judged, width=None), to_markdown(found, judged), to_html(found, judged)):
        assert "path new of fine" in text
        assert "workload slow" in text
        assert "latency of slow/infer@cpu within its limit (+3.0 %)" in text
    assert "; kept apart: workload slow; what would change it: latency of" in summary(found, judged, width=None)


def test_caveats_written_before_the_run_stand_beside_every_decision() -> None:
    masked = made.cell("masked", features=("new",), caveats=("masks are synthetic",))
    found = made.run_of(
        masked,
        made.cell("plain"),
        tiers=(made.tier(backends=("cpu", "cuda")),),
        unserved_backends={"cuda": "no worker"},
        caveats=("hardware: as measured",),
    )
    judged = judge(found)
    said = {(row.workload, row.path): row.caveats for row in judged.rows}
    everywhere = ("hardware: as measured",)
    assert said == {
        ("masked", ""): ("masks are synthetic", *everywhere),
        ("masked", "new"): ("masks are synthetic", *everywhere),
        ("plain", ""): everywhere,
        ("(all)", ""): everywhere,
    }
    table = summary(found, judged, width=None)
    (row,) = [line for line in table.splitlines() if line.startswith("masked  ")]
    assert row.endswith("; caveat: masks are synthetic")
    assert table.count("caveat of every decision: hardware: as measured") == 1
    assert table.count("masks are synthetic") == 2
    text = to_markdown(found, judged).split("## Decisions")[1].split("## Cell")[0]
    assert "caveat: masks are synthetic |" in text
    assert "written down before the run:\n\n- hardware: as measured" in text
    page = to_html(found, judged).split('<h2 id="decisions">')[1].split("</section>")[0]
    assert page.count("Caveat: masks are synthetic") == 2
    assert page.count("<li>hardware: as measured</li>") == 1


def test_the_table_fits_the_width_that_is_asked_for(evidence: Evidence, judgement: Judgement) -> None:
    table = decision_table(evidence, judgement, width=120)
    assert max(map(len, table.splitlines())) <= 120
    assert re.split(r"\s{2,}", table.splitlines()[0]) == [
        "workload",
        "backend",
        "tier",
        "decision",
        "decided by",
        "figure",
        "why",
    ]


def test_a_run_without_any_answer_still_has_a_report(evidence: Evidence) -> None:
    reason = "no worker for bench.cpu"
    nothing = evidence.model_copy(
        update={"results": (), "unfinished": {cell.id: reason for cell in evidence.plan.cells}}
    )
    judged = judge(nothing)
    assert "0 of 5 comparable, 5 not run" in summary(nothing, judged)
    assert f"not run: {reason}" in to_markdown(nothing, judged)
    Page(to_html(nothing, judged))
    assert decision_table(nothing, judged.model_copy(update={"rows": ()}), width=120).startswith("workload")


def test_a_refused_environment_is_named_with_its_reason(evidence: Evidence, judgement: Judgement) -> None:
    refused = EnvironmentRefused(side=Side.CANDIDATE, platform=HOST.target, reason="no wheel for this platform")
    cells = tuple(
        cell.model_copy(
            update={
                "arms": tuple(a.model_copy(update={"environments": {}}) for a in cell.arms if a.side is refused.side)
            }
        )
        for cell in evidence.plan.cells
    )
    plan = evidence.plan.model_copy(update={"refused": (refused,), "cells": cells, "releases": {}})
    text = to_html(evidence.model_copy(update={"plan": plan}), judgement)
    assert f"no environment on {HOST.target}: no wheel for this platform" in text
    assert "2.13 (no environment)" in text


def test_without_a_width_every_row_is_one_line(evidence: Evidence, judgement: Judgement) -> None:
    lines = decision_table(evidence, judgement, width=None).splitlines()
    assert len(lines) == 2 + len(decision_views(judgement.rows))
    crashed = next(line for line in lines if line.startswith("flex_attention"))
    assert "fail: candidate crashed: signal 11 (SIGSEGV) in its first step" in crashed
    feature = next(line for line in lines if line.startswith("linear_cross_entropy, path lce"))
    assert "defer (would adopt)" in feature


def test_the_summary_says_tiers_alarms_and_how_to_reproduce(evidence: Evidence, judgement: Judgement) -> None:
    alarmed = judgement.model_copy(update={"alarms": ("asymmetry: 8 cells are slower",)})
    text = summary(evidence, alarmed)
    assert "serving: defer, " in text
    assert "alarm: asymmetry: 8 cells are slower" in text
    assert "farm submit --candidate 2.13.0 --baseline 2.12.1 --matrix 'our matrix.toml'" in text
    assert "not run: lost/infer-fp32@cpu: no worker for bench.cpu" in text


def test_a_reason_cannot_colour_a_terminal(evidence: Evidence, judgement: Judgement) -> None:
    rows = tuple(row.model_copy(update={"reason": "\x1b[31mred\nline"}) for row in judgement.rows)
    assert "\x1b" not in summary(evidence, judgement.model_copy(update={"rows": rows}))


# -- Markdown ------------------------------------------------------------------------------------------------------


def test_markdown_holds_decisions_cells_and_the_command(evidence: Evidence, judgement: Judgement) -> None:
    text = to_markdown(evidence, judgement)
    assert "| transformer_block | cpu | serving, research | **defer (would adopt)** |" in text
    assert "## Cell flex_attention/infer-fp32@cpu" in text
    assert "| candidate | old | crashed | signal 11 (SIGSEGV) in its first step |" in text
    assert "invalid: never steady" in text
    assert "- torch 2.13.0 -> 2.12.1" in text
    assert "--matrix 'our matrix.toml'" in text


def test_markdown_from_a_hostile_reason_opens_nothing(evidence: Evidence, judgement: Judgement) -> None:
    hostile = "a | b <img src=x> ![x](picture)"
    rows = tuple(row.model_copy(update={"reason": hostile}) for row in judgement.rows)
    text = to_markdown(evidence, judgement.model_copy(update={"rows": rows}))
    assert "a \\| b &lt;img src=x> ![x]\\(picture)" in text


# -- the run's own noise -------------------------------------------------------------------------------------------


def _with_control(*noise: float, step_ms: float = 10.0) -> tuple[Evidence, Judgement]:
    of = made.cell()
    control = made.aa_cell(of)
    answer = made.result(control, times={"candidate": step_ms})
    found = made.evidence([(of, made.result(of, noise=noise)), (control, answer)], made.tier())
    return found, judge(found)


@pytest.mark.parametrize(
    ("noise", "step_ms", "said"),
    [
        ((), 10.0, "A/A: 0 of 1 cell accused falsely (none on record)"),
        ((1.0, 1.01, 1.04), 10.0, "A/A: 0 of 1 cell accused falsely (1 of 3 on record beyond 3 %)"),
        ((), 10.5, "A/A: 1 of 1 cell accused falsely, 1 read as changed (none on record)"),
    ],
)
def test_every_format_says_in_its_head_how_often_the_run_accused_falsely(
    noise: tuple[float, ...], step_ms: float, said: str
) -> None:
    found, judged = _with_control(*noise, step_ms=step_ms)
    for text in (summary(found, judged), to_markdown(found, judged), to_html(found, judged)):
        assert said in text
        assert text.count("believe no figure") == (step_ms == 10.5)
    Page(to_html(found, judged))


def test_a_control_is_shown_as_such_and_has_no_decision(evidence: Evidence, judgement: Judgement) -> None:
    found, judged = _with_control()
    assert "aa/" not in decision_table(found, judged, width=None)
    for text in (to_markdown(found, judged), to_html(found, judged)):
        assert "A/A cell aa/block-infer@cpu" in text
        assert "A/A: the baseline against itself" in text
    for text in (summary(evidence, judgement), to_markdown(evidence, judgement), to_html(evidence, judgement)):
        assert "A/A" not in text


def test_cells_whose_own_noise_is_wider_than_a_limit_are_listed(evidence: Evidence) -> None:
    found, judged = _with_control(*(1.0, 1.11, 0.97, 1.04, 0.9, 1.08, 1.02, 0.93))
    for text in (summary(found, judged, width=None), to_markdown(found, judged), to_html(found, judged)):
        assert "unstable: block/infer@cpu: 8 A/A ratios on bench-1 reach to " in text
    assert "8 A/A ratios on record, reaching to" in to_html(found, judged)


def test_a_run_whose_controls_gave_nothing_says_so() -> None:
    of = made.cell()
    found = made.evidence([(of, made.result(of)), (made.aa_cell(of), None)], made.tier())
    assert "A/A: no cell gave a valid answer, so nothing is known" in summary(found, judge(found), width=None)


# -- the page ------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    parsed = Page(page)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "link", "img", "iframe", "object", "embed")]
    loads = [given[name] for _, given in parsed.tags for name in ("src", "href", "data") if name in given]
    assert all(str(load).startswith("#") for load in loads)
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_what_a_machine_told_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_every_link_leads_somewhere_and_every_decision_has_one(page: str, judgement: Judgement) -> None:
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    links = [str(given["href"])[1:] for tag, given in parsed.tags if tag == "a"]
    assert set(links) <= set(parsed.ids)
    assert parsed.decision_rows == len(parsed.decision_links) == len(decision_views(judgement.rows))
    assert f"#{anchor('backend', 'cuda')}" in parsed.decision_links


def test_the_page_says_what_the_table_says(page: str) -> None:
    assert "defer (would adopt)" in page
    assert "signal 11 (SIGSEGV) in its first step" in page
    assert "our matrix.toml" in page
    assert "Untested backends:" in page
    assert "25.0 % (75.0 % of 40.0 s inside measured windows)" in page
    assert "torch 2.13.0 -&gt; 2.12.1" in page
    assert "triton 3.6.0 -&gt; 3.7.0" in page
    assert "a kernel without a deterministic form" in page
    assert "not run: no worker for bench.cpu" in page


def test_pictures_have_words_and_tables_have_scopes(page: str) -> None:
    parsed = Page(page)
    pictures = [given for tag, given in parsed.tags if tag == "svg"]
    # Two of the block, two for each question of the feature's cell.
    assert len(pictures) == 6
    assert all(given["role"] == "img" and given["aria-label"] for given in pictures)
    assert all(given.get("scope") in ("row", "col") for tag, given in parsed.tags if tag == "th")


def test_a_pair_shows_one_dot_a_restart_for_each_quantity(evidence: Evidence, judgement: Judgement) -> None:
    view = report_view(evidence, judgement)
    block = next(c for c in view.cells if c.id.startswith("transformer_block"))
    chart = block.pairs[0].ratios
    assert chart is not None
    assert [len(lane.dots) for lane in chart.lanes] == [6, 6, 6]
    assert [limit.label for limit in chart.lanes[0].limits] == ["limit 1.03 serving", "limit 1.15 research"]


def test_the_same_verdict_of_several_tiers_is_told_once(evidence: Evidence, judgement: Judgement) -> None:
    view = report_view(evidence, judgement)
    block = next(c for c in view.cells if c.id.startswith("transformer_block"))
    latency = [verdict for verdict in block.pairs[0].verdicts if verdict.gate == "latency"]
    assert [(v.tiers, v.required_by) for v in latency] == [("serving, research", "serving, research")]
    assert latency[0].figures[0].endswith("limit 1.030 serving, 1.150 research")


@pytest.mark.parametrize("damage", [b"", b"no zstd", b"\x28\xb5\x2f\xfd"], ids=["empty", "noise", "a bare head"])
def test_a_window_with_damaged_samples_is_said_and_ends_no_report(damage: bytes) -> None:
    of = made.cell()
    found = made.result(of)
    life = found.restarts[0].arms["candidate"]
    windows = (life.windows[0].model_copy(update={"steps_ns": damage}), *life.windows[1:])
    arms = found.restarts[0].arms | {"candidate": life.model_copy(update={"windows": windows})}
    lives = (found.restarts[0].model_copy(update={"arms": arms}), *found.restarts[1:])
    run = made.evidence([(of, found.model_copy(update={"restarts": lives}))], made.tier())
    for page in (to_html(run, judge(run)), to_markdown(run, judge(run)), summary(run, judge(run))):
        assert "invalid: candidate: cannot be decompressed" in page


def test_an_arm_shows_its_facts_and_how_its_drill_went(evidence: Evidence, judgement: Judgement) -> None:
    drill = Drill(how="force_eager", result="switched off", ran="unfused", took_ns=2 * 10**9)
    shown = made.ok(facts={"blocks skipped": 0.93}, drill=drill)
    results = tuple(one.model_copy(update={"arms": one.arms | {"baseline": shown}}) for one in evidence.results)
    view = report_view(evidence.model_copy(update={"results": results}), judgement)
    figures = [dict(arm.figures) for cell in view.cells for arm in cell.arms if arm.name == "baseline"]
    found = next(rows for rows in figures if "drill" in rows)
    assert found["blocks skipped"] == "0.93"
    assert found["drill"] == "switched off by force_eager in 2.0 s: unfused"
