"""What a release says of itself is reproduced, not reproduced, contradicted or untested; never more than was seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.errors import UsageError
from farm.judge import judge
from farm.matrix import load_matrix
from farm.model import ArmResult, Cell, CellResult, Claim, ClaimAnswer, Evidence, Outcome, RunState, Validity
from farm.rejudging import rejudge
from farm.report.html import to_html
from farm.report.markdown import to_markdown
from farm.report.table import summary
from tests import evidence as made

CELL = made.cell("attention", "window", features=("flex",))
OTHER = made.cell("attention", "causal", features=("flex",))


def claim(**more: Any) -> Claim:
    fields: dict[str, Any] = {
        "name": "sparse",
        "sentence": "up to 12 times as fast",
        "source": "release blog",
        "workload": "attention",
        "path": "flex",
        "at_most": 1 / 12,
    }
    return Claim(**fields | more)


def run(claims: tuple[Claim, ...], *results: CellResult, cells: tuple[Cell, ...] = (CELL,)) -> Evidence:
    plan = made.plan(cells, (made.tier(),), claims=claims)
    return Evidence(run_id=made.RUN, state=RunState.COMPLETE, plan=plan, results=results)


def answer(asked: Claim, *results: CellResult, cells: tuple[Cell, ...] = (CELL,)) -> ClaimAnswer:
    (found,) = judge(run((asked,), *results, cells=cells)).claims
    return found


def timed(ms: float, cell: Cell = CELL, **more: Any) -> CellResult:
    """Return a result whose old path takes 120 ms and its new one ``ms``."""
    return made.result(cell, times={"baseline": 120.0, "candidate": 120.0, "candidate+flex": ms}, **more)


@pytest.mark.parametrize(
    ("ms", "result"),
    [
        (9.5, "reproduced"),
        (10.5, "not reproduced"),
        (60.0, "not reproduced"),
        (110.0, "contradicted"),
        (130.0, "contradicted"),
    ],
)
def test_a_gain_is_held_against_what_was_said_of_it(ms: float, result: str) -> None:
    found = answer(claim(), timed(ms))
    assert found.result == result
    assert "claimed 12 times less" in found.reason


def test_up_to_is_shown_by_one_case_and_always_is_refuted_by_one() -> None:
    results = (timed(9.5), timed(130.0, OTHER))
    assert answer(claim(up_to=True), *results, cells=(CELL, OTHER)).result == "reproduced"
    always = answer(claim(up_to=False), *results, cells=(CELL, OTHER))
    assert always.result == "contradicted"
    assert always.reason.endswith("(1 of 2 cells that tell)")
    assert [seen.result for seen in always.cells] == ["reproduced", "contradicted"]


@pytest.mark.parametrize(("ms", "result"), [(120.5, "reproduced"), (140.0, "contradicted")])
def test_a_promise_of_no_cost_is_kept_or_contradicted(ms: float, result: str) -> None:
    assert answer(claim(at_most=1.01), timed(ms)).result == result


@pytest.mark.parametrize(
    ("step", "result"), [(2**24, "contradicted"), (2**23, "not reproduced"), (2**22, "reproduced"), (None, "untested")]
)
def test_memory_is_exact_and_needs_no_interval(step: int | None, result: str) -> None:
    saved = made.ok(memory=made.memory(step=step))
    asked = claim(quantity="peak_memory", at_most=0.25)
    found = answer(asked, made.result(CELL, arms={"candidate+flex": saved}))
    assert found.result == result
    # Times that are invalid say nothing of memory.
    invalid = made.result(
        CELL, arms={"candidate+flex": saved}, validity=Validity(valid=False, reasons=("device shared",))
    )
    assert answer(asked, invalid).result == result


def test_first_calls_are_compared_with_first_calls() -> None:
    quick = made.ok(programs=made.program(cold_ns=4 * 10**9))
    found = answer(claim(quantity="cold_compile", at_most=0.6), made.result(CELL, arms={"candidate+flex": quick}))
    assert (found.result, found.reason) == ("reproduced", "2 times less; claimed 1.67 times less (4.0 s against 8.0 s)")


@pytest.mark.parametrize(
    ("facts", "result", "reason"),
    [
        ({"3-D input": "accepted"}, "reproduced", "3-D input: accepted"),
        ({"3-D input": "RuntimeError"}, "contradicted", "3-D input: RuntimeError"),
        ({}, "untested", "the workload does not tell '3-D input'"),
    ],
)
def test_a_fact_is_as_was_said_or_not(facts: dict[str, str], result: str, reason: str) -> None:
    asked = claim(at_most=None, fact="3-D input", equals="accepted")
    found = answer(asked, made.result(CELL, arms={"candidate+flex": made.ok(facts=facts)}))
    assert (found.result, found.reason) == (result, reason)


def test_yes_is_not_one() -> None:
    asked = claim(at_most=None, fact="on", equals=True)
    found = answer(asked, made.result(CELL, arms={"candidate+flex": made.ok(facts={"on": 1.0})}))
    assert found.result == "contradicted"


@pytest.mark.parametrize(
    ("asked", "results", "reason"),
    [
        (claim(backends=("mps",)), (timed(9.5),), "this run has no cell attention/* on mps"),
        (claim(case="other"), (timed(9.5),), "this run has no cell attention/other on any backend"),
        (claim(path="third"), (timed(9.5),), "path third is not asked about in this run"),
        (claim(), (), "not run"),
        (
            claim(),
            (made.result(CELL, arms={"candidate+flex": ArmResult(outcome=Outcome.UNSUPPORTED, reason="no kernel")}),),
            "candidate+flex unsupported: no kernel",
        ),
        (
            claim(),
            (timed(9.5, validity=Validity(valid=False, reasons=("device shared",))),),
            "times invalid: device shared",
        ),
        (claim(), (timed(9.5, restarts=made.restarts({"candidate": 1.0}, 2)),), "no interval: too few restarts"),
    ],
)
def test_what_nothing_shows_is_untested_with_the_reason(
    asked: Claim, results: tuple[CellResult, ...], reason: str
) -> None:
    found = answer(asked, *results)
    assert (found.result, found.reason) == ("untested", reason)


def test_claims_of_the_version_hold_the_candidate_against_the_baseline() -> None:
    faster = made.result(CELL, times={"baseline": 120.0, "candidate": 60.0, "candidate+flex": 120.0})
    assert answer(claim(path="", at_most=0.55), faster).result == "reproduced"


def test_a_claim_decides_nothing() -> None:
    found = timed(130.0)
    assert judge(run((claim(),), found)).tiers == judge(run((), found)).tiers


def test_every_report_shows_the_sentence_its_answer_and_why() -> None:
    evidence = run((claim(), claim(name="mps", backends=("mps",))), timed(9.5))
    judgement = judge(evidence)
    for text in (to_markdown(evidence, judgement), to_html(evidence, judgement)):
        assert "up to 12 times as fast" in text
        assert "reproduced" in text
        assert "this run has no cell" in text
    told = summary(evidence, judgement, width=None)
    assert "claim reproduced: up to 12 times as fast: 12.6 times less" in told
    assert "claim untested: 1 claim of the release" in told


def test_claims_of_another_matrix_are_held_against_the_same_evidence() -> None:
    evidence = run((), timed(9.5))
    again = rejudge(evidence, evidence.plan.tiers, "other", claims=(claim(),))
    assert [one.result for one in again.judgement.claims] == ["reproduced"]


# -- in the matrix -------------------------------------------------------------------------------------------------

SHIPPED = (Path(__file__).parents[2] / "farm" / "default_matrix.toml").read_text()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('workload = "flex_attention"', "a claim is tested by at_most"),
        ('workload = "flex_attention"\nat_most = 0.5\nfact = "a"\nequals = 1', "and not by both"),
        ('workload = "flex_attention"\nfact = "a"', "a claim is tested by at_most"),
        ('workload = "nobody"\nat_most = 0.5', "no workload 'nobody' in this matrix"),
        ('workload = "flex_attention"\ncase = "nosuch*"\nat_most = 0.5', "'nosuch*' is no case of flex_attention"),
        ('workload = "flex_attention"\npath = "third"\nat_most = 0.5', "'third' is no feature of flex_attention"),
        ('workload = "flex_attention"\nat_most = -1.0', "at_most"),
        ('workload = "flex_attention"\nat_most = 0.5\nwho = "x"', "allowed are at_most, backends, case"),
    ],
)
def test_a_claim_that_no_cell_could_show_is_refused(tmp_path: Path, lines: str, told: str) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(f'{SHIPPED}\n[[claim]]\nname = "one"\nsentence = "s"\nsource = "t"\n{lines}\n')
    with pytest.raises(UsageError) as refused:
        load_matrix(path)
    assert told in str(refused.value)
