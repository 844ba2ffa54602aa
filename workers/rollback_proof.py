"""What an environment holds after a rollback, proven; and watched over when somebody installs something later."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path

from packaging.version import InvalidVersion, Version

from farm.installer import LAST_LINES, redact_text
from farm.model import PlacedPackage, RollbackJournal, RollbackProof, TorchIdentity
from farm.settings import Home
from workers.installed import files_digest, found_in, recorded, stale_bytecode, strays, wheel_facts
from workers.rollback_plan import Wanted, same_version, satisfied
from workers.user_environment import UserEnvironment, canonical, clean_variables
from workers.wheelhouse import held

__all__ = ["expected_of", "prove"]

#: Importing torch took 20 s from a cold disk here.
IMPORT_TIMEOUT_S = 300.0

#: Findings that are told; a torch that was swapped is wrong in thousands of files.
SHOWN = 12

#: What torch says of itself, and sums that are exact in every release: small integers, in float64 and on a device.
QUESTION = """
import json, sys
import torch
x = torch.arange(1, 7, dtype=torch.float64).reshape(2, 3)
product = (x @ x.t()).tolist()
w = x.clone().requires_grad_(True)
(w * w * w).sum().backward()
device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
elsewhere = None
if device:
    y = x.to(torch.float32).to(device)
    elsewhere = (y @ y.t()).cpu().tolist()
print(json.dumps({"version": str(torch.__version__), "cuda": torch.version.cuda, "hip": torch.version.hip,
    "file": torch.__file__, "product": product, "gradient": w.grad.tolist(), "device": device, "on_device": elsewhere}))
