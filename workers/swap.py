"""Packages of an environment replaced as a whole, so that a kill at any step leaves the old ones or can be finished.

uv and pip remove a package file by file and then write the new one: for seconds torch is half there, and a full disk
in between leaves neither. So nothing is installed over anything here. What comes is unpacked beside, on the same file
system, where running out of space hurts nobody; then whole folders are renamed, the old ones out and the new ones in.
A rename needs no space, and the environment is incomplete for milliseconds. The journal is on the disk before the
first rename. Every rename can be asked for again, so a phase that was cut off is simply walked again, forward or back,
and what was taken out stays until the proof is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution
from pathlib import Path

from pydantic import ValidationError

from farm.errors import Incomplete, InfrastructureFailed
from farm.model import RollbackJournal
from farm.owners import owner_name
from workers.installed import recorded
from workers.user_environment import UserEnvironment

__all__ = ["Keeping", "into_units", "out_units"]

FOLDER = ".farm-rollback"
JOURNAL = "journal.json"
STAGE = "stage"
#: Room for the journal, set aside while there is some: a disk that fills up between two renames stops nothing.
SPARE = "spare"
SPARE_BYTES = 2**20
#: Files that no package owned and that went with the folders around them.
STRAYS = "strays"


class Keeping:
    """The folder inside an environment that holds its journal and what is in motion."""

    def __init__(self, environment: UserEnvironment) -> None:
        self.root = environment.root
        self.folder = environment.root / FOLDER

    @property
    def journal(self) -> RollbackJournal | None:
        """What is written down; None where nothing was done here. Raises InfrastructureFailed for a damaged one."""
        path = self.folder / JOURNAL
        try:
            return RollbackJournal.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise InfrastructureFailed(
                f"'{path}' cannot be read ({type(error).__name__}); what it knew is lost: move '{self.folder}' away, "
                "and say --to to begin anew"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this environment; the lock goes with the process. Raises Incomplete where another rollback holds it."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise Incomplete(
                    f"another farm rollback (process {file.read().strip() or 'unknown'}) works on '{self.root}'; "
                    "wait for it"
                ) from None
            with suppress(OSError):
                # On a full disk nobody is told the number, and an undo works all the same.
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
            yield

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield an empty folder for what comes, and remove it where the block fails.

        Those of rollbacks that never began to move are removed.
        """
        self.clean()
        stage = self.folder / f"{STAGE}-{owner_name('pid')}"
        try:
            shutil.rmtree(stage, ignore_errors=True)
            (stage / "new").mkdir(parents=True)
            (stage / SPARE).write_bytes(bytes(SPARE_BYTES))
            yield stage
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise

    def clean(self) -> None:
        """Remove every stage but the journal's."""
        journal = self.journal
        for path in self.folder.glob(f"{STAGE}-*"):
            if journal is None or path.name != journal.stage:
                shutil.rmtree(path, ignore_errors=True)

    def write(self, journal: RollbackJournal) -> RollbackJournal:
        """Put ``journal`` on the disk, whole or not at all, and return it."""
        try:
            self._write(journal)
        except OSError as error:
            spare = self.folder / journal.stage / SPARE
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not spare.is_file():
                raise
            spare.unlink()
            self._write(journal)
        return journal

    def _write(self, journal: RollbackJournal) -> None:
        making = self.folder / f".{JOURNAL}"
        with making.open("w", encoding="utf-8") as file:
            file.write(journal.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        making.replace(self.folder / JOURNAL)
        _sync_folder(self.folder)

    def go_on(self, journal: RollbackJournal) -> RollbackJournal:
        """Walk the phases of moving that are left, forward or back; return the journal with nothing left to move."""
        old, new = self.folder / journal.stage / "old", self.folder / journal.stage / "new"
        if journal.phase == "taking out":
            self._move(journal.out, self.root, old)
            journal = self.write(journal.model_copy(update={"phase": "putting in"}))
        if journal.phase == "putting in":
            self._move(journal.into, new, self.root)
            _sync_folder(self.root)
            journal = self.write(journal.model_copy(update={"phase": "unproven"}))
        if journal.phase == "giving back":
            self._move(journal.into, self.root, new)
            journal = self.write(journal.model_copy(update={"phase": "restoring"}))
        if journal.phase == "restoring":
            self._move(journal.out, old, self.root)
            _sync_folder(self.root)
        return journal

    def can_undo(self, journal: RollbackJournal) -> bool:
        """Return whether what was taken out is still kept."""
        return journal.phase != "proven" or (journal.kept and (self.folder / journal.stage / "old").is_dir())

    def turn_round(self, journal: RollbackJournal) -> RollbackJournal:
        """Return ``journal`` headed back to what was there before."""
        if journal.phase in ("giving back", "restoring"):
            return journal
        # While the old is taken out nothing new is in: what is in the way of the old is the old itself.
        phase = "restoring" if journal.phase == "taking out" else "giving back"
        return self.write(journal.model_copy(update={"phase": phase}))

    def finish(self, journal: RollbackJournal, *, keep: bool) -> RollbackJournal:
        """Write down that all is proven; unless ``keep`` throw away what was taken out, but no file without owner."""
        stage = self.folder / journal.stage
        for name in journal.strays:
            source, target = stage / "old" / name, self.folder / STRAYS / name
            if os.path.lexists(source) and not keep:
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
        journal = self.write(journal.model_copy(update={"phase": "proven", "kept": keep}))
        if not keep:
            # A kill in here leaves a stage without all that it had: under another name it cannot be taken for whole.
            gone = self.folder / f"{STAGE}-gone-{owner_name('pid')}"
            if stage.is_dir():
                stage.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        return journal

    def forget(self) -> None:
        """Remove all that a rollback knew, after it was undone; what no package owned went back with the rest."""
        (self.folder / JOURNAL).unlink(missing_ok=True)
        for path in self.folder.glob(f"{STAGE}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _move(self, names: Iterable[str], source: Path, target: Path) -> None:
        for name in names:
            move(source / name, target / name)


def move(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target``; what was moved already stays, and half a move is finished.

    Containers show folders of a lower layer that cannot be renamed (EXDEV from overlayfs): those go entry by entry.
    """
    if not os.path.lexists(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = source.is_dir() and not source.is_symlink()
    if not folder or not os.path.lexists(target):
        try:
            source.replace(target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    if folder:
        target.mkdir(exist_ok=True)
        for entry in sorted(source.iterdir()):
            move(entry, target / entry.name)
        source.rmdir()
    else:
        copying = target.with_name(f".{target.name}.farm-moving")
        shutil.copy2(source, copying, follow_symlinks=False)
        copying.replace(target)
        source.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- what is moved -------------------------------------------------------------------------------------------------


def out_units(
    environment: UserEnvironment, going: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return what is taken out with the packages ``going``: units to rename, strays in them, files beyond our reach.

    A unit is a file, or the outermost folder inside site-packages that no staying package has a file in; units and
    strays are relative to the environment.
    """
    places = _Places(environment)
    owned: set[Path] = set()
    beyond: set[str] = set()
    protected = places.protected()
    for name, distribution in environment.packages.items():
        for path in _files(environment, distribution, bytecode=name in going):
            placed = places.of(path)
            if name not in going and placed is not None:
                protected.update((placed, *placed.parents))
            elif name in going and placed is not None:
                owned.add(placed)
            elif name in going:
                beyond.add(str(path))
    sites = [places.of(site / "x") for site in environment.sites]
    inside = {site.parent for site in sites if site is not None}
    units = set()
    for path in owned - protected:
        unit = path
        while unit.parent not in protected and not inside.isdisjoint(unit.parent.parents):
            unit = unit.parent
        if os.path.lexists(environment.root / unit):
            units.add(unit)
    lost = set()
    for unit in units:
        for path in _below(environment.root / unit):
            placed = places.of(path)
            if placed is not None and placed not in owned and path.suffix != ".pyc":
                lost.add(placed)
    return _names(units), _names(lost), tuple(sorted(beyond))


def into_units(environment: UserEnvironment, new: Path, out: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return what of the unpacked ``new`` is put in, and the files that are in its way and do not go by themselves."""
    places, gone = _Places(environment), {Path(name) for name in out}
    units: list[Path] = []
    in_the_way: list[str] = []

    def visit(relative: Path) -> None:
        target = environment.root / relative
        placed = places.of(target) or relative
        there = os.path.lexists(target) and gone.isdisjoint((placed, *placed.parents))
        if there and (new / relative).is_dir() and target.is_dir():
            for entry in sorted((new / relative).iterdir()):
                visit(relative / entry.name)
            return
        if there:
            in_the_way.append(str(placed))
        units.append(relative)

    for entry in sorted(new.iterdir()):
        # uv locks what it installs into.
        if entry.name != ".lock":
            visit(Path(entry.name))
    return _names(units), in_the_way


class _Places:
    """Where paths are inside an environment, with links of folders followed (lib64 is lib)."""

    def __init__(self, environment: UserEnvironment) -> None:
        self._environment = environment
        self._root = Path(os.path.realpath(environment.root))
        self._folders: dict[Path, Path | None] = {}

    def of(self, path: Path) -> Path | None:
        """Return ``path`` relative to the environment; None where it is outside."""
        folder = path.parent
        if folder not in self._folders:
            real = Path(os.path.realpath(folder))
            self._folders[folder] = real.relative_to(self._root) if real.is_relative_to(self._root) else None
        placed = self._folders[folder]
        return None if placed is None else placed / path.name

    def protected(self) -> set[Path]:
        """Return folders that are never taken out as a whole, whoever has files in them."""
        found = {Path()}
        for folder in (*self._environment.sites, self._environment.scripts):
            placed = self.of(folder / "x")
            if placed is not None:
                # Bytecode of every package that is a single file is in one folder.
                found.update((*placed.parents, placed.parent / "__pycache__"))
        return found


def _files(environment: UserEnvironment, distribution: Distribution, *, bytecode: bool) -> Iterator[Path]:
    base = Path(str(distribution.locate_file("")))
    for name, _ in recorded(distribution):
        path = Path(os.path.normpath(base / name))
        yield path
        if bytecode and path.suffix == ".py" and path.parent in environment.sites:
            yield from (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")


def _below(unit: Path) -> Iterator[Path]:
    if unit.is_dir() and not unit.is_symlink():
        for folder, _, files in os.walk(unit):
            yield from (Path(folder, file) for file in files)


def _names(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted(map(str, set(paths))))
