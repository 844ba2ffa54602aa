"""An environment is what its lock says or it is not used: what is half-built, damaged or wrong never counts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path

import pytest

from farm.errors import EnvironmentFailed
from farm.model import Environment
from farm.pip_settings import pip_settings
from farm.settings import Home
from tests.wheels import (
    ELSEWHERE,
    environment_of,
    installers_alone,
    make_companions,
    make_torch,
    make_wheel,
    serve,
    small_disk,
)
from workers.environments import MARKER, BuiltEnvironment, build, differences, mismatches, site_packages
from workers.wheelhouse import delta, flat_folder, keep


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def links(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels, the only place where the installers look; numpy and msgpack are in it."""
    installers_alone(monkeypatch, cache)
    folder = make_companions(tmp_path / "links")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    yield folder
    pip_settings.cache_clear()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def everything(links: Path) -> Environment:
    """The lock of all wheels in ``links``."""
    return environment_of(*links.glob("*.whl"))


def say(built: BuiltEnvironment, code: str) -> str:
    done = subprocess.run([built.python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# -- made


def test_an_environment_holds_exactly_its_lock_and_is_reused(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0", requires=("absent-from-the-lock",))
    built = build(everything(links), home)
    assert built.installed == {"torch": "2.13.0", "numpy": "1.0", "msgpack": "1.0"}
    assert say(built, "import torch; print(torch.__version__)") == "2.13.0"
    assert not built.reused
    again = build(everything(links), home)
    assert again.reused
    assert (again.root, again.installed) == (built.root, built.installed)


def test_bytecode_is_there_before_anything_is_measured(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0", files={"torch/late.py": "value = 1\n"})
    built = build(everything(links), home)
    assert list(site_packages(built.root).glob("torch/__pycache__/late.*.pyc"))


def test_torch_may_tell_its_variant_where_the_index_does_not(links: Path, home: Home) -> None:
    make_torch(links, "2.12.1", says="2.12.1+cpu")
    assert build(everything(links), home).installed["torch"] == "2.12.1"


def test_the_build_that_was_locked_is_installed_and_not_the_one_that_sorts_higher(links: Path, home: Home) -> None:
    plain = make_torch(links, "2.13.0")
    make_torch(links, "2.13.0+cpu")
    built = build(environment_of(plain, *links.glob("numpy*"), *links.glob("msgpack*")), home)
    assert say(built, "import torch; print(torch.__version__)") == "2.13.0"


def test_a_wheel_that_was_named_by_its_path_is_installed_from_there(links: Path, home: Home, tmp_path: Path) -> None:
    own = make_torch(tmp_path / "own", "2.13.0", files={"torch/own.py": ""})
    make_torch(links, "2.13.0")
    environment = environment_of(
        own, *links.glob("numpy*"), *links.glob("msgpack*"), requirement=f"torch @ {own.as_uri()}"
    )
    assert (site_packages(build(environment, home).root) / "torch/own.py").is_file()


def test_a_checkout_of_torch_in_the_working_folder_proves_nothing(
    links: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_torch(links, "2.13.0")
    (tmp_path / "checkout/torch").mkdir(parents=True)
    (tmp_path / "checkout/torch/__init__.py").write_text("raise ImportError('a source tree')\n")
    monkeypatch.chdir(tmp_path / "checkout")
    assert build(everything(links), home).installed["torch"] == "2.13.0"


def test_pips_constraint_is_no_obstacle_to_a_lock(
    links: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_torch(links, "2.13.0")
    (tmp_path / "pins.txt").write_text("numpy<2\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "pins.txt"))
    pip_settings.cache_clear()
    environment = everything(links)
    assert build(environment, home).installed["numpy"] == "1.0"
    keep(environment.packages, home, environment.release.requirement)
    assert len(list(home.wheelhouse.glob("*/*.whl"))) == 3


# -- refused


def test_torch_that_calls_itself_another_version_is_refused(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0", says="2.12.1")
    with pytest.raises(EnvironmentFailed, match=r"torch calls itself 2\.12\.1, locked is 2\.13\.0"):
        build(everything(links), home)
    assert not list(home.environments.glob("*/"))


@pytest.mark.parametrize(("says", "words"), [("2.13.0+cu126", r"2\.13\.0\+cu126"), ("unknown", "'unknown'")])
def test_torch_of_another_build_is_refused(links: Path, home: Home, says: str, words: str) -> None:
    make_torch(links, "2.13.0", says=says)
    with pytest.raises(EnvironmentFailed, match=f"torch calls itself {words}, locked is"):
        build(everything(links), home)


def test_torch_that_cannot_be_imported_is_refused_with_its_last_words(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0", files={"torch/__init__.py": "raise ImportError('libcudart.so.13: cannot open')\n"})
    with pytest.raises(EnvironmentFailed, match="is installed and cannot be imported") as failed:
        build(everything(links), home)
    assert "libcudart.so.13" in failed.value.last_words


def test_a_wheel_that_is_not_served_any_more_is_named(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0")
    environment = everything(links)
    next(links.glob("msgpack*")).unlink()
    with pytest.raises(EnvironmentFailed, match=r"installing torch 2\.13\.0 \(cpu\): no such version") as failed:
        build(environment, home)
    assert "msgpack" in failed.value.last_words


def test_a_wheel_that_changed_since_it_was_locked_is_refused(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0")
    environment = everything(links)
    make_torch(links, "2.13.0", files={"torch/other.py": ""})
    with pytest.raises(EnvironmentFailed, match="the hash differs"):
        build(environment, home)


def test_a_wheel_for_another_platform_is_refused_with_the_installers_last_words(links: Path, home: Home) -> None:
    wheel = make_torch(links, "2.13.0", tag=ELSEWHERE)
    environment = environment_of(*links.glob("*.whl"), requirement=f"torch @ {wheel.as_uri()}")
    with pytest.raises(EnvironmentFailed, match="no wheel for this platform") as failed:
        build(environment, home)
    assert failed.value.last_words


def test_a_full_disk_is_said_and_nothing_half_built_is_left(links: Path, disk: Path) -> None:
    make_torch(links, "2.13.0", files={"torch/big.txt": "0123456789" * 400_000})
    home = Home(disk)
    with pytest.raises(EnvironmentFailed, match=r"(?i)no space left"):
        build(everything(links), home)
    assert not list(home.environments.glob("*/"))


def test_a_home_that_cannot_be_written_is_an_environment_that_failed(links: Path, tmp_path: Path) -> None:
    make_torch(links, "2.13.0")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match=r"environment of torch 2\.13\.0: .*Not a directory"):
        build(everything(links), Home(tmp_path / "file"))


# -- never half, never twice


def test_a_build_that_was_killed_half_way_is_made_again(links: Path, home: Home, tmp_path: Path) -> None:
    hold, reached = tmp_path / "hold", tmp_path / "reached"
    hold.touch()
    source = (
        "import pathlib, time\n__version__ = '2.13.0'\nfrom torch import version\n"
        f"if pathlib.Path({str(hold)!r}).exists():\n    pathlib.Path({str(reached)!r}).touch()\n    time.sleep(60)\n"
    )
    make_torch(links, "2.13.0", files={"torch/__init__.py": source})
    environment = everything(links)
    (tmp_path / "environment.json").write_text(environment.model_dump_json())
    script = (
        "import pathlib, sys\nfrom farm.model import Environment\nfrom farm.settings import Home\n"
        "from workers.environments import build\n"
        "build(Environment.model_validate_json(pathlib.Path(sys.argv[1]).read_text()), Home(pathlib.Path(sys.argv[2])))"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "environment.json"), str(home.root)], start_new_session=True
    )
    ends = time.monotonic() + 60
    while not reached.exists() and time.monotonic() < ends and builder.poll() is None:
        time.sleep(0.02)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.wait()
    root = home.environments / environment.key
    assert (root / "bin/python").exists()
    assert not (root / MARKER).exists()
    hold.unlink()
    built = build(environment, home)
    assert not built.reused
    assert (root / MARKER).exists()


def test_two_builders_at_once_make_one_environment(links: Path, home: Home) -> None:
    make_torch(links, "2.13.0")
    environment = everything(links)
    with ThreadPoolExecutor(max_workers=2) as pool:
        built = list(pool.map(lambda _: build(environment, home), range(2)))
    assert sorted(one.reused for one in built) == [False, True]
    assert built[0].installed == built[1].installed


def _remove_a_package(site: Path) -> None:
    for path in site.glob("numpy*"):
        shutil.rmtree(path)


def _lose_metadata(site: Path) -> None:
    next(site.glob("numpy-*.dist-info/METADATA")).unlink()


def _add_a_package(site: Path) -> None:
    (site / "extra-1.0.dist-info").mkdir()
    (site / "extra-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")


def _lose_the_interpreter(site: Path) -> None:
    python = site.parents[2] / "bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python")


@pytest.mark.parametrize("damage", [_remove_a_package, _lose_metadata, _add_a_package, _lose_the_interpreter])
def test_a_damaged_environment_is_made_again(links: Path, home: Home, damage) -> None:
    make_torch(links, "2.13.0")
    built = build(everything(links), home)
    damage(site_packages(built.root))
    again = build(everything(links), home)
    assert not again.reused
    assert again.installed == built.installed
    assert say(again, "import numpy; print(numpy.__version__)") == "1.0"


def test_what_is_installed_is_held_against_the_lock_in_every_way(links: Path) -> None:
    make_torch(links, "2.12.1")
    packages = everything(links).packages
    assert mismatches(packages, {"torch": "2.12.1+cu130", "numpy": "1.0", "msgpack": "1.0"}) == []
    assert mismatches(packages, {"torch": "2.13.0", "numpy": "1.0", "wheel": "1"}) == [
        "msgpack 1.0 is missing",
        "torch is 2.13.0, locked is 2.12.1",
        "wheel 1 is not in the lock",
    ]


# -- compared


def test_what_differs_is_told_apart_into_what_moved_with_torch_and_strangers() -> None:
    def holding(**installed: str) -> BuiltEnvironment:
        return BuiltEnvironment(Path("python"), Path("root"), installed, reused=True)

    one = holding(torch="2.12.1", triton="3.7.0", numpy="1.0", setuptools="81.0")
    other = holding(torch="2.13.0", triton="3.7.1", numpy="1.0", setuptools="84.2", msgpack="1.0")
    moved, strangers = differences(one, other)
    assert moved == ("triton 3.7.0 -> 3.7.1",)
    assert strangers == ("msgpack none -> 1.0", "setuptools 81.0 -> 84.2")
    assert differences(one, one) == ((), ())


# -- the wheelhouse


def test_only_the_wheels_that_differ_are_kept_and_each_once(links: Path, home: Home) -> None:
    old = make_torch(links, "2.12.1")
    baseline = everything(links)
    candidate = environment_of(make_torch(links, "2.13.0"), *links.glob("numpy*"), *links.glob("msgpack*"))
    wheels = delta(baseline, candidate)
    assert [wheel.wheel for wheel in wheels] == [old.name]
    keep(wheels, home, baseline.release.requirement)
    (kept,) = home.wheelhouse.glob("*/*.whl")
    assert kept.read_bytes() == old.read_bytes()
    old.unlink()
    keep(wheels, home, baseline.release.requirement)
    (link,) = flat_folder(wheels, home, home.scratch / "flat").iterdir()
    assert (link.name, link.read_bytes()) == (old.name, kept.read_bytes())


def test_a_kept_wheel_that_went_bad_is_fetched_again(links: Path, home: Home) -> None:
    old = make_torch(links, "2.12.1")
    environment = everything(links)
    keep(environment.packages, home, environment.release.requirement)
    kept = next(home.wheelhouse.glob(f"*/{old.name}"))
    whole = kept.read_bytes()
    # It is linked to the index's own file, which stays as it is.
    kept.unlink()
    kept.write_bytes(whole[:-7])
    keep(environment.packages, home, environment.release.requirement)
    assert kept.read_bytes() == old.read_bytes()
    assert not list(home.wheelhouse.glob("fetching-*"))


def test_a_wheel_that_cannot_be_fetched_is_named(links: Path, home: Home) -> None:
    old = make_torch(links, "2.12.1")
    environment = everything(links)
    old.unlink()
    with pytest.raises(
        EnvironmentFailed, match=r"'torch-2\.12\.1-py3-none-any\.whl' cannot be fetched again"
    ) as failed:
        keep(environment.packages, home, environment.release.requirement)
    assert "torch===2.12.1" in failed.value.last_words
    make_torch(links, "2.12.1", files={"torch/other.py": ""})
    with pytest.raises(EnvironmentFailed, match=r"torch-2.*cannot be fetched again: .*the hash differs"):
        keep(environment.packages, home, environment.release.requirement)


def test_pip_looks_where_uv_was_told_to_look(
    links: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    with serve(tmp_path / "one") as one, serve(tmp_path / "two") as two:
        one.credentials = two.credentials = "me:s3cret"
        torch, numpy = make_torch(tmp_path, "2.12.1"), make_wheel(tmp_path, "numpy", "1.0")
        one.add(torch)
        two.add(numpy)
        monkeypatch.setenv("UV_DEFAULT_INDEX", one.with_credentials)
        monkeypatch.setenv("UV_INDEX", f"second={two.with_credentials}")
        pip_settings.cache_clear()
        environment = environment_of(torch, numpy)
        keep(environment.packages, home, environment.release.requirement)
    assert {path.name for path in home.wheelhouse.glob("*/*.whl")} == {torch.name, numpy.name}


# -- the real releases


@pytest.mark.torch
def test_the_measured_releases_differ_only_where_torchs_family_does(built, resolution) -> None:
    before, after = built.values()
    assert differences(before, after)[1] == ()
    for environment, one in zip(resolution.environments.values(), built.values(), strict=True):
        assert mismatches(environment.packages, one.installed) == []
        names = {found.metadata["Name"].lower() for found in distributions(path=[str(site_packages(one.root))])}
        assert {"torch", "numpy", "msgpack"} <= names
