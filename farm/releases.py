"""What "2.13" means today: one exact release, build variant and hash an arm, resolved once and jointly.

Every arm of a cell has one build variant, and every package outside torch's own family is equal in both arms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from farm.errors import EnvironmentFailed, InfrastructureFailed, UsageError
from farm.installer import InstallerError, lock, redact_text, unserved
from farm.model import Backend, Environment, EnvironmentRefused, LockedPackage, Release, Side

__all__ = [
    "SHARED_PACKAGES",
    "ReleaseRequest",
    "Resolution",
    "is_torch_family",
    "of_one_night",
    "one_build",
    "parse_request",
    "resolve",
    "resolve_beside",
    "served_version",
]

#: What may be typed after --candidate and --baseline.
FORMS = "2.13, 2.13.0, 2.13.0rc2, nightly, 2.14.0.dev20261130, a wheel's path or a URL"

#: Installed beside torch in every arm, with one version in all of them: what the runner and the workloads need.
SHARED_PACKAGES = ("numpy", "msgpack")

#: Packages that move with torch: its compiler, its vendor libraries and what is built against its ABI.
FAMILY = re.compile(r"^(torch|torchvision|torchaudio|triton.*|pytorch-triton.*|nvidia-.*|cuda-.*|rocm.*|amd-.*)$")


def is_torch_family(name: str) -> bool:
    """Return whether a package may differ between arms because it moves with torch."""
    return FAMILY.match(name) is not None


@dataclass(frozen=True)
class ReleaseRequest:
    """What was typed, understood."""

    kind: Literal["minor", "exact", "nightly", "wheel"]
    text: str
    version: Version | None

    @property
    def requirement(self) -> str:
        """The requirement that the newest matching release satisfies."""
        if self.kind == "minor":
            return f"torch=={self.text}.*"
        if self.kind == "exact":
            return f"torch=={self.version}"
        if self.kind == "nightly":
            return "torch>=0.dev0"
        location = self.text if "://" in self.text else Path(self.text).absolute().as_uri()
        return f"torch @ {location}"

    @property
    def prerelease(self) -> bool:
        return self.kind == "nightly" or bool(self.version and self.version.is_prerelease)


def parse_request(text: str) -> ReleaseRequest:
    """Return what ``text`` asks for. Raises UsageError naming it and the forms that are understood."""
    text = text.strip()
    if text == "nightly":
        return ReleaseRequest("nightly", text, None)
    if redact_text(text) != text:
        raise UsageError(
            f"'{redact_text(text)}' holds credentials, which are never kept; put them into every machine's netrc file"
        )
    if text.endswith(".whl"):
        if "://" not in text and not Path(text).is_file():
            raise UsageError(f"there is no wheel at '{text}'; name a file that exists or a URL")
        try:
            name, version, _, _ = parse_wheel_filename(Path(urlsplit(text).path).name.replace("%2B", "+"))
        except InvalidWheelFilename as error:
            raise UsageError(f"'{text}' is not a wheel's name: {error}") from error
        if name != "torch":
            raise UsageError(f"'{text}' is a wheel of {name}; a release is a wheel of torch")
        return ReleaseRequest("wheel", text, version)
    if "://" in text:
        raise UsageError(f"'{text}' does not end in .whl; a URL names one wheel of torch")
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"'{text}' is not a release; understood are {FORMS}") from None
    if version.local:
        raise UsageError(
            f"'{text}' names a build variant; name the release ('{version.public}'): both arms get one variant"
        )
    if re.fullmatch(r"\d+\.\d+", text):
        return ReleaseRequest("minor", text, version)
    if len(version.release) < 3:
        raise UsageError(f"'{text}' is not a release; understood are {FORMS}")
    return ReleaseRequest("exact", text, version)


@dataclass(frozen=True)
class Resolution:
    """Both arms on one platform, resolved jointly."""

    environments: dict[Side, Environment]
    refused: tuple[EnvironmentRefused, ...] = ()
    notes: tuple[str, ...] = ()
    aa: bool = False
    broken_control: str | None = None
    pins: dict[Side, str] = field(default_factory=dict)
    """What to type to get exactly these releases again."""


@dataclass(frozen=True)
class _Build:
    """One build of a release: its requirement and what it locks to."""

    requirement: str
    variant: str
    packages: tuple[LockedPackage, ...]
    kept: str = ""
    """Why it is the lock of an earlier build; "" where an index serves it."""

    @property
    def torch(self) -> LockedPackage:
        return next(package for package in self.packages if package.name == "torch")


def resolve(
    candidate: str,
    baseline: str | None,
    *,
    platform: str,
    python: str,
    backend: Backend,
    baseline_default: str | None = None,
    shared_packages: tuple[str, ...] = SHARED_PACKAGES,
    kept: Sequence[Environment] = (),
) -> Resolution:
    """Return one exact environment an arm for ``platform`` (uv's triple) and ``python`` ("3.11").

    ``baseline`` None means ``baseline_default``, else the newest patch of the minor before the candidate's. ``kept``
    are locks whose every wheel is kept here: of a release that no index serves whole any more, they are what is left.

    Raises UsageError for a version that cannot be meant or that no index serves, InfrastructureFailed where the
    index cannot be reached; a release without a wheel for this platform is `refused` in the answer.
    """
    where = _Where(platform, python, shared_packages, tuple(kept))
    wanted = parse_request(candidate)
    new = _exact(wanted, where, "--candidate")
    named = baseline or baseline_default
    old = _exact(parse_request(named), where, "--baseline") if named else _before(new, where)
    with ThreadPoolExecutor(max_workers=2) as pool:
        # A CPU build is what a CPU cell would choose, if the other arm has one too.
        first = "cpu" if backend in ("cpu", "distributed") else None
        outcomes = list(pool.map(lambda exact: _builds(exact, where, first), (old, new)))
    refused = tuple(
        EnvironmentRefused(side=side, platform=platform, reason=str(builds), last_words=builds.last_words)
        for side, builds in zip((Side.BASELINE, Side.CANDIDATE), outcomes, strict=True)
        if isinstance(builds, EnvironmentFailed)
    )
    pins = {Side.BASELINE: old.pin, Side.CANDIDATE: new.pin}
    if refused:
        one_sided = {
            side: _environment(builds[0], builds[0].packages, where)
            for side, builds in zip((Side.BASELINE, Side.CANDIDATE), outcomes, strict=True)
            if not isinstance(builds, EnvironmentFailed)
        }
        return Resolution(one_sided, refused, tuple(r.reason for r in refused), pins=pins)
    old_builds, new_builds = (outcome for outcome in outcomes if not isinstance(outcome, EnvironmentFailed))
    chosen_old, chosen_new, note, broken = _same_variant(old_builds, new_builds)
    packages_old, packages_new = _joint(chosen_old, chosen_new, where)
    environments = {
        Side.BASELINE: _environment(chosen_old, packages_old, where),
        Side.CANDIDATE: _environment(chosen_new, packages_new, where),
    }
    notes = [note, *(build.kept for build in (chosen_old, chosen_new) if build.kept)]
    aa = chosen_old.torch.sha256 == chosen_new.torch.sha256
    if aa:
        notes.append(f"A/A run: both arms are the same wheel, {chosen_new.torch.wheel}; differences are noise")
    return Resolution(environments, (), tuple(notes), aa, broken, pins)


def of_one_night(resolutions: Mapping[str, Resolution], asked: Mapping[Side, str | None]) -> dict[str, Resolution]:
    """Return ``resolutions`` (by where they hold) with one nightly in all of them, the newest that any of them has.

    Where that nightly is not served yet, or not any more, its side is refused: an older one in its place would be
    compared as if it were tonight's. ``asked`` is what was typed for each side.
    """
    found = dict(resolutions)
    for side in [side for side, text in asked.items() if text is not None and text.strip() == "nightly"]:
        nights = {
            place: Version(resolution.environments[side].release.version)
            for place, resolution in found.items()
            if side in resolution.environments
        }
        for place, night in nights.items():
            newest = max(nights.values())
            if night < newest:
                reason = (
                    f"nightly {newest} is not served for {place}; the newest there is {night}, which is not measured "
                    "in its place"
                )
                found[place] = _without(found[place], side, reason, str(newest))
    return found


def _without(resolution: Resolution, side: Side, reason: str, pin: str) -> Resolution:
    gone = resolution.environments[side]
    return replace(
        resolution,
        environments={other: found for other, found in resolution.environments.items() if other is not side},
        refused=(
            *resolution.refused,
            EnvironmentRefused(side=side, platform=gone.release.platform, reason=reason),
        ),
        notes=(*resolution.notes, reason),
        aa=False,
        broken_control=None,
        pins={**resolution.pins, side: pin},
    )


def one_build(
    release: str, variant: str | None, *, platform: str, python: str, beside: tuple[str, ...] = (), option: str = "--to"
) -> Environment:
    """Return the lock of torch alone, of build ``variant`` (None: the first on offer).

    ``beside`` are pins of what is installed already: they hold where torch can live with them.

    Raises UsageError for a version that no index serves or not as that build, InfrastructureFailed without an index.
    """
    where = _Where(platform, python, ())
    exact = _exact(parse_request(release), where, option)
    builds = _builds(exact, where, variant, beside)
    if isinstance(builds, EnvironmentFailed) and beside:
        builds = _builds(exact, where, variant)
    if isinstance(builds, EnvironmentFailed):
        raise builds
    for build in builds:
        if variant in (None, build.variant):
            return _environment(build, build.packages, where)
    raise UsageError(
        f"{option} '{release}': served as {', '.join(build.variant for build in builds)}, and wanted is {variant}, as "
        f"is installed; name the build ({release}+{builds[0].variant}), or add an index that serves {variant}"
    )


def served_version(text: str, installed: Environment, option: str, kept: Sequence[Environment] = ()) -> Version:
    """Return the version that ``text`` means where ``installed`` stands, of what is served there or kept here.

    Raises UsageError for what cannot be meant, is not served or is no version, InfrastructureFailed without an index.
    """
    request = parse_request(text)
    if request.kind == "wheel":
        raise UsageError(f"{option} '{text}': name a version; a wheel has no place among those that an index serves")
    where = _Where(installed.release.platform, installed.python, (), tuple(kept))
    return _exact(request, where, option).version


def resolve_beside(version: str, installed: Environment, kept: Sequence[Environment] = ()) -> Environment:
    """Return the lock of torch ``version`` in the build of ``installed``, with its packages outside torch's family.

    Raises EnvironmentFailed where that cannot be had, InfrastructureFailed without an index.
    """
    where = _Where(installed.release.platform, installed.python, (), tuple(kept))
    pins = tuple(f"{name}=={found}" for name, found in _companions(installed.packages).items())
    variant = installed.release.variant
    try:
        builds = _builds(_Exact(Version(version)), where, variant, pins)
    except UsageError as error:
        raise EnvironmentFailed(str(error)) from error
    if isinstance(builds, EnvironmentFailed):
        raise builds
    for build in builds:
        if build.variant == variant:
            return _environment(build, build.packages, where)
    served = ", ".join(build.variant for build in builds)
    raise EnvironmentFailed(f"torch {version} is served as {served}, and what is measured is {variant}")


@dataclass(frozen=True)
class _Where:
    platform: str
    python: str
    shared: tuple[str, ...]
    kept: tuple[Environment, ...] = ()

    def lock(
        self, requirement: str, constraints: tuple[str, ...] = (), *, prerelease: bool = False, alone: bool = False
    ) -> tuple[LockedPackage, ...]:
        return lock(
            [requirement, *self.shared],
            platform=self.platform,
            python=self.python,
            constraints=constraints,
            prerelease=prerelease,
            alone=alone,
        )

    def kept_builds(self, version: Version, why: str) -> list[_Build]:
        """Return the builds of ``version`` whose every wheel is kept here, the last used first, one a variant."""
        found: dict[str, _Build] = {}
        for environment in self.kept:
            release = environment.release
            if (release.version, release.platform, environment.python) == (version.public, self.platform, self.python):
                gone = "expired upstream" if version.is_devrelease else "not served whole any more"
                note = f"torch {version.public} is {gone} and is installed from the wheels that are kept here: {why}"
                build = _Build(release.requirement, release.variant, environment.packages, note)
                found.setdefault(release.variant, build)
        return list(found.values())


@dataclass(frozen=True)
class _Exact:
    """One release, exactly: by version, or by the wheel that was named."""

    version: Version
    wheel: str | None = None

    @property
    def pin(self) -> str:
        return self.wheel or self.version.public


def _exact(request: ReleaseRequest, where: _Where, option: str) -> _Exact:
    """Return the release that ``request`` is today."""
    if request.kind == "wheel":
        assert request.version is not None
        return _Exact(request.version, request.text)
    if request.kind == "exact":
        assert request.version is not None
        # Whether this platform has a wheel is asked later, build by build; whether it exists at all is asked now.
        try:
            _newest(request.requirement, where, option, request)
        except UsageError as error:
            if not where.kept_builds(request.version, str(error)):
                raise
        return _Exact(request.version)
    found = _newest(request.requirement, where, option, request)
    if request.kind == "nightly" and not found.is_devrelease:
        raise UsageError(
            f"{option} nightly: the configured index serves no nightly, its newest is {found.public}; "
            "add a nightly index to pip's or uv's settings"
        )
    return _Exact(Version(found.public))


def _newest(requirement: str, where: _Where, option: str, request: ReleaseRequest | None = None) -> Version:
    """Return the newest version that ``requirement`` allows, whether or not what it needs can be had.

    A release that lacks something is refused with its reason: it is never an older one in silence (CASES.md V5).
    """
    try:
        packages = where.lock(requirement, prerelease=bool(request and request.prerelease), alone=True)
    except InstallerError as error:
        text = request.text if request else requirement
        if error.kind == "missing" and not _blames_torch(error):
            raise EnvironmentFailed(
                f"{option} '{text}': what torch is installed with cannot be had", error.last_words
            ) from error
        if error.kind == "missing":
            raise UsageError(
                f"{option} '{text}': the configured index serves no such torch; {_served(where)}"
            ) from error
        if error.kind == "yanked":
            raise UsageError(f"{option} '{text}': {error.last_words}; {_served(where)}") from error
        if error.kind == "network":
            raise InfrastructureFailed(f"{option} '{text}': the index cannot be reached\n{error.last_words}") from error
        if error.kind == "credentials":
            raise InfrastructureFailed(
                f"{option} '{text}': the index refuses the credentials\n{error.last_words}"
            ) from error
        if error.kind == "platform" and request is not None and request.kind == "exact":
            assert request.version is not None
            return request.version
        if error.kind == "platform":
            raise UsageError(f"{option} '{text}': no wheel for {where.platform}\n{error.last_words}") from error
        raise
    return Version(next(package.version for package in packages if package.name == "torch"))


def _blames_torch(error: InstallerError) -> bool:
    """Return whether it is torch itself that is missing, and not a package beside it."""
    return "torch" in error.last_words and "depends on" not in error.last_words


def _served(where: _Where) -> str:
    """Return what to type instead: the newest release that is served."""
    try:
        newest = Version(next(p.version for p in where.lock("torch") if p.name == "torch"))
    except EnvironmentFailed:
        return "check the index settings of pip and uv"
    return f"the newest that it serves is {newest.public}"


def _before(candidate: _Exact, where: _Where) -> _Exact:
    """Return the newest stable patch of the minor before ``candidate``'s."""
    major, minor = candidate.version.release[:2]
    return _Exact(Version(_newest(f"torch<{major}.{minor}", where, "--baseline (by default)").public))


def _builds(
    exact: _Exact, where: _Where, first: str | None, constraints: tuple[str, ...] = ()
) -> list[_Build] | EnvironmentFailed:
    """Return the builds of one release that can be had, best first; or why there is none.

    ``first`` is the build variant that is asked for by name before any other.
    """
    public = exact.version.public
    forms = [f"torch==={public}", f"torch=={public}"]
    if first is not None:
        forms.insert(0, f"torch=={public}+{first}")
    if exact.wheel is not None:
        forms = [ReleaseRequest("wheel", exact.wheel, exact.version).requirement]
    builds: list[_Build] = []
    last: InstallerError | None = None
    for form in forms:
        try:
            packages = where.lock(form, constraints, prerelease=exact.version.is_prerelease)
        except InstallerError as error:
            if error.kind == "network":
                raise InfrastructureFailed(
                    f"torch {public}: the index cannot be reached\n{error.last_words}"
                ) from error
            if error.kind == "absent" and exact.wheel is not None:
                raise UsageError(f"there is no wheel at '{exact.wheel}'\n{error.last_words}") from error
            last = error if last is None or "+" not in form else last
            continue
        found = Version(next(package.version for package in packages if package.name == "torch"))
        if found.public != public:
            # A nightly that another index "has" as an old release (CASES.md V2).
            raise UsageError(f"torch {public} was asked for, and the configured indexes answered with {found.public}")
        build = _Build(form, _variant(packages, where.platform), packages)
        if build.variant not in {known.variant for known in builds}:
            builds.append(build)
    if builds or last is None:
        return builds or EnvironmentFailed(f"torch {public}: no build can be had")
    refused = _refusal(public, last)
    if last.kind not in ("missing", "absent", "platform", "yanked"):
        return refused
    return where.kept_builds(exact.version, str(refused)) or refused


def _refusal(public: str, error: EnvironmentFailed) -> EnvironmentFailed:
    """Return ``error`` with the requirement named that nothing is served for, if it is that."""
    named = unserved(error.last_words)
    if named is None:
        return error
    requirement, whose = named
    needed = "it" if re.match(r"torch\b(?!-)", whose) else whose
    words = f"torch {public} cannot be installed: {needed} needs {requirement}, and no configured index serves that"
    return EnvironmentFailed(words, error.last_words)


def _variant(packages: tuple[LockedPackage, ...], platform: str) -> str:
    """Return the build variant: the wheel's local part, else what its dependencies say, else cpu."""
    versions = {package.name: package.version for package in packages}
    local = Version(versions["torch"]).local
    if local:
        return local
    toolkit = versions.get("cuda-toolkit")
    if toolkit:
        major, minor = Version(toolkit).release[:2]
        return f"cu{major}{minor}"
    runtime = next((v for name, v in versions.items() if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name)), None)
    if runtime:
        major, minor = Version(runtime).release[:2]
        return f"cu{major}{minor}"
    if any(name.startswith(("rocm", "pytorch-triton-rocm", "triton-rocm")) for name in versions):
        return "rocm"
    return "cpu"


