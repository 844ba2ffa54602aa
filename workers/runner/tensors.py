"""Outputs as a comparison needs them: their bits as a digest, their values as float64 in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["digest_all", "digest_each", "write_all"]


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def digest_each(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the SHA-256 of the bytes of every tensor, by name."""
    return {name: hashlib.sha256(_bits(tensor)).hexdigest() for name, tensor in tensors.items()}


def digest_all(outputs: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 over name, dtype, shape and bytes of every output, by name."""
    total = hashlib.sha256()
    for name in sorted(outputs):
        tensor = outputs[name]
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(_bits(tensor))
    return total.hexdigest()


def write_all(outputs: Mapping[str, torch.Tensor], folder: Path, prefix: str) -> dict[str, dict[str, Any]]:
    """Write every output as little-endian float64 (exact for float32 and smaller) and return what was written."""
    written = {}
    for index, name in enumerate(sorted(outputs)):
        tensor = outputs[name].detach()
        path = folder / f"{prefix}-{index}.f64"
        tensor.cpu().to(torch.float64).contiguous().numpy().astype("<f8").tofile(path)
        written[name] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(_bits(tensor)).hexdigest(),
            "file": str(path),
        }
    return written
