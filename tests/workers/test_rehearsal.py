"""The way back is walked with the network off and an empty cache, and every way in which it can fail is a failure."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from farm.model import Environment, KeptState, LockedPackage, Outcome, Rehearsal
from farm.pip_settings import pip_settings
from farm.settings import Home
from tests.wheels import (
    Index,
    environment_of,
    installers_alone,
    make_companions,
    make_torch,
    make_wheel,
    serve,
    small_disk,
)
from workers import rehearsal as rehearsal_module
from workers.environments import build, installed_packages, site_packages, sync
from workers.installed import found_in, recorded
from workers.rehearsal import network_off, rehearse
from workers.session import ArmEnded
from workers.wheelhouse import keep

TORCH = "torch-2.12.1-py3-none-any.whl"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index on loopback, the only place where the installers look, reachable until the test ends."""
    installers_alone(monkeypatch, cache)
    with serve(tmp_path / "index") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield index
    pip_settings.cache_clear()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture
def isolated() -> None:
    """Skip where a process cannot be kept from the network."""
    prefix, why = network_off()
    if not prefix:
        pytest.skip(f"the network cannot be taken away here: {why}")


@pytest.fixture
def pair(index: Index, tmp_path: Path) -> tuple[Environment, Environment]:
    """Baseline and candidate: torch and triton move, the candidate's torch has a file that the baseline's lacks."""
    companions = list(make_companions(tmp_path / "wheels").iterdir())
    environments = []
    for version, triton, files in (
        ("2.12.1", "3.7.0", {"torch/old.py": "value = 1\n"}),
        ("2.13.0", "3.7.1", {"torch/new.py": "value = 2\n"}),
    ):
        wheels = [
            make_torch(tmp_path / "wheels", version, files=files),
            make_wheel(tmp_path / "wheels", "triton", triton),
            *companions,
        ]
        for wheel in wheels:
            index.add(wheel)
        environments.append(environment_of(*wheels))
    return environments[0], environments[1]


def control(python: Path) -> dict[str, str]:
    """What the control workload gives: it differs between the releases."""
    code = "import torch, triton; print(torch.__version__, triton.__version__)"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return {"out": done.stdout}


def after(real: Callable[..., object], then: Callable[..., None]) -> Callable[..., None]:
    """Return a function that does ``real`` and ``then`` what happens to its result in this test."""

    def both(*arguments: object) -> None:
        real(*arguments)
        then(*arguments)

    return both


def left(home: Home) -> list[Path]:
    return list(home.scratch.iterdir())


def walked(pair: tuple[Environment, Environment], home: Home) -> Rehearsal:
    return rehearse(*pair, home, control)


# -- the network


@pytest.mark.usefixtures("isolated")
def test_the_network_is_off_for_what_runs_behind_the_prefix(index: Index) -> None:
    prefix, name = network_off()
    assert "a connection attempt said:" in name
    connect = (
        "import socket, sys\nfrom urllib.parse import urlsplit\nwhere = urlsplit(sys.argv[1])\n"
        "socket.create_connection((where.hostname, where.port), timeout=5)"
    )
    with_network = subprocess.run([sys.executable, "-c", connect, index.url], capture_output=True, check=False)
    without = subprocess.run([*prefix, sys.executable, "-c", connect, index.url], capture_output=True, check=False)
    assert with_network.returncode == 0
    assert without.returncode != 0
    assert b"OSError" in without.stderr or b"Refused" in without.stderr


def test_a_way_that_leaves_the_network_on_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_module, "WAYS", {sys.platform: (("nothing", ("env",)),)})
    monkeypatch.setattr(rehearsal_module, "CONNECT", "import sys; sys.exit('a packet left this process')")
    assert network_off() == ((), "a packet left this process")
    monkeypatch.setattr(rehearsal_module, "WAYS", {sys.platform: (("tool", ("no-such-tool",)),)})
    assert network_off() == ((), "'no-such-tool' is not installed")
    monkeypatch.setattr(rehearsal_module, "WAYS", {})
    assert network_off() == ((), f"no way is known on {sys.platform}")


def test_where_the_network_cannot_be_taken_away_the_rehearsal_has_not_passed(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal_module, "WAYS", {})
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert "the network cannot be taken away here" in result.reason


