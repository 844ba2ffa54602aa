"""What an index no longer serves is named, had from what is kept, and never replaced by something older (V2 to V5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from farm.errors import UsageError
from farm.installer import unserved
from farm.model import Side
from farm.pip_settings import pip_settings
from farm.releases import Resolution, of_one_night, resolve
from tests.wheels import Index, environment_of, installers_alone, make_companions, make_torch, make_wheel, serve
from workers.probe import probe_host

HOST = probe_host()
CUDNN = "nvidia-cudnn-cu13==9.20.0.48"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return make_companions(tmp_path / "wheels")


@pytest.fixture
def index(wheels: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index on loopback, the only place where the installers look; it serves 2.13.0 whole."""
    installers_alone(monkeypatch, cache)
    with serve(tmp_path / "index") as index:
        for wheel in (*wheels.iterdir(), make_torch(wheels, "2.13.0")):
            index.add(wheel)
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield index
    pip_settings.cache_clear()


def ask(candidate: str, baseline: str | None = None, **more: object) -> Resolution:
    return resolve(
        candidate,
        baseline,
        platform=HOST.platform,
        python=HOST.python,
        backend="cpu",
        **more,  # type: ignore[arg-type]
    )


# -- V5: a package that the baseline pins


@pytest.mark.parametrize("baseline", ["2.12.1", "2.12", None])
def test_a_requirement_of_the_baseline_that_is_not_served_is_named_and_no_older_patch_taken(
    index: Index, wheels: Path, baseline: str | None
) -> None:
    index.add(make_torch(wheels, "2.12.0"))
    index.add(make_torch(wheels, "2.12.1", requires=(CUDNN,)))
    index.add(make_wheel(wheels, "nvidia-cudnn-cu13", "9.24.0.1"))
    resolution = ask("2.13", baseline)
    assert list(resolution.environments) == [Side.CANDIDATE]
    (refused,) = resolution.refused
    assert (refused.side, refused.reason) == (
        Side.BASELINE,
        f"torch 2.12.1 cannot be installed: it needs {CUDNN}, and no configured index serves that",
    )


def test_a_requirement_of_a_requirement_is_named_with_who_has_it(index: Index, wheels: Path) -> None:
    index.add(make_torch(wheels, "2.12.1", requires=("sympy==1.14",)))
    index.add(make_wheel(wheels, "sympy", "1.14", requires=("mpmath<1.4,>=1.1",)))
    (refused,) = ask("2.13", "2.12.1").refused
    assert refused.reason == (
        "torch 2.12.1 cannot be installed: sympy needs mpmath>=1.1,<1.4, and no configured index serves that"
    )


def test_what_uv_blames_nobody_for_stays_in_its_own_words() -> None:
    assert unserved("error: connection refused") is None
    assert unserved("Because there is no version of torch==9 and you require torch==9, we can conclude that") is None


# -- V4: what is kept


def test_a_baseline_that_is_kept_whole_is_taken_from_there_and_that_is_said(index: Index, wheels: Path) -> None:
    old = make_torch(wheels, "2.12.1", requires=(CUDNN,))
    cudnn = make_wheel(wheels, "nvidia-cudnn-cu13", "9.20.0.48")
    index.add(old)
    companions = [*wheels.glob("numpy*"), *wheels.glob("msgpack*")]
    kept = environment_of(old, cudnn, *companions)
    resolution = ask("2.13", "2.12.1", kept=(kept,))
    assert resolution.refused == ()
    assert resolution.environments[Side.BASELINE].key == kept.key
    assert any(
        note.startswith("torch 2.12.1 is not served whole any more and is installed from the wheels that are kept here")
        and CUDNN in note
        for note in resolution.notes
    )


