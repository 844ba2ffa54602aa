"""The machine's lease: one measurement at a time on a host, whoever asks and whichever home it uses.

The lock is a file lock that every runner inherits, so the machine stays taken for as long as a benchmark lives,
even when the worker above it was killed.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farm.errors import InfrastructureFailed

__all__ = ["machine_lease"]

#: One file a host, in the folder that every user shares.
LOCK = Path(tempfile.gettempdir()) / "farm-machine.lock"
#: How often a waiting worker asks again.
POLL_S = 0.5


@contextmanager
def machine_lease(
    waiting: Callable[[], None], cancelled: Callable[[], bool], path: Path = LOCK
) -> Iterator[int | None]:
    """Hold the machine; yield the descriptor that runners inherit, or None where ``cancelled`` came first.

    ``waiting`` is called at every poll while another measurement holds the machine.
    """
    descriptor = _open(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled():
                    yield None
                    return
                waiting()
                time.sleep(POLL_S)
        yield descriptor
    finally:
        # Closing gives the lock back only when no runner holds the descriptor any more, which is the point.
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # Without O_CREAT first: in a sticky folder Linux refuses O_CREAT on another user's file.
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        with suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
    except OSError as error:
        raise InfrastructureFailed(f"the machine's lock '{path}' cannot be opened: {error.strerror}") from error
    return descriptor
