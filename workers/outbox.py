"""Results on their way: on the disk before they are sent, and until the coordinator has committed them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from farm.aggregator import result_digest
from farm.broker import keys
from farm.envelope import seal
from farm.model import CellResult

__all__ = ["Outbox"]


class Outbox:
    """A folder with one file a result."""

    def __init__(self, folder: Path, key: Ed25519PrivateKey) -> None:
        self.folder = folder
        self._key = key
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, result: CellResult) -> Path:
        """Write ``result``, signed, so that it survives whatever comes next."""
        path = self.folder / f"{result_digest(result.run_id, result.cell_id, result.attempt)}.json"
        making = path.with_suffix(".making")
        with making.open("w") as file:
            file.write(seal("result", result, self._key))
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return path

    def flush(self, connection: Any) -> int:
        """Send what is not committed yet, drop what is; return how many files are left."""
        left = 0
        for path in sorted(self.folder.glob("*.json")):
            if connection.exists(keys.done(path.stem)):
                path.unlink(missing_ok=True)
                continue
            try:
                envelope = path.read_text()
            except FileNotFoundError:
                # Another worker of this home has seen that it is committed.
                continue
            except (OSError, UnicodeDecodeError):
                # The disk has damaged it: what else is here goes on its way.
                left += 1
                continue
            left += 1
            # A result that waits in the stream is not sent twice; the marker there says so for as long as it may take.
            if connection.set(f"farm:sent.{path.stem}", "1", nx=True, ex=10):
                connection.xadd(keys.RESULTS, {"envelope": envelope})
        return left
