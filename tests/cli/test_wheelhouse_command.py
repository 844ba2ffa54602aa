"""`farm wheelhouse` as it is typed: what it prints, for whom, and how it exits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.model import Environment, Side
from farm.pip_settings import pip_settings
from farm.settings import Home
from tests.cli.conftest import Farm
from tests.wheels import environment_of, installers_alone, make_companions, make_torch
from workers.wheelhouse import keep_closure

OLD, NEW = "torch-2.12.1-py3-none-any.whl", "torch-2.13.0-py3-none-any.whl"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels, the only place where the installers look."""
    installers_alone(monkeypatch, tmp_path / "uv-cache")
    monkeypatch.setattr("workers.wheelhouse.RESERVE_BYTES", 0)
    folder = make_companions(tmp_path / "links")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    yield folder
    pip_settings.cache_clear()


@pytest.fixture
def kept(links: Path, home: Path) -> tuple[Environment, Environment]:
    """A home that keeps both releases."""
    companions = list(links.iterdir())
    old = environment_of(make_torch(links, "2.12.1"), *companions)
    new = environment_of(make_torch(links, "2.13.0"), *companions)
    assert keep_closure(old, Home(home), [Side.BASELINE]) == {}
    assert keep_closure(new, Home(home), [Side.CANDIDATE]) == {}
    return old, new


def test_what_is_kept_is_listed_with_size_origin_and_for_whom(
    farm: Farm, kept: tuple[Environment, Environment], home: Path
) -> None:
    shown = farm("wheelhouse", "list")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (
        f"1  baseline 2.12.1+cpu ({kept[0].key[:12]})",
        f"2  candidate 2.13.0+cpu ({kept[1].key[:12]})",
        "a local folder",
        f" kB in {home}/wheelhouse",
    ):
        assert words in shown.stdout, words
    plain = json.loads(farm("wheelhouse", "list", "--json").stdout)
    assert [one["wheel"] for one in plain if one["name"] == "torch"] == [OLD, NEW]


def test_an_empty_wheelhouse_says_what_fills_it(farm: Farm) -> None:
    assert "Nothing is kept in" in farm("wheelhouse", "list").stdout
    ended = farm("wheelhouse", "watch")
    assert ended.returncode == 3
    assert "no baseline was built in" in ended.stderr


def test_damage_is_named_with_exit_code_3_and_repaired(
    farm: Farm, kept: tuple[Environment, Environment], home: Path
) -> None:
    assert farm("wheelhouse", "verify").stdout == "4 of 4 wheels are whole\n"
    path = next(home.glob(f"wheelhouse/*/{OLD}"))
    path.unlink()
    path.write_bytes(b"PK")
    found = farm("wheelhouse", "verify")
    assert found.returncode == 3
    assert f"damaged: {OLD}: it is not what was kept; needed by baseline 2.12.1+cpu" in found.stdout
    assert "farm wheelhouse verify --repair" in found.stdout
    repaired = farm("wheelhouse", "verify", "--repair")
    assert (repaired.returncode, repaired.stdout) == (0, "4 of 4 wheels are whole\n")
    assert repaired.stderr == f"farm: fetching {OLD}\n"


def test_pruning_shows_first_and_does_after_yes(farm: Farm, kept: tuple[Environment, Environment], home: Path) -> None:
    shown = farm("wheelhouse", "prune", "--unused-for", "0")
    assert f"would go: {NEW}" in shown.stdout
    assert "Nothing was changed. To do it: the same with --yes" in shown.stdout
    assert list(home.glob(f"wheelhouse/*/{NEW}"))
    done = farm("wheelhouse", "prune", "--unused-for", "0", "--yes", "--json")
    assert [one["wheel"] for one in json.loads(done.stdout)["wheels"]] == [NEW]
    assert not list(home.glob(f"wheelhouse/*/{NEW}"))


def test_watching_exits_by_what_was_found(
    farm: Farm, kept: tuple[Environment, Environment], links: Path, home: Path
) -> None:
    served = farm("wheelhouse", "watch")
    assert (served.returncode, served.stdout) == (
        0,
        "3 of 3 wheels that the baselines need are served, 3 are kept here\n",
    )
    (links / OLD).unlink()
    alone = farm("wheelhouse", "watch")
    assert alone.returncode == 1
    assert "no longer served, kept here: the way back works from here" in alone.stdout
    next(home.glob(f"wheelhouse/*/{OLD}")).unlink()
    lost = farm("wheelhouse", "watch", "--json")
    assert lost.returncode == 3
    assert [one["kept"] for one in json.loads(lost.stdout) if one["wheel"] == OLD] == [False]
    nobody = farm("wheelhouse", "watch", UV_NO_INDEX=None, UV_FIND_LINKS=None, UV_DEFAULT_INDEX="http://127.0.0.1:9/x")
    assert nobody.returncode == 4


def test_another_home_is_pulled_from(
    farm: Farm, kept: tuple[Environment, Environment], home: Path, tmp_path: Path
) -> None:
    elsewhere = {"FARM_HOME": str(tmp_path / "second")}
    done = farm("wheelhouse", "pull", home, **elsewhere)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 were here already, 0 could not be had")
    assert done.stdout.startswith("4 wheels pulled from ")
    assert "4 of 4: " in done.stderr
    assert farm("wheelhouse", "verify", **elsewhere).stdout == "4 of 4 wheels are whole\n"
    wrong = farm("wheelhouse", "pull", "http://me:s3cret@127.0.0.1:9", **elsewhere)
    assert (wrong.returncode, "s3cret" in wrong.stderr + wrong.stdout) == (4, False)


@pytest.mark.parametrize("where", ["variable", "file"])
def test_a_limit_that_is_no_size_is_refused_before_anything_is_started(farm: Farm, tmp_path: Path, where: str) -> None:
    if where == "file":
        (tmp_path / "farm.toml").write_text('wheelhouse_limit = "a lot"\n')
    ended = farm("submit", "--candidate", "2.13", FARM_WHEELHOUSE_LIMIT="a lot" if where == "variable" else None)
    assert ended.returncode == 2
    assert "'a lot' is not a size; write \"20 GB\"" in ended.stderr


def test_nothing_of_the_page_is_hidden_from_a_web_server(kept: tuple[Environment, Environment], home: Path) -> None:
    for name in ("index.html", "wheelhouse.json"):
        assert (home / "wheelhouse" / name).stat().st_mode & 0o044 == 0o044
