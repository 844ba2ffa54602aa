"""What a release wrote in service, opened by the one that it is rolled back to; processes of their own for both."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from farm.model import KeptState

__all__ = ["StateKeeper"]

#: Compiling the package took 20 s here, and takes minutes beside busy neighbours.
TIMEOUT_S = 600.0
#: Both compile for long, each on one processor: they go side by side.
APART = ("compiled package",)
LAST_LINES = 3
#: Caches are never taken over: the release compiles again beside what the other one left.
REBUILT = ("compile cache",)


@dataclass(frozen=True)
class StateKeeper:
    """Writes and reads ``kinds`` of state in ``folder``, by the runner in ``stage``."""

    kinds: tuple[str, ...]
    stage: Path
    folder: Path
    environment: Mapping[str, str]

    def write(self, python: Path) -> None:
        """Have the release under ``python`` write every kind; what it could not write is found by `read`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # A release in service leaves its bytecode behind.
        environment = {k: v for k, v in self.environment.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._all("write", python, self.kinds, environment)

    def read(self, python: Path) -> dict[str, KeptState]:
        """Have the release under ``python`` open what was written, and return what became of every kind."""
        written = {kind: self._told("write", kind) for kind in self.kinds}
        there = [kind for kind, told in written.items() if "expected" in told]
        self._all("read", python, there, self.environment)
        found = {}
        for kind, told in written.items():
            if kind not in there:
                found[kind] = KeptState(result="not written", reason=told.get("error", "the writer never came to it"))
                continue
            read = self._told("read", kind)
            well: Literal["rebuilt", "readable"] = "rebuilt" if kind in REBUILT else "readable"
            found[kind] = KeptState(
                result="unreadable" if "error" in read or not read.get("ended") else well,
                reason=read.get("error", "" if read.get("ended") else "the reader never came to it"),
                write_ns=told.get("ns", 0),
                read_ns=read.get("ns", 0),
            )
        return found

    def _all(self, action: str, python: Path, kinds: Sequence[str], environment: Mapping[str, str]) -> None:
        groups = [[kind for kind in kinds if kind in APART], [kind for kind in kinds if kind not in APART]]
        with ThreadPoolExecutor(len(groups)) as pool:
            list(pool.map(lambda group: self._each(action, python, group, environment), groups))

    def _each(self, action: str, python: Path, kinds: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run ``kinds`` in one process, and those after one that it died of in the next."""
        left = list(kinds)
        while left:
            why = self._run(action, python, left, environment)
            ended = [kind for kind in left if self._told(action, kind).get("ended")]
            if len(ended) == len(left):
                return
            died = left[len(ended)]
            self._file(action, died).write_text(json.dumps({"ended": True, "error": why}))
            left = left[len(ended) + 1 :]

    def _run(self, action: str, python: Path, kinds: Sequence[str], environment: Mapping[str, str]) -> str:
        """Return why the process ended before its work, if it did."""
        try:
            done = subprocess.run(
                [str(python), "-s", "-m", "runner.state", action, str(self.folder), *kinds],
                cwd=self.stage,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took over {TIMEOUT_S:.0f} s"
        words = " / ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
        how = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"code {done.returncode}"
        return f"the process ended with {how}: {words}"

    def _told(self, action: str, kind: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._file(action, kind).read_text())
        except (OSError, json.JSONDecodeError):
            return {}
        return found

    def _file(self, action: str, kind: str) -> Path:
        return self.folder / f"{kind}.{action}.json"