def test_a_nightly_that_left_the_index_is_expired_upstream_and_taken_from_what_is_kept(
    index: Index, wheels: Path
) -> None:
    old = make_torch(wheels, "2.14.0.dev20260901")
    kept = environment_of(old, *wheels.glob("numpy*"), *wheels.glob("msgpack*"))
    with pytest.raises(UsageError, match=r"serves no such torch; the newest that it serves is 2\.13\.0"):
        ask("2.14.0.dev20260901", "2.13.0")
    resolution = ask("2.14.0.dev20260901", "2.13.0", kept=(kept,))
    assert resolution.environments[Side.CANDIDATE].release.version == "2.14.0.dev20260901"
    assert any("2.14.0.dev20260901 is expired upstream" in note for note in resolution.notes)


def test_what_is_kept_does_not_count_while_the_index_serves_the_release(index: Index, wheels: Path) -> None:
    served = make_torch(wheels, "2.12.1")
    index.add(served)
    other = make_torch(wheels.parent / "other", "2.12.1", files={"torch/other.py": ""})
    kept = environment_of(other, *wheels.glob("numpy*"), *wheels.glob("msgpack*"))
    resolution = ask("2.13", "2.12.1", kept=(kept,))
    assert resolution.environments[Side.BASELINE].packages != kept.packages
    assert len(resolution.notes) == 1


def test_what_is_kept_for_another_python_is_no_help(index: Index, wheels: Path) -> None:
    old = make_torch(wheels, "2.12.1")
    kept = environment_of(old, *wheels.glob("numpy*"), *wheels.glob("msgpack*")).model_copy(update={"python": "3.9"})
    with pytest.raises(UsageError, match="serves no such torch"):
        ask("2.13", "2.12.1", kept=(kept,))


# -- V2: an old release from another index


def test_a_nightly_by_date_is_never_a_release_from_another_index(
    index: Index, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path / "nightlies") as nightlies:
        nightlies.add(make_torch(wheels, "2.14.0.dev20261129"))
        monkeypatch.setenv("UV_INDEX", nightlies.url)
        with pytest.raises(UsageError, match=r"'2\.14\.0\.dev20261130'.*serves no such torch"):
            ask("2.14.0.dev20261130", "2.13.0")


# -- V3: tonight's nightly is missing somewhere


def night(wheels: Path, date: str) -> Resolution:
    companions = [*wheels.glob("numpy*"), *wheels.glob("msgpack*")]
    candidate = environment_of(make_torch(wheels, f"2.14.0.dev{date}"), *companions)
    baseline = environment_of(make_torch(wheels, "2.13.0"), *companions)
    pins = {Side.CANDIDATE: candidate.release.version, Side.BASELINE: "2.13.0"}
    return Resolution({Side.BASELINE: baseline, Side.CANDIDATE: candidate}, pins=pins)


def test_a_place_without_tonights_nightly_is_refused_with_the_reason_and_yesterdays_is_not_measured(
    wheels: Path,
) -> None:
    tonight, yesterday = night(wheels, "20261130"), night(wheels, "20261129")
    found = of_one_night({"a, cpu": tonight, "a, cuda": yesterday}, {Side.CANDIDATE: "nightly", Side.BASELINE: None})
    assert found["a, cpu"] is tonight
    assert list(found["a, cuda"].environments) == [Side.BASELINE]
    assert found["a, cuda"].refused[0].reason == (
        "nightly 2.14.0.dev20261130 is not served for a, cuda; the newest there is 2.14.0.dev20261129, which is not "
        "measured in its place"
    )
    assert found["a, cuda"].pins[Side.CANDIDATE] == "2.14.0.dev20261130"


def test_releases_that_were_named_may_differ_from_place_to_place(wheels: Path) -> None:
    found = {"a, cpu": night(wheels, "20261130"), "a, cuda": night(wheels, "20261129")}
    assert of_one_night(found, {Side.CANDIDATE: "2.14", Side.BASELINE: None}) == found
    versions = {Version(one.environments[Side.CANDIDATE].release.version) for one in found.values()}
    assert len(versions) == 2
