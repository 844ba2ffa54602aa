"""Evidence that a person wrote: what is left out claims nothing, and a mistake is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farm.errors import UsageError
from farm.judge import judge
from farm.model import Decision, Evidence, Gate, Status
from farm.reading import read_evidence
from tests.evidence import cell, run_of

EXAMPLE = Path(__file__).parent.parent.parent / "docs/examples/evidence-by-hand.json"


def example(**plan: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLE.read_text())
    document["plan"] |= plan
    return document


def read(document: Any) -> Evidence:
    return read_evidence(json.dumps(document), "mine.json")


def refused(document: Any) -> str:
    with pytest.raises(UsageError) as found:
        read(document)
    return str(found.value)


def test_a_runs_own_evidence_is_read_as_it_is() -> None:
    run = run_of(cell())
    assert read_evidence(run.model_dump_json(), "mine.json") == run


def test_the_documented_example_is_judged() -> None:
    judgement = judge(read(example()))
    decisions = {(row.workload, row.tier): row.decision for row in judgement.rows if row.backend == "cuda"}
    assert decisions[("ranker", "latency only")] is Decision.ADOPT
    assert decisions[("embedder", "latency only")] is Decision.ISOLATE
    # What nobody measured is no pass: serving asks for more than a latency.
    assert decisions[("ranker", "serving")] is Decision.DEFER
    (latency,) = [
        verdict
        for found in judgement.cells
        for verdict in found.verdicts
        if (found.workload, found.tier, verdict.gate) == ("ranker", "latency only", Gate.LATENCY)
    ]
    assert latency.status is Status.PASS
    assert latency.figure is not None
    assert latency.figure.value == pytest.approx(1.0085, abs=5e-4)


def test_gates_without_evidence_are_untested_and_none_passes() -> None:
    document = example()
    for planned in document["plan"]["cells"]:
        del planned["gates"]
    judgement = judge(read(document))
    for found in judgement.cells:
        for verdict in found.verdicts:
            if verdict.gate is not Gate.LATENCY and verdict.gate is not Gate.THROUGHPUT:
                assert verdict.status is not Status.PASS


def test_one_version_in_both_arms_is_an_a_a_run_and_adopts_nothing() -> None:
    run = read(example(releases={"baseline": "2.13.0", "candidate": "2.13.0"}))
    assert run.plan.aa
    assert {row.decision for row in judge(run).rows} == {Decision.DEFER}


def test_builds_of_two_variants_are_a_broken_control() -> None:
    run = read(example(releases={"baseline": "2.12.1+cu130", "candidate": "2.13.0+cpu"}))
    rows = [row for row in judge(run).rows if row.workload == "ranker"]
    assert all("control broken: build variants differ: cpu and cu130" in row.reason for row in rows)
    assert {row.decision for row in rows} == {Decision.DEFER}


def test_an_invalid_result_may_be_said_in_a_word() -> None:
    document = example()
    document["results"][0]["validity"] = "throttled"
    (row,) = [r for r in judge(read(document)).rows if (r.workload, r.tier) == ("ranker", "latency only")]
    assert "invalid: throttled" in row.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema_version=2), "version 2 of the format, and this farm reads version 1"),
        (lambda d: d.pop("plan"), "plan: an object {...} belongs here"),
        (lambda d: d["plan"]["cells"][1].pop("case"), "plan.cells[1].case: a text is missing"),
        (lambda d: d["plan"]["cells"][0].update(gates=["speed"]), 'plan.cells[0].gates[0]: "speed": input should be'),
        (lambda d: d["plan"]["cells"][0].update(colour="red"), "plan.cells[0].colour: no such key"),
        (lambda d: d["plan"].update(tiers=["gold"]), "plan.tiers[0]: no tier 'gold' ships; there are research"),
        (lambda d: d["plan"]["tiers"][1].pop("p50_ratio"), "plan.tiers[1].p50_ratio: this is missing"),
        (lambda d: d["plan"].update(releases={"baseline": "new", "candidate": "2.13"}), '"new" is no version'),
        (lambda d: d["plan"].update(releases={"baseline": "2.12"}), "baseline and candidate belong here"),
        (lambda d: d["results"][0].update(cell_id="x"), 'results[0].cell_id: no cell "x" is planned; there are ranker'),
        (
            lambda d: d["results"][0]["restarts_ms"][2].update(candidate=["fast"]),
            "results[0].restarts_ms[2].candidate: step times in milliseconds belong here",
        ),
        (
            lambda d: d["results"][0]["restarts_ms"][2].update(candidat=[1.0]),
            "results[0].restarts_ms[2].candidat: ranker/infer-batch-32@cuda.sm90 has no such arm; it has",
        ),
        (lambda d: d["results"].append(d["results"][0]), "results[2]: a second answer for the baseline of ranker"),
        (lambda d: d["plan"]["cells"].append(d["plan"]["cells"][0]), "is planned twice"),
        (lambda d: d["plan"].update(schema_version=3), "plan.schema_version: it is written in version 3"),
        (
            lambda d: d["results"][1].update(schema_version="1"),
            'results[1].schema_version: it is written in version "1"',
        ),
        (lambda d: d["results"][0].update(run_id="x"), 'results[0].run_id: "x" is another run than "ranker-by-hand"'),
        (lambda d: d["plan"]["tiers"][1].update(p50_ratio=0), "plan.tiers[1].p50_ratio: 0.0 is no limit"),
        (lambda d: d["plan"]["cells"][0].update(colour="red"), "there are arms, backend, broken_control, capability"),
        (lambda d: d["results"][1]["arms"].update(candidate="died"), 'results[1].arms.candidate.outcome: "died"'),
    ],
)
def test_a_mistake_is_named_with_its_place(change: Any, said: str) -> None:
    document = example()
    change(document)
    message = refused(document)
    assert message.startswith("evidence 'mine.json'")
    assert said in message


def test_an_arm_without_times_beside_one_that_has_them_was_not_answered_for() -> None:
    document = example()
    for steps in document["results"][0]["restarts_ms"]:
        del steps["candidate"]
    run = read(document)
    assert set(run.results[0].arms) == {"baseline"}
    for found in judge(run).cells:
        assert Status.PASS not in {verdict.status for verdict in found.verdicts if found.workload == "ranker"}


def test_what_a_hand_does_not_record_is_not_said_to_be_alike() -> None:
    run = run_of(cell())
    plain = json.loads(run.model_dump_json())
    for ended in plain["results"][0]["arms"].values():
        for output in ended["examination"]["outputs"].values():
            output.update(sha256="", against_reference=None)
    for restart in plain["results"][0]["restarts"]:
        for life in restart["arms"].values():
            life["output_digest"] = ""
    reasons = {v.gate: v.reason for v in judge(read(plain)).cells[0].verdicts}
    assert reasons[Gate.CORRECTNESS] == "within tolerance; whether it is bitwise the same was not recorded"
    assert reasons[Gate.DETERMINISM] == "bitwise repeatable at 2 threads"


def test_what_is_no_text_or_too_deep_is_said() -> None:
    for given, said in ((b"\xff\xfe{", "no text in UTF-8"), (b"[" * 100_000, "nested deeper than any evidence")):
        with pytest.raises(UsageError, match=said):
            read_evidence(given, "mine.json")
    assert read_evidence(b"\xef\xbb\xbf" + EXAMPLE.read_bytes(), "mine.json").run_id == "ranker-by-hand"


def test_what_is_no_json_is_named_by_its_line() -> None:
    with pytest.raises(UsageError, match=r"evidence 'mine.json', line 2: this is no JSON"):
        read_evidence('{\n"plan": ,}', "mine.json")
    assert "an object with plan and results belongs here" in refused([])
