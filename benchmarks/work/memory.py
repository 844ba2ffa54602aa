"""A step that moves memory: one addition over arrays far larger than a core's own caches, in equal chunks.

The extra work is more of the same chunks, so its share is right by count.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch

from workloads.contract import Workload

#: Room for this share of extra chunks; every arm allocates it, so that they differ by nothing else.
MOST_EXTRA = 0.25


class MemoryWork(Workload):
    """z = x + y, chunk by chunk: two arrays read and one written, 12 bytes an element."""

    item = "bytes"
    parameters = {
        "extra": {"default": 0.0, "doc": "share of extra work in the step"},
        "whole": {"default": 400, "doc": "chunks of the step itself"},
        "chunk": {"default": 32768, "doc": "elements of a chunk"},
    }
    cases = {"add": {"suites": ["smoke"], "parameters": {}}}

    def setup(self, p: SimpleNamespace, path: str, device: torch.device) -> None:
        room = round(p.whole * (1 + MOST_EXTRA))
        chunks = p.whole + round(p.extra * p.whole)
        if chunks > room:
            raise ValueError(f"extra {p.extra} is more than the {MOST_EXTRA} that there is room for")
        self.x = torch.randn(room * p.chunk).to(device)
        self.y = torch.randn(room * p.chunk).to(device)
        self.z = torch.zeros(room * p.chunk).to(device)
        parts = (tensor.split(p.chunk)[:chunks] for tensor in (self.x, self.y, self.z))
        self.chunks = list(zip(*parts, strict=True))

    def step(self) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            for x, y, z in self.chunks:
                torch.add(x, y, out=z)
            return {"z": self.z}

    def items(self) -> float:
        return 12.0 * sum(len(x) for x, _, _ in self.chunks)
