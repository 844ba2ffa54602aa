"""The way back on a user's own environment: planned from what is there, carried out beside it, proven in it."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

from farm.errors import EnvironmentFailed, Incomplete, InfrastructureFailed, UsageError
from farm.installer import run_uv
from farm.model import LockedPackage, PlacedPackage, RollbackJournal, RollbackPlan, RollbackProof
from farm.pip_settings import installer_environment
from farm.settings import Home
from workers.installed import build_rows, files_digest, found_in, recorded, wheel_facts
from workers.rollback_plan import Companions, Wanted, make_plan, same_version
from workers.rollback_proof import prove
from workers.swap import Keeping, into_units, out_units
from workers.user_environment import UserEnvironment
from workers.wheelhouse import flat_folder, held, keep, using

__all__ = ["Done", "roll_back", "undo"]

Done = Literal["rolled back", "already there", "went on", "undone"]
#: Folders, and a file system that gives its last blocks to root alone.
SPARE_BYTES = 64 * 2**20


def roll_back(
    environment: UserEnvironment,
    wanted: Callable[[UserEnvironment, RollbackJournal | None], Wanted],
    home: Home,
    companions: Companions,
    say: Callable[[str], None],
    *,
    to: str | None = None,
    force: bool = False,
    keep_old: bool = False,
) -> tuple[Done, RollbackJournal, RollbackProof]:
    """Take ``environment`` to what ``wanted`` finds for it, or finish what was begun; return what was done, with proof.

    ``wanted`` is given what an earlier rollback wrote down here, if there was one; ``say`` is called with every step.
    Raises FarmError with the environment as it was, or with a journal from which the same call, or `undo`, goes on.
    """
    keeping = Keeping(environment)
    try:
        with keeping.locked(), using(home):
            journal = keeping.journal
            again = False
            if journal is not None and journal.phase != "proven":
                again = journal.phase not in ("giving back", "restoring")
                resumed = _go_on(environment, keeping, journal, to, say, keep_old=keep_old)
                if resumed is not None:
                    return resumed
            there = replace(environment)
            target = Wanted(journal.lock, journal.source) if journal and again else wanted(there, journal)
            return _begin(there, target, home, companions, keeping, say, force=force, keep_old=keep_old)
    except OSError as error:
        raise InfrastructureFailed(
            f"'{environment.root}': {error.strerror or error}{_where(error)}; put that right and run the same again"
        ) from error


def undo(environment: UserEnvironment, say: Callable[[str], None]) -> tuple[RollbackJournal, RollbackProof]:
    """Put back what the last rollback took out, as it was; return the journal that was undone and the proof.

    Raises UsageError where nothing can be undone.
    """
    keeping = Keeping(environment)
    journal = keeping.journal
    if journal is None:
        raise UsageError(f"nothing was rolled back in '{environment.root}': there is nothing to undo")
    if not keeping.can_undo(journal):
        raise UsageError(
            f"what was taken out of '{environment.root}' was thrown away when the rollback was proven (--keep would "
            "have kept it); install it again with your installer"
        )
    try:
        with keeping.locked():
            journal = _restore(environment, keeping, journal, say)
    except OSError as error:
        raise InfrastructureFailed(
            f"'{environment.root}': {error.strerror or error}{_where(error)}; put that right and run the same again"
        ) from error
    began = time.monotonic_ns()
    there = replace(environment)
    wrong = []
    for move in journal.moves:
        distribution = there.packages.get(move.name)
        if move.before is None:
            wrong += [f"{move.name} {distribution.version} stayed"] if distribution is not None else []
        elif distribution is None:
            wrong.append(f"{move.name} {move.before} is missing")
        else:
            wrong += there.damaged(move.name)
    checked = f"{len(journal.moves)} packages as they were, file by file"
    return journal, RollbackProof(wrong=tuple(wrong), checked=(checked,), wall_ns=time.monotonic_ns() - began)


def _restore(
    environment: UserEnvironment, keeping: Keeping, journal: RollbackJournal, say: Callable[[str], None]
) -> RollbackJournal:
    say("putting back what was taken out")
    done = keeping.go_on(keeping.turn_round(journal))
    keeping.forget()
    return done


def _go_on(
    environment: UserEnvironment,
    keeping: Keeping,
    journal: RollbackJournal,
    to: str | None,
    say: Callable[[str], None],
    *,
    keep_old: bool,
) -> tuple[Done, RollbackJournal, RollbackProof] | None:
    """Finish what was begun and return it; None where all is as before, and it must be done anew."""
    if journal.phase in ("giving back", "restoring"):
        say("finishing an interrupted undo first")
        _restore(environment, keeping, journal, say)
        return None
    if to is not None and not same_version(journal.to.version, to) and journal.to.identity != to:
        raise UsageError(
            f"a rollback to torch {journal.to.identity} was interrupted here: finish it without --to, or undo it "
            "(--undo --yes)"
        )
    say(f"going on with an interrupted rollback to torch {journal.to.identity}")
    journal = _moved(keeping, journal)
    proof = prove(replace(environment), journal, say)
    if proof.wrong:
        # It was unpacked whole: something happened since. From the wheels once more, with what was there kept.
        say(f"not proven ({proof.wrong[0]}); undoing it, to do it again from the wheels")
        _restore(environment, keeping, journal, say)
        return None
    return "went on", keeping.finish(journal, keep=keep_old), proof


def _begin(
    environment: UserEnvironment,
    target: Wanted,
    home: Home,
    companions: Companions,
    keeping: Keeping,
    say: Callable[[str], None],
    *,
    force: bool,
    keep_old: bool,
) -> tuple[Done, RollbackJournal, RollbackProof]:
    say(f"looking at what is there, for the way to torch {target.identity.identity}")
    plan = make_plan(environment, target, home, companions)
    allow(plan, companions, force=force)
    if plan.lacking:
        say(f"fetching {', '.join(package.wheel for package in plan.lacking)}")
        keep(plan.lacking, home, target.environment.release.requirement)
        # Its wheels say what a release needs: with them the plan may hold more than before.
        plan = make_plan(environment, target, home, companions)
        allow(plan, companions, force=force)
    journal = RollbackJournal(
        phase="unproven",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        before=plan.installed,
        to=plan.to,
        lock=target.environment,
        source=plan.source,
        moves=plan.moves,
        placed=_staying(environment, target, plan),
        stage="",
        out=(),
        into=(),
        left_broken=tuple(f"{one.name} {one.version}: {one.needs}" for one in plan.breaking),
    )
    if not plan.moves:
        journal = journal.model_copy(update={"completed": time.time()})
        proof = prove(environment, journal, say)
        before = keeping.journal
        # One that can still be undone stays.
        if not proof.wrong and not (before is not None and before.kept and before.to == journal.to):
            keeping.write(journal.model_copy(update={"phase": "proven"}))
            keeping.clean()
        return "already there", journal, proof
    with keeping.staging() as stage:
        journal = _unpack(environment, plan, home, journal, stage, say)
    say(f"exchanging {_count(len(plan.moves), 'package')}")
    journal = _moved(keeping, keeping.write(journal))
    keeping.clean()
    proof = prove(replace(environment), journal, say)
    return "rolled back", journal if proof.wrong else keeping.finish(journal, keep=keep_old), proof


def allow(plan: RollbackPlan, companions: Companions, *, force: bool) -> None:
    """Raise where ``plan`` may not be carried out: the environment is in use, or something would break unsaid."""
    if plan.in_use and not force:
        raise Incomplete(
            f"'{plan.environment}' is in use, and what runs from it may load half of each release: "
            f"{'; '.join(plan.in_use)}\nstop that, or say --force; nothing was changed"
        )
    if plan.breaking and companions == "ask":
        named = "; ".join(f"{one.name} {one.version} needs {one.needs}" for one in plan.breaking)
        raise UsageError(
            f"what stays would break: {named}\n"
            "say --companions move to take it along, or --companions leave to leave it broken; nothing was changed"
        )


def _moved(keeping: Keeping, journal: RollbackJournal) -> RollbackJournal:
    journal = keeping.go_on(journal)
    if journal.completed is None:
        journal = keeping.write(journal.model_copy(update={"completed": time.time()}))
    return journal


def _staying(environment: UserEnvironment, target: Wanted, plan: RollbackPlan) -> tuple[PlacedPackage, ...]:
    """Return what is in its place already: it is proven and watched over like what is put there."""
    moving = {move.name for move in plan.moves}
    found = []
    for package in target.family:
        distribution = environment.packages.get(package.name)
        if package.name not in moving and distribution is not None:
            found.append(_placed(package, distribution))
    return tuple(found)


def _placed(package: LockedPackage, distribution: Distribution) -> PlacedPackage:
    return PlacedPackage(
        name=package.name,
        version=distribution.version,
        sha256=package.sha256,
        files_digest=files_digest(recorded(distribution)),
    )


def _unpack(
    environment: UserEnvironment,
    plan: RollbackPlan,
    home: Home,
    journal: RollbackJournal,
    stage: Path,
    say: Callable[[str], None],
) -> RollbackJournal:
    """Unpack what comes into ``stage`` and look at it; return the journal, ready to move. Nothing is touched yet."""
    coming = [move.wheel for move in plan.moves if move.wheel is not None]
    free = shutil.disk_usage(stage).free
    if free < plan.needed_bytes + SPARE_BYTES:
        raise InfrastructureFailed(
            f"the disk of '{environment.root}' has {free / 1e9:.2f} GB free, and what comes needs "
            f"{(plan.needed_bytes + SPARE_BYTES) / 1e9:.2f} GB beside what is there; free some: nothing was changed"
        )
    say(f"unpacking {_count(len(coming), 'wheel')} beside the environment ({plan.needed_bytes / 1e9:.2f} GB)")
    if coming:
        _install(environment, coming, home, stage)
    new = stage / "new"
    placed = [*journal.placed, *_looked_at(environment, coming, home, new)]
    out, strays, beyond = out_units(environment, {move.name for move in plan.moves if move.before is not None})
    if beyond:
        raise UsageError(
            f"files of what goes are outside of '{environment.root}': {', '.join(beyond[:3])}; the farm changes none "
            "of them: nothing was changed"
        )
    into, in_the_way = into_units(environment, new, out)
    owned = _owners(environment, in_the_way)
    if owned:
        raise UsageError(f"files that come belong to packages that stay: {'; '.join(owned)}; nothing was changed")
    # What was unpacked is on the disk before the old one is moved: a power cut leaves one of them whole.
    os.sync()
    return journal.model_copy(
        update={
            "phase": "taking out",
            "stage": stage.name,
            "placed": tuple(placed),
            "out": tuple(sorted({*out, *in_the_way})),
            "into": into,
            "strays": tuple(sorted({*strays, *in_the_way})),
        }
    )


def _install(environment: UserEnvironment, coming: Sequence[LockedPackage], home: Home, stage: Path) -> None:
    house = flat_folder(coming, home, stage / "wheels")
    lines = stage / "requirements.txt"
    lines.write_text("".join(f"{one.name}==={one.version} --hash=sha256:{one.sha256}\n" for one in coming))
    # Nothing of the user's settings may find another wheel; a cache on the same file system is linked and not copied.
    variables = {name: value for name, value in installer_environment().items() if not name.startswith("UV_")}
    variables |= {"UV_CACHE_DIR": str(stage / "cache"), "UV_NO_CONFIG": "1"}
    command = ["pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--require-hashes"]
    command += ["--find-links", str(house), "--prefix", str(stage / "new"), "--python", str(environment.python)]
    run_uv(
        [*command, "-r", str(lines)],
        environment=variables,
        what="unpacking the wheels (nothing was changed)",
    )
    for folder in (stage / "cache", house):
        shutil.rmtree(folder, ignore_errors=True)


def _looked_at(
    environment: UserEnvironment, coming: Sequence[LockedPackage], home: Home, new: Path
) -> list[PlacedPackage]:
    """Return what was unpacked. Raises EnvironmentFailed where it is not what the wheels hold."""
    root = Path(os.path.realpath(environment.root))
    sites = [new / Path(os.path.realpath(site)).relative_to(root) for site in environment.sites]
    sites += [new / site.relative_to(environment.root) for site in environment.sites]
    unpacked = found_in([site for site in dict.fromkeys(sites) if site.is_dir()])
    placed = []
    for package in coming:
        distribution, wheel = unpacked.get(package.name), held(package, home)
        if distribution is None or wheel is None:
            raise EnvironmentFailed(f"{package.name} {package.version} was not unpacked; nothing was changed")
        site = Path(str(distribution.locate_file("")))
        rows = recorded(distribution)
        missing = [name for name, _ in rows if not os.path.lexists(site / name)]
        try:
            missing += sorted(path for path, _ in build_rows(wheel_facts(wheel).rows) - set(rows))
        except (OSError, zipfile.BadZipFile) as error:
            raise EnvironmentFailed(f"'{package.wheel}' is no wheel: {error}; nothing was changed") from error
        if missing:
            raise EnvironmentFailed(f"{package.wheel}: '{missing[0]}' was not unpacked; nothing was changed")
        placed.append(_placed(package, distribution))
    return placed


def _owners(environment: UserEnvironment, in_the_way: Sequence[str]) -> list[str]:
    """Return who of the packages that are there owns one of the files ``in_the_way``."""
    if not in_the_way:
        return []
    wanted = {os.path.realpath(environment.root / name): name for name in in_the_way}
    return [
        f"{wanted[path]} of {name}"
        for name, distribution in environment.packages.items()
        for row, _ in recorded(distribution)
        if (path := os.path.realpath(Path(str(distribution.locate_file("")), row))) in wanted
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _where(error: OSError) -> str:
    return f" ('{error.filename}')" if error.filename else ""
