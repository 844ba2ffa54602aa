"""Messages over two pipes: four bytes of length, big-endian, then msgpack."""

from __future__ import annotations

import os
import struct
from typing import Any

import msgpack

__all__ = ["Channel"]


class Channel:
    """Two inherited descriptors, apart from stdout and stderr, so that what a workload prints harms nothing."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests = requests
        self._replies = replies

    @classmethod
    def inherited(cls) -> Channel:
        """Return the channel that FARM_RUNNER_FDS="r,w" names."""
        requests, replies = os.environ.pop("FARM_RUNNER_FDS").split(",")
        for descriptor in (int(requests), int(replies)):
            os.set_inheritable(descriptor, False)
        return cls(int(requests), int(replies))

    def receive(self) -> dict[str, Any] | None:
        """Return the next request, or None where the driver is gone."""
        head = self._read(4)
        if head is None:
            return None
        body = self._read(struct.unpack(">I", head)[0])
        if body is None:
            return None
        request: dict[str, Any] = msgpack.unpackb(body, raw=False)
        return request

    def send(self, reply: dict[str, Any]) -> None:
        body: bytes = msgpack.packb(reply, use_bin_type=True)
        frame = memoryview(struct.pack(">I", len(body)) + body)
        while frame:
            frame = frame[os.write(self._replies, frame) :]

    def _read(self, size: int) -> bytes | None:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = os.read(self._requests, size - len(chunks))
            if not chunk:
                return None
            chunks += chunk
        return bytes(chunks)
