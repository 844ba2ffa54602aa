"""What one step did stands side by side, whatever an arm told."""

from __future__ import annotations

from farm.judge import judge
from farm.model import Evidence, Memory, Operator
from farm.report.html import to_html
from farm.report.traces import SHOWN, OperatorsView, operators_view, trace_words
from tests import evidence as made

MS = 1_000_000
SDPA = Operator(name="aten::_scaled_dot_product_flash_attention_for_cpu", calls=1, self_ns=908_815)
FLEX = Operator(name="cpp_fused_flex_attention_0", calls=1, self_ns=1_279_090)
COPY = Operator(name="aten::copy_", calls=4, self_ns=60_882)
KERNEL = Operator(name="flash_fwd_kernel<64, 128>", calls=2, self_ns=0, device_ns=912_500)


def run(*, operators: dict[str, tuple[Operator, ...]]) -> Evidence:
    of = made.cell()
    memory = Memory(
        allocator_peak_bytes=2**21,
        reserved_peak_bytes=2**27,
        process_peak_bytes=(2**28,),
        outside_bytes=432 * 2**20,
        allocations=16,
        allocated_bytes=2_380_032,
    )
    arms = {
        name: made.ok(memory=memory, faults_per_step=12.8, trace=made.trace(*told)) for name, told in operators.items()
    }
    return made.evidence([(of, made.result(of, arms))])


def view(**operators: tuple[Operator, ...]) -> OperatorsView | None:
    evidence = run(operators=operators)
    return operators_view(evidence.plan.cells[0], evidence.results[0])


def test_the_operators_of_all_arms_stand_in_one_order_and_a_dash_is_for_what_an_arm_does_not_tell() -> None:
    assert view(baseline=(SDPA, COPY), candidate=(FLEX, COPY, KERNEL)) == OperatorsView(
        arms=("baseline", "candidate"),
        rows=(
            ("cpp_fused_flex_attention_0", ("–", "1.3 ms (1 call)")),
            ("flash_fwd_kernel<64, 128>", ("–", "0.9 ms on the device (2 calls)")),
            ("aten::_scaled_dot_product_flash_attention_for_cpu", ("0.9 ms (1 call)", "–")),
            ("aten::copy_", ("60.9 µs (4 calls)", "60.9 µs (4 calls)")),
        ),
    )


def test_only_the_longest_are_shown() -> None:
    told = tuple(Operator(name=f"aten::op{index}", calls=1, self_ns=index * MS) for index in range(20, 0, -1))
    found = view(baseline=told, candidate=told)
    assert found is not None
    assert [name for name, _ in found.rows] == [f"aten::op{index}" for index in range(20, 20 - SHOWN, -1)]


def test_a_cell_without_traces_shows_none() -> None:
    evidence = made.run_of(made.cell())
    assert operators_view(evidence.plan.cells[0], evidence.results[0]) is None
    assert "arms side by side" not in to_html(evidence, judge(evidence))


def test_a_trace_says_where_it_is() -> None:
    assert trace_words(made.trace()).endswith("farm report --traces writes it")
    assert trace_words(made.trace(travels=False)).endswith("too large to travel, kept on its worker")


def test_the_page_shows_allocations_faults_memory_outside_and_the_operators_escaped() -> None:
    evidence = run(operators={"baseline": (SDPA,), "candidate": (KERNEL,)})
    page = to_html(evidence, judge(evidence))
    for words in (
        "16, 2.3 MiB in all",
        "page faults of a step, allocator as it comes",
        "12.8",
        "432.0 MiB",
        "flash_fwd_kernel&lt;64, 128&gt;",
        "0.9 ms on the device (2 calls)",
    ):
        assert words in page
