"""What every arm's environment held: releases, wheels and hashes."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model import Arm, Cell, CellResult, Environment, Plan
from farm.report.text import anchor

__all__ = ["EnvironmentView", "LockView", "environment_views", "lock_views"]


@dataclass(frozen=True)
class EnvironmentView:
    """The release of some arms of a cell."""

    arms: str
    release: str
    """"2.13.0+cpu", or why there is none."""
    variant: str
    wheel: str
    sha256: str
    python: str
    origin: str
    requirement: str
    key: str
    anchor: str
    """Of its lock; "" where it was refused."""


@dataclass(frozen=True)
class LockView:
    """The whole closure of one environment."""

    key: str
    anchor: str
    release: str
    platform: str
    python: str
    packages: tuple[tuple[str, str, str, str], ...]
    """(name, version, wheel, sha256)."""


def lock_views(plan: Plan) -> tuple[LockView, ...]:
    """Return the locks of all environments of ``plan``."""
    return tuple(
        LockView(
            key=key,
            anchor=anchor("lock", key),
            release=environment.release.identity,
            platform=environment.release.platform,
            python=environment.python,
            packages=tuple((p.name, p.version, p.wheel, p.sha256) for p in environment.packages),
        )
        for key, environment in plan.environments.items()
    )


def environment_views(plan: Plan, cell: Cell, result: CellResult | None) -> tuple[EnvironmentView, ...]:
    """Return the environments of a cell's arms: on the machine that measured it, else on every target planned."""
    arms: dict[str, list[str]] = {}
    refused: list[EnvironmentView] = []
    for arm in cell.arms:
        targets = [result.host.target] if result else list(arm.environments)
        for target in targets:
            key = arm.environments.get(target)
            if key is None or key not in plan.environments:
                refused.append(_refused(plan, arm, target))
            elif arm.name not in arms.setdefault(key, []):
                arms[key].append(arm.name)
    made = [_view(key, plan.environments[key], names) for key, names in arms.items()]
    return (*made, *refused)


def _view(key: str, environment: Environment, arms: list[str]) -> EnvironmentView:
    release = environment.release
    return EnvironmentView(
        arms=", ".join(arms),
        release=release.identity,
        variant=release.variant,
        wheel=release.wheel,
        sha256=release.sha256,
        python=environment.python,
        origin=release.origin,
        requirement=release.requirement,
        key=key,
        anchor=anchor("lock", key),
    )


def _refused(plan: Plan, arm: Arm, target: str) -> EnvironmentView:
    reason = next((r.reason for r in plan.refused if r.side is arm.side and r.platform == target), "not in the plan")
    return EnvironmentView(
        arms=arm.name,
        release=f"no environment on {target}: {reason}",
        variant="",
        wheel="",
        sha256="",
        python="",
        origin="",
        requirement="",
        key="",
        anchor="",
    )
