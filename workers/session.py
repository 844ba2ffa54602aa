"""A runner as its driver sees it: started, asked over pipes, and ended with an outcome whatever it does.

The runner may crash, hang, be killed, run out of memory or print garbage: each becomes an `ArmEnded` with an
outcome and a reason. What it prints is kept in a log file and never mixes with the protocol, which has two pipes
of its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import msgpack

from farm.model import Outcome

__all__ = ["LOG_TAIL_BYTES", "ArmEnded", "RunnerSession"]

#: How much of a runner's output goes into the evidence.
LOG_TAIL_BYTES = 4000

#: A runner answers with raw outputs in files, so no honest frame is larger than this.
MAX_FRAME_BYTES = 256 * 1024 * 1024

#: Time that a runner may take to leave after `quit`; teardown can abort after right results (TORCH.md 0.4).
QUIT_S = 5.0


class ArmEnded(Exception):
    """Raised when an arm cannot go on: its outcome, a one-line reason, and the end of its log."""

    def __init__(self, outcome: Outcome, reason: str, log_tail: str = "") -> None:
        super().__init__(f"{outcome}: {reason}")
        self.outcome = outcome
        self.reason = reason
        self.log_tail = log_tail


class RunnerSession:
    """One runner process: `hello` once, then `request`s, then `close`.

    ``lease_fd`` is the machine's lock: the runner inherits it, so that the machine stays taken for as long as
    the benchmark lives, even when the worker above it is killed. ``cores`` are the processors that it may use (Linux);
    empty is all.
    """

    def __init__(
        self,
        python: Path,
        stage: Path,
        environment: dict[str, str],
        log: Path,
        *,
        lease_fd: int | None = None,
        cores: tuple[int, ...] = (),
    ) -> None:
        self.command = (str(python), "-s", "-m", "runner")
        self.log = log
        requests_read, self._requests = os.pipe()
        self._replies, replies_write = os.pipe()
        inherited = [requests_read, replies_write] + ([lease_fd] if lease_fd is not None else [])
        oom_before = _oom_kills()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    self.command,
                    cwd=stage,
                    env=environment | {"PYTHONPATH": str(stage), "FARM_RUNNER_FDS": f"{requests_read},{replies_write}"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=inherited,
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._requests)
            os.close(self._replies)
            raise ArmEnded(Outcome.CRASHED, f"the runner could not be started: {error}") from error
        finally:
            os.close(requests_read)
            os.close(replies_write)
        self._oom_before = oom_before
        self._closed = False
        if cores and hasattr(os, "sched_setaffinity"):
            # Before Python has started a thread: all that come inherit it.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self._process.pid, cores)
        # If memory runs out the kernel should take the runner, not the worker that has to tell of it.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("1000")

    @property
    def pid(self) -> int:
        return self._process.pid

    def hello(self, timeout_s: float) -> dict[str, Any]:
        """Return what the runner says of itself once torch is imported."""
        return self._receive(timeout_s, "start")

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Send one request and return its reply. Raises `ArmEnded` for everything that is not `ok`."""
        self.send(op, **fields)
        return self._receive(timeout_s, op)

    def send(self, op: str, **fields: Any) -> None:
        """Send a request without waiting, so that several runners can work side by side; then `receive`."""
        body: bytes = msgpack.packb({"op": op} | fields, use_bin_type=True)
        frame = struct.pack(">I", len(body)) + body
        try:
            while frame:
                frame = frame[os.write(self._requests, frame) :]
        except BrokenPipeError:
            raise self._ended(f"before '{op}'") from None

    def receive(self, op: str, timeout_s: float) -> dict[str, Any]:
        """Return the reply to a request that was `send`."""
        return self._receive(timeout_s, op)

    def close(self, *, kill: bool = False) -> int | None:
        """End the runner and its whole process group; return its exit status, None where it was killed."""
        if self._closed:
            return self._process.returncode
        self._closed = True
        if not kill and self._process.poll() is None:
            with contextlib.suppress(ArmEnded):
                self.send("quit")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(QUIT_S)
        status = self._process.poll()
        self._kill()
        for descriptor in (self._requests, self._replies):
            os.close(descriptor)
        return status

    def __enter__(self) -> RunnerSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self) -> str:
        """Return the last `LOG_TAIL_BYTES` of what the runner printed."""
        try:
            with self.log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _receive(self, timeout_s: float, op: str) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        (size,) = struct.unpack(">I", self._read(4, deadline, op, timeout_s))
        if size > MAX_FRAME_BYTES:
            self._kill()
            raise ArmEnded(Outcome.CRASHED, f"the reply to '{op}' is not one of the runner's", self.log_tail())
        try:
            reply = msgpack.unpackb(self._read(size, deadline, op, timeout_s), raw=False)
        except (msgpack.UnpackException, ValueError) as error:
            self._kill()
            raise ArmEnded(Outcome.CRASHED, f"the reply to '{op}' cannot be read: {error}", self.log_tail()) from error
        if not isinstance(reply, dict):
            self._kill()
            raise ArmEnded(Outcome.CRASHED, f"the reply to '{op}' is not a mapping", self.log_tail())
        if not reply.get("ok", True):
            detail = str(reply.get("traceback", ""))[-LOG_TAIL_BYTES:]
            raise ArmEnded(Outcome(reply["outcome"]), str(reply["reason"]), detail or self.log_tail())
        return reply

    def _read(self, size: int, deadline: float, op: str, timeout_s: float) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._replies], [], [], max(0.0, left))
            if not ready:
                self._kill()
                raise ArmEnded(Outcome.TIMED_OUT, f"no answer to '{op}' in {timeout_s:.0f} s", self.log_tail())
            chunk = os.read(self._replies, size - len(chunks))
            if not chunk:
                raise self._ended(f"in '{op}'")
            chunks += chunk
        return bytes(chunks)

    def _ended(self, where: str) -> ArmEnded:
        """Return what became of a runner whose pipe is closed."""
        try:
            status = self._process.wait(QUIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return ArmEnded(Outcome.CRASHED, f"closed its pipe {where} and stayed", self.log_tail())
        if status == -signal.SIGKILL and _oom_kills() > self._oom_before:
            return ArmEnded(Outcome.OUT_OF_MEMORY, f"the kernel killed the runner {where}", self.log_tail())
        if status < 0:
            return ArmEnded(Outcome.CRASHED, f"{signal.Signals(-status).name} {where}", self.log_tail())
        return ArmEnded(Outcome.CRASHED, f"exit status {status} {where}", self.log_tail())

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory; 0 where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
