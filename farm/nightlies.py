"""Which nightlies lie between two releases, as the configured index serves them, or as they are kept here."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from farm.errors import InfrastructureFailed
from farm.installer import InstallerError, lock
from farm.model import Environment

__all__ = ["nightlies_between"]

#: What says that the index has no more, and not that it could not be asked.
NO_MORE = ("missing", "platform", "yanked")


def nightlies_between(
    good: Version, bad: Version, installed: Environment, kept: Sequence[Environment] = ()
) -> tuple[str, ...]:
    """Return the nightlies after ``good`` and before ``bad`` for the platform and Python of ``installed``.

    The oldest first; ``kept`` are locks whose every wheel is kept here, which an index may not serve any more.

    Raises InfrastructureFailed where the index cannot be asked.
    """
    release = installed.release
    build = (release.platform, release.variant, installed.python)
    found = {
        Version(one.release.version) for one in kept if (one.release.platform, one.release.variant, one.python) == build
    }
    newest = _newest_before(bad, installed)
    while newest is not None and newest > good:
        found.add(newest)
        newest = _newest_before(newest, installed)
    # Release candidates and patches are from branches of their own: they have no place among the nights.
    return tuple(str(version) for version in sorted(found) if version.is_devrelease and good < version < bad)


def _newest_before(before: Version, installed: Environment) -> Version | None:
    """Return the newest version before ``before`` that uv would install; None where there is none.

    uv has no command that lists versions; asked for the newest again and again it is the only judge of indexes, tags,
    yanked versions and Python versions (60 ms each here, the index's page cached).
    """
    # Plain `<1.1` would leave out the pre-releases of 1.1.
    requirement = f"torch<={before.public},!={before.public}"
    try:
        packages = lock(
            [requirement],
            platform=installed.release.platform,
            python=installed.python,
            prerelease=True,
            alone=True,
        )
    except InstallerError as error:
        if error.kind in NO_MORE:
            return None
        raise InfrastructureFailed(f"the nightlies cannot be listed: {error}\n{error.last_words}") from error
    return Version(Version(packages[0].version).public)
