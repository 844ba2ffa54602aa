"""FlexAttention's FLASH backend: flash-attention 4, written in CuTeDSL, beside the release's own kernel.

It must be asked for and needs a package that torch does not install; that one needs a nvidia-cutlass-dsl with which
torch's own CuTeDSL operators are silently off (workload cutedsl_ops): the two want environments of their own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from workloads.contract import Unsupported, Workload
from workloads.flex_attention import FlexAttention

#: What is looked for, by the name of its distribution.
PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels")
#: Compute capability from which the deterministic backward with a block mask runs (TORCH.md 3.3).
DETERMINISTIC_FROM = 10


class CuteDslAttention(FlexAttention, Workload):
    """FlexAttention by the release's own kernel (old) and by flash-attention 4 (new, CuTeDSL)."""

    item = "tokens"
    track = "prototype"
    parameters = {
        "mode": {"default": "infer", "choices": ["infer", "train"], "doc": "forward, or forward and backward"},
        "mask": {
            "default": "causal",
            "choices": ["causal", "sliding_window", "block_sparse", "document", "prefix_lm"],
            "doc": "which keys a query sees",
        },
        "score": {"default": "none", "choices": ["none", "alibi", "soft_cap"], "doc": "what is done to a score"},
        "deterministic": {"default": False, "doc": "under torch.use_deterministic_algorithms(True)"},
        "window": {"default": 256, "doc": "keys that a query sees back; sliding_window only"},
        "prefix": {"default": 128, "doc": "tokens at the front that every query sees; prefix_lm only"},
        "documents": {"default": 6, "doc": "documents of random length in a sequence; document only"},
        "dtype": {"default": "bfloat16", "choices": ["float32", "bfloat16", "float16"], "doc": "of q, k and v"},
        "batch": {"default": 1, "doc": "sequences a step"},
        "heads": {"default": 2, "doc": "query heads"},
        "kv_heads": {"default": 0, "doc": "key and value heads; 0: as many as query heads"},
        "seq": {"default": 512, "doc": "tokens of a sequence"},
        "head_dim": {"default": 64, "doc": "width of a head"},
    }
    paths = {
        "standard": "flex_attention with the kernel that the release takes by itself: Triton, or the C++ template",
        "flash": "kernel_options BACKEND='FLASH'; needs flash-attn-4",
    }
    cases = {
        "causal-bf16": {"suites": ["smoke", "standard"]},
        "sliding-window-32k-bf16": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {"mask": "sliding_window", "heads": 8, "seq": 32768, "head_dim": 128},
        },
        "document-16k-alibi-gqa-bf16": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {
                "mask": "document",
                "score": "alibi",
                "heads": 8,
                "kv_heads": 2,
                "seq": 16384,
                "head_dim": 128,
            },
        },
        "causal-8k-train-bf16": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {"mode": "train", "heads": 8, "seq": 8192, "head_dim": 128},
        },
        "causal-8k-train-deterministic-bf16": {
            "production_shape": True,
            "suites": ["full"],
            "parameters": {"mode": "train", "deterministic": True, "heads": 8, "seq": 8192, "head_dim": 128},
        },
    }

    flex_paths = {"standard": "AUTO", "flash": "FLASH"}

    def require(self) -> None:
        if self.path != "flash":
            return
        missing = lacks(self.device.type)
        if missing:
            raise Unsupported(f"torch {torch.__version__}, BACKEND='FLASH': {'; '.join(missing)}")

    def facts(self) -> Mapping[str, str | float | bool]:
        return dict(super().facts()) | {
            "hardware needed": "CUDA of compute capability 9.0 or more, "
            f"{DETERMINISTIC_FROM}.0 or more for a deterministic backward with a block mask",
            "hardware found": hardware(),
            "packages needed": "flash-attn-4, which asks for nvidia-cutlass-dsl >= 4.6.2; torch's own operators, "
            "which take 4.4.1, 4.4.2 and 4.5.2 alone, are off beside it",
            "packages found": found_packages(*PACKAGES),
        }


def lacks(device: str) -> list[str]:
    """Return what FLASH lacks here, each in a few words; empty where nothing does."""
    missing = []
    if torch.version.cuda is None:
        missing.append("this build of torch is not for CUDA")
    if device != "cuda":
        missing.append(
            f"the cell runs on {device}, where kernel_options are not looked at and another kernel would run"
        )
    if importlib.util.find_spec("flash_attn") is None or importlib.util.find_spec("flash_attn.cute") is None:
        missing.append("flash-attn-4 is not installed (no module flash_attn.cute)")
    if importlib.util.find_spec("cutlass") is None:
        missing.append("nvidia-cutlass-dsl is not installed (no module cutlass)")
    return missing


def found_packages(*names: str) -> str:
    """Return the versions of distributions, in one line."""
    return ", ".join(f"{name} {_version(name)}" for name in names)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"


def hardware() -> str:
    """Return the CUDA device with its compute capability, or that there is none."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return f"no CUDA device (built for {torch.version.hip or torch.version.cuda or 'CPU'})"
    major, minor = torch.cuda.get_device_capability()
    name: Any = torch.cuda.get_device_name()
    return f"{name}, compute capability {major}.{minor}"
