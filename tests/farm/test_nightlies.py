"""Which nightlies lie between two releases, and what one is installed with, asked of a real index of tiny wheels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from farm.errors import EnvironmentFailed, InfrastructureFailed, UsageError
from farm.nightlies import nightlies_between
from farm.releases import resolve_beside, served_version
from tests.wheels import ELSEWHERE, Index, environment_of, installers_alone, make_torch, make_wheel, serve


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    installers_alone(monkeypatch, tmp_path / "cache")
    with serve(tmp_path / "index") as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def night(day: int, release: str = "2.13.0") -> str:
    return f"{release}.dev202606{day:02d}"


def test_they_are_what_an_installer_would_take_here_between_the_ends_and_no_release(
    tmp_path: Path, index: Index
) -> None:
    """Given nights of two releases, one for another platform, one yanked, patches and release candidates."""
    for version in (
        "2.12.0",
        "2.12.1",
        "2.13.0rc1",
        "2.13.0",
        "2.13.1",
        night(1),
        f"{night(2)}+cpu",
        night(9, "2.14.0"),
    ):
        index.add(make_torch(tmp_path, version))
    index.add(make_torch(tmp_path, night(3), tag=ELSEWHERE))
    yanked = make_torch(tmp_path, night(4))
    index.add(yanked)
    index.yank(yanked, "broken")
    installed = environment_of(make_torch(tmp_path, "2.12.1"))
    gone = environment_of(make_torch(tmp_path, f"{night(5)}+cpu"))
    other_build = environment_of(make_torch(tmp_path, f"{night(6)}+cu130"))

    def between(good: str, bad: str) -> tuple[str, ...]:
        return nightlies_between(Version(good), Version(bad), installed, [gone, other_build])

    assert between("2.12.1", "2.13.0") == (night(1), night(2), night(5))
    assert between(night(1), night(5)) == (night(2),)
    assert between("2.13.0", "2.14.0") == (night(9, "2.14.0"),)
    assert between("2.10.0", "2.11.0") == ()


def test_an_index_that_cannot_be_asked_serves_not_nothing(tmp_path: Path, index: Index) -> None:
    installed = environment_of(make_torch(tmp_path, "2.12.1"))
    index.credentials = "user:secret"
    with pytest.raises(InfrastructureFailed, match="the nightlies cannot be listed"):
        nightlies_between(Version("2.12.1"), Version("2.13.0"), installed)


def test_a_nightly_is_locked_with_the_companions_of_what_it_is_measured_beside(tmp_path: Path, index: Index) -> None:
    """Given a newer numpy and the nightly's own triton, I expect the old numpy and the nightly's triton."""
    beside = [
        make_torch(tmp_path, "2.12.1+cpu"),
        make_wheel(tmp_path, "numpy", "2.0"),
        make_wheel(tmp_path, "triton", "3.6"),
    ]
    for wheel in (*beside, make_wheel(tmp_path, "numpy", "2.1"), make_wheel(tmp_path, "triton", "3.7")):
        index.add(wheel)
    index.add(make_torch(tmp_path, f"{night(1)}+cpu", requires=["triton==3.7", "numpy"]))
    index.add(make_torch(tmp_path, f"{night(2)}+cu130"))
    index.add(make_torch(tmp_path, f"{night(3)}+cpu", requires=["numpy>=2.1"]))
    installed = environment_of(*beside)
    found = resolve_beside(night(1), installed)
    assert {package.name: package.version for package in found.packages} == {
        "numpy": "2.0",
        "torch": f"{night(1)}+cpu",
        "triton": "3.7",
    }
    with pytest.raises(EnvironmentFailed, match="is served as cu130, and what is measured is cpu"):
        resolve_beside(night(2), installed)
    with pytest.raises(EnvironmentFailed) as refused:
        resolve_beside(night(3), installed)
    assert "depends on numpy>=2.1" in refused.value.last_words
    with pytest.raises(EnvironmentFailed, match="no such version"):
        resolve_beside(night(4), installed)


def test_an_end_is_a_version_that_is_served(tmp_path: Path, index: Index) -> None:
    for version in ("2.12.0", "2.12.1", night(1)):
        index.add(make_torch(tmp_path, version))
    installed = environment_of(make_torch(tmp_path, "2.12.0"))
    assert str(served_version("2.12", installed, "--good")) == "2.12.1"
    assert str(served_version("nightly", installed, "--bad")) == night(1)
    with pytest.raises(UsageError, match=r"--bad '2\.13\.0': the configured index serves no such torch"):
        served_version("2.13.0", installed, "--bad")
    with pytest.raises(UsageError, match="has no place among those that an index serves"):
        served_version(str(tmp_path / "torch-2.12.0-py3-none-any.whl"), installed, "--good")
