"""Work that a team cares about, as torch code that runs inside the measured environments.

Importing this package imports no torch; `workloads.contract` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.contract import FellBack, Unsupported, Workload

__all__ = ["FellBack", "Unsupported", "Workload"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from workloads import contract

        return getattr(contract, name)
    raise AttributeError(f"module 'workloads' has no attribute '{name}'")
