"""Options that several commands share, and the way from them to a frozen plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from farm.matrix import Matrix, load_matrix
from farm.model import Backend, Host, Plan
from farm.plan import PlanRequest, make_plan
from farm.releases import SHARED_PACKAGES, Resolution, parse_request, resolve
from farm.settings import Home, Settings, load_settings, wheelhouse_limit
from workers.wheelhouse import kept_environments

__all__ = ["Asked", "plan_for", "release_options", "understand"]

Command = TypeVar("Command", bound=Callable[..., Any])


def release_options(command: Command) -> Command:
    """Add the options that say what is compared."""
    for option in reversed(
        (
            click.option("--candidate", required=True, metavar="RELEASE", help="The release you wonder about: 2.13."),
            click.option(
                "--baseline",
                metavar="RELEASE",
                help="What you run today; by default the newest patch of the minor before the candidate's.",
            ),
            click.option(
                "--suite",
                help="A suite of the matrix: smoke (the default), standard (the default of --stages), or your own.",
            ),
            click.option(
                "--backend",
                "backends",
                multiple=True,
                type=click.Choice(get_args(Backend)),
                help="Ask about this backend only; may be repeated. By default all with a live worker.",
            ),
            click.option(
                "--workload",
                "workloads",
                multiple=True,
                metavar="NAME",
                help="Ask about this workload of the matrix only; may be repeated. Tiers then wait for the others.",
            ),
            click.option(
                "--matrix",
                "matrix_path",
                type=click.Path(path_type=Path),
                help="A matrix of your own, TOML.",
            ),
            click.option("--stages", is_flag=True, help="Take the matrix's window: one stage after the other."),
        )
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """A submission as typed and as configured, checked as far as it can be without an index."""

    home: Home
    settings: Settings
    matrix: Matrix
    request: PlanRequest


def understand(
    candidate: str,
    baseline: str | None,
    suite: str | None,
    backends: Sequence[Backend],
    workloads: Sequence[str],
    matrix_path: Path | None,
    *,
    stages: bool = False,
) -> Asked:
    """Return what was asked. Raises UsageError for what cannot be meant, before anything is started."""
    settings = load_settings()
    wheelhouse_limit()
    home = Home.default().prepare()
    matrix = load_matrix(matrix_path or settings.matrix)
    # A window of weeks asks what a first look leaves out.
    suite = suite or ("standard" if stages and "standard" in matrix.suites else "smoke")
    matrix.suite(suite)
    baseline = baseline or settings.baseline
    request = PlanRequest(
        candidate=matrix.release(candidate),
        baseline=matrix.release(baseline) if baseline else None,
        suite=suite,
        backends=tuple(backends),
        stages=stages,
        workloads=tuple(workloads),
    )
    parse_request(request.candidate)
    if request.baseline:
        parse_request(request.baseline)
    return Asked(home, settings, matrix, request)


def plan_for(asked: Asked, hosts: Sequence[Host]) -> Plan:
    """Return the frozen plan for the machines ``hosts``, releases resolved once for each kind of them."""

    @cache
    def resolved(backend: Backend, platform: str, python: str) -> Resolution:
        request = asked.request
        return resolve(
            request.candidate,
            request.baseline,
            platform=platform,
            python=python,
            backend=backend,
            shared_packages=(*SHARED_PACKAGES, *asked.matrix.packages),
            kept=kept_environments(asked.home),
        )

    return make_plan(
        asked.matrix, asked.request, hosts, lambda backend, host: resolved(backend, host.platform, host.python)
    )
