"""How much of a cell's wall time is spent inside measured windows."""

from __future__ import annotations

from typing import Any

from benchmarks.measured import order_of, plan_of
from farm.model import Gate
from workers.cell import run_cell


def run(quick: bool) -> dict[str, Any]:
    """Return the phases of one cell: the transformer block at its smoke and, unless ``quick``, its standard length."""
    plan, home = plan_of("2.13.0", "2.12.1")
    first = next(cell for cell in plan.cells if cell.workload == "transformer_block" and cell.kind == "measure")
    gates = tuple(gate for gate in first.gates if gate is not Gate.COMPILE_EXPORT)
    rows = []
    shares = []
    for suite, restart_s in (("smoke", 0.8), ("standard", 8.0))[: 1 if quick else 2]:
        measuring = first.measuring.model_copy(update={"restart_s": restart_s, "budget_s": 240.0})
        cell = first.model_copy(update={"gates": gates, "measuring": measuring})
        result = run_cell(order_of(plan, cell), home, lambda _: None, None, lambda: False, worker="benchmark")
        shares.append(result.measured_ns / result.wall_ns)
        rows.append(
            [
                f"{suite}, {restart_s} s a restart",
                len(result.restarts),
                result.wall_ns / 1e9,
                result.phases_ns.get("examine", 0) / 1e9,
                result.phases_ns.get("measure", 0) / 1e9,
                result.measured_ns / 1e9,
                shares[-1],
            ]
        )
    return {
        "claim": "a longer restart is mostly measuring; a smoke cell is mostly starting",
        "headers": ["cell", "restarts", "wall, s", "examine, s", "measure, s", "in windows, s", "share"],
        "rows": rows,
        "ratio": shares[-1] / shares[0],
    }
