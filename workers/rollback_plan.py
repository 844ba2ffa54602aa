"""What must move in an environment so that it holds a release again, and who of those that stay would suffer."""

from __future__ import annotations

import shutil
import zipfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from farm.errors import EnvironmentFailed, UsageError
from farm.installer import InstallerError, lock
from farm.model import Dependent, Environment, LockedPackage, PackageMove, RollbackPlan, TorchIdentity
from farm.releases import is_torch_family
from farm.settings import Home
from workers.installed import WheelFacts, build_rows, recorded, strays, wheel_facts
from workers.swap import out_units
from workers.user_environment import UserEnvironment, canonical
from workers.wheelhouse import held

__all__ = ["Companions", "Wanted", "make_plan", "origin", "same_version", "satisfied"]

Companions = Literal["ask", "move", "leave"]
#: Built for one release of torch, and of the user's choosing: they move only when that is asked for.
CHOSEN = ("torchvision", "torchaudio")


@dataclass(frozen=True)
class Wanted:
    """What an environment is taken back to, and how that is known."""

    environment: Environment
    source: str
    rehearsed_s: float | None = None

    @property
    def identity(self) -> TorchIdentity:
        release = self.environment.release
        return TorchIdentity(version=release.version, variant=release.variant)

    @property
    def family(self) -> tuple[LockedPackage, ...]:
        """The packages of the lock that move with torch."""
        return tuple(package for package in self.environment.packages if is_torch_family(package.name))

    @property
    def others(self) -> dict[str, LockedPackage]:
        """The rest of the lock by name: it holds what torch needs, and what the farm's runners need beside it."""
        return {package.name: package for package in self.environment.packages if not is_torch_family(package.name)}


def make_plan(
    environment: UserEnvironment,
    wanted: Wanted,
    home: Home,
    companions: Companions = "ask",
) -> RollbackPlan:
    """Return what would be done to take ``environment`` to ``wanted``; nothing is changed, and nothing fetched.

    Only ``companions`` "move" asks an index, for the versions that fit. Raises UsageError where the lock is for another
    Python or platform, EnvironmentFailed where no fitting companion can be had.
    """
    _same_platform(environment, wanted)
    return _Planning(environment, wanted, home, companions).plan()


def same_version(one: str, other: str) -> bool:
    """Return whether two versions are one release; the local part is not compared (CASES.md V11)."""
    try:
        return Version(one).public == Version(other).public
    except InvalidVersion:
        return one == other


def satisfied(requirement: Requirement, version: str | None) -> bool:
    """Return whether ``version`` (None: not installed) is what ``requirement`` asks for."""
    if version is None:
        return False
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


