"""A cell of a kept run measured again on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from farm.again import Inquiry, Told
from farm.model import Cell, CellOrder, CellResult, Environment
from farm.settings import Home
from workers.cell import run_cell
from workers.lease import machine_lease
from workers.probe import probe_host

__all__ = ["measure"]


def measure(
    inquiry: Inquiry, cell: Cell, environments: Mapping[str, Environment], home: Home, told: Told, attempt: int
) -> CellResult:
    """Return what measuring ``cell`` gave, on this machine as soon as it is free; ``attempt`` counts from 1."""
    evidence = inquiry.evidence
    keys = {key for arm in cell.arms for key in arm.environments.values()}
    order = CellOrder(
        run_id=evidence.run_id,
        attempt=attempt,
        cell=cell,
        environments={key: environments[key] for key in keys},
        source=evidence.plan.sources.get(cell.workload),
    )
    with machine_lease(lambda: told.said("waiting for the machine"), lambda: False) as lease:
        return run_cell(order, home, told.progress, lease, lambda: False, worker=probe_host().name)
