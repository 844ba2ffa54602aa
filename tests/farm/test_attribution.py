"""If all cells of a machine moved together it is the machine; if one cell moved on all machines it is torch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.attribution import Moved, attribute, suspects
from farm.judge import judge
from farm.model import Decision, Gate
from farm.report.html import to_html
from farm.report.markdown import to_markdown
from farm.report.table import summary
from farm.statistics import Interval
from tests.evidence import HOST, cell, evidence, result, tier


def moved(
    machine: str,
    case: str,
    change: float,
    *,
    half: float = 0.005,
    capability: str = "cpu",
    processor: str = "EPYC 9554",
) -> Moved:
    """``change`` is the share by which the candidate is slower, ``half`` of it the interval's on each side."""
    interval = Interval(1 + change, 1 + change - half, 1 + change + half, 12)
    return Moved(machine, processor, "block", case, capability, interval)


def cells(machine: str, count: int, change: float, first: int = 0, **more: str) -> list[Moved]:
    return [moved(machine, f"case-{number}", change, **more) for number in range(first, first + count)]


# -- the machine ---------------------------------------------------------------------------------------------------


def test_all_cells_of_one_machine_moved_and_none_of_the_others() -> None:
    assert suspects([*cells("bench-1", 5, 0.08), *cells("bench-2", 5, 0.0, 5)]) == [
        "machine bench-1: all 5 of its cells are slower, and none of 5 on others of its class; it is the machine, "
        "no rollback is decided from it"
    ]
    faster = suspects([*cells("bench-1", 6, -0.08), *cells("bench-2", 6, 0.0, 6)])
    assert faster[0].startswith("machine bench-1: all 6 of its cells are faster")


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        (cells("a", 3, 0.08), cells("b", 3, 0.0), "chance alone does so once in 20"),
        ([*cells("a", 5, 0.08), moved("a", "one", 0.0)], cells("b", 6, 0.0), "one of its cells stood still"),
        ([*cells("a", 5, 0.08), moved("a", "one", -0.08)], cells("b", 6, 0.0), "one moved the other way"),
        (cells("a", 6, 0.08), cells("b", 6, 0.08), "the others moved as well"),
        (cells("a", 6, 0.08), [], "there is no other machine"),
        (cells("a", 6, 0.08), cells("b", 6, 0.0, capability="cuda.sm90"), "another capability is another question"),
        (cells("a", 6, 0.08), cells("b", 6, 0.0, processor="Xeon"), "another processor is another class"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_less_than_that_names_no_machine(mine: list[Moved], others: list[Moved], why: str) -> None:
    assert suspects([*mine, *others]) == []


def test_an_interval_that_holds_both_answers_is_no_witness() -> None:
    wide = [moved("bench-2", f"case-{n}", 0.04, half=0.06) for n in range(8)]
    assert suspects([*cells("bench-1", 8, 0.08), *wide]) == []


def test_a_case_that_is_measured_again_on_a_machine_is_no_further_witness() -> None:
    twice = [*cells("a", 3, 0.08), *cells("a", 3, 0.08)]
    assert suspects([*twice, *cells("b", 6, 0.0)]) == suspects([*cells("a", 3, 0.08), *cells("b", 6, 0.0)])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from([-0.08, 0.0, 0.08])), max_size=24))
def test_a_machine_that_is_named_has_no_cell_that_stood_still(drawn: list[tuple[str, int, float]]) -> None:
    given_ = [moved(machine, f"case-{number}", change) for machine, number, change in drawn]
    first: dict[tuple[str, str], float] = {}
    for one in given_:
        first.setdefault((one.machine, one.case), one.interval.value)
    for line in suspects(given_):
        machine = line.removeprefix("machine ").partition(":")[0]
        changes = {round(value, 2) for (where, _), value in first.items() if where == machine}
        assert changes in ({1.08}, {0.92})


# -- one case ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ones", "said"),
    [
        (
            [moved("a", "x", 0.08), moved("b", "x", 0.07)],
            "block/x is slower on all 2 machines that measured it: torch "
            "(a +8.0 % [+7.5 %, +8.5 %], b +7.0 % [+6.5 %, +7.5 %])",
        ),
        (
            [moved("a", "x", -0.08), moved("b", "x", -0.07, capability="cuda.sm90")],
            "block/x is faster on all 2 machines that measured it: torch",
        ),
        (
            [moved("a", "x", 0.08), moved("b", "x", 0.0)],
            "block/x moved on one machine and not on another of its class: the machine",
        ),
        (
            [moved("a", "x", 0.08), moved("b", "x", -0.08)],
            "block/x moved on one machine and not on another of its class: the machine",
        ),
        (
            [moved("a", "x", 0.08), moved("b", "x", 0.0, capability="cuda.sm90")],
            "block/x moved on one class of machine and not on another: torch there",
        ),
        (
            [moved("a", "x", 0.08), moved("b", "x", 0.04, half=0.06)],
            "block/x moved on one machine, and of another it cannot be told",
        ),
    ],
)
def test_whose_change_it_is_follows_from_where_else_it_was_seen(ones: list[Moved], said: str) -> None:
    (line,) = attribute(ones)
    assert line.startswith(said)


def test_what_stood_still_or_was_measured_on_one_machine_is_attributed_to_nobody() -> None:
    assert attribute([moved("a", "x", 0.0), moved("b", "x", 0.0)]) == []
    assert attribute([moved("a", "x", 0.08), moved("a", "y", 0.08)]) == []
    # One machine with two capabilities is one machine.
    assert attribute([moved("a", "x", 0.08), moved("a", "x", 0.08, capability="cuda.sm90")]) == []


# -- in a judgement ------------------------------------------------------------------------------------------------


def run(changes: Mapping[str, tuple[str, float]], **more: object):
    """Return a run whose cells were measured on a machine each, with a step time in ms of the candidate."""
    pairs = []
    for workload, (machine, step) in changes.items():
        of = cell(workload)
        host = HOST.model_copy(update={"name": machine})
        pairs.append((of, result(of, times={"candidate": step}, host=host)))
    return evidence(pairs, tier(required=(Gate.CORRECTNESS, Gate.LATENCY), **more))


def test_a_machine_that_moved_as_a_whole_rolls_nothing_back() -> None:
    slow = {f"w{n}": ("bench-1", 12.0) for n in range(5)} | {f"v{n}": ("bench-2", 10.0) for n in range(5)}
    judged = judge(run(slow, in_service=True))
    assert any(alarm.startswith("machine bench-1: all 5 of its cells are slower") for alarm in judged.alarms)
    assert {row.decision for row in judged.rows if row.workload.startswith("w")} == {Decision.DEFER}
    # The same changes, spread over both machines, are the release's.
    spread = {name: (f"bench-{1 + n % 2}", step) for n, (name, (_, step)) in enumerate(slow.items())}
    assert {row.decision for row in judge(run(spread, in_service=True)).rows if row.workload.startswith("w")} == {
        Decision.ROLLBACK
    }


def test_every_report_says_whose_change_it_is() -> None:
    one, other = cell(), cell(capability="cuda.sm90")
    far = HOST.model_copy(update={"name": "bench-2"})
    found = evidence(
        [(one, result(one, times={"candidate": 12.0})), (other, result(other, times={"candidate": 12.0}, host=far))],
        tier(backends=("cpu", "cuda")),
    )
    judged = judge(found)
    line = "attributed: block/infer is slower on all 2 machines that measured it: torch"
    for text in (summary(found, judged, width=None), to_markdown(found, judged), to_html(found, judged)):
        assert line in text
    assert len(judged.attributed) == 1
