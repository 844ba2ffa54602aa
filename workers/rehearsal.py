"""The way back, walked: the baseline's wheels over the candidate's, with the network really off, and proven.

A copy of the candidate's environment serves for a moment: it writes state, and bytecode beside its sources. Then the
baseline is put back from the wheelhouse alone, with an empty installer cache. What is installed is held against the
baseline's lock and its wheels, the control workload must give bitwise what it gave before the upgrade, and the baseline
opens what the candidate wrote. A second walk shows whether the first one was luck.

Nothing asks a human: every process has its input closed, so what would ask fails, and what waits is ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

from farm.errors import EnvironmentFailed
from farm.installer import run_uv
from farm.model import Environment, KeptState, LockedPackage, Outcome, Rehearsal, Side, StateKind
from farm.owners import owner_name
from farm.pip_settings import installer_environment
from farm.settings import Home
from workers.environments import (
    build,
    installed_packages,
    make_venv,
    mismatches,
    requirement_lines,
    site_packages,
    sync,
)
from workers.installed import (
    bytecode_fits,
    damaged_files,
    files_digest,
    found_in,
    recorded,
    stale_bytecode,
    strays,
    top_folders,
    touched_files,
    wheel_facts,
)
from workers.session import ArmEnded
from workers.state import StateKeeper
from workers.wheelhouse import delta, flat_folder, keep, using

__all__ = ["rehearse"]

#: Tries to reach an address that is reserved for documentation (RFC 5737); without a network it fails at once.
CONNECT = """
import socket, sys
try:
    socket.create_connection(("192.0.2.1", 443), timeout=2)
except TimeoutError:
    sys.exit("a packet left this process")
except OSError as error:
    print(error.strerror)
else:
    sys.exit("a connection was made")
"""

#: Ways to take the network from a process, in the order in which they are tried.
WAYS = {
    "linux": (
        ("network namespace", ("unshare", "--map-root-user", "--net")),
        ("network namespace", ("unshare", "--net")),
    ),
    "darwin": (("sandbox-exec", ("sandbox-exec", "-p", "(version 1)(allow default)(deny network*)")),),
}

#: Mismatches that are kept; a release that is wrong is wrong in thousands of files.
SHOWN = 20
#: Past the longest way back that a shipped tier allows: an installer that is not through by then is not coming back.
REINSTALL_TIMEOUT_S = 900.0


@dataclass
class _Walk:
    """What was seen so far."""

    steps_ns: dict[str, int] = field(default_factory=dict)
    network_off_by: str = ""
    reinstalled: tuple[str, ...] = ()
    again_ns: dict[str, int] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()
    state: dict[StateKind, KeptState] = field(default_factory=dict)
    again: bool = False
    """The second walk is under way."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic_ns()
        try:
            yield
        finally:
            (self.again_ns if self.again else self.steps_ns)[name] = time.monotonic_ns() - began

    def ended(self, outcome: Outcome, reason: str = "", **more: Any) -> Rehearsal:
        return Rehearsal.model_validate(
            {
                "outcome": outcome,
                "reason": f"the second time: {reason}" if self.again and reason else reason,
                "steps_ns": self.steps_ns,
                "network_off_by": self.network_off_by,
                "reinstalled": self.reinstalled,
                "again_ns": self.again_ns,
                "leftovers": self.leftovers,
                "state": self.state,
                **more,
            }
        )


def rehearse(
    baseline: Environment,
    candidate: Environment,
    home: Home,
    control: Callable[[Path], dict[str, str]],
    keeper: StateKeeper | None = None,
) -> Rehearsal:
    """Return how the way from ``candidate`` back to ``baseline`` went.

    ``control(python)`` returns the digests of the control workload's outputs under an interpreter; ``keeper`` writes
    and opens the state that must come back. Whatever fails is the rehearsal's outcome and never raised.
    """
    walk = _Walk()
    wheels = delta(baseline, candidate)
    try:
        home.scratch.mkdir(parents=True, exist_ok=True)
        # Beside the environments: on another file system nothing could be hard-linked.
        folder = tempfile.TemporaryDirectory(prefix=f"{owner_name('rehearsal')}-", dir=home.scratch)
        with folder as scratch, using(home):
            with walk.step("prepare control"):
                python = build(baseline, home, (Side.BASELINE,)).python
                try:
                    expected = control(python)
                except ArmEnded as ended:
                    reason = f"the control workload does not run on the baseline: {_plainly(ended)}"
                    return walk.ended(ended.outcome, reason, last_words=ended.log_tail, control_ran=False)
            with walk.step("prepare wheelhouse"):
                keep(wheels, home, baseline.release.requirement)
            root = Path(scratch) / "environment"
            with walk.step("prepare candidate"):
                make_venv(root)
                sync(candidate, root, home)
            if keeper is not None:
                with walk.step("prepare state"):
                    keeper.write(root / "bin/python")
            walked = _walk_back(walk, baseline, wheels, root, home, expected, control)
            if walked.outcome is not Outcome.OK:
                return walked
            if keeper is not None:
                with walk.step("state"):
                    walk.state = cast(dict[StateKind, KeptState], keeper.read(root / "bin/python"))
            walk.again = True
            with walk.step("prepare candidate"):
                sync(candidate, root, home)
            return _walk_back(walk, baseline, wheels, root, home, expected, control)
    except EnvironmentFailed as error:
        return walk.ended(Outcome.FAILED, str(error), last_words=error.last_words)
    except ArmEnded as ended:
        return walk.ended(ended.outcome, f"control workload: {_plainly(ended)}", last_words=ended.log_tail)
    except (OSError, BadZipFile) as error:
        return walk.ended(Outcome.FAILED, f"the rehearsal could not go on: {error}")


