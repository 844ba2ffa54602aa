"""What the tests of FlexAttention do in a measured environment, which has no pytest: `python inside_flex.py NAME`.

`values FOLDER` writes outputs and references and prints what it wrote; the others assert, and print nothing.
"""

from __future__ import annotations

import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from runner.tensors import write_all
from workloads import flex_attention
from workloads.contract import FellBack, Unsupported

MASKS = ("causal", "sliding_window", "block_sparse", "document", "prefix_lm")
SCORES = ("none", "alibi", "soft_cap")
#: Small, grouped heads, and a length that is no multiple of a block's.
SMALL = {"heads": 4, "kv_heads": 2, "seq": 300, "window": 50, "block": 32, "stride": 4, "prefix": 70}

#: What is broken, the case that must show it, the source as it is and as it would be wrong.
MUTANTS = (
    ("causal", "none", "return q >= kv", "return q + 1 >= kv"),
    ("sliding_window", "none", "(kv > q - window)", "(kv >= q - window)"),
    ("block_sparse", "none", "(kv // block % stride == 0)", "(kv // block % stride == 1)"),
    ("document", "none", "document_S[q] == document_S[kv]", "document_S[q] >= document_S[kv]"),
    ("prefix_lm", "none", "(kv < prefix)", "(kv <= prefix)"),
    ("causal", "alibi", "score + slopes_H[h] * (kv - q)", "score + slopes_H[h] * (q - kv)"),
    ("causal", "soft_cap", "return cap * torch.tanh(score / cap)", "return score"),
)


def made(path: str, module: Any = flex_attention, *, oracle: bool = False, **parameters: Any) -> Any:
    """Return the workload set up on the CPU, as the runner does it."""
    kind = module.FlexAttention
    torch.manual_seed(1)
    workload = kind()
    values = {name: entry["default"] for name, entry in kind.parameters.items()} | parameters
    workload.setup(SimpleNamespace(**values), path, torch.device("cpu"))
    if oracle:
        workload.to_oracle()
    return workload


def mutated(right: str, wrong: str) -> types.ModuleType:
    source = Path(flex_attention.__file__).read_text()
    assert source.count(right) == 1, right
    module = types.ModuleType("mutant")
    exec(compile(source.replace(right, wrong), "mutant", "exec"), vars(module))
    return module


def values(folder: str) -> None:
    """Every mask with every score modification, and every mutant, through both paths and the reference.

    Unfused: what is asked here is whether the mask is the mask; that the kernel computes it, the suites ask.
    """
    torch.compiler.set_stance("force_eager")
    found: list[dict[str, Any]] = []
    asked = [("", flex_attention, mask, score, mode, "float32") for mask, score, mode in _combinations()]
    for mask, score, right, wrong in MUTANTS:
        asked += [(right, mutated(right, wrong), mask, score, "infer", dtype) for dtype in ("float32", "bfloat16")]
    for index, (mutant, module, mask, score, mode, dtype) in enumerate(asked):
        old = "by_hand" if score == "soft_cap" else "mask"
        given = SMALL | {"mask": mask, "score": score, "mode": mode, "dtype": dtype, "old": old}
        entry: dict[str, Any] = {
            "mutant": mutant,
            "mask": mask,
            "score": score,
            "mode": mode,
            "dtype": dtype,
            "refused": "",
        }
        for name, path in (("old", "old"), ("flex", "flex"), ("oracle", "old")):
            place = Path(folder, f"{index}-{name}")
            place.mkdir()
            try:
                workload = made(path, module, oracle=name == "oracle", **given)
                entry[name] = write_all(workload.step(), place, name)
            except Unsupported as refusal:
                entry["refused"] = str(refusal)
        found.append(entry)
    sys.stdout.write(json.dumps(found))


def _combinations() -> Iterator[tuple[str, str, str]]:
    yield from product(MASKS, SCORES, ("infer",))
    # Gradients of the old path; flex has none on the CPU.
    yield from (("document", "alibi", "train"), ("prefix_lm", "soft_cap", "train"), ("sliding_window", "none", "train"))


def drill() -> None:
    """The compiled kernel is proven, a backend that is not looked at is no pass, and the switch is seen."""
    workload = made("flex", **flex_attention.FlexAttention.cases["sliding-window-fp32"]["parameters"])
    workload.step()
    assert workload.path_ran() == "flex, one compiled graph, the C++ template, 56% of blocks skipped"
    facts = workload.facts()
    assert facts["blocks skipped"] == 9 / 16
    assert facts["block-sparse"] == "yes, 9 of 16 blocks are skipped, 0 need no mask"
    workload.backend = "TRITON"
    fell(workload, "BACKEND='TRITON' was asked for; the C++ template ran")
    workload.backend = "AUTO"
    # A kernel that is compiled and not called is none.
    workload.flex = torch.compile(lambda *given, **named: given[0] + 1, fullgraph=True)
    fell(workload, "the compiled graph called no FlexAttention kernel")
    workload = made("flex", mask="sliding_window", seq=512)
    flex_attention.DRILL_TOKENS = 256
    assert workload.switch_off() == "torch.compiler.set_stance('force_eager'), on the first 256 tokens"
    assert workload.step()["y"].shape[2] == 256
    fell(workload, "FlexAttention ran unfused: the profile shows aten::")