def _same_variant(old: list[_Build], new: list[_Build]) -> tuple[_Build, _Build, str, str | None]:
    """Return one build an arm with the first variant that both can have; the note; what is broken, if none."""
    by_variant = {build.variant: build for build in old}
    for build in new:
        if build.variant in by_variant:
            others = sorted({b.variant for b in [*old, *new]} - {build.variant})
            why = "the only one on offer"
            if others:
                why = f"the first that both arms have ({', '.join(others)} passed over)"
            partner = by_variant[build.variant]
            note = (
                f"build variant {build.variant}: {why} "
                f"(baseline {', '.join(b.variant for b in old)}; candidate {', '.join(b.variant for b in new)})"
            )
            return partner, build, note, None
    note = (
        f"no common build variant: baseline has {', '.join(b.variant for b in old)}, "
        f"candidate has {', '.join(b.variant for b in new)}"
    )
    return old[0], new[0], note, "build variant differs"


def _joint(old: _Build, new: _Build, where: _Where) -> tuple[tuple[LockedPackage, ...], tuple[LockedPackage, ...]]:
    """Return both closures with every package outside torch's family in both, at one version.

    One arm's versions are tried as pins for the other, in both directions: 2.12 wants setuptools below 82, 2.13 takes
    any. What only one arm needs is installed in the other too. Where neither direction works the closures stay apart,
    and the worker says that the control is broken.
    """
    if _companions(old.packages) == _companions(new.packages):
        return old.packages, new.packages
    for first, second in ((old, new), (new, old)):
        try:
            pinned = _pinned(second, first.packages, where)
            packages = first.packages
            if _companions(packages) != _companions(pinned):
                packages = _pinned(first, pinned, where)
        except InstallerError:
            continue
        if _companions(packages) == _companions(pinned):
            return (packages, pinned) if first is old else (pinned, packages)
    return old.packages, new.packages


def _companions(packages: tuple[LockedPackage, ...]) -> dict[str, str]:
    """Return version by name of every package outside torch's family."""
    return {package.name: package.version for package in packages if not is_torch_family(package.name)}


def _pinned(build: _Build, to: tuple[LockedPackage, ...], where: _Where) -> tuple[LockedPackage, ...]:
    """Return the closure of ``build`` with the packages of ``to`` outside torch's family, at their versions."""
    pins = tuple(f"{name}=={version}" for name, version in _companions(to).items())
    return where.lock(build.requirement, pins, prerelease=Version(build.torch.version).is_prerelease)


def _environment(build: _Build, packages: tuple[LockedPackage, ...], where: _Where) -> Environment:
    torch = next(package for package in packages if package.name == "torch")
    version = Version(torch.version)
    origin = urlsplit(torch.url)
    return Environment(
        python=where.python,
        packages=packages,
        release=Release(
            version=version.public,
            local=version.local,
            variant=build.variant,
            platform=where.platform,
            wheel=torch.wheel,
            sha256=torch.sha256,
            origin=origin.hostname or "a local folder",
            requirement=build.requirement,
        ),
    )