@pytest.mark.usefixtures("isolated")
def test_the_installer_itself_runs_behind_the_prefix(
    pair: tuple[Environment, Environment], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (prefix, _), log = network_off(), tmp_path / "log"
    wrapper = tmp_path / "without-network"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {" ".join(prefix)} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(rehearsal_module, "WAYS", {sys.platform: (("wrapper", (str(wrapper),)),)})
    result = walked(pair, home)
    assert (result.outcome, result.network_off_by.split()[0]) == (Outcome.OK, "wrapper")
    assert "pip sync" in log.read_text().splitlines()[-1]


# -- the way back


@pytest.mark.usefixtures("isolated")
def test_the_way_back_needs_no_network_and_gives_what_the_baseline_gave(
    pair: tuple[Environment, Environment], home: Home, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = rehearsal_module._reinstall

    def watched(*arguments: object) -> None:
        before = len(index.asked)
        real(*arguments)  # type: ignore[arg-type]
        seen.append(len(index.asked) - before)

    monkeypatch.setattr(rehearsal_module, "_reinstall", watched)
    result = walked(pair, home)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert result.mismatches == ()
    assert result.control_equal
    assert result.reinstalled == ("torch 2.13.0 -> 2.12.1", "triton 3.7.1 -> 3.7.0")
    assert list(result.steps_ns) == [
        "prepare control",
        "prepare wheelhouse",
        "prepare candidate",
        "reinstall",
        "verify",
        "control",
    ]
    assert all(ns > 0 for ns in result.steps_ns.values())
    assert list(result.again_ns) == ["prepare candidate", "reinstall", "verify", "control"]
    assert result.network_off_by
    assert seen == [0, 0]
    assert left(home) == []


@pytest.mark.usefixtures("isolated")
def test_a_way_back_that_works_once_and_not_again_has_failed(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, walks = rehearsal_module._reinstall, iter([True, False])

    def forgetful(*arguments: object) -> None:
        if next(walks):
            real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsal_module, "_reinstall", forgetful)
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith("the second time: what is installed is not the baseline's lock: torch is 2.13.0")
    assert left(home) == []


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("sourceless", [False, True])
def test_bytecode_of_the_candidate_that_the_baseline_would_run_is_found(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch, sourceless: bool
) -> None:
    real = rehearsal_module._reinstall

    def left_behind(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        real(baseline, wheels, root, *rest)  # type: ignore[arg-type]
        source = site_packages(root) / "torch" / "old.py"
        found = source.stat()
        header = struct.pack("<4sIII", b"\0" * 4, 0, int(found.st_mtime), found.st_size)
        bytecode = source.parent / "gone.pyc" if sourceless else source.parent / "__pycache__" / "old.cpython-311.pyc"
        bytecode.parent.mkdir(exist_ok=True)
        bytecode.write_bytes(header + b"code of another release")
        # As the candidate's own import would have left it, before the way back began.
        os.utime(bytecode, (1, 1))

    monkeypatch.setattr(rehearsal_module, "_reinstall", left_behind)
    result = walked(pair, home)
    said = "gone.pyc is bytecode without a source" if sourceless else "old.cpython-311.pyc is bytecode of what was"
    assert result.outcome is Outcome.FAILED
    assert any(said in line for line in result.mismatches)


@pytest.mark.usefixtures("isolated")
def test_a_source_that_another_environment_links_meanwhile_is_not_taken_for_a_new_one(
    pair: tuple[Environment, Environment], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources that stay are links into the installer's cache: a link elsewhere changes their change time."""
    real = rehearsal_module._reinstall

    def beside_another(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        real(baseline, wheels, root, *rest)  # type: ignore[arg-type]
        site = site_packages(root)
        put_back = {wheel.name for wheel in wheels}  # type: ignore[attr-defined]
        stays = next(
            site / name
            for owner, distribution in found_in([site]).items()
            if owner not in put_back
            for name, _ in recorded(distribution)
            if name.endswith(".py")
        )
        found = stays.stat()
        bytecode = stays.parent / "__pycache__" / f"{stays.stem}.cpython-311.pyc"
        bytecode.parent.mkdir(exist_ok=True)
        bytecode.write_bytes(struct.pack("<4sIII", b"\0" * 4, 0, int(found.st_mtime), found.st_size))
        os.utime(bytecode, (1, 1))
        os.link(stays, tmp_path / f"link-{os.urandom(4).hex()}")
        linked.append(stays.stat().st_ctime)

    linked: list[float] = []
    monkeypatch.setattr(rehearsal_module, "_reinstall", beside_another)
    result = walked(pair, home)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert len(linked) == 2


@pytest.mark.usefixtures("isolated")
def test_bytecode_that_nothing_will_use_is_said_and_harms_nobody(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rehearsal_module._reinstall

    def left_behind(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        real(baseline, wheels, root, *rest)  # type: ignore[arg-type]
        folder = site_packages(root) / "torch" / "__pycache__"
        folder.mkdir(exist_ok=True)
        (folder / "new.cpython-311.pyc").write_bytes(struct.pack("<4sIII", b"\0" * 4, 0, 1, 1))

    monkeypatch.setattr(rehearsal_module, "_reinstall", left_behind)
    result = walked(pair, home)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert result.leftovers == ("bytecode that nothing will use: 1 files",)


STEPS = ("prepare control", "prepare candidate", "prepare state", "reinstall", "verify", "control", "state")


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("step", STEPS)
def test_a_rehearsal_that_is_killed_at_any_step_leaves_the_next_one_whole(
    pair: tuple[Environment, Environment], home: Home, tmp_path: Path, step: str
) -> None:
    walked(pair, home)
    child = os.fork()
    if child == 0:  # pragma: no cover - the child is killed where it stands
        real = rehearsal_module._Walk.step

        @contextmanager
        def deadly(self: object, name: str) -> Iterator[None]:
            with real(self, name):  # type: ignore[arg-type]
                yield
                if name == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        rehearsal_module._Walk.step = deadly  # type: ignore[assignment, method-assign]
        rehearse(*pair, home, lambda python: {"out": "1"}, FakeKeeper())  # type: ignore[arg-type]
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    result = walked(pair, home)
    assert (result.outcome, result.reason) == (Outcome.OK, "")


class FakeKeeper:
    """A keeper whose state comes back."""

    def write(self, python: Path) -> None:
        assert python.exists()

    def read(self, python: Path) -> dict[str, KeptState]:
        assert python.exists()
        return {"checkpoint": KeptState(result="readable")}


@pytest.mark.usefixtures("isolated")
def test_state_is_written_by_the_candidate_and_opened_by_the_baseline(
    pair: tuple[Environment, Environment], home: Home
) -> None:
    seen: list[str] = []

    class Watched(FakeKeeper):
        def write(self, python: Path) -> None:
            seen.append(f"write {version(python)}")

        def read(self, python: Path) -> dict[str, KeptState]:
            seen.append(f"read {version(python)}")
            return super().read(python)

    def version(python: Path) -> str:
        return installed_packages(python.parent.parent)["torch"]

    result = rehearse(*pair, home, lambda python: {"out": "1"}, Watched())  # type: ignore[arg-type]
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert seen == ["write 2.13.0", "read 2.12.1"]
    assert result.state == {"checkpoint": KeptState(result="readable")}
    assert result.duration_ns == sum(result.steps_ns[name] for name in ("reinstall", "verify", "control"))


@pytest.mark.usefixtures("isolated")
def test_a_second_rehearsal_works_from_the_wheelhouse_when_the_index_has_forgotten_the_baseline(
    pair: tuple[Environment, Environment], home: Home, index: Index, tmp_path: Path
) -> None:
    assert walked(pair, home).outcome is Outcome.OK
    index.remove(tmp_path / "wheels" / TORCH)
    result = walked(pair, home)
    assert (result.outcome, result.reason) == (Outcome.OK, "")


@pytest.mark.usefixtures("isolated")
def test_another_build_of_the_same_version_is_really_put_back(index: Index, home: Home, tmp_path: Path) -> None:
    companions = list(make_companions(tmp_path / "wheels").iterdir())
    old = make_torch(tmp_path / "wheels", "2.13.0", files={"torch/answer.py": "value = 1\n"})
    own = make_torch(tmp_path / "own", "2.13.0", files={"torch/answer.py": "value = 2\n"})
    for wheel in (old, *companions):
        index.add(wheel)
    candidate = environment_of(own, *companions, requirement=f"torch @ {own.as_uri()}")

    def answer(python: Path) -> dict[str, str]:
        code = "import torch.answer; print(torch.answer.value)"
        return {"out": subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout}

    result = rehearse(environment_of(old, *companions), candidate, home, answer)
    assert (result.outcome, result.reason) == (Outcome.OK, "")


# -- the ways to fail


@pytest.mark.usefixtures("isolated")
def test_a_wheel_that_the_wheelhouse_lacks_is_named_although_the_index_is_reachable(
    pair: tuple[Environment, Environment], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(wheels: tuple[LockedPackage, ...], home: Home, requirement: str) -> None:
        next(home.wheelhouse.glob(f"*/{TORCH}")).unlink()

    monkeypatch.setattr(rehearsal_module, "keep", after(keep, lose))
    # uv's own file names a place that has the wheel: the wheelhouse alone counts.
    (tmp_path / "uv.toml").write_text(f'[pip]\nfind-links = ["{tmp_path / "wheels"}"]\n')
    monkeypatch.chdir(tmp_path)
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert result.reason == f"the wheelhouse lacks {TORCH}: the way back needs a network"
    assert "torch" in result.last_words
    assert left(home) == []


def test_a_baseline_that_is_not_served_any_more_fails_today_and_names_the_wheel(
    pair: tuple[Environment, Environment], home: Home, index: Index, tmp_path: Path
) -> None:
    def forget(python: Path) -> dict[str, str]:
        # From before wheels were kept: the environment is there, its wheels are not.
        next(home.wheelhouse.glob(f"*/{TORCH}")).unlink()
        (tmp_path / "wheels" / TORCH).unlink()
        index.remove(tmp_path / "wheels" / TORCH)
        return control(python)

    result = rehearse(*pair, home, forget)
    assert result.outcome is Outcome.FAILED
    assert f"'{TORCH}' cannot be fetched again" in result.reason
    assert left(home) == []


@pytest.mark.usefixtures("isolated")
def test_a_file_that_the_candidate_left_behind_is_found(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(environment: Environment, root: Path, home: Home) -> None:
        (site_packages(root) / "torch/generated.py").write_text("value = 3\n")

    monkeypatch.setattr(rehearsal_module, "sync", after(sync, leave))
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert result.mismatches == ("torch/generated.py belongs to no installed package",)
    assert result.mismatches[0] in result.reason


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("lost", [False, True])
def test_a_file_that_was_damaged_or_lost_on_the_way_is_found(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    def damage(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        path = site_packages(root) / "torch/old.py"
        path.unlink()
        if not lost:
            path.write_text("value = 4\n")

    monkeypatch.setattr(rehearsal_module, "_reinstall", after(rehearsal_module._reinstall, damage))
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert result.mismatches == ("torch/old.py is missing" if lost else "torch/old.py is not what the wheel holds",)
    assert result.control_equal


@pytest.mark.usefixtures("isolated")
def test_a_package_that_stayed_is_found(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        folder = site_packages(root) / "extra-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")

    monkeypatch.setattr(rehearsal_module, "_reinstall", after(rehearsal_module._reinstall, stay))
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert "extra 1.0 is not in the lock" in result.mismatches


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("lost", [False, True])
def test_a_package_that_stays_and_lost_a_file_to_its_neighbour_is_found(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    name = next(package.name for package in pair[0].packages if package.name not in ("torch", "triton"))
    touched: list[str] = []

    def touch(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        site = site_packages(root)
        file = next(file for file, digest in recorded(found_in([site])[name]) if digest and file.endswith(".py"))
        (site / file).unlink()
        if not lost:
            (site / file).write_text("value = 'of the neighbour'\n")
        touched.append(file)

    monkeypatch.setattr(rehearsal_module, "_reinstall", after(rehearsal_module._reinstall, touch))
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert [touched[0] in found and name in found for found in result.mismatches] == [True]


@pytest.mark.usefixtures("isolated")
def test_a_file_left_in_the_folder_of_a_companion_that_moved_is_found(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(environment: Environment, root: Path, home: Home) -> None:
        (site_packages(root) / "triton/generated.py").write_text("value = 3\n")

    monkeypatch.setattr(rehearsal_module, "sync", after(sync, leave))
    assert walked(pair, home).mismatches == ("triton/generated.py belongs to no installed package",)


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(("record", "told"), [("", "torch 2.12.1 has lost its RECORD"), ("another", "another build")])
def test_what_is_recorded_must_be_what_the_wheel_says(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch, record: str, told: str
) -> None:
    def rewrite(baseline: Environment, wheels: object, root: Path, *rest: object) -> None:
        path = next(site_packages(root).glob("torch-*.dist-info")) / "RECORD"
        path.write_text("torch/old.py,sha256=AAAA,10\n" if record else "")

    monkeypatch.setattr(rehearsal_module, "_reinstall", after(rehearsal_module._reinstall, rewrite))
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert told in result.mismatches[0]


@pytest.mark.usefixtures("isolated")
def test_an_installer_that_hangs_is_ended_and_has_failed(
    pair: tuple[Environment, Environment], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal_module, "REINSTALL_TIMEOUT_S", 0.001)
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert "it hangs" in result.reason
    assert left(home) == []


def test_a_control_workload_that_asks_a_human_has_failed_and_says_so(
    pair: tuple[Environment, Environment], home: Home
) -> None:
    def ask(python: Path) -> dict[str, str]:
        raise ArmEnded(Outcome.CRASHED, "ended with code 1", "Proceed? EOFError: EOF when reading a line")

    assert "it asks a human" in rehearse(*pair, home, ask).reason


@pytest.mark.usefixtures("isolated")
def test_control_outputs_that_differ_in_one_bit_fail(pair: tuple[Environment, Environment], home: Home) -> None:
    result = rehearse(*pair, home, lambda python: {"out": str(python)})
    assert result.outcome is Outcome.FAILED
    assert result.reason == "control outputs differ from those before the upgrade: out"
    assert result.control_equal is False
    assert result.mismatches == ()


def test_a_control_workload_that_crashes_ends_the_rehearsal_with_its_outcome(
    pair: tuple[Environment, Environment], home: Home
) -> None:
    def crash(python: Path) -> dict[str, str]:
        raise ArmEnded(Outcome.CRASHED, "killed by SIGSEGV", "its last line")

    result = rehearse(*pair, home, crash)
    assert (result.outcome, result.reason) == (
        Outcome.CRASHED,
        "the control workload does not run on the baseline: killed by SIGSEGV",
    )
    assert not result.control_ran
    assert result.last_words == "its last line"
    assert left(home) == []


def test_a_candidate_that_cannot_be_installed_is_the_outcome_and_nothing_is_raised(
    pair: tuple[Environment, Environment], home: Home, index: Index, tmp_path: Path
) -> None:
    index.remove(tmp_path / "wheels/torch-2.13.0-py3-none-any.whl")
    result = walked(pair, home)
    assert result.outcome is Outcome.FAILED
    assert "installing torch 2.13.0" in result.reason
    assert left(home) == []


def test_a_full_disk_is_the_outcome_and_nothing_is_raised(
    pair: tuple[Environment, Environment], disk: Path, home: Home
) -> None:
    build(pair[0], home)
    (disk / "envs").symlink_to(home.environments)
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    result = walked(pair, Home(disk))
    assert result.outcome is Outcome.FAILED
    assert "no space left" in f"{result.reason}{result.last_words}".lower()


def test_a_home_that_cannot_be_written_is_the_outcome_and_nothing_is_raised(
    pair: tuple[Environment, Environment], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = walked(pair, Home(tmp_path / "file"))
    assert result.outcome is Outcome.FAILED
    assert "Not a directory" in result.reason


# -- the real releases


@pytest.mark.torch
@pytest.mark.usefixtures("isolated", "built")
def test_the_way_from_2_13_back_to_2_12_works_with_the_real_wheels(resolution, shared_home: Path) -> None:
    def random_numbers(python: Path) -> dict[str, str]:
        code = "import torch; torch.manual_seed(1); print(torch.__version__, torch.randn(9) @ torch.randn(9))"
        return {"out": subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout}

    baseline, candidate = resolution.environments.values()
    result = rehearse(baseline, candidate, Home(shared_home), random_numbers)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert any(moved.startswith("torch 2.13.0") for moved in result.reinstalled)
