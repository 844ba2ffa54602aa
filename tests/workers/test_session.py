"""A runner may crash, hang, print or lie: each ends as an outcome with a reason, and nothing of it is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from farm.model import Outcome
from workers import session as session_module
from workers.runner_environment import runner_environment
from workers.session import ArmEnded, RunnerSession
from workers.stage import make_stage

FAULTY = Path(__file__).parent.parent / "fixtures" / "workloads"

#: A cold import of torch took 20 s on a slow disk.
START_S = 120.0
ANSWER_S = 60.0

Start = Callable[..., RunnerSession]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stage(tmp_path_factory.mktemp("stage"), None)


@pytest.fixture
def start(candidate_python: Path, stage: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a real runner that has said hello; whatever a test leaves is ended."""
    sessions: list[RunnerSession] = []

    def begin() -> RunnerSession:
        environment = runner_environment({"OMP_NUM_THREADS": "1"}, tmp_path / "caches", settled_allocator=False)
        sessions.append(RunnerSession(candidate_python, stage, environment, tmp_path / f"runner-{len(sessions)}.log"))
        sessions[-1].hello(START_S)
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close(kill=True)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Start]:
    """Start a package `runner` made of the given source, in this very Python: no torch, no manners."""
    sessions: list[RunnerSession] = []

    def begin(source: str, **options: Any) -> RunnerSession:
        package = tmp_path / f"fake-{len(sessions)}" / "runner"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(
            f"import os\nR, W = map(int, os.environ['FARM_RUNNER_FDS'].split(','))\n{source}"
        )
        log = tmp_path / f"fake-{len(sessions)}.log"
        sessions.append(RunnerSession(Path(sys.executable), package.parent, dict(os.environ), log, **options))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close(kill=True)


def set_up(session: RunnerSession, workload: str, path: str, **parameters: Any) -> dict[str, Any]:
    return session.request(
        "setup",
        ANSWER_S,
        workload=str(FAULTY / f"{workload}.py"),
        parameters=parameters,
        path=path,
        seed=1,
        device="cpu",
        threads=1,
    )


