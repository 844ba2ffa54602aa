"""An environment of a user's goes back to a release whole, whatever happens on the way, and is proven."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.errors import EnvironmentFailed, FarmError, Incomplete, InfrastructureFailed, UsageError
from farm.model import Environment, RollbackPlan, RollbackProof
from farm.pip_settings import pip_settings
from farm.settings import Home
from tests.wheels import environment_of, installers_alone, make_wheel, serve, small_disk
from tests.workers.user_environments import (
    BASELINE_FILES,
    hold,
    install,
    keep_run,
    make_environment,
    make_wheels,
    snapshot,
    torch_wheel,
)
from workers import rollback as rollback_module
from workers import swap as swap_module
from workers.rollback import roll_back, undo
from workers.rollback_plan import Wanted, make_plan
from workers.rollback_proof import expected_of, prove
from workers.rollback_target import find_wanted
from workers.swap import Keeping, move
from workers.user_environment import inspect

KEEPING = ".farm-rollback"


@pytest.fixture(autouse=True)
def installers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No index, no settings of this machine."""
    installers_alone(monkeypatch, tmp_path_factory.mktemp("uv-cache"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    yield
    pip_settings.cache_clear()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def locks(wheels: Path) -> tuple[Environment, Environment]:
    return make_wheels(wheels)


@pytest.fixture(scope="module")
def served(wheels: Path, locks: tuple[Environment, Environment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the candidate and packages of the user's own; never changed, only copied."""
    root = make_environment(tmp_path_factory.mktemp("user") / "venv")
    mine = make_wheel(wheels, "mine", "1.0", requires=["torch>=2"])
    # A library of the user's own that shares its folder with those that torch brings.
    video = make_wheel(wheels, "nvidia-video", "1.0", files={"nvidia/video/lib.txt": "video\n"})
    install(root, *(wheels / package.wheel for package in locks[1].packages), mine, video)
    return root


@pytest.fixture
def root(served: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "venv", symlinks=True))


@pytest.fixture
def home(tmp_path: Path, wheels: Path, locks: tuple[Environment, Environment]) -> Home:
    """A home whose wheelhouse holds the baseline."""
    found = Home(tmp_path / "home")
    hold(found, locks[0], wheels)
    return found


@pytest.fixture
def wanted(locks: tuple[Environment, Environment]) -> Wanted:
    # From an index that is gone: what the wheelhouse lacks is had from a configured place or not at all.
    packages = tuple(one.model_copy(update={"url": f"https://index.invalid/{one.wheel}"}) for one in locks[0].packages)
    return Wanted(locks[0].model_copy(update={"packages": packages}), "the baseline of run r-1")


@pytest.fixture
def back(root: Path, home: Home, wanted: Wanted) -> Callable[..., Any]:
    """Roll ``root`` back; keywords are those of `roll_back`."""

    def run(companions: str = "ask", **more: Any) -> Any:
        return roll_back(inspect(root), lambda *_: wanted, home, companions, lambda _: None, **more)  # type: ignore[arg-type]

    return run


def site(root: Path) -> Path:
    return next(root.glob("lib/python3*/site-packages"))


def planned(root: Path, wanted: Wanted, home: Home, companions: str = "ask") -> RollbackPlan:
    return make_plan(inspect(root), wanted, home, companions)  # type: ignore[arg-type]


def verified(root: Path) -> RollbackProof:
    environment = inspect(root)
    journal = Keeping(environment).journal
    assert journal is not None
    return prove(environment, journal, lambda _: None, later=True)


def holds_baseline(root: Path, *, user: bool = True) -> None:
    """Assert that the environment holds the baseline, whole, and the user's own packages as they were."""
    there = {name: one.version for name, one in inspect(root).packages.items()}
    assert there == {
        "torch": "2.12.1",
        "triton": "3.7.0",
        "filelock": "3.1",
        "nvidia-video": "1.0",
        **({"mine": "1.0"} if user else {}),
    }
    assert (site(root) / "torch/old.py").is_file()
    assert not (site(root) / "torch/new.py").exists()
    assert not (site(root) / "triton/added.py").exists()
    assert [path.name for path in (site(root) / "nvidia").iterdir()] == ["video"]
    done = subprocess.run([root / "bin/torchrun"], capture_output=True, text=True, check=True)
    assert done.stdout == "run by torch 2.12.1\n"


# -- the plan


def test_the_plan_names_what_moves_and_changes_nothing(root: Path, wanted: Wanted, home: Home) -> None:
    before = snapshot(root)
    plan = planned(root, wanted, home)
    assert [(move.name, move.before, move.after, move.held) for move in plan.moves] == [
        ("torch", "2.13.0", "2.12.1", True),
        ("nvidia-blas", "13", None, False),
        ("nvidia-toolkit", "13", None, False),
        ("triton", "3.7.1", "3.7.0", True),
    ]
    assert (plan.installed.identity, plan.to.identity) == ("2.13.0+cpu", "2.12.1+cpu")  # type: ignore[union-attr]
    assert (plan.untouched, plan.lacking, plan.dependents, plan.strays) == (3, (), (), ())
    assert plan.needed_bytes > 0
    assert snapshot(root) == before
    assert not (root / KEEPING).exists()


def test_a_library_that_another_package_asks_for_stays_and_is_named(
    root: Path, wanted: Wanted, home: Home, wheels: Path
) -> None:
    install(root, make_wheel(wheels, "boost", "1", requires=["nvidia-blas; extra == 'gpu'"]))
    plan = planned(root, wanted, home)
    assert "nvidia-blas" not in {move.name for move in plan.moves}
    assert plan.notes == ("nvidia-blas stays: boost asks for it",)


def test_what_torch_needs_and_does_not_find_moves_with_it_and_says_why(root: Path, home: Home, wheels: Path) -> None:
    strict = torch_wheel(wheels / "strict", "2.12.1", requires=["filelock<3", "jinja2"])
    old = make_wheel(wheels / "strict", "filelock", "2.9")
    jinja = make_wheel(wheels / "strict", "jinja2", "3", requires=["markup"])
    markup = make_wheel(wheels / "strict", "markup", "1")
    numpy = make_wheel(wheels / "strict", "numpy", "1")
    lock = environment_of(strict, old, jinja, markup, numpy)
    hold(home, lock, wheels / "strict")
    why = {move.name: (move.before, move.after, move.why) for move in planned(root, Wanted(lock, "x"), home).moves}
    assert why["filelock"] == ("3.1", "2.9", "torch 2.12.1 needs filelock<3")
    assert why["jinja2"] == (None, "3", "torch 2.12.1 needs jinja2")
    assert why["markup"] == (None, "1", "jinja2 3 needs markup")
    # The farm's runners need it, torch does not.
    assert "numpy" not in why


def test_a_package_that_was_compiled_against_torch_is_named(
    root: Path, wanted: Wanted, home: Home, wheels: Path
) -> None:
    install(root, make_wheel(wheels, "fast", "1", requires=["torch"], files={"fast/kernels.so": "elf"}))
    (one,) = planned(root, wanted, home).dependents
    assert (one.name, one.breaks) == ("fast", False)


# -- the way


def test_torch_goes_back_whole_and_what_is_the_users_stays(root: Path, back: Callable[..., Any]) -> None:
    done, _, proof = back()
    assert (done, proof.wrong) == ("rolled back", ())
    assert proof.torch_says["version"] == "2.12.1"
    holds_baseline(root)
    assert sorted(path.name for path in (root / KEEPING).iterdir()) == ["journal.json", "lock"]
    assert verified(root).wrong == ()


def test_no_index_is_asked_where_the_wheelhouse_has_all(
    root: Path, back: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    with serve(tmp_path / "index") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        pip_settings.cache_clear()
        back()
        assert index.asked == []
    holds_baseline(root)


def test_a_second_run_has_nothing_to_do_and_proves_it_again(root: Path, back: Callable[..., Any]) -> None:
    back()
    before = snapshot(root)
    done, journal, proof = back()
    assert (done, journal.moves, proof.wrong) == ("already there", (), ())
    assert snapshot(root) == before


def test_damaged_files_of_the_right_release_are_put_right(root: Path, back: Callable[..., Any]) -> None:
    back()
    (site(root) / "torch/old.py").write_text("value = 3\n")
    (site(root) / "triton/__init__.py").unlink()
    done, journal, proof = back()
    assert (done, proof.wrong) == ("rolled back", ())
    assert {move.name for move in journal.moves} == {"torch", "triton"}
    assert (site(root) / "torch/old.py").read_text() == BASELINE_FILES["torch/old.py"]


def test_another_build_of_the_right_release_is_put_right(root: Path, back: Callable[..., Any], wheels: Path) -> None:
    install(root, torch_wheel(wheels / "own", "2.12.1", {"torch/old.py": "value = 9\n"}))
    done, journal, proof = back()
    assert (done, proof.wrong) == ("rolled back", ())
    assert journal.moves[0].why == "another build of the same version"
    assert (site(root) / "torch/old.py").read_text() == BASELINE_FILES["torch/old.py"]


def test_files_that_no_package_owns_are_kept_aside(
    root: Path, back: Callable[..., Any], wanted: Wanted, home: Home
) -> None:
    (site(root) / "torch/notes.txt").write_text("mine\n")
    name = str((site(root) / "torch/notes.txt").relative_to(root))
    assert planned(root, wanted, home).strays == (name,)
    back()
    holds_baseline(root)
    assert (root / KEEPING / "strays" / name).read_text() == "mine\n"


def test_a_file_in_the_way_that_no_package_owns_is_kept_aside(root: Path, back: Callable[..., Any]) -> None:
    install_info = site(root) / "torch-2.12.1.dist-info"
    install_info.write_text("not a folder\n")
    _, _, proof = back()
    assert proof.wrong == ()
    holds_baseline(root)
    assert (root / KEEPING / "strays" / install_info.relative_to(root)).read_text() == "not a folder\n"


def test_a_file_that_comes_and_belongs_to_a_package_that_stays_stops_it(
    root: Path, back: Callable[..., Any], wheels: Path
) -> None:
    install(root, make_wheel(wheels, "squatter", "1", files={"torch/old.py": "squatted\n"}))
    before = snapshot(root)
    with pytest.raises(UsageError, match=r"torch/old.py of squatter; nothing was changed"):
        back()
    assert snapshot(root) == before


# -- companions


@pytest.fixture
def vision(root: Path, wheels: Path) -> str:
    """torchvision for the candidate, in the environment."""
    install(root, make_wheel(wheels, "torchvision", "0.28.0", requires=["torch==2.13.0", "mine"]))
    return "torchvision"


def test_what_would_break_is_named_and_nothing_is_done_unasked(
    root: Path, back: Callable[..., Any], vision: str, wanted: Wanted, home: Home
) -> None:
    before = snapshot(root)
    (one,) = planned(root, wanted, home).breaking
    assert (one.name, one.version, one.needs) == ("torchvision", "0.28.0", "torch==2.13.0")
    with pytest.raises(UsageError, match=r"torchvision 0.28.0 needs torch==2.13.0\nsay --companions move"):
        back()
    assert snapshot(root) == before


def test_a_companion_moves_along_where_that_is_asked_for(
    root: Path, back: Callable[..., Any], vision: str, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    make_wheel(links, vision, "0.27.0", requires=["torch==2.12.1", "mine"])
    for name in ("torch-2.12.1", "triton-3.7.0", "filelock-3.1", "mine-1.0"):
        shutil.copy(wheels / f"{name}-py3-none-any.whl", links)
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    pip_settings.cache_clear()
    _, _, proof = back("move")
    assert proof.wrong == ()
    assert "torchvision 0.27.0 imported" in proof.checked
    assert inspect(root).packages["torchvision"].version == "0.27.0"
    assert inspect(root).packages["mine"].version == "1.0"


def test_a_companion_that_cannot_be_had_stops_it(root: Path, back: Callable[..., Any], vision: str) -> None:
    before = snapshot(root)
    with pytest.raises(EnvironmentFailed, match=r"no torchvision for torch 2.12.1"):
        back("move")
    assert snapshot(root) == before


def test_a_companion_is_left_where_that_is_asked_for_and_said(
    root: Path, back: Callable[..., Any], vision: str
) -> None:
    _, _, proof = back("leave")
    assert proof.wrong == ()
    assert proof.unproven == ("left broken, as asked: torchvision 0.28.0: torch==2.13.0",)
    assert inspect(root).packages["torchvision"].version == "0.28.0"


# -- later installs


def test_a_companion_that_swaps_torch_is_caught_and_named(
    root: Path, back: Callable[..., Any], wheels: Path, locks: tuple[Environment, Environment]
) -> None:
    back()
    vision = make_wheel(wheels, "torchvision", "0.28.0", requires=["torch==2.13.0"])
    install(root, wheels / locks[1].release.wheel, vision)
    proof = verified(root)
    assert "torch is 2.13.0, wanted is 2.12.1" in proof.wrong
    assert any(
        words.startswith("torchvision 0.28.0 was installed at")
        and words.endswith("by uv, and asks for torch==2.13.0, which excludes 2.12.1")
        for words in proof.blamed
    )
    assert any(words.startswith("torch 2.13.0 was installed at") for words in proof.blamed)


def test_another_build_under_the_same_version_is_caught(root: Path, back: Callable[..., Any], wheels: Path) -> None:
    back()
    install(root, torch_wheel(wheels / "swapped", "2.12.1", {"torch/old.py": "value = 7\n"}))
    assert "torch 2.12.1 is another build than the one that was put there" in verified(root).wrong


def test_a_package_that_overwrites_a_file_of_torch_is_caught_and_named(
    root: Path, back: Callable[..., Any], wheels: Path
) -> None:
    back()
    install(root, make_wheel(wheels, "patcher", "1", files={"torch/old.py": "patched\n"}))
    proof = verified(root)
    assert proof.wrong == ("torch/old.py is not what the wheel holds",)
    assert "torch/old.py is also a file of patcher" in proof.blamed


def test_a_later_install_that_leaves_torch_alone_is_no_alarm(
    root: Path, back: Callable[..., Any], wheels: Path
) -> None:
    back()
    install(root, make_wheel(wheels, "harmless", "1"))
    assert (verified(root).wrong, verified(root).blamed) == ((), ())


def test_an_environment_that_was_never_rolled_back_is_verified_against_a_lock(
    root: Path, home: Home, locks: tuple[Environment, Environment]
) -> None:
    environment = inspect(root)
    right = expected_of(environment, Wanted(locks[1], "the candidate"), home)
    other = expected_of(environment, Wanted(locks[0], "the baseline"), home)
    assert prove(environment, right, lambda _: None, later=True).wrong == ()
    assert "torch is 2.13.0, wanted is 2.12.1" in prove(environment, other, lambda _: None, later=True).wrong


def test_a_torch_that_computes_wrongly_is_not_proven_and_can_be_undone(
    root: Path, home: Home, wheels: Path, locks: tuple[Environment, Environment]
) -> None:
    before = snapshot(root)
    wrong = torch_wheel(wheels / "wrong", "2.12.1", off=1)
    lock = environment_of(wrong, wheels / "triton-3.7.0-py3-none-any.whl")
    hold(home, environment_of(wrong), wheels / "wrong")
    _, _, proof = roll_back(inspect(root), lambda *_: Wanted(lock, "x"), home, "ask", lambda _: None)
    assert len(proof.wrong) == 1
    assert proof.wrong[0].startswith("torch computes [[15.0, 33.0], [33.0, 78.0]]")
    _, restored = undo(inspect(root), lambda _: None)
    assert restored.wrong == ()
    assert snapshot(root) == before


# -- wheels


def test_without_a_wheel_and_without_a_network_nothing_is_touched(
    root: Path, back: Callable[..., Any], home: Home
) -> None:
    before = snapshot(root)
    next(home.wheelhouse.glob("*/torch-*.whl")).unlink()
    with pytest.raises(EnvironmentFailed, match=r"'torch-2.12.1-py3-none-any.whl' cannot be fetched again"):
        back()
    assert snapshot(root) == before


@pytest.mark.parametrize("damage", ["missing", "corrupted"])
def test_a_wheel_that_is_not_here_whole_is_fetched_before_anything_is_touched(
    root: Path, back: Callable[..., Any], home: Home, wheels: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    wheel = next(home.wheelhouse.glob("*/torch-*.whl"))
    wheel.unlink()
    if damage == "corrupted":
        wheel.write_bytes((wheels / wheel.name).read_bytes()[:-10])
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    pip_settings.cache_clear()
    _, _, proof = back()
    assert proof.wrong == ()
    holds_baseline(root)


def test_a_corrupted_wheel_without_a_network_touches_nothing(root: Path, back: Callable[..., Any], home: Home) -> None:
    before = snapshot(root)
    wheel = next(home.wheelhouse.glob("*/torch-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-10])
    with pytest.raises(EnvironmentFailed, match="cannot be fetched again"):
        back()
    assert snapshot(root) == before


# -- interrupted


def killed_at(step: int, work: Callable[[], object], *, moving: bool = False) -> bool:
    """Do ``work`` in a process that is killed at its ``step``-th step; return whether it came that far.

    ``moving`` counts only renames and what is written down between them.
    """
    child = os.fork()
    if child == 0:
        left = step

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any, **keywords: Any) -> Any:
                count()
                found = real(*arguments, **keywords)
                count()
                return found

            return run

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        with contextlib.suppress(BaseException):
            swap_module.move = counted(swap_module.move)
            swap_module.Keeping._write = counted(swap_module.Keeping._write)  # type: ignore[method-assign]
            if not moving:
                rollback_module.run_uv = counted(rollback_module.run_uv)
                rollback_module.prove = counted(rollback_module.prove)
                shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]
                Path.rename = counted(Path.rename)  # type: ignore[method-assign]
            work()
            code = 0
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


@pytest.mark.chaos
def test_killed_at_any_step_the_same_again_ends_whole(root: Path, served: Path, back: Callable[..., Any]) -> None:
    before, step, seen = snapshot(root), 0, set()
    while killed_at(step, back):
        journal = Keeping(inspect(root)).journal
        seen.add(journal.phase if journal else "untouched")
        if journal is None:
            assert snapshot(root) == before
        assert back()[2].wrong == ()
        holds_baseline(root)
        assert sorted(path.name for path in (root / KEEPING).iterdir()) == ["journal.json", "lock"]
        shutil.rmtree(root)
        shutil.copytree(served, root, symlinks=True)
        step += 1
    assert seen == {"untouched", "taking out", "putting in", "unproven", "proven"}
    holds_baseline(root)


@pytest.mark.chaos
def test_killed_at_any_step_of_moving_an_undo_that_is_killed_too_restores_all(
    root: Path, served: Path, back: Callable[..., Any]
) -> None:
    def undone() -> None:
        undo(inspect(root), lambda _: None)

    before, step, undos = snapshot(root), 0, 0
    while killed_at(step, back, moving=True):
        step += 1
        journal = Keeping(inspect(root)).journal
        if journal is not None and journal.phase != "proven":
            undos += killed_at(step % 9, undone, moving=True)
            if Keeping(inspect(root)).journal is not None:
                undone()
        if journal is None or journal.phase != "proven":
            assert snapshot(root) == before
        shutil.rmtree(root)
        shutil.copytree(served, root, symlinks=True)
    assert undos > 5


def test_what_was_interrupted_is_finished_before_anything_else(
    root: Path, back: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    real = swap_module.move
    monkeypatch.setattr(swap_module, "move", cut)
    with pytest.raises(KeyboardInterrupt):
        back()
    monkeypatch.setattr(swap_module, "move", real)
    with pytest.raises(UsageError, match=r"a rollback to torch 2.12.1\+cpu was interrupted here"):
        back(to="2.11.0")
    done, _, proof = back(to="2.12.1")
    assert (done, proof.wrong) == ("went on", ())
    holds_baseline(root)


def test_what_was_damaged_after_a_kill_is_done_again_from_the_wheels(
    root: Path, back: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    real = rollback_module.prove
    monkeypatch.setattr(rollback_module, "prove", cut)
    with pytest.raises(KeyboardInterrupt):
        back()
    monkeypatch.setattr(rollback_module, "prove", real)
    (site(root) / "torch/old.py").write_text("half wri")
    done, _, proof = back()
    assert (done, proof.wrong) == ("rolled back", ())
    holds_baseline(root)


def test_a_folder_that_cannot_be_renamed_moves_entry_by_entry(
    root: Path, back: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = snapshot(root), Path.replace

    def refuse(source: Path, target: Path) -> Path:
        if source.is_dir():
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return real(source, target)

    monkeypatch.setattr(Path, "replace", refuse)
    back(keep_old=True)
    holds_baseline(root)
    undo(inspect(root), lambda _: None)
    assert snapshot(root) == before


def test_a_file_on_another_disk_is_copied_and_half_a_move_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "from/inner").mkdir(parents=True)
    (tmp_path / "from/inner/a").write_text("a")
    (tmp_path / "from/b").symlink_to("inner/a")
    (tmp_path / "to/inner").mkdir(parents=True)
    (tmp_path / "to/inner/moved").write_text("before")
    real = Path.replace

    def across(source: Path, target: Path) -> Path:
        if source.parts[-2:] != target.parts[-2:] and source.parent == target.parent:
            return real(source, target)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "replace", across)
    move(tmp_path / "from", tmp_path / "to")
    assert sorted(str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*")) == [
        "b",
        "inner",
        "inner/a",
        "inner/moved",
    ]
    assert (tmp_path / "to/b").readlink() == Path("inner/a")
    assert not (tmp_path / "from").exists()


# -- a full disk


@pytest.fixture
def small_root(served: Path, tmp_path: Path) -> Iterator[Path]:
    """The environment on a disk of four megabytes."""
    with small_disk(tmp_path / "disk", 4) as disk:
        yield Path(shutil.copytree(served, disk / "venv", symlinks=True))


def fill(folder: Path, leave: int = 0) -> None:
    """Fill the disk of ``folder`` up to its last ``leave`` bytes."""
    with contextlib.suppress(OSError), (folder / "ballast").open("ab", buffering=0) as ballast:
        while shutil.disk_usage(folder).free > leave and ballast.write(bytes(4096)):
            pass


@pytest.mark.parametrize(("leave", "spare"), [(0, None), (2 * 2**20, None), (2 * 2**20, 0)])
def test_a_full_disk_is_found_before_anything_is_touched(
    small_root: Path,
    wanted: Wanted,
    home: Home,
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
    leave: int,
    spare: int | None,
) -> None:
    big = torch_wheel(wheels / "big", "2.12.1", {"torch/big.txt": "x" * 3 * 2**20})
    lock = environment_of(big, wheels / "triton-3.7.0-py3-none-any.whl")
    hold(home, environment_of(big), wheels / "big")
    if spare is not None:
        # Somebody takes the room between the question and the unpacking.
        monkeypatch.setattr(rollback_module, "SPARE_BYTES", -(2**30))
    fill(small_root, leave)
    before = snapshot(small_root)
    with pytest.raises(FarmError, match=r"(?i)no space left|GB free, and what comes needs"):
        roll_back(inspect(small_root), lambda *_: Wanted(lock, "x"), home, "ask", lambda _: None)
    assert snapshot(small_root) == before
    assert Keeping(inspect(small_root)).journal is None
    assert list(small_root.glob(f"{KEEPING}/stage-*")) == []


@pytest.mark.parametrize("turn", [1, 2])
def test_a_disk_that_fills_up_between_two_renames_stops_nothing(
    small_root: Path, wanted: Wanted, home: Home, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    real, calls = swap_module.move, []

    def fill_up(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == turn:
            fill(small_root)
        real(source, target)

    monkeypatch.setattr(swap_module, "move", fill_up)
    monkeypatch.setattr(rollback_module, "SPARE_BYTES", 0)
    _, _, proof = roll_back(inspect(small_root), lambda *_: wanted, home, "ask", lambda _: None)
    assert proof.wrong == ()
    holds_baseline(small_root)


# -- undo


def test_what_was_kept_comes_back_as_it_was(root: Path, back: Callable[..., Any]) -> None:
    (site(root) / "torch/notes.txt").write_text("mine\n")
    before = snapshot(root)
    back(keep_old=True)
    assert back()[0] == "already there"
    assert snapshot(root) != before
    journal, proof = undo(inspect(root), lambda _: None)
    assert (proof.wrong, len(journal.moves)) == ((), 4)
    assert snapshot(root) == before


def test_what_was_thrown_away_cannot_come_back_and_that_is_said(root: Path, back: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="there is nothing to undo"):
        undo(inspect(root), lambda _: None)
    back()
    with pytest.raises(UsageError, match="was thrown away when the rollback was proven"):
        undo(inspect(root), lambda _: None)


# -- who else is there


def test_a_program_that_was_started_by_name_in_the_activated_environment_uses_it(root: Path, served: Path) -> None:
    code = "import time; time.sleep(60)"
    activated = {**os.environ, "VIRTUAL_ENV": str(root), "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    with subprocess.Popen(["python", "-c", code], env=activated) as service:
        try:
            assert [words.split()[0] for words in inspect(root).in_use()] == [str(service.pid)]
            assert inspect(served).in_use() == ()
        finally:
            service.kill()


def test_an_environment_in_use_is_left_alone_unless_forced(
    root: Path, back: Callable[..., Any], wanted: Wanted, home: Home
) -> None:
    before = snapshot(root)
    with subprocess.Popen([root / "bin/python", "-c", "import time; time.sleep(60)"]) as service:
        try:
            (one,) = planned(root, wanted, home).in_use
            assert one.startswith(f"{service.pid} ")
            with pytest.raises(Incomplete, match=f"is in use.*: {service.pid} "):
                back()
            assert snapshot(root) == before
            back(force=True)
        finally:
            service.kill()
    holds_baseline(root)


def test_a_second_rollback_at_once_is_refused_and_names_the_first(root: Path, back: Callable[..., Any]) -> None:
    before = snapshot(root)
    (root / KEEPING).mkdir()
    with (root / KEEPING / "lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Incomplete, match="another farm rollback \\(process 4711\\)"):
            back()
    assert snapshot(root) == before


def test_a_damaged_journal_is_named(root: Path, back: Callable[..., Any]) -> None:
    back()
    (root / KEEPING / "journal.json").write_text("{")
    with pytest.raises(InfrastructureFailed, match="cannot be read"):
        back()


# -- what is no environment


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is nothing at"),
        (lambda path: path.write_text(""), "is a file"),
        (lambda path: path.mkdir(), "holds no pyvenv.cfg"),
        (lambda path: (path / "conda-meta").mkdir(parents=True), "is a conda environment"),
        (lambda path: _tree(path, "bin/python3"), "is a Python installation and no virtual environment"),
        (lambda path: _tree(path, "lib/python3.11/EXTERNALLY-MANAGED"), "is managed by its system"),
        (lambda path: _tree(path, "pyvenv.cfg"), "its interpreter|the interpreter of .* is gone"),
        (lambda path: _tree(path, ".venv/pyvenv.cfg"), r"did you mean '.*/\.venv'"),
        (lambda path: _program(path, "#!/bin/sh\nexit 3\n"), "does not answer"),
    ],
)
def test_what_is_no_virtual_environment_is_refused_with_what_it_is(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "place")
    with pytest.raises(UsageError, match=words):
        inspect(tmp_path / "place")


def _tree(path: Path, name: str) -> None:
    (path / name).parent.mkdir(parents=True)
    (path / name).touch()


def _program(path: Path, text: str) -> None:
    _tree(path, "pyvenv.cfg")
    (path / "bin").mkdir()
    (path / "bin/python").write_text(text)
    (path / "bin/python").chmod(0o755)


def test_an_interpreter_given_for_its_environment_is_told_the_folder(root: Path) -> None:
    with pytest.raises(UsageError, match=f"its folder is '{root}'"):
        inspect(root / "bin/python")


def test_the_systems_python_is_refused() -> None:
    with pytest.raises(UsageError, match=r"is a Python installation|is managed by its system"):
        inspect(Path(sys.base_prefix))


def test_an_editable_torch_is_refused(root: Path, wanted: Wanted, home: Home) -> None:
    info = next(site(root).glob("torch-*.dist-info"))
    (info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    with pytest.raises(UsageError, match="an editable install"):
        planned(root, wanted, home)


def test_a_lock_for_another_python_or_platform_is_refused(root: Path, wanted: Wanted, home: Home) -> None:
    other = wanted.environment.model_copy(update={"python": "3.9"})
    with pytest.raises(UsageError, match=r"is of Python 3\.\d+, and x is locked for Python 3.9"):
        planned(root, Wanted(other, "x"), home)
    release = wanted.environment.release.model_copy(update={"platform": "riscv64-unknown-linux-gnu"})
    other = wanted.environment.model_copy(update={"release": release})
    with pytest.raises(UsageError, match="locked for riscv64"):
        planned(root, Wanted(other, "x"), home)


# -- where it goes back to


def test_by_default_it_goes_to_the_baseline_of_the_newest_run_that_compared_what_is_installed(
    root: Path, home: Home, locks: tuple[Environment, Environment]
) -> None:
    keep_run(home, "older", locks)
    keep_run(home, "newest", locks)
    keep_run(home, "the-other-way", (locks[1], locks[0]))
    (home.runs / "damaged").mkdir()
    (home.runs / "damaged/evidence.json").write_text("{")
    found = find_wanted(inspect(root), None, home)
    assert (found.environment, found.source, found.rehearsed_s) == (locks[0], "the baseline of run newest", 3.0)


def test_without_a_run_that_knows_what_is_installed_it_must_be_named(
    root: Path, home: Home, locks: tuple[Environment, Environment]
) -> None:
    with pytest.raises(UsageError, match=r"holds torch 2.13.0\+cpu for Python .* no run here says: say where"):
        find_wanted(inspect(root), None, home)
    keep_run(home, "other", (locks[1], locks[0]))
    with pytest.raises(UsageError, match=r"the runs here compared 2.12.1\+cpu"):
        find_wanted(inspect(root), None, home)


@pytest.mark.parametrize("asked", ["2.12.1", "2.12"])
def test_a_release_that_a_run_locked_needs_no_index(
    root: Path, home: Home, locks: tuple[Environment, Environment], asked: str
) -> None:
    keep_run(home, "run", (locks[1], locks[0]))
    found = find_wanted(inspect(root), asked, home)
    assert (found.environment, found.source) == (locks[0], "the candidate of run run")


def test_a_release_that_no_run_locked_is_resolved_and_leaves_what_is_installed(
    root: Path, home: Home, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    torch_wheel(links, "2.11.0", requires=["filelock"])
    make_wheel(links, "filelock", "9")
    shutil.copy(wheels / "filelock-3.1-py3-none-any.whl", links)
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    pip_settings.cache_clear()
    found = find_wanted(inspect(root), "2.11.0", home)
    assert {package.name: package.version for package in found.environment.packages} == {
        "torch": "2.11.0",
        "filelock": "3.1",
    }
    assert found.source == "the index"


def test_a_build_that_is_not_the_installed_one_is_not_taken_unasked(
    root: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    torch_wheel(links, "2.11.0+cu126", requires=[])
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    pip_settings.cache_clear()
    with pytest.raises(UsageError, match=r"--to '2.11.0': served as cu126, and wanted is cpu, as is installed"):
        find_wanted(inspect(root), "2.11.0", home)


def test_a_build_can_be_named(root: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    torch_wheel(links, "2.11.0+cu126", requires=[])
    torch_wheel(links, "2.11.0+cpu", requires=[])
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    pip_settings.cache_clear()
    assert find_wanted(inspect(root), "2.11.0+cu126", home).identity.identity == "2.11.0+cu126"
    assert find_wanted(inspect(root), "2.11.0", home).identity.identity == "2.11.0+cpu"


def test_a_torch_that_was_swapped_goes_back_to_where_it_was_put(
    root: Path, back: Callable[..., Any], home: Home, wheels: Path
) -> None:
    back()
    install(root, torch_wheel(wheels / "swapped", "2.13.0+cu126", requires=[]))
    journal = Keeping(inspect(root)).journal
    for to in (None, "2.12.1"):
        assert find_wanted(inspect(root), to, home, journal).identity.identity == "2.12.1+cpu"


def test_the_journal_can_be_read_by_a_person(root: Path, back: Callable[..., Any]) -> None:
    back()
    journal = json.loads((root / KEEPING / "journal.json").read_text())
    assert (journal["phase"], journal["to"]["version"], journal["before"]["version"]) == ("proven", "2.12.1", "2.13.0")