def _walk_back(
    walk: _Walk,
    baseline: Environment,
    wheels: tuple[LockedPackage, ...],
    root: Path,
    home: Home,
    expected: dict[str, str],
    control: Callable[[Path], dict[str, str]],
) -> Rehearsal:
    prefix, walk.network_off_by = network_off()
    if not prefix:
        return walk.ended(Outcome.FAILED, f"the network cannot be taken away here: {walk.network_off_by}")
    before, folders = installed_packages(root), _folders_that_move(baseline, wheels, root)
    began = time.time()
    house = Path(tempfile.mkdtemp(prefix="wheels-", dir=root.parent))
    with walk.step("reinstall"):
        _reinstall(baseline, wheels, root, flat_folder(wheels, home, house), prefix)
    after = installed_packages(root)
    walk.reinstalled = tuple(
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
    with walk.step("verify"):
        wrong = mismatches(baseline.packages, after)
        site = site_packages(root)
        moved, installed = {wheel.name: house / wheel.wheel for wheel in wheels}, found_in([site])
        for name, distribution in installed.items():
            if name in moved:
                wrong += _other_than(moved[name], distribution) or damaged_files(site, distribution)
            else:
                wrong += touched_files(site, distribution)
        wrong += strays([site], folders | {"torch"})
        wrong += stale_bytecode(site, began, [installed[name] for name in moved if name in installed])
        if idle := _idle_bytecode(site):
            walk.leftovers = tuple(dict.fromkeys([*walk.leftovers, f"bytecode that nothing will use: {idle} files"]))
    with walk.step("control"):
        found = control(root / "bin/python")
    differ = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    more: dict[str, Any] = {"mismatches": wrong[:SHOWN], "control_equal": not differ}
    if wrong:
        return walk.ended(Outcome.FAILED, f"what is installed is not the baseline's lock: {wrong[0]}", **more)
    if differ:
        reason = f"control outputs differ from those before the upgrade: {', '.join(differ)}"
        return walk.ended(Outcome.FAILED, reason, **more)
    return walk.ended(Outcome.OK, **more)


def _plainly(ended: ArmEnded) -> str:
    """Return why a runner ended; one that waits for a human is told from one that fails."""
    if ended.outcome is Outcome.TIMED_OUT:
        return f"it hangs: {ended.reason}"
    return f"it asks a human: {ended.reason}" if "EOFError" in f"{ended.reason}{ended.log_tail}" else ended.reason


def _folders_that_move(baseline: Environment, wheels: tuple[LockedPackage, ...], root: Path) -> set[str]:
    """Return the folders of all that will be replaced or taken out: what is left of it would lie there."""
    stays = {package.name for package in baseline.packages} - {wheel.name for wheel in wheels}
    found = found_in([site_packages(root)])
    return {folder for name in found.keys() - stays for folder in top_folders(recorded(found[name]))}


def _other_than(wheel: Path, distribution: Distribution) -> list[str]:
    """Return whether the record of ``distribution`` is another one than that of ``wheel``."""
    rows = recorded(distribution)
    what = f"{distribution.metadata['Name']} {distribution.version}"
    if not rows:
        return [f"{what} has lost its RECORD"]
    if files_digest(rows) != files_digest(wheel_facts(wheel).rows):
        return [f"{what} is another build than '{wheel.name}'"]
    return []


def _reinstall(
    baseline: Environment, wheels: tuple[LockedPackage, ...], root: Path, house: Path, prefix: tuple[str, ...]
) -> None:
    lines = root.parent / "baseline.txt"
    lines.write_text(requirement_lines(baseline, by_name=True))
    environment = {name: value for name, value in installer_environment().items() if not name.startswith("UV_")}
    # A configuration file may name places where a wheel that the wheelhouse lacks could still be found.
    environment |= {"UV_CACHE_DIR": tempfile.mkdtemp(prefix="empty-cache-", dir=root.parent), "UV_NO_CONFIG": "1"}
    command = ["pip", "sync", "--quiet", "--offline", "--no-index", "--find-links", str(house), "--require-hashes"]
    # Another build of the same version counts as installed, unless uv is told to put it back.
    command += [word for wheel in wheels for word in ("--reinstall-package", wheel.name)]
    command += ["--python", str(root / "bin/python"), str(lines)]
    missing = [wheel.wheel for wheel in wheels if not (house / wheel.wheel).exists()]
    try:
        run_uv(
            command,
            environment=environment,
            prefix=prefix,
            what="reinstalling the baseline without a network",
            timeout_s=REINSTALL_TIMEOUT_S,
        )
    except EnvironmentFailed as error:
        if missing:
            raise EnvironmentFailed(
                f"the wheelhouse lacks {', '.join(missing)}: the way back needs a network", error.last_words
            ) from error
        raise


def network_off() -> tuple[tuple[str, ...], str]:
    """Return the command that runs another without a network, and its name; no command and why, if there is none."""
    why = f"no way is known on {sys.platform}"
    for name, prefix in WAYS.get(sys.platform, ()):
        if shutil.which(prefix[0]) is None:
            why = f"'{prefix[0]}' is not installed"
            continue
        try:
            tried = subprocess.run(
                [*prefix, sys.executable, "-I", "-c", CONNECT],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=30,
                env=dict(os.environ),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
            continue
        if tried.returncode == 0:
            return prefix, f"{name} (a connection attempt said: {tried.stdout.strip()})"
        why = tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else f"{prefix[0]} failed"
    return (), why


def _idle_bytecode(site: Path) -> int:
    """Return how many files of bytecode under ``site`` fit no source: nothing will run them."""
    count = 0
    for path in site.rglob("__pycache__/*.pyc"):
        source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
        count += not (source.is_file() and bytecode_fits(path, source.stat()))
    return count
