"""CuTeDSL: what it lacks is named, the pin that silently switches it off first, and the drill flips the proof.

The overrides are NVIDIA's; here the library's own registry is made to register one for the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

FILE = "inside_cutedsl.py"

Inside = Callable[..., str]


def packages(folder: Path, cutlass: str) -> Path:
    """Make a folder in which both packages are found, with a version and nothing in them."""
    for module, distribution, version in (
        ("cutlass", "nvidia_cutlass_dsl", cutlass),
        ("tvm_ffi", "apache_tvm_ffi", "0.1.0"),
    ):
        (folder / module).mkdir(parents=True)
        (folder / module / "__init__.py").touch()
        told = folder / f"{distribution}-{version}.dist-info"
        told.mkdir()
        name = distribution.replace("_", "-")
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@pytest.mark.parametrize(("side", "pins"), [("candidate", "4.4.1, 4.4.2, 4.5.2"), ("baseline", "4.4.1, 4.4.2")])
def test_what_is_missing_is_named(inside: Inside, request: pytest.FixtureRequest, side: str, pins: str) -> None:
    said = json.loads(inside(request.getfixturevalue(f"{side}_python"), FILE, "words"))
    build = "" if said["cuda build"] else "this build of torch is for the CPU, not for CUDA; "
    for op in ("rms_norm", "topk", "scatter_add"):
        assert said[op].partition(": ")[2] == (
            f"nvidia-cutlass-dsl is not installed (it takes {pins} alone); apache-tvm-ffi is not installed; {build}"
            "the cell runs on cpu; the kernels are registered for CUDA alone; operators registered by it: none"
        )
        assert f", {op} by CuTeDSL: " in said[op]
    assert "flash-attn-4 is not installed (no module flash_attn.cute)" in said["flash"]
    assert "kernel_options are not looked at" in said["flash"]
    assert said["facts"]["operators registered"] == "none"
    assert said["facts"]["packages needed"] == f"apache-tvm-ffi and nvidia-cutlass-dsl of exactly {pins}"


def test_the_newest_package_switches_it_off_in_silence_and_is_named_first(
    inside: Inside, candidate_python: Path, tmp_path: Path
) -> None:
    said = json.loads(inside(candidate_python, FILE, "words", folders=(packages(tmp_path, "4.8.1"),)))
    assert said["registered"] == []
    # What the release says of itself, and is not to be believed.
    assert (said["available"], said["enabled"]) == (said["cuda build"], True)
    for op in ("rms_norm", "topk", "scatter_add"):
        assert (
            said[op]
            .partition(": ")[2]
            .startswith("nvidia-cutlass-dsl 4.8.1 silently switches it off: it takes 4.4.1, 4.4.2, 4.5.2 alone; ")
        )
    assert said["facts"]["packages found"] == "apache-tvm-ffi 0.1.0, nvidia-cutlass-dsl 4.8.1"


def test_with_a_package_that_is_accepted_only_the_device_is_missing(
    inside: Inside, candidate_python: Path, tmp_path: Path
) -> None:
    said = json.loads(inside(candidate_python, FILE, "words", folders=(packages(tmp_path, "4.5.2"),)))
    if not said["cuda build"]:
        assert "this build of torch is for the CPU, not for CUDA" in said["topk"]
        return
    assert {"_fused_rms_norm", "_fused_rms_norm_backward", "topk", "scatter_add_"} <= set(said["registered"])
    for op in ("rms_norm", "topk", "scatter_add"):
        assert said[op].partition(": ")[2] == "the cell runs on cpu; the kernels are registered for CUDA alone"


def test_an_override_is_proven_and_the_switch_brings_the_standard_kernel_back(
    inside: Inside, candidate_python: Path
) -> None:
    inside(candidate_python, FILE, "drill")


def test_flash_where_it_cannot_run_is_no_pass(inside: Inside, candidate_python: Path) -> None:
    inside(candidate_python, FILE, "flash")