def fell(workload: Any, begin: str) -> None:
    raised(FellBack, begin, workload.path_ran)


def raised(kind: type[Exception], begin: str, call: Callable[[], object]) -> None:
    try:
        found: object = call()
    except kind as error:
        found = str(error)
    assert str(found).startswith(begin), found


def own(file: str) -> None:
    """The example of the documents computes its mask, beside FlexAttention and under the same reference."""
    torch.compiler.set_stance("force_eager")
    module = types.ModuleType("own")
    exec(compile(Path(file).read_text(), file, "exec"), vars(module))
    module.FlexAttention = module.OurAttention  # type: ignore[attr-defined]
    given = module.OurAttention.cases["short"]["parameters"]
    right = made("ours", module, oracle=True, **given).step()["y"]
    for path in ("ours", "flex"):
        found = made(path, module, **given).step()["y"].double()
        assert (found - right).norm() < 1e-6 * right.norm(), path
    assert made("ours", module, **given).path_ran() == "ours"


def proofs() -> None:
    """What proves a kernel on devices that are not here, on what such a device says."""
    kernel = flex_attention._kernel_of
    assert kernel("cuda", {"triton_tem_fused_flex_attention_0", "vectorized_elementwise_kernel"}) == "TRITON"
    assert kernel("cuda", {"triton_tem_fused_flex_decoding_0"}) == "TRITON_DECODE"
    assert kernel("cuda", {"kernel_cutlass_kernel_flash_attncuteflash_fwd_0"}) == "FLASH"
    assert kernel("cuda", {"ampere_sgemm_128x64_tn", "softmax_warp_forward"}) is None
    assert kernel("mps", []) is None

    # A Metal library is called by its function, which must be seen, and everything put back.
    from torch._inductor.codecache import PyCodeCache

    library = SimpleNamespace(flex_attn_fwd=lambda *given, **named: "ran")
    graph = types.ModuleType("graph")
    graph._mps_flex_lib_0 = library  # type: ignore[attr-defined]
    PyCodeCache.modules.append(graph)
    called: list[str] = []
    with flex_attention._watched(called):
        assert graph._mps_flex_lib_0.flex_attn_fwd(1, threads=[1, 1, 1]) == "ran"
    assert called == ["_mps_flex_lib_0"]
    assert graph._mps_flex_lib_0 is library

    # MPS tells each copy to the CPU only if it is asked to tell always.
    workload = made("old", seq=64)
    right = workload.step
    words = "The operator 'aten::x' is not currently supported on the MPS backend and will fall back to run on the CPU."

    def copies() -> Any:
        assert torch.is_warn_always_enabled() or not workload.watched
        warnings.warn(words, stacklevel=1)
        return right()

    workload.step, workload.watched = copies, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fell(workload, "1 operators ran on the CPU: The operator 'aten::x'")
    workload.watched = True
    with flex_attention._told() as said:
        workload.step()
    assert said == [words]
    assert not torch.is_warn_always_enabled()

    # Backward passes that differ are named with how many results they had.
    assert flex_attention.repeats(lambda: {"y": torch.ones(2)}) == {"backward repeats bitwise": True}
    drawn = flex_attention.repeats(lambda: {"y": torch.ones(2), "grad.q": torch.rand(2)})
    assert drawn == {"backward repeats bitwise": "grad.q: 30 results in 30 steps"}

    held = iter([100, 740])
    torch.mps.driver_allocated_memory, torch.mps.synchronize = lambda: next(held), lambda: None
    grown = flex_attention.growth(lambda: {}, "mps")
    assert grown["device memory growth over 200 steps (bytes)"] == 640
    assert grown["process peak growth over 200 steps (bytes)"] < 2**24

    # A mask that skips nothing is not block-sparse.
    dense = made("flex", seq=128)
    assert dense.facts()["block-sparse"] == "no: all 1 blocks are computed, the mask saves nothing"

    refused({"old": "is_causal", "mask": "document"}, "is_causal is the causal mask alone")
    refused({"score": "soft_cap"}, "scaled_dot_product_attention has no soft-cap; old = 'by_hand'")
    refused({"heads": 4, "kv_heads": 3}, "4 query heads are no multiple of 3")
    os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"
    workload.device = torch.device("mps")
    raised(Unsupported, "PYTORCH_ENABLE_MPS_FALLBACK is set", workload._compile)


def refused(parameters: dict[str, Any], begin: str) -> None:
    raised(Unsupported, begin, lambda: made("old", **parameters))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"values": values, "drill": drill, "own": own, "proofs": proofs}[sys.argv[1]](*sys.argv[2:])
