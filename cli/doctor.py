"""`farm doctor`: what this machine does to a measurement, and what could be better."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import click
from tabulate import tabulate
from uv import find_uv_bin

from farm.capability import backend_of
from farm.model import Calibration, Host, HostCheck
from farm.settings import Home
from workers.hygiene import device_checks, host_checks
from workers.probe import probe_host

__all__ = ["command"]

#: Two environments of a CUDA release with their wheels take about 12 GB, two of a CPU release 2 GB.
DISK_GB = 15.0
#: A column of findings wider than this wraps on a terminal of 100.
FOUND_WIDTH = 68


@click.command(
    "doctor", epilog="\b\nExamples:\n  farm doctor\n  farm doctor --json | jq '.checks[] | select(.state == \"poor\")'"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Check this machine: what makes its measurements noisy, what to do about it, and what that is worth.

    Nothing is measured, nothing is changed, and nothing is asked of the network.
    """
    host, home = probe_host(), Home.default()
    backends = list(dict.fromkeys(backend_of(capability) for capability in host.capabilities))
    checks = (*host_checks(1, "cpu"), *(check for backend in backends for check in device_checks(backend)))
    installer, disk = _installer(), _disk(home.root)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "host": host.model_dump(mode="json"),
                    "checks": [check.model_dump(mode="json") for check in (*checks, installer, disk)],
                },
                indent=2,
            )
        )
        return
    click.echo(_text(host, (*checks, installer, disk)))


def _text(host: Host, checks: Sequence[HostCheck]) -> str:
    rows = [[check.state, check.name, check.found] for check in checks]
    table = tabulate(rows, headers=["state", "check", "found"], maxcolwidths=[None, None, FOUND_WIDTH])
    return "\n\n".join([_head(host), table, *_poor(checks)])


def _head(host: Host) -> str:
    memory = f"{host.memory_bytes / 2**30:.0f} GiB"
    lines = {
        "machine": f"{host.name}: {host.cpu}, {host.cores} processors, {memory}, {host.os}",
        "can run": ", ".join(host.capabilities),
        "wheels for": host.target,
        "calibrated": _calibrated(host.calibration),
    }
    return "\n".join(f"{name + ':':<12}{value}" for name, value in lines.items())


def _calibrated(found: Calibration | None) -> str:
    if found is None:
        return "never: what this machine can resolve is not known (farm calibrate)"
    return (
        f"{found.measured}: two runs of {found.release} differ by {found.sd * 100:.2g} % (sd from restart to restart), "
        f"ratio {found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"
    )


def _poor(checks: Sequence[HostCheck]) -> list[str]:
    """Return what could be better, a paragraph for each poor check."""
    poor = [check for check in checks if check.state == "poor"]
    unseen = sum(check.state == "unknown" for check in checks)
    paragraphs = []
    for check in poor:
        lines = [f"{check.name}: {check.found}"]
        lines += [f"  to do: {check.advice}"] if check.advice else []
        lines += [f"  worth: {check.worth}"] if check.worth else []
        paragraphs.append("\n".join(lines))
    words = f"{len(poor)} of {len(checks)} checks could be better" if poor else "nothing seen that could be better"
    paragraphs.append(f"{words}, {unseen} could not be seen." if unseen else f"{words}.")
    return paragraphs


def _installer() -> HostCheck:
    """Return whether the installer is there; whether an index answers is only known when one is asked."""
    try:
        found = find_uv_bin()
    except FileNotFoundError:
        return HostCheck(
            name="installer",
            state="poor",
            found="uv is not installed: no release can be",
            advice="install the farm again, with its dependencies",
        )
    return HostCheck(name="installer", state="good", found=f"uv at {found}; the index was not asked")


def _disk(home: Path) -> HostCheck:
    """Return how much room there is where the home is or will be."""
    folder = next(path for path in (home, *home.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free / 1e9
    found = f"{free:.0f} GB free at {home}"
    if free >= DISK_GB:
        return HostCheck(name="disk", state="good", found=found)
    return HostCheck(
        name="disk",
        state="poor",
        found=found,
        advice=f"free some, or set FARM_HOME to a disk with {DISK_GB:.0f} GB",
        worth="a full disk ends the cell as 'no environment'",
    )
