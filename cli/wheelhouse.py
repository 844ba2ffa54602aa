"""`farm wheelhouse`: the wheels that are kept on this machine, and whether they are still had elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from tabulate import tabulate

from farm.errors import (
    EXIT_COMPLETE,
    EXIT_FALLS_SHORT,
    EXIT_INCOMPLETE,
    EXIT_INFRASTRUCTURE,
    Incomplete,
    InfrastructureFailed,
)
from farm.settings import Home

if TYPE_CHECKING:
    from farm.model import WatchedWheel, WheelState

__all__ = ["command"]


@click.group("wheelhouse", epilog="\b\nExamples:\n  farm wheelhouse list\n  farm wheelhouse watch      in cron")
def command() -> None:
    """List, check, watch, prune and pull the wheels that are kept here.

    Every wheel of both releases is kept on the machine that measured them, so that the way back needs no network and
    no index that still serves it.
    """


@command.command("list", epilog="\b\nExamples:\n  farm wheelhouse list\n  farm wheelhouse list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_wheels(as_json: bool) -> None:
    """Show what is kept, how large it is, where it came from and which environments need it."""
    from workers.wheelhouse_care import inventory

    home = Home.default()
    with _disk(home):
        found = inventory(home)
    if as_json:
        click.echo(_json(found))
        return
    if not found:
        click.echo(f"Nothing is kept in {home.wheelhouse}; every run keeps what it installs: farm submit")
        return
    labels = sorted({label for state in found for label in state.needed_by})
    rows = [
        [
            state.name,
            state.version,
            _size(state.size_bytes) if state.condition != "missing" else "",
            state.condition if state.condition != "whole" else "",
            ", ".join(str(labels.index(label) + 1) for label in state.needed_by) or "nobody",
            _host(state.origin),
        ]
        for state in found
    ]
    click.echo(tabulate(rows, headers=["package", "version", "size", "", "needed by", "from"]))
    click.echo("")
    for number, label in enumerate(labels, start=1):
        click.echo(f"  {number}  {label}")
    for state in found:
        if state.condition == "missing":
            click.echo(f"  {state.wheel} is not kept: {state.reason}")
    whole = [state for state in found if state.condition != "missing"]
    click.echo(f"{len(whole)} wheels, {_size(sum(state.size_bytes for state in whole))} in {home.wheelhouse}")


@command.command("verify", epilog="\b\nExamples:\n  farm wheelhouse verify\n  farm wheelhouse verify --repair")
@click.option("--repair", is_flag=True, help="Fetch again what is damaged or missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(repair: bool, as_json: bool) -> int:
    """Hash every wheel and name what is damaged or missing; exits with 3 where something is."""
    from workers.wheelhouse_care import verify as verified

    home = Home.default()
    with _disk(home):
        found = verified(home, _say, repair=repair)
    bad = [state for state in found if state.condition != "whole"]
    if as_json:
        click.echo(_json(found))
    else:
        for state in bad:
            by = f"; needed by {', '.join(state.needed_by)}" if state.needed_by else ""
            click.echo(f"{state.condition}: {state.wheel}: {state.reason or 'nobody knows why'}{by}")
        whole = len(found) - len(bad)
        click.echo(f"{whole} of {len(found)} wheels are whole")
        if bad and not repair:
            click.echo("To fetch the others again: farm wheelhouse verify --repair")
        elif bad:
            click.echo("Another worker may have them: farm wheelhouse pull PLACE")
    return EXIT_INCOMPLETE if bad else EXIT_COMPLETE


@command.command(
    "prune",
    epilog="\b\nExamples:\n  farm wheelhouse prune                        what would go; changes nothing\n"
    "  farm wheelhouse prune --unused-for 7 --keep-releases 2.12.1 --yes",
)
@click.option("--yes", is_flag=True, help="Do it; without this it is shown and nothing is changed.")
@click.option(
    "--unused-for",
    "days",
    type=click.FloatRange(min=0, max=36500),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="How long an environment was not used before its wheels may go.",
)
@click.option(
    "--keep-releases",
    multiple=True,
    metavar="RELEASE",
    help="A release whose wheels stay whatever happens; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prune(yes: bool, days: float, keep_releases: Sequence[str], as_json: bool) -> int:
    """Throw away the wheels that no environment in use needs.

    The baseline that was used last stays, what a run that is under way or the last one needs stays, and nothing goes
    while another process uses the wheelhouse (exit code 3).
    """
    from workers.wheelhouse_care import prune as pruned

    home = Home.default()
    with _disk(home):
        found = pruned(home, unused_for=timedelta(days=days), keep_releases=keep_releases, do=yes)
    if as_json:
        wheels = [wheel.model_dump(mode="json") for wheel in found.wheels]
        plain = {"done": yes, "wheels": wheels, "environments": list(found.environments), "staying": found.staying}
        click.echo(json.dumps(plain, indent=2))
        return EXIT_COMPLETE
    for wheel in found.wheels:
        click.echo(f"{'removed' if yes else 'would go'}: {wheel.wheel} ({_size(wheel.size_bytes)})")
    for label in found.environments:
        click.echo(f"{'forgotten' if yes else 'would be forgotten'}: {label}")
    for label, why in found.staying.items():
        click.echo(f"stays: {label}: {why}")
    click.echo(f"{len(found.wheels)} wheels, {_size(found.size_bytes)}")
    if found.wheels or found.environments:
        click.echo("Done." if yes else "Nothing was changed. To do it: the same with --yes")
    return EXIT_COMPLETE


@command.command(
    "watch",
    epilog="\b\nExamples:\n  farm wheelhouse watch\n"
    "  0 6 * * * farm wheelhouse watch || mail ...     in cron, every morning",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def watch(as_json: bool) -> int:
    """Ask the configured indexes whether they still serve every wheel that a baseline of this machine needs.

    Exits with 0 where all is served, 1 where something is kept here alone, 3 where something is lost (or no baseline
    was built here), 4 where an index could not be asked.
    """
    from workers.wheelhouse_watch import watch as watched

    home = Home.default()
    with _disk(home):
        found = watched(home)
    if not found:
        raise Incomplete(f"no baseline was built in '{home.root}', so there is nothing to watch; is FARM_HOME right?")
    if as_json:
        click.echo(_json(found))
        return _code(found)
    odd = [wheel for wheel in found if wheel.served != "served"]
    for wheel in odd:
        click.echo(f"{wheel.wheel} (needed by {', '.join(wheel.needed_by)}): {wheel.words}")
    served = [wheel for wheel in found if wheel.served == "served"]
    click.echo(
        f"{len(served)} of {len(found)} wheels that the baselines need are served, "
        f"{sum(wheel.kept for wheel in found)} are kept here"
    )
    return _code(found)


@command.command(
    "pull",
    epilog="\b\nExamples:\n  farm wheelhouse pull /mnt/other-worker/farm\n"
    "  farm wheelhouse pull http://other-worker:8000 --release 2.12.1\n\n"
    "\b\nOn the other worker, if need be:\n  cd FARM_HOME/wheelhouse && python -m http.server 8000",
)
@click.argument("place")
@click.option("--release", "releases", multiple=True, metavar="RELEASE", help="Only what this needs; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pull(place: str, releases: Sequence[str], as_json: bool) -> int:
    """Copy what another worker's wheelhouse at PLACE, a folder or an http address, has and this one lacks.

    Every wheel is held against its hash; an interrupted pull goes on when it is typed again.
    """
    from farm.installer import redact
    from workers.wheelhouse_pull import pull as pulled

    home = Home.default().prepare()
    with _disk(home):
        try:
            found = pulled(place, home, _say, releases=releases)
        except KeyboardInterrupt:
            raise Incomplete("interrupted; what has arrived is kept, the same command goes on") from None
    if as_json:
        wheels = [wheel.model_dump(mode="json") for wheel in found.wheels]
        click.echo(json.dumps({"wheels": wheels, "there": found.there, "failed": found.failed}, indent=2))
    else:
        for wheel, why in found.failed.items():
            click.echo(f"not pulled: {wheel}: {why}")
        size = _size(sum(wheel.size_bytes for wheel in found.wheels))
        click.echo(f"{len(found.wheels)} wheels pulled from {redact(place) if '://' in place else place} ({size})")
        click.echo(f"{found.there} were here already, {len(found.failed)} could not be had")
    return EXIT_INCOMPLETE if found.failed else EXIT_COMPLETE


def _code(found: Sequence[WatchedWheel]) -> int:
    if any(wheel.served not in ("served", "could not ask") and not wheel.kept for wheel in found):
        return EXIT_INCOMPLETE
    if any(wheel.served == "could not ask" for wheel in found):
        return EXIT_INFRASTRUCTURE
    return EXIT_FALLS_SHORT if any(wheel.served != "served" for wheel in found) else EXIT_COMPLETE


@contextmanager
def _disk(home: Home) -> Iterator[None]:
    """Say a failure of the disk in words."""
    try:
        yield
    except OSError as error:
        raise InfrastructureFailed(f"the wheelhouse '{home.wheelhouse}': {error.strerror or error}") from error


def _say(words: str) -> None:
    click.echo(f"farm: {words}", err=True)


def _json(found: Sequence[WheelState | WatchedWheel]) -> str:
    return json.dumps([one.model_dump(mode="json") for one in found], indent=2)


def _size(size_bytes: int) -> str:
    for unit, of in (("GB", 10**9), ("MB", 10**6)):
        if size_bytes >= of / 10:
            return f"{size_bytes / of:.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{size_bytes / 1000:.1f} kB"


def _host(origin: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(origin).hostname or ("a local folder" if origin else "not known")
