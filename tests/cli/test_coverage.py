"""Coverage is honest: every cell is counted in one place, and what differs has words of its own in every report."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.report import render
from farm.export.table import to_csv
from farm.judge import judge
from farm.model import (
    ArmResult,
    Cell,
    CellResult,
    Coverage,
    Evidence,
    Judgement,
    Outcome,
    Side,
    Validity,
)
from farm.report.table import summary
from tests.evidence import HOST, aa_cell, cell, ended, evidence, result, run_of, tier

ASLEEP = Validity(valid=False, reasons=("machine suspended",))
FORMATS = ("table", "markdown", "html", "json")


def coverage(*pairs: tuple[Cell, CellResult | None], **more: Any) -> Coverage:
    return judge(evidence(pairs, tier(), **more)).coverage


def answered(workload: str, **arms: ArmResult) -> tuple[Cell, CellResult]:
    of = cell(workload)
    return of, result(of, arms)


def counts(found: Coverage) -> dict[str, int]:
    said = found.model_dump(exclude={"head", "cells", "outcomes", "untested_backends"})
    return {name: count for name, count in said.items() if count}


# -- the head ------------------------------------------------------------------------------------------------------


def test_every_report_begins_with_how_much_was_compared() -> None:
    pairs = [answered(f"good{n}") for n in range(37)]
    pairs += [answered(f"lost{n}", candidate=ended(Outcome.UNSUPPORTED)) for n in range(6)]
    pairs += [answered(f"gone{n}", candidate=ended(Outcome.CRASHED)) for n in range(3)]
    pairs += [(of, result(of, validity=ASLEEP)) for of in (cell(f"slept{n}") for n in range(6))]
    found = evidence(pairs, tier())
    judged = judge(found)
    head = "37 of 52 comparable, 9 missing on the candidate, 6 invalid"
    for kind in FORMATS:
        text = render(found, judged, kind)
        assert head in text
        decision = text.index('"rows"' if kind == "json" else "every required gate passes")
        assert text.index(head) < decision
        if kind != "json":
            assert "issing on the candidate: 3 crashed, 6 unsupported" in text
    assert judged.coverage.outcomes == {"candidate": {"crashed": 3, "unsupported": 6}}


def test_a_run_of_nothing_says_so() -> None:
    assert judge(run_of()).coverage.head == "0 of 0 comparable"
    assert coverage((cell(), None)).head == "0 of 1 comparable, 1 not run"


# -- where a cell is counted ---------------------------------------------------------------------------------------


def test_each_kind_of_cell_is_counted_where_it_belongs() -> None:
    skipped, nothing, silent, slept = cell("skipped"), cell("nothing"), cell("silent"), cell("slept")
    broken = cell("broken", broken_control="build variants differ: cpu and cu130")
    quiet = result(silent)
    found = evidence(
        [
            answered("good"),
            answered("lost", candidate=ended(Outcome.UNSUPPORTED)),
            answered("fixed", baseline=ended(Outcome.CRASHED)),
            answered("neither", baseline=ended(Outcome.FAILED), candidate=ended(Outcome.TIMED_OUT)),
            (silent, quiet.model_copy(update={"arms": {"baseline": quiet.arms["baseline"]}})),
            # A machine that slept says nothing of a release, also where an arm did not come back from it.
            (slept, result(slept, {"candidate": ended(Outcome.TIMED_OUT)}, validity=ASLEEP)),
            (broken, result(broken)),
            (skipped, None),
            (nothing, None),
            (aa_cell(cell("good")), None),
        ]
    ).model_copy(update={"skipped": {skipped.id: "stage 1 of 3 ended"}, "unfinished": {nothing.id: "no worker"}})
    said = judge(found).coverage
    assert said.head == (
        "1 of 9 comparable, 2 missing on the candidate, 1 missing on the baseline, 1 missing on both, 2 invalid, "
        "1 skipped, 1 not run"
    )
    assert said.outcomes == {
        "baseline": {"crashed": 1},
        "both": {"timed out": 1},
        "candidate": {"not answered": 1, "unsupported": 1},
    }
    assert sum(counts(said).values()) == said.cells == 9


def test_arms_that_were_measured_apart_are_not_compared() -> None:
    of = cell()
    whole = result(of)
    elsewhere = HOST.model_copy(update={"name": "bench-2", "cpu": "another"})
    one = whole.model_copy(update={"arms": {"baseline": whole.arms["baseline"]}})
    other = whole.model_copy(update={"arms": {"candidate": whole.arms["candidate"]}, "host": elsewhere})
    found = evidence([(of, one)], tier())
    both = found.model_copy(update={"results": (*found.results, other)})
    assert counts(judge(both).coverage) == {"invalid": 1}


OUTCOMES = st.sampled_from([None, *Outcome])


@settings(max_examples=100)
@given(st.lists(st.tuples(OUTCOMES, OUTCOMES, st.booleans(), st.booleans()), max_size=6))
def test_every_cell_is_counted_once(cells: list[tuple[Outcome | None, Outcome | None, bool, bool]]) -> None:
    pairs = []
    for number, (old, new, valid, ran) in enumerate(cells):
        of = cell(f"w{number}")
        whole = result(of, validity=Validity(valid=True) if valid else ASLEEP)
        arms: Mapping[str, Outcome | None] = {Side.BASELINE.value: old, Side.CANDIDATE.value: new}
        said = {
            name: whole.arms[name] if outcome is Outcome.OK else ended(outcome)
            for name, outcome in arms.items()
            if outcome is not None
        }
        pairs.append((of, whole.model_copy(update={"arms": said}) if ran else None))
    found = coverage(*pairs)
    assert sum(counts(found).values()) == found.cells == len(cells)
    assert [int(n) for n in re.findall(r"\d+", found.head)] == [
        found.comparable,
        found.cells,
        *(n for name, n in counts(found).items() if name != "comparable"),
    ]


# -- words ---------------------------------------------------------------------------------------------------------

#: Workload by what became of its cell, and the word that every format must use for it.
WORDS = {
    "raised": "failed",
    "missing": "unsupported",
    "later": "skipped",
    "nobody": "not run",
    "asleep": "invalid",
    "zero": "sensor implausible",
}


@pytest.fixture(scope="module")
def mixed() -> tuple[Evidence, Judgement]:
    zero = cell("zero")
    still = result(zero, times={"candidate": 0.0})
    asleep = cell("asleep")
    found = evidence(
        [
            answered("raised", candidate=ended(Outcome.FAILED, "ValueError: no")),
            answered("missing", candidate=ended(Outcome.UNSUPPORTED, "no kernel")),
            (cell("later"), None),
            (cell("nobody"), None),
            (asleep, result(asleep, validity=ASLEEP)),
            (zero, still),
        ],
        tier(backends=("cpu", "cuda", "rocm")),
        unserved_backends={"cuda": "not requested", "rocm": "no worker"},
    )
    found = found.model_copy(
        update={
            "skipped": {cell("later").id: "stage 1 of 2, single, ended with serving"},
            "unfinished": {cell("nobody").id: "lost three times"},
        }
    )
    return found, judge(found)


def of_markdown(found: Evidence, judged: Judgement) -> dict[str, str]:
    text = render(found, judged, "markdown")
    return {workload: text.split(f"## Cell {workload}/")[1].split("\n## ")[0] for workload in WORDS}


def of_html(found: Evidence, judged: Judgement) -> dict[str, str]:
    text = render(found, judged, "html")
    return {workload: text.split(f">Cell {workload}/")[1].split("<h2")[0] for workload in WORDS}


def of_rows(found: Evidence, judged: Judgement) -> dict[str, str]:
    return {row["workload"]: row["reason"] for row in json.loads(render(found, judged, "json"))["rows"]}


def of_csv(found: Evidence, judged: Judgement) -> dict[str, str]:
    said: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO(to_csv(found))):
        if row["arm"] == "candidate" and row["metric"].startswith("step_"):
            said[row["workload"]] = f"{row['value']} {row['outcome']} {row['validity']}"
    return said


@pytest.mark.parametrize("read", [of_markdown, of_html, of_rows, of_csv], ids=lambda read: read.__name__)
def test_what_differs_has_a_word_of_its_own_in_every_format(
    mixed: tuple[Evidence, Judgement], read: Callable[[Evidence, Judgement], dict[str, str]]
) -> None:
    said = read(*mixed)
    for workload, word in WORDS.items():
        assert word in said[workload], said[workload]
    for workload in ("raised", "missing", "later", "nobody"):
        others = {word for other, word in WORDS.items() if other != workload} - {"sensor implausible"}
        assert not [word for word in others if re.search(rf"\b{word}\b", said[workload])], (workload, said[workload])


def test_a_table_says_the_same_words(mixed: tuple[Evidence, Judgement]) -> None:
    lines = summary(*mixed, width=None).splitlines()
    for workload, word in WORDS.items():
        (row,) = [line for line in lines if re.match(rf"{workload}\s+cpu", line)]
        assert word in row
    assert "skipped: later/infer@cpu: stage 1 of 2, single, ended with serving" in lines
    assert "not run: nobody/infer@cpu: lost three times" in lines
    assert "untested backends: cuda (not requested), rocm (no worker)" in lines


def test_what_has_no_number_is_no_zero(mixed: tuple[Evidence, Judgement]) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(mixed[0]))))
    steps = [row for row in rows if row["arm"] == "candidate" and row["metric"].startswith("step_")]
    assert {row["workload"] for row in steps} == set(WORDS)
    assert {row["value"] for row in steps} == {""}
    # Nought that was counted is a number.
    assert {row["value"] for row in rows if row["metric"] == "graph_breaks"} == {"0"}


def test_what_was_not_requested_is_no_number_and_no_failure(mixed: tuple[Evidence, Judgement]) -> None:
    _, judged = mixed
    rows = {row.backend: row for row in judged.rows if row.workload == "(all)"}
    assert {backend: row.reason for backend, row in rows.items()} == {
        "cuda": "untested: not requested",
        "rocm": "untested: no worker",
    }
    assert all(row.figure is None and row.decided_by is None for row in rows.values())


# -- no number over unequal sets -----------------------------------------------------------------------------------


def test_all_that_is_said_of_a_whole_run_are_counts_and_words(mixed: tuple[Evidence, Judgement]) -> None:
    found, judged = mixed
    whole = json.loads(judged.model_dump_json(exclude={"cells", "rows"}))

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [n for item in value.values() for n in numbers(item)]
        if isinstance(value, list):
            return [n for item in value for n in numbers(item)]
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []

    assert all(isinstance(number, int) for number in numbers(whole))
    for kind in ("table", "markdown", "html"):
        text = re.sub(r"<[^>]*>", " ", render(found, judged, kind)).lower()
        assert not re.search(r"\b(geomean|geometric mean|on average|overall|mean speed)", text)