@dataclass
class _Planning:
    environment: UserEnvironment
    wanted: Wanted
    home: Home
    companions: Companions
    moves: dict[str, PackageMove] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, WheelFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.there: dict[str, Distribution] = self.environment.packages
        self.installed = self.environment.torch()

    def plan(self) -> RollbackPlan:
        self._check_torch()
        for package in self.wanted.family:
            why = self._why(package)
            if why:
                self._take(package, why)
        self._leave_behind()
        self._dependencies()
        dependents = self._dependents()
        breaking = [one for one in dependents if one.breaks]
        if breaking and self.companions == "move":
            self._companions(breaking)
            dependents = [one for one in self._dependents() if one.name not in self.moves]
        going = {name for name, move in self.moves.items() if move.before is not None}
        _, lost, _ = out_units(self.environment, going) if going else ((), (), ())
        return RollbackPlan(
            environment=str(self.environment.root),
            python=self.environment.version,
            platform=self.environment.platform,
            installed=self.installed,
            to=self.wanted.identity,
            source=self.wanted.source,
            rehearsed_s=self.wanted.rehearsed_s,
            moves=tuple(self.moves[name] for name in sorted(self.moves, key=lambda name: (name != "torch", name))),
            dependents=tuple(dependents),
            untouched=len(self.there.keys() - self.moves.keys()),
            strays=lost,
            in_use=self.environment.in_use(),
            notes=tuple(self.notes),
            needed_bytes=sum(move.unpacked_bytes or 0 for move in self.moves.values()),
            free_bytes=shutil.disk_usage(self.environment.root).free,
        )

    # -- torch's family -----------------------------------------------------------------------------------------

    def _check_torch(self) -> None:
        torch = self.there.get("torch")
        if torch is None:
            self.notes.append("torch is not installed, or its metadata are lost")
            return
        direct = torch.read_text("direct_url.json") or ""
        if '"editable": true' in direct or not recorded(torch):
            how = "an editable install" if "editable" in direct else "its RECORD is missing"
            raise UsageError(
                f"which files are torch's is not known in '{self.environment.root}' ({how}): the farm cannot take it "
                "out; remove it with what installed it, and run this again with --to"
            )

    def _why(self, package: LockedPackage) -> str:
        """Return why a package of the lock's family must be put in; "" where it is there and whole."""
        distribution = self.there.get(package.name)
        if distribution is None:
            return f"torch {self.wanted.identity.version} needs it"
        if not same_version(distribution.version, package.version):
            return "another version"
        site = Path(str(distribution.locate_file("")))
        facts, rows = self._facts(package), recorded(distribution)
        if package.name == "torch" and self.installed is not None:
            if self.installed.variant != self.wanted.identity.variant:
                return "another build of the same version"
            if facts is None and strays([site]):
                return "files in its folder belong to no package"
        if facts is not None and build_rows(facts.rows) - set(rows):
            return "another build of the same version"
        damaged = self.environment.damaged(package.name)
        if damaged:
            return f"damaged: {damaged[0]}" + (f", and {len(damaged) - 1} more" if damaged[1:] else "")
        if package.name == "torch" and strays(self.environment.sites):
            return "files in its folder belong to no package"
        return ""

    def _leave_behind(self) -> None:
        """Take out what came with the installed torch alone, and what the wanted one does not bring."""
        torch = self.there.get("torch")
        if torch is None or "torch" not in self.moves:
            return
        ours = {package.name for package in self.wanted.family}
        brought: set[str] = set()
        queue: deque[Requirement] = deque(self.environment.needs(torch))
        seen: set[tuple[str, frozenset[str]]] = set()
        while queue:
            requirement = queue.popleft()
            name = canonical(requirement.name)
            key = (name, frozenset(requirement.extras))
            if key in seen or name not in self.there or not is_torch_family(name):
                continue
            seen.add(key)
            brought.add(name)
            queue.extend(self.environment.needs(self.there[name], requirement.extras))
        leaving = brought - ours - {"torch", *CHOSEN}
        kept_for: dict[str, str] = {}
        while True:
            stayers = self.there.keys() - leaving - ours
            # Whoever names it with whatever extra keeps it: which extras were asked for is written down nowhere.
            named = {canonical(_name(line)): one for one in stayers for line in self.there[one].requires or ()}
            keep = leaving & named.keys()
            if not keep:
                break
            kept_for |= {name: named[name] for name in keep}
            leaving -= keep
        for name in sorted(leaving):
            version = self.there[name].version
            self.moves[name] = PackageMove(
                name=name, before=version, after=None, why=f"torch {self._version('torch')} brought it, nothing else"
            )
        self.notes += [f"{name} stays: {one} asks for it" for name, one in sorted(kept_for.items())]

    # -- those beside torch -------------------------------------------------------------------------------------

    def _dependencies(self) -> None:
        """Take along what the wanted torch needs outside its family and does not find."""
        torch = next(package for package in self.wanted.family if package.name == "torch")
        facts = self._facts(torch)
        if "torch" not in self.moves:
            return
        if facts is None:
            self.notes.append(
                f"what torch {self.wanted.identity.version} needs is checked again once its wheel is here"
            )
            return
        queue = deque((torch, requirement) for requirement in self.environment.applying(facts.requires))
        seen = set()
        while queue:
            asker, requirement = queue.popleft()
            name = canonical(requirement.name)
            if name in seen or is_torch_family(name) or satisfied(requirement, self._version(name)):
                continue
            seen.add(name)
            package = self.wanted.others.get(name)
            if package is None or not satisfied(requirement, package.version):
                self.notes.append(f"{asker.name} {asker.version} needs {requirement}, which the lock does not hold")
                continue
            self._take(package, f"{asker.name} {asker.version} needs {requirement}")
            more = self._facts(package)
            queue.extend((package, one) for one in self.environment.applying(more.requires if more else ()))

    def _dependents(self) -> list[Dependent]:
        """Return packages that stay and ask for another version of what moves, or were compiled against torch."""
        found = []
        for name, distribution in sorted(self.there.items()):
            if name in self.moves:
                continue
            for requirement in self.environment.needs(distribution):
                needed = canonical(requirement.name)
                move = self.moves.get(needed)
                if move is None:
                    continue
                before = self.installed.identity if needed == "torch" and self.installed else move.before
                after = self.wanted.identity.identity if needed == "torch" else move.after
                breaks = satisfied(requirement, before) and not satisfied(requirement, after)
                compiled = needed == "torch" and any(path.endswith(".so") for path, _ in recorded(distribution))
                if breaks or (compiled and not same_version(before or "", after or "")):
                    needs = f"{requirement.name}{requirement.specifier}"
                    found.append(Dependent(name=name, version=distribution.version, needs=needs, breaks=breaks))
                    break
        return found

    def _companions(self, breaking: list[Dependent]) -> None:
        """Take along what would break, at the versions that an index has for the wanted torch."""
        names = [one.name for one in breaking]
        beside = {
            canonical(requirement.name)
            for name in names
            for requirement in self.environment.needs(self.there[name])
            if canonical(requirement.name) not in self.moves
        }
        pins = tuple(f"{name}=={self.there[name].version}" for name in sorted(beside & self.there.keys() - set(names)))
        release = self.wanted.environment.release
        try:
            found = lock(
                [release.requirement, *names],
                platform=self.environment.platform,
                python=self.environment.version,
                constraints=pins,
                prerelease=Version(release.version).is_prerelease,
            )
        except InstallerError as error:
            raise EnvironmentFailed(
                f"no {' and '.join(names)} for torch {release.version} that lives with what is installed: {error}; "
                "--companions leave goes without",
                error.last_words,
            ) from error
        ours = {package.name for package in self.wanted.environment.packages}
        for package in found:
            if package.name in names:
                self._take(package, f"made for torch {release.version}")
            elif package.name not in ours and package.name not in self.there:
                self._take(package, f"{' or '.join(names)} needs it")

    # -- small facts --------------------------------------------------------------------------------------------

    def _take(self, package: LockedPackage, why: str) -> None:
        facts = self._facts(package)
        self.moves[package.name] = PackageMove(
            name=package.name,
            before=self._version(package.name),
            after=package.version,
            why=why,
            wheel=package,
            held=facts is not None,
            unpacked_bytes=facts.unpacked_bytes if facts else None,
        )

    def _version(self, name: str) -> str | None:
        distribution = self.there.get(name)
        return distribution.version if distribution else None

    def _facts(self, package: LockedPackage) -> WheelFacts | None:
        """Return what the wheel of ``package`` says of itself; None where the wheelhouse does not have it, whole."""
        if package.sha256 not in self.facts:
            wheel = held(package, self.home)
            if wheel is None:
                return None
            try:
                self.facts[package.sha256] = wheel_facts(wheel)
            except (OSError, zipfile.BadZipFile) as error:
                raise EnvironmentFailed(f"'{package.wheel}' in the wheelhouse is no wheel: {error}") from error
        return self.facts[package.sha256]


def origin(package: LockedPackage) -> str:
    """Return where a wheel would come from, in words."""
    return urlsplit(package.url).hostname or "a local folder"


def _same_platform(environment: UserEnvironment, wanted: Wanted) -> None:
    lock_of, release = wanted.environment, wanted.environment.release
    if lock_of.python != environment.version:
        raise UsageError(
            f"'{environment.root}' is of Python {environment.version}, and {wanted.source} is locked for Python "
            f"{lock_of.python}; say --to {release.version} to have it resolved for {environment.version}"
        )
    if release.platform != environment.platform:
        raise UsageError(
            f"'{environment.root}' is for {environment.platform}, and {wanted.source} is locked for {release.platform}"
        )


def _name(line: str) -> str:
    """Return the name in a requirement's line."""
    return next(iter(_names([line])), "")


def _names(lines: Iterable[str]) -> list[str]:
    found = []
    for line in lines:
        head = line.partition(";")[0]
        for stop in "[(<>=!~ @":
            head = head.partition(stop)[0]
        found.append(head.strip())
    return found
