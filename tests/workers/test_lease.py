"""One measurement at a time on a machine, for as long as anything of it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.errors import InfrastructureFailed
from workers import lease as lease_module
from workers.lease import machine_lease


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "POLL_S", 0.02)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "machine.lock"


def never() -> bool:
    return False


def taken(lock: Path) -> bool:
    """Return whether somebody holds the machine."""
    with machine_lease(lambda: None, lambda: True, lock) as descriptor:
        return descriptor is None


def becomes_free(lock: Path) -> bool:
    """Return whether the machine is given back within 10 s."""
    ends = time.monotonic() + 10
    while taken(lock) and time.monotonic() < ends:
        time.sleep(0.02)
    return not taken(lock)


def test_the_machine_is_held_inside_and_free_outside(lock: Path) -> None:
    assert not taken(lock)
    with machine_lease(lambda: None, never, lock) as descriptor:
        assert descriptor is not None
        assert taken(lock)
    assert not taken(lock)


def test_the_machine_is_given_back_after_an_error(lock: Path) -> None:
    with pytest.raises(RuntimeError), machine_lease(lambda: None, never, lock):
        raise RuntimeError
    assert not taken(lock)


def test_who_waits_says_so_at_every_poll_and_gets_the_machine_in_the_end(lock: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom workers.lease import machine_lease\n"
        "with machine_lease(lambda: None, lambda: False, Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        polls: list[float] = []

        def waiting() -> None:
            polls.append(time.monotonic())
            if len(polls) == 3:
                other.communicate("done\n", timeout=30)

        with machine_lease(waiting, never, lock) as descriptor:
            assert descriptor is not None
    assert len(polls) >= 3


def test_who_is_cancelled_while_waiting_gets_nothing(lock: Path) -> None:
    polls: list[None] = []
    with (
        machine_lease(lambda: None, never, lock),
        machine_lease(lambda: polls.append(None), lambda: len(polls) == 2, lock) as second,
    ):
        assert second is None
    assert len(polls) == 2


def test_a_benchmark_keeps_the_machine_when_the_worker_above_it_was_killed(lock: Path) -> None:
    worker = (
        "import subprocess, sys, time\nfrom pathlib import Path\nfrom workers.lease import machine_lease\n"
        "with machine_lease(lambda: None, lambda: False, Path(sys.argv[1])) as descriptor:\n"
        "    runner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], pass_fds=[descriptor])\n"
        "    print(runner.pid, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", worker, str(lock)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        runner = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            assert taken(lock)
        finally:
            os.kill(runner, signal.SIGKILL)
    assert becomes_free(lock)


def test_what_a_worker_starts_without_the_lease_does_not_keep_the_machine(lock: Path) -> None:
    with machine_lease(lambda: None, never, lock):
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        # The descriptor closes within its exec, which may end after Popen has returned.
        assert becomes_free(lock)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_every_user_of_the_machine_can_open_the_lock(lock: Path) -> None:
    before = os.umask(0o077)
    try:
        assert not taken(lock)
    finally:
        os.umask(before)
    assert lock.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("kind", ["folder", "link", "below a file"])
def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path, kind: str) -> None:
    lock = tmp_path / "lock"
    if kind == "folder":
        lock.mkdir()
    elif kind == "link":
        (tmp_path / "elsewhere").touch()
        lock.symlink_to(tmp_path / "elsewhere")
    else:
        lock.touch()
        lock = lock / "lock"
    with pytest.raises(InfrastructureFailed) as failed, machine_lease(lambda: None, never, lock):
        pytest.fail("the machine was given without a lock")
    assert f"the machine's lock '{lock}' cannot be opened: " in str(failed.value)
