"""Peak memory: the allocator's peak of a step, which is exact, and the process's, which is what runs out."""

from __future__ import annotations

from farm.gates.question import GateQuestion
from farm.model import Figure, Gate, Memory, Question, Status, Verdict

__all__ = ["judge", "over_budget"]

#: Peaks that differ by less than a page run are one: allocators round.
SLACK_BYTES = 64 * 1024


def judge(asked: GateQuestion) -> Verdict:
    """Return the verdict on the ratio of peaks and, where the tier sets one, on the absolute budget.

    A new path loads code that the old one does not, once and for the whole process; so the feature question judges
    the step's own peak and shows the process's.
    """
    memories = [arm.examination.memory if arm.examination else None for arm in (asked.challenger, asked.other)]
    challenger, reference = memories
    if challenger is None or reference is None:
        return _verdict(Status.UNTESTED, "peak memory was not measured")
    over = over_budget(asked)
    if over is not None:
        return over
    process = _process(asked, challenger, reference)
    above, below = challenger.allocator_peak_bytes, reference.allocator_peak_bytes
    if above is None or below is None or above <= 0 or below <= 0:
        return _verdict(Status.UNTESTED, "sensor implausible: a step's peak of 0 or none at all", process)
    if asked.question is Question.VERSION and process is None and _process_was_read(challenger, reference):
        return _verdict(Status.UNTESTED, "sensor implausible: a process's peak of 0, or of one arm alone")
    return _compared(asked, challenger, reference, process, above=above, below=below)


def over_budget(asked: GateQuestion) -> Verdict | None:
    """Return what speaks against the tier's absolute budget, which needs no reference; None where nothing does."""
    budget = asked.tier.peak_memory_bytes
    if budget is None:
        return None
    memory = asked.challenger.examination.memory if asked.challenger.examination else None
    if memory is None:
        return _verdict(Status.UNTESTED, "peak memory was not measured")
    peaks = {"process": max(memory.process_peak_bytes, default=0)}
    peaks |= {"reserved": memory.reserved_peak_bytes or 0, "step": memory.allocator_peak_bytes or 0}
    name, peak = max(peaks.items(), key=lambda item: item[1])
    if peak <= 0:
        return _verdict(Status.UNTESTED, "sensor implausible: every peak is 0 or none at all")
    if peak <= budget:
        if not memory.allocator_peak_bytes or memory.allocator_peak_bytes < 0:
            return _verdict(Status.UNTESTED, "sensor implausible: a step's peak of 0 or none at all")
        return None
    figure = Figure(name=f"{name} peak", value=peak, limit=budget, unit="bytes")
    return _verdict(Status.FAIL, f"the {name} peak is {_mib(peak)}, its budget is {_mib(budget)}", figure)


def _compared(
    asked: GateQuestion, challenger: Memory, reference: Memory, process: Figure | None, *, above: int, below: int
) -> Verdict:
    limit = asked.tier.peak_memory_ratio
    figure = Figure(name="step peak ratio", value=above / below, limit=limit)
    apart = _apart(challenger, reference)
    words = f"a step's peak is {_mib(above)}, was {_mib(below)}"
    if not above <= below * limit + SLACK_BYTES:
        return _verdict(Status.FAIL, f"{words}: beyond the limit", figure, process, *apart)
    if process is not None and asked.question is Question.VERSION:
        status = _process_status(challenger, reference, limit)
        if status is not Status.PASS:
            beyond = "beyond the limit" if status is Status.FAIL else "the repeats lie on both sides of the limit"
            return _verdict(
                status, f"process peak {(process.value - 1) * 100:+.1f} %: {beyond}", process, figure, *apart
            )
    return _verdict(Status.PASS, words, figure, process, *apart)


def _process(asked: GateQuestion, challenger: Memory, reference: Memory) -> Figure | None:
    above, below = sorted(challenger.process_peak_bytes), sorted(reference.process_peak_bytes)
    if not above or not below or above[0] <= 0 or below[0] <= 0:
        return None
    return Figure(
        name="process peak ratio",
        value=above[len(above) // 2] / below[len(below) // 2],
        low=above[0] / below[-1],
        high=above[-1] / below[0],
        limit=asked.tier.peak_memory_ratio if asked.question is Question.VERSION else None,
    )


def _process_was_read(challenger: Memory, reference: Memory) -> bool:
    return bool(challenger.process_peak_bytes or reference.process_peak_bytes)


def _apart(challenger: Memory, reference: Memory) -> tuple[Figure, ...]:
    """Return what is shown apart and judged by nobody (CASES.md M12).

    What the allocator holds beyond what lives, what the device holds beyond the allocator (a library's workspace), and
    how much a step allocates.
    """
    pairs = {
        "reserved peak ratio": (challenger.reserved_peak_bytes, reference.reserved_peak_bytes),
        "outside the allocator ratio": (challenger.outside_bytes, reference.outside_bytes),
        "allocated bytes ratio": (challenger.allocated_bytes, reference.allocated_bytes),
    }
    return tuple(Figure(name=name, value=above / below) for name, (above, below) in pairs.items() if above and below)


def _process_status(challenger: Memory, reference: Memory, limit: float) -> Status:
    above, below = challenger.process_peak_bytes, reference.process_peak_bytes
    if max(above) <= min(below) * limit + SLACK_BYTES:
        return Status.PASS
    return Status.FAIL if min(above) > max(below) * limit + SLACK_BYTES else Status.INCONCLUSIVE


def _mib(count: float) -> str:
    return f"{count / 2**20:.2f} MiB"


def _verdict(status: Status, reason: str, figure: Figure | None = None, *others: Figure | None) -> Verdict:
    more = tuple(other for other in others if other is not None)
    return Verdict(gate=Gate.PEAK_MEMORY, status=status, reason=reason, figure=figure, others=more)