"""
PRODUCT = [[14.0, 32.0], [32.0, 77.0]]
GRADIENT = [[3.0, 12.0, 27.0], [48.0, 75.0, 108.0]]

IMPORT_ALONE = "import importlib, sys; importlib.import_module(sys.argv[1])"


def prove(
    environment: UserEnvironment, journal: RollbackJournal, say: Callable[[str], None], *, later: bool = False
) -> RollbackProof:
    """Return how what is installed compares with what ``journal`` put there; nothing is changed.

    ``later``: something may have been installed since, and who did what is wrong is looked for.
    """
    began = time.monotonic_ns()
    say("holding what is installed against its records")
    wrong, checked, unproven = _packages(environment, journal)
    gone = [move.name for move in journal.moves if move.after is None]
    wrong += [
        f"{name} {environment.packages[name].version} is there again" for name in gone if name in environment.packages
    ]
    wrong += strays(environment.sites)
    if journal.completed is not None and journal.stage and not later:
        for site in environment.sites:
            own = found_in([site])
            moved = [own[move.name] for move in journal.moves if move.after is not None and move.name in own]
            wrong += stale_bytecode(site, journal.completed, moved)
    wrong += _needs(environment, journal)
    says: dict[str, str | None] = {}
    say("importing torch and letting it compute")
    problem = _torch(environment, journal.to, says, checked, unproven)
    wrong += problem
    if not problem:
        wrong += _companions(environment, journal, checked)
    unproven += [f"left broken, as asked: {one}" for one in journal.left_broken]
    blamed = _blamed(environment, journal, wrong) if later and wrong else ()
    return RollbackProof(
        wrong=_short(wrong),
        unproven=tuple(unproven),
        checked=tuple(checked),
        torch_says=says,
        blamed=tuple(blamed),
        wall_ns=time.monotonic_ns() - began,
    )


def expected_of(environment: UserEnvironment, wanted: Wanted, home: Home) -> RollbackJournal:
    """Return what a journal would say had ``wanted`` been put into ``environment``; to verify where none was."""
    placed = []
    for package in wanted.family:
        wheel = held(package, home)
        digest = files_digest(wheel_facts(wheel).rows) if wheel else ""
        placed.append(
            PlacedPackage(name=package.name, version=package.version, sha256=package.sha256, files_digest=digest)
        )
    return RollbackJournal(
        phase="proven",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        before=None,
        to=wanted.identity,
        lock=wanted.environment,
        source=wanted.source,
        moves=(),
        placed=tuple(placed),
        stage="",
        out=(),
        into=(),
    )


def _packages(environment: UserEnvironment, journal: RollbackJournal) -> tuple[list[str], list[str], list[str]]:
    wrong, unproven, files = [], [], 0
    for package in journal.placed:
        distribution = environment.packages.get(package.name)
        if distribution is None:
            wrong.append(f"{package.name} {package.version} is missing")
            continue
        if not same_version(distribution.version, package.version):
            wrong.append(f"{package.name} is {distribution.version}, wanted is {package.version}")
            continue
        rows = recorded(distribution)
        if not rows:
            wrong.append(f"{package.name} {package.version} has lost its RECORD")
        elif not package.files_digest:
            unproven.append(
                f"{package.name}: its wheel is not here, so that its build is held against its RECORD alone"
            )
        elif files_digest(rows) != package.files_digest:
            wrong.append(f"{package.name} {package.version} is another build than the one that was put there")
        files += len(rows)
        wrong += environment.damaged(package.name)
    return (
        wrong,
        [f"{len(journal.placed)} packages and their {files} files, against the lock and their records"],
        unproven,
    )


def _needs(environment: UserEnvironment, journal: RollbackJournal) -> list[str]:
    """Return what the packages that were placed need and do not find."""
    wrong = []
    for package in journal.placed:
        distribution = environment.packages.get(package.name)
        for requirement in environment.needs(distribution) if distribution else ():
            found = environment.packages.get(canonical(requirement.name))
            version = found.version if found else None
            if not satisfied(requirement, version):
                wrong.append(f"{package.name} needs {requirement.name}{requirement.specifier}, installed is {version}")
    return wrong


def _torch(
    environment: UserEnvironment,
    to: TorchIdentity,
    says: dict[str, str | None],
    checked: list[str],
    unproven: list[str],
) -> list[str]:
    """Return what is wrong with torch imported; ``says``, ``checked`` and ``unproven`` are added to."""
    failed, output = _run(environment, QUESTION)
    if failed:
        return [f"torch cannot be imported and used: {failed}"]
    try:
        answer = json.loads(output.strip().splitlines()[-1])
        said = Version(answer["version"])
    except (ValueError, IndexError, KeyError, InvalidVersion):
        return ["torch is imported, and does not say which one it is"]
    says.update({key: answer[key] for key in ("version", "cuda", "hip", "device")})
    wrong = []
    if said.public != to.version or (said.local is not None and not _same_build(said.local, to.variant)):
        wrong.append(f"torch calls itself {said}, wanted is {to.identity}")
    if to.variant.startswith("cu") and (answer["cuda"] or "").replace(".", "") != to.variant[2:]:
        wrong.append(f"torch was built for CUDA {answer['cuda']}, wanted is {to.variant}")
    if to.variant.startswith("rocm") and not answer["hip"]:
        wrong.append("torch was not built for ROCm")
    if not any(Path(answer["file"]).is_relative_to(site) for site in environment.sites):
        wrong.append(f"what is imported is '{answer['file']}', outside of the environment")
    if answer["product"] != PRODUCT or answer["gradient"] != GRADIENT:
        wrong.append(f"torch computes {answer['product']} and {answer['gradient']}, right are {PRODUCT} and {GRADIENT}")
    checked.append("torch imported, its version and build, a product and a gradient with known answers")
    if answer["device"]:
        checked.append(f"the product on the device ({answer['device']})")
        if answer["on_device"] != PRODUCT:
            wrong.append(f"torch computes {answer['on_device']} on {answer['device']}, right is {PRODUCT}")
    elif to.variant != "cpu":
        unproven.append(f"{to.variant} on a device: none is reachable here, the answers are the processor's")
    return wrong


def _same_build(local: str, variant: str) -> bool:
    # What a ROCm build calls itself says more than its dependencies do.
    return local == variant or (variant == "rocm" and local.startswith("rocm"))


def _companions(environment: UserEnvironment, journal: RollbackJournal, checked: list[str]) -> list[str]:
    """Return which of the packages that moved along with torch cannot be imported beside it."""
    wrong = []
    for move in journal.moves:
        distribution = environment.packages.get(move.name)
        if distribution is None or not any(canonical(one.name) == "torch" for one in environment.needs(distribution)):
            continue
        module = move.name.replace("-", "_")
        failed, _ = _run(environment, IMPORT_ALONE, module)
        if failed:
            wrong.append(f"{move.name} {distribution.version} cannot be imported: {failed}")
        else:
            checked.append(f"{move.name} {distribution.version} imported")
    return wrong


def _run(environment: UserEnvironment, code: str, *arguments: str) -> tuple[str, str]:
    """Return why ``code`` failed under the environment's interpreter ("" where it did not), and what it printed."""
    try:
        done = subprocess.run(
            # Isolated: whoever stands in a checkout of torch would import that. No bytecode: a proof changes nothing.
            [str(environment.python), "-I", "-B", "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=clean_variables(),
            cwd=environment.root,
            timeout=IMPORT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"it took over {IMPORT_TIMEOUT_S:.0f} s", ""
    except OSError as error:
        return str(error), ""
    if done.returncode == 0:
        return "", done.stdout
    lines = redact_text(done.stderr).strip().splitlines()[-LAST_LINES:]
    return (lines[-1] if lines else f"exit status {done.returncode}"), done.stdout


def _blamed(environment: UserEnvironment, journal: RollbackJournal, wrong: Sequence[str]) -> list[str]:
    """Return who was installed since, the newest last, what it asks of torch, and who else claims damaged files."""
    found = []
    since = journal.completed
    placed = {package.name: package for package in journal.placed}
    for name, distribution in environment.packages.items():
        at = _installed_at(distribution)
        if since is None or at is None or at <= since:
            continue
        when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
        by = (distribution.read_text("INSTALLER") or "").strip()
        words = f"{name} {distribution.version} was installed at {when}" + (f" by {by}" if by else "")
        for requirement in environment.needs(distribution):
            one = placed.get(canonical(requirement.name))
            if one is not None and name not in placed and requirement.specifier:
                excluded = "" if satisfied(requirement, one.version) else f", which excludes {one.version}"
                words += f", and asks for {requirement.name}{requirement.specifier}{excluded}"
        found.append((at, words))
    claims = []
    text = "\n".join(wrong)
    for name, distribution in environment.packages.items():
        if name not in placed:
            claims += [
                f"{path} is also a file of {name}" for path, _ in recorded(distribution) if f"{path} is " in text
            ]
    return [words for _, words in sorted(found)][-SHOWN:] + claims[:SHOWN]


def _installed_at(distribution: Distribution) -> float | None:
    """Return when a package's RECORD was written, seconds since the epoch."""
    for name, _ in recorded(distribution):
        if name.endswith(".dist-info/RECORD"):
            try:
                return Path(str(distribution.locate_file(name))).stat().st_mtime
            except OSError:
                return None
    return None


def _short(wrong: list[str]) -> tuple[str, ...]:
    more = (f"and {len(wrong) - SHOWN} more",) if len(wrong) > SHOWN else ()
    return (*wrong[:SHOWN], *more)
