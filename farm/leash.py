"""`python -m farm.leash FD -- command`: runs a command that ends when the other end of FD is gone, however it went."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from types import FrameType

#: Between asking and killing.
GRACE_S = 3.0


def main(arguments: list[str]) -> int:
    """Run the command in a process group of its own; return its exit status."""
    descriptor = int(arguments[0])
    command = arguments[arguments.index("--") + 1 :]
    # Ctrl-C goes to the whole foreground group; who holds the leash decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)

    def ended(*_: int | FrameType | None) -> None:
        _end(child)
        sys.exit(0)

    signal.signal(signal.SIGTERM, ended)
    while child.poll() is None:
        ready, _, _ = select.select([descriptor], [], [], 0.2)
        if ready and not os.read(descriptor, 1):
            _end(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    # As a shell says it: 128 and the signal.
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
