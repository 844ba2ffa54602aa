"""Stages: one frozen plan in parts, verdicts of one case from several cells, and who goes on from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.plan import describe
from farm.errors import UsageError
from farm.judge import judge
from farm.matrix import Matrix, load_matrix
from farm.model import (
    Cell,
    CellResult,
    Decision,
    Evidence,
    Gate,
    Judgement,
    Outcome,
    Plan,
    RunState,
    Stage,
    Standing,
    Tier,
)
from farm.plan import PlanRequest, make_plan
from farm.rejudging import rejudge
from farm.report.html import to_html
from farm.report.markdown import to_markdown
from farm.report.table import summary
from farm.stages import evidence_before, service_tiers, skipped, staged, standing_words, window_of
from tests import evidence as made
from tests.farm.test_plan import MATRIX, build, host

TIMED = (Gate.CORRECTNESS, Gate.LATENCY, Gate.THROUGHPUT, Gate.PEAK_MEMORY, Gate.DETERMINISM)
STAGES = (
    Stage(name="single", days=5, gates=TIMED, kinds=("measure", "aa")),
    Stage(name="gates", days=4),
    Stage(name="canary", days=5, kinds=("measure",), in_service=("serving",), share=0.05),
)
BLOCK = made.cell()
OTHER = made.cell("other")
#: 8 % slower.
SLOW = {"candidate": 10.8}


def in_stages(
    cells: Iterable[Cell] = (BLOCK, OTHER), tiers: Sequence[Tier] = (), stages: Sequence[Stage] = STAGES
) -> Plan:
    tiers = tiers or (made.tier(),)
    parts = staged([*cells, made.rehearsal_cell()], stages, tiers)
    return made.plan(parts, service_tiers(tiers, stages), stages=tuple(stages))


def answers(plan: Plan, stages: Sequence[str], **other: CellResult) -> list[CellResult]:
    """Return a good answer to every cell of ``stages``, but for those given by id with underlines."""
    found = []
    for cell in plan.cells:
        if cell.stage in stages:
            good = made.rehearsed() if cell.kind == "rehearsal" else made.result(cell)
            found.append(other.get(cell.id.replace("/", "_").replace("@", "_"), good))
    return found


def run_of(plan: Plan, results: Sequence[CellResult], **more: object) -> Evidence:
    """Return the evidence of a run that goes on where results are missing."""
    missing = [cell.id for cell in plan.cells if cell.id not in {result.cell_id for result in results}]
    fields: dict[str, object] = {
        "unfinished": dict.fromkeys(missing, "stage 2 of 3, gates, has not begun"),
        "still_open": tuple(missing),
        "state": RunState.RUNNING if missing else RunState.COMPLETE,
    }
    return Evidence(run_id=made.RUN, plan=plan, results=tuple(results), **fields | more)  # type: ignore[arg-type]


def by_id(plan: Plan, cell_id: str) -> Cell:
    (found,) = (cell for cell in plan.cells if cell.id == cell_id)
    return found


def decisions(judgement: Judgement) -> dict[str, Decision]:
    return {told.tier: told.decision for told in judgement.tiers}


def said(judgement: Judgement, stage: str) -> dict[str, str]:
    (found,) = (told for told in judgement.stages if told.name == stage)
    return {told.tier: told.decision for told in found.tiers}


# -- planned -------------------------------------------------------------------------------------------------------


def asked(matrix: Matrix | None = None, *, suite: str = "standard", stages: bool = True) -> Plan:
    request = PlanRequest("2.13", None, suite, (), stages=stages)
    return make_plan(matrix or load_matrix(), request, [host("cpu")], build)


def test_the_window_of_the_matrix_asks_every_gate_once_and_the_canary_asks_them_again() -> None:
    whole, window = asked(stages=False), asked()
    assert (whole.stages, {cell.stage for cell in whole.cells}) == ((), {""})
    assert [stage.name for stage in window.stages] == ["single", "gates", "canary"]

    def gates(plan: Plan, *, in_service: bool) -> list[tuple[str, str, Gate]]:
        cells = [cell for cell in plan.cells if cell.in_service == in_service]
        return sorted((cell.kind, f"{cell.workload}/{cell.case}", gate) for cell in cells for gate in cell.gates)

    assert gates(window, in_service=False) == gates(whole, in_service=False)
    production = {(c.workload, c.case): c.gates for c in whole.cells if c.production_shape and c.kind == "measure"}
    canary = {(c.workload, c.case): c.gates for c in window.cells if c.in_service}
    assert canary == production
    assert all(arm.name in ("baseline", "candidate") for c in window.cells if c.in_service for arm in c.arms)


def test_cells_come_in_the_order_of_their_stages_under_names_of_their_own() -> None:
    plan = in_stages()
    assert [(cell.id, cell.stage) for cell in plan.cells] == [
        ("block/infer@cpu", "single"),
        ("other/infer@cpu", "single"),
        ("gates/block-infer@cpu", "gates"),
        ("gates/other-infer@cpu", "gates"),
        ("rollback/control@cpu", "gates"),
        ("canary/block-infer@cpu", "canary"),
        ("canary/other-infer@cpu", "canary"),
    ]
    assert [cell.gates for cell in plan.cells][2:5] == [(Gate.COMPILE_EXPORT,)] * 2 + [(Gate.ROLLBACK,)]


def test_a_backend_that_the_first_stage_leaves_out_is_measured_whole_by_a_later_one() -> None:
    stages = (STAGES[0].model_copy(update={"backends": ("cpu",)}), *STAGES[1:])
    two = made.cell(capability="distributed.gloo.x2")
    (found,) = (cell for cell in in_stages((BLOCK, two), stages=stages).cells if cell.backend == "distributed")
    assert (found.id, found.stage, found.gates) == (two.id, "gates", two.gates)


def test_without_production_shapes_in_the_suite_the_canary_measures_what_there_is() -> None:
    assert any(cell.in_service for cell in asked(suite="smoke").cells)


def test_the_plan_is_frozen_with_all_of_its_stages() -> None:
    assert asked().plan_digest == asked().plan_digest
    assert asked().plan_digest != asked(stages=False).plan_digest
    assert asked().command[-1] == "--stages"
    assert "serving (canary)" in [tier.name for tier in asked().tiers]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('in_service = ["serving"]', 'in_service = ["servng"]', "stage[canary].in_service: unknown tier 'servng'"),
        ('in_service = ["serving"]', "", "stage[canary].share: a share of what?"),
        ('name = "canary"', 'name = "gates"', "stage: 'gates' is there twice"),
        ('name = "canary"', 'name = "flex_attention"', "stage[flex_attention]: 'flex_attention' names something else"),
        ('name = "canary"', 'name = "Can ary"', "stage[Can ary].name"),
        ("days = 4", 'days = 4\ngates = ["rollback"]', "no stage asks correctness on distributed"),
        ("days = 4", 'days = 4\nkinds = ["measure"]', "no stage asks rollback on mps"),
        ("share = 0.05", "shre = 0.05", "unknown key; allowed are always, backends, days"),
    ],
)
def test_a_mistake_in_a_stage_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert MATRIX.count(old) == 1
    path = tmp_path / "mine.toml"
    path.write_text(MATRIX.replace(old, new))
    with pytest.raises(UsageError) as refused:
        load_matrix(path)
    assert words in str(refused.value)


def test_a_matrix_without_stages_has_no_window_to_take(tmp_path: Path) -> None:
    head, _, rest = MATRIX.partition("[[stage]]")
    path = tmp_path / "mine.toml"
    path.write_text(head + rest[rest.index("[caveats]") :])
    with pytest.raises(UsageError, match="has no stages"):
        asked(load_matrix(path))


def test_the_plan_is_shown_stage_after_stage_with_its_checklist() -> None:
    plan = asked()
    text = describe(plan, (host("cpu"),))
    cells = sum(cell.stage == "single" and cell.kind == "measure" for cell in plan.cells)
    assert "3 stages, 14 days planned" in text
    first, second = text.index("stage 1 of 3, single"), text.index("stage 2 of 3, gates")
    assert "sources: done; baseline 2.12.1+cpu sha256" in text[first:second]
    assert "environment freeze: done; 2.12.1+cpu lock" in text[first:second]
    assert f"baseline capture: not done; 0 of {cells} cells" in text[first:second]
    assert "in service: 5 % of serving" in text[text.index("stage 3 of 3, canary") :]


# -- judged --------------------------------------------------------------------------------------------------------


def test_verdicts_of_one_case_from_two_stages_are_one_row() -> None:
    plan = in_stages()
    found = judge(run_of(plan, answers(plan, ["single", "gates", "canary"])))
    assert decisions(found) == {"serving": Decision.ADOPT, "serving (canary)": Decision.ADOPT}
    assert [(row.workload, row.decision) for row in found.rows if row.tier == "serving"] == [
        ("block", Decision.ADOPT),
        ("other", Decision.ADOPT),
    ]
    assert [said(found, stage.name) for stage in STAGES] == [
        {"serving": "go on"},
        {"serving": "go on"},
        {"serving (canary)": "go on"},
    ]


def test_a_stage_says_nothing_of_a_tier_that_it_asks_nothing_for() -> None:
    research = made.tier("research", required=(Gate.CORRECTNESS, Gate.LATENCY))
    plan = in_stages(tiers=(made.tier(), research))
    found = judge(run_of(plan, answers(plan, ["single", "gates", "canary"])))
    assert said(found, "single") == {"serving": "go on", "research": "go on"}
    assert said(found, "gates") == {"serving": "go on"}


def test_a_gate_that_a_later_stage_asks_is_untested_until_it_has_run_and_never_waived() -> None:
    plan = in_stages()
    found = judge(run_of(plan, answers(plan, ["single"])))
    (row, _) = (row for row in found.rows if row.tier == "serving")
    assert row.decision is Decision.DEFER
    assert row.reason == "untested: not run: stage 2 of 3, gates, has not begun"
    assert row.decided_by is Gate.COMPILE_EXPORT
    assert row.cell_id == "gates/block-infer@cpu"
    assert said(found, "single") == {"serving": "go on"}
    assert said(found, "gates") == {}
    assert [told.over for told in found.stages] == [True, False, False]


def test_a_row_leads_to_the_cell_of_the_stage_that_decided_it() -> None:
    plan = in_stages()
    gone = made.result(by_id(plan, "gates/block-infer@cpu"), {"candidate": made.ended(Outcome.CRASHED)})
    found = judge(run_of(plan, answers(plan, ["single", "gates"], **{"gates_block-infer_cpu": gone})))
    (row,) = (row for row in found.rows if (row.tier, row.workload) == ("serving", "block"))
    assert (row.decision, row.decided_by) == (Decision.ISOLATE, Gate.COMPILE_EXPORT)
    assert row.cell_id == "gates/block-infer@cpu"


def test_what_fails_in_the_canary_rolls_back_in_a_row_of_its_own() -> None:
    plan = in_stages()
    slow = {
        f"canary_{name}-infer_cpu": made.result(by_id(plan, f"canary/{name}-infer@cpu"), times=SLOW)
        for name in ("block", "other")
    }
    found = judge(run_of(plan, answers(plan, ["single", "gates", "canary"], **slow)))
    assert decisions(found) == {"serving": Decision.ADOPT, "serving (canary)": Decision.ROLLBACK}
    assert said(found, "canary") == {"serving (canary)": "go back"}


def test_a_canary_that_answers_nothing_stays_where_it_is() -> None:
    plan = in_stages()
    good = answers(plan, ["single", "gates", "canary"])
    evidence = run_of(plan, good[:-1], still_open=(), unfinished={good[-1].cell_id: "no worker"})
    assert said(judge(evidence), "canary") == {"serving (canary)": "stay"}


def test_what_is_seen_again_in_service_is_no_further_sign_of_asymmetry() -> None:
    cells = [made.cell(case=f"case-{number}") for number in range(5)]
    plan = in_stages(cells)
    slow = {
        cell.id.replace("/", "_").replace("@", "_"): made.result(cell, times=SLOW)
        for cell in plan.cells
        if cell.kind == "measure" and cell.stage != "gates"
    }
    # Ten would be an alarm, and under an alarm nothing is rolled back.
    found = judge(run_of(plan, answers(plan, ["single", "gates", "canary"], **slow)))
    assert found.alarms == ()
    assert decisions(found)["serving (canary)"] is Decision.ROLLBACK


def test_other_limits_judge_the_canary_too() -> None:
    plan = in_stages()
    slow = made.result(by_id(plan, "canary/block-infer@cpu"), times=SLOW)
    evidence = run_of(plan, answers(plan, ["single", "gates", "canary"], **{"canary_block-infer_cpu": slow}))
    wide = made.tier(p50_ratio=1.2, p95_ratio=1.2, throughput_ratio=0.8)
    again = rejudge(evidence, [wide], "34" * 32)
    assert decisions(again.judgement)["serving (canary)"] is Decision.ADOPT
    assert not rejudge(evidence, [made.tier()], "34" * 32).flips


# -- who goes on ---------------------------------------------------------------------------------------------------


def needless(plan: Plan, number: int, results: Sequence[CellResult]) -> dict[str, str]:
    before = evidence_before(run_of(plan, results), number)
    return skipped(plan, judge(before), number)


def slow(plan: Plan, *names: str) -> dict[str, CellResult]:
    return {f"{name}_infer_cpu": made.result(by_id(plan, f"{name}/infer@cpu"), times=SLOW) for name in names}


def test_where_every_tier_has_failed_nothing_of_a_later_stage_is_measured() -> None:
    plan = in_stages()
    results = answers(plan, ["single"], **slow(plan, "block", "other"))
    found = needless(plan, 1, results)
    assert set(found) == {cell.id for cell in plan.cells if cell.stage == "gates"}
    assert all(
        words.startswith("stage 1 of 3, single, ended with serving: block on cpu: fail") for words in found.values()
    )
    assert set(needless(plan, 2, results)) == {cell.id for cell in plan.cells if cell.stage == "canary"}


def test_what_can_be_kept_apart_ends_nothing() -> None:
    plan = in_stages()
    assert needless(plan, 1, answers(plan, ["single"], **slow(plan, "block"))) == {}


def test_a_tier_that_has_not_failed_keeps_the_cells_that_it_requires() -> None:
    patient = made.tier(
        "training", p50_ratio=1.2, p95_ratio=None, throughput_ratio=0.8, required=(*TIMED, Gate.ROLLBACK)
    )
    plan = in_stages(tiers=(made.tier(), patient))
    results = answers(plan, ["single"], **slow(plan, "block", "other"))
    # Training asks for the way back, and serving alone for compile and export.
    assert set(needless(plan, 1, results)) == {"gates/block-infer@cpu", "gates/other-infer@cpu"}
    assert set(needless(plan, 2, results)) == {"canary/block-infer@cpu", "canary/other-infer@cpu"}


def test_doubt_goes_on_and_so_does_a_stage_that_always_runs() -> None:
    plan = in_stages()
    assert needless(plan, 1, answers(plan, ["single"])[:1]) == {}
    always = in_stages(stages=(STAGES[0], STAGES[1].model_copy(update={"always": True}), STAGES[2]))
    assert needless(always, 1, answers(always, ["single"], **slow(always, "block", "other"))) == {}


def test_what_a_later_stage_brought_changes_nothing_of_how_it_began() -> None:
    plan = in_stages()
    early, late = answers(plan, ["single"]), answers(plan, ["single", "gates", "canary"])
    gone = made.result(by_id(plan, "gates/block-infer@cpu"), {"candidate": made.ended()})
    assert needless(plan, 1, early) == needless(plan, 1, [*late[:2], gone, *late[3:]])


def test_a_way_back_that_fails_puts_nobody_in_service() -> None:
    plan = in_stages()
    stuck = made.rehearsed(outcome=Outcome.CRASHED, reason="a wheel is gone")
    results = answers(plan, ["single", "gates"], **{"rollback_control_cpu": stuck})
    assert said(judge(evidence_before(run_of(plan, results), 1)), "single") == {"serving": "go on"}
    assert set(needless(plan, 2, results)) == {"canary/block-infer@cpu", "canary/other-infer@cpu"}


# -- shown ---------------------------------------------------------------------------------------------------------


def test_the_window_stands_where_its_first_open_cell_is() -> None:
    window = window_of(in_stages())
    over = dict.fromkeys(window.numbers, False)
    assert window.standing(over) == Standing(number=1, stages=3, name="single", done=0, total=2, days=14)
    over |= {"block/infer@cpu": True, "other/infer@cpu": True, "gates/block-infer@cpu": True}
    standing = window.standing(over)
    assert standing is not None
    shown = standing_words(standing, "2026-07-01T09:59:00+00:00", datetime(2026, 7, 8, 12, tzinfo=UTC))
    assert shown == "stage 2 of 3, gates: 1 of 3 cells, day 8 of 14"
    assert window_of(made.plan([BLOCK], [made.tier()])).standing({BLOCK.id: False}) is None


@pytest.mark.parametrize("write", [summary, to_markdown, to_html], ids=lambda write: write.__name__)
def test_every_report_shows_each_stage_with_what_it_decided(write: Callable[[Evidence, Judgement], str]) -> None:
    plan = in_stages()
    results = answers(plan, ["single"], **slow(plan, "block", "other"))
    gone = {cell.id: "stage 1 of 3 ended" for cell in plan.cells if cell.stage != "single"}
    evidence = run_of(plan, results, state=RunState.COMPLETE, unfinished={}, still_open=(), skipped=gone)
    text = " ".join(write(evidence, judge(evidence)).replace("**", "").split())
    for words in (
        "stage 1 of 3, single",
        "complete, 2 of 2 cells",
        "sources: done; baseline 2.12.1+cpu sha256",
        "baseline capture: done; 2 of 2 cells hold the baseline",
        "skipped, 0 of 3 cells, 3 skipped",
        "5 % of serving",
        "skipped: canary/block-infer@cpu: stage 1 of 3 ended",
    ):
        assert words in text


def test_a_run_without_stages_is_reported_as_before() -> None:
    evidence = made.run_of(BLOCK)
    assert judge(evidence).stages == ()
    assert "stage" not in summary(evidence, judge(evidence)).lower()