def lives(pid: int) -> bool:
    """Return whether the process exists and is no zombie that only waits to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# -- the real runner ----------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_segmentation_fault_is_a_crash_with_the_stack_in_the_log(start: Start) -> None:
    session = start()
    set_up(session, "dies_segv", "faulty")
    with pytest.raises(ArmEnded) as ended:
        session.request("window", ANSWER_S, steps=5)
    assert ended.value.outcome is Outcome.CRASHED
    assert ended.value.reason == "SIGSEGV in 'window'"
    assert "Segmentation fault" in ended.value.log_tail
    assert "dies_segv.py" in ended.value.log_tail
    # And what is asked of a dead runner says so, instead of waiting for it.
    with pytest.raises(ArmEnded, match="SIGSEGV before 'window'"):
        session.request("window", ANSWER_S, steps=5)


@pytest.mark.torch
def test_a_step_that_hangs_is_timed_out_and_its_process_is_gone(start: Start) -> None:
    session = start()
    set_up(session, "hangs", "faulty")
    began = time.monotonic()
    with pytest.raises(ArmEnded) as ended:
        session.request("window", 1.0, steps=5)
    assert time.monotonic() - began < 5.0
    assert ended.value.outcome is Outcome.TIMED_OUT
    assert ended.value.reason == "no answer to 'window' in 1 s"
    assert not lives(session.pid)


@pytest.mark.torch
def test_failures_name_the_step_and_leave_a_runner_that_answers(start: Start) -> None:
    session = start()

    # The set-up takes the first step, so that the third is the second of the window.
    set_up(session, "raises_third_step", "faulty")
    with pytest.raises(ArmEnded) as ended:
        session.request("window", ANSWER_S, steps=5)
    assert ended.value.outcome is Outcome.FAILED
    assert ended.value.reason == "RuntimeError: the third batch has another shape (step 3)"
    assert "raises_third_step.py" in ended.value.log_tail

    with pytest.raises(ArmEnded) as ended:
        set_up(session, "returns_nothing", "faulty")
    assert ended.value.outcome is Outcome.FAILED
    assert "returned nothing; return a mapping of names to tensors" in ended.value.reason

    with pytest.raises(ArmEnded, match="has no parameter 'colour'; it has dtype, rows") as ended:
        set_up(session, "returns_nothing", "plain", colour="red")
    assert ended.value.outcome is Outcome.FAILED

    assert set_up(session, "returns_nothing", "plain")["item"] == "samples"
    assert len(session.request("window", ANSWER_S, steps=7)["steps_ns"]) == 7 * 8


@pytest.mark.torch
def test_what_a_workload_prints_goes_to_the_log_and_never_into_a_reply(start: Start) -> None:
    session = start()
    quiet = set_up(session, "prints_to_stdout", "plain")
    loud = set_up(session, "prints_to_stdout", "faulty")
    assert loud["output_digest"] == quiet["output_digest"]
    assert len(session.request("window", ANSWER_S, steps=20)["steps_ns"]) == 20 * 8
    assert session.close() == 0
    log = session.log.read_bytes()
    assert log.count(bytes(range(256))) == 21
    assert b"step 21: loss is falling nicely" in log
    assert "not a reply" in session.log_tail()


@pytest.mark.torch
def test_a_closed_session_leaves_no_process_and_closes_twice_without_harm(start: Start) -> None:
    session = start()
    set_up(session, "returns_nothing", "plain")
    assert lives(session.pid)
    assert session.close() == 0
    assert not lives(session.pid)
    assert session.close() == 0


@pytest.mark.torch
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_runner_does_not_outlive_its_killed_driver_even_in_a_step_that_hangs(
    candidate_python: Path, stage: Path, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from workers.session import RunnerSession\n"
        f"s = RunnerSession(Path({str(candidate_python)!r}), Path({str(stage)!r}), dict(os.environ), Path('log'))\n"
        f"s.hello({START_S})\n"
        f"s.request('setup', {ANSWER_S}, workload={str(FAULTY / 'hangs.py')!r}, parameters={{}}, path='faulty',"
        " seed=1, device='cpu', threads=1)\n"
        "s.send('window', steps=5)\n"
        "print(s.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    root = str(Path(session_module.__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, str(driver)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert lives(pid)
        process.kill()
    assert wait_until(lambda: not lives(pid))


# -- a runner that is none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit(3)", "exit status 3 in 'start'"),
        ("os.write(1, bytes(range(256)) * 99); raise SystemExit(4)", "exit status 4 in 'start'"),
        ("os.abort()", "SIGABRT in 'start'"),
        ("os.write(W, b'\\0\\0\\0\\x09half'); raise SystemExit(0)", "exit status 0 in 'start'"),
        ("os.write(W, b'Traceback'); input()", "the reply to 'start' is not one of the runner's"),
        ("os.write(W, b'\\0\\0\\0\\2\\x81\\xa2'); os.read(R, 1)", "the reply to 'start' cannot be read"),
        ("os.write(W, b'\\0\\0\\0\\1\\x2a'); os.read(R, 1)", "the reply to 'start' is not a mapping"),
    ],
    ids=["exits", "prints and exits", "aborts", "half a reply", "not framed", "cut off", "not a mapping"],
)
def test_a_python_that_is_no_runner_is_a_crash_with_a_reason(fake: Start, source: str, reason: str) -> None:
    session = fake(source)
    with pytest.raises(ArmEnded) as ended:
        session.hello(30.0)
    assert ended.value.outcome is Outcome.CRASHED
    assert ended.value.reason.startswith(reason)
    session.close()
    assert not lives(session.pid)


def test_a_python_that_does_not_exist_is_a_crash_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = _descriptors()
    with pytest.raises(ArmEnded, match="could not be started") as ended:
        RunnerSession(tmp_path / "no-python", tmp_path, {}, tmp_path / "log")
    assert ended.value.outcome is Outcome.CRASHED
    assert _descriptors() == before


def test_a_runner_that_closes_its_pipe_and_stays_is_killed(fake: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "QUIT_S", 0.3)
    session = fake("os.close(W)\nimport time\ntime.sleep(3600)")
    with pytest.raises(ArmEnded, match="closed its pipe in 'start' and stayed") as ended:
        session.hello(30.0)
    assert ended.value.outcome is Outcome.CRASHED
    assert not lives(session.pid)


def test_a_runner_that_ignores_quit_and_sigterm_is_ended_with_its_children(
    fake: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "QUIT_S", 0.3)
    child = tmp_path / "child"
    session = fake(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"open({str(child)!r}, 'w').write(str(child.pid))\n"
        "os.write(W, b'\\0\\0\\0\\1\\x80')\n"
        "time.sleep(3600)\n"
    )
    assert session.hello(30.0) == {}
    assert session.close() is None
    assert not lives(session.pid)
    assert wait_until(lambda: not lives(int(child.read_text())))


def test_an_outcome_of_the_runner_carries_its_reason_and_its_traceback(fake: Start) -> None:
    # {"ok": false, "outcome": "unsupported", "reason": "no such path", "traceback": "line 7"}, packed by hand.
    packed = b"\x84\xa2ok\xc2\xa7outcome\xabunsupported\xa6reason\xacno such path\xa9traceback\xa6line 7"
    session = fake(f"os.write(W, {struct.pack('>I', len(packed)) + packed!r}); os.read(R, 1)")
    with pytest.raises(ArmEnded) as ended:
        session.hello(30.0)
    assert (ended.value.outcome, ended.value.reason) == (Outcome.UNSUPPORTED, "no such path")
    assert ended.value.log_tail == "line 7"


def test_only_the_end_of_a_long_log_is_kept(fake: Start) -> None:
    session = fake("os.write(1, b'first' + b'\\xff' * 100_000 + b'last words'); raise SystemExit(1)")
    with pytest.raises(ArmEnded) as ended:
        session.hello(30.0)
    assert ended.value.log_tail.endswith("last words")
    assert "first" not in ended.value.log_tail
    assert len(ended.value.log_tail) == session_module.LOG_TAIL_BYTES


def test_the_machine_stays_taken_for_as_long_as_the_runner_lives(fake: Start, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "machine.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    session = fake("os.write(W, b'\\0\\0\\0\\1\\x80'); os.read(R, 1)", lease_fd=lock)
    session.hello(30.0)
    os.close(lock)
    assert not _free(tmp_path / "machine.lock")
    session.close()
    assert _free(tmp_path / "machine.lock")


def test_a_runner_sees_no_variable_that_is_not_on_the_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    control = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "1000000000"}
    timed = runner_environment(control, tmp_path, settled_allocator=True)
    examined = runner_environment(control, tmp_path, settled_allocator=False)
    assert "LD_LIBRARY_PATH" not in timed
    assert "PYTHONPATH" not in timed
    assert timed.keys() - examined.keys() == {"MALLOC_TRIM_THRESHOLD_"}


def _free(path: Path) -> bool:
    with path.open("r+") as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))
