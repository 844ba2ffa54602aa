"""Names that say which process a thing belongs to: what a killed process left behind can be told and removed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import psutil

__all__ = ["is_gone", "owner_name", "remove_orphans"]

NAME = re.compile(r"[a-z]+-(?P<pid>\d+)-(?P<since>\d+\.\d\d)(-|$)")
#: Linux counts a start from the time of boot, which moves by a second when the clock is set.
JITTER_S = 2.0


def owner_name(kind: str, pid: int | None = None) -> str:
    """Return a name for what belongs to a process, by default this one: ``kind`` (letters), its number and its start.

    The start time tells a process from a later one with the same number.
    """
    process = psutil.Process(os.getpid() if pid is None else pid)
    return f"{kind}-{process.pid}-{process.create_time():.2f}"


def is_gone(name: str) -> bool:
    """Return whether ``name`` begins with what `owner_name` gave to a process that has ended."""
    found = NAME.match(name)
    if found is None:
        return False
    try:
        return abs(psutil.Process(int(found["pid"])).create_time() - float(found["since"])) > JITTER_S
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def remove_orphans(folder: Path) -> None:
    """Remove the folders in ``folder`` whose owners are gone; a folder that is not there holds none."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_gone(path.name):
            shutil.rmtree(path, ignore_errors=True)
