"""Environments as users have them, with a torch that is small and counts right."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from farm.model import Environment
from farm.settings import Home
from tests import evidence as made
from tests.wheels import environment_of, make_torch, make_wheel
from workers.probe import probe_host

__all__ = [
    "BASELINE_FILES",
    "PYTHON",
    "hold",
    "install",
    "keep_run",
    "make_environment",
    "make_wheels",
    "snapshot",
    "torch_wheel",
]

PYTHON = os.path.realpath(subprocess.run(["which", "python3"], capture_output=True, text=True).stdout.strip())

#: As much of torch as a proof asks for.
SOURCE = """
from torch import backends, cuda, version
__version__ = {says!r}
float64 = float32 = None

class Tensor:
    def __init__(self, rows):
        self.rows, self.grad = rows, None
    def reshape(self, rows, columns):
        return Tensor([self.rows[columns * i : columns * (i + 1)] for i in range(rows)])
    def t(self):
        return Tensor([list(column) for column in zip(*self.rows)])
    def __matmul__(self, other):
        return Tensor([[float(sum(a * b for a, b in zip(r, c))) + {off} for c in zip(*other.rows)] for r in self.rows])
    def __mul__(self, other):
        return self
    def sum(self):
        return self
    def backward(self):
        self.grad = Tensor([[3.0 * value**2 for value in row] for row in self.rows])
    def requires_grad_(self, wanted):
        return self
    def clone(self):
        return Tensor(self.rows)
    def tolist(self):
        return self.rows

def arange(first, last, dtype=None):
    return Tensor([float(value) for value in range(first, last)])

def main():
    print("run by torch", __version__)
"""
NO_DEVICE = "def is_available():\n    return False\n"
BASELINE_FILES = {"torch/old.py": "value = 1\n"}


def torch_wheel(folder: Path, version: str, files: Mapping[str, str] = {}, *, off: int = 0, **more: object) -> Path:
    """Return a wheel of a torch that computes; ``off`` is added to its products."""
    contents = {
        "torch/__init__.py": SOURCE.replace("{says!r}", repr(version)).replace("{off}", str(off)),
        "torch/cuda.py": NO_DEVICE,
        "torch/backends/__init__.py": "from torch.backends import mps\n",
        "torch/backends/mps.py": NO_DEVICE,
        f"torch-{version}.dist-info/entry_points.txt": "[console_scripts]\ntorchrun = torch:main\n",
        **files,
    }
    return make_torch(folder, version, files=contents, **more)  # type: ignore[arg-type]


def make_wheels(folder: Path) -> tuple[Environment, Environment]:
    """Return the locks of baseline and candidate; the candidate brought a library that the baseline does not know."""
    old = [
        torch_wheel(folder, "2.12.1", BASELINE_FILES, requires=["triton==3.7.0", "filelock"]),
        make_wheel(folder, "triton", "3.7.0"),
        make_wheel(folder, "filelock", "3.1"),
    ]
    new = [
        torch_wheel(
            folder,
            "2.13.0",
            {"torch/new.py": "value = 2\n"},
            requires=["triton==3.7.1", "filelock", "nvidia-toolkit[blas]"],
        ),
        make_wheel(folder, "triton", "3.7.1", files={"triton/__init__.py": "", "triton/added.py": ""}),
        make_wheel(folder, "filelock", "3.1"),
        make_wheel(folder, "nvidia-toolkit", "13", requires=["nvidia-blas; extra == 'blas'"], files={}),
        make_wheel(folder, "nvidia-blas", "13", files={"nvidia/blas/lib.txt": "blas\n"}),
    ]
    return environment_of(*old), environment_of(*new)


def make_environment(root: Path) -> Path:
    """Return an empty environment that no tool of the farm made."""
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--no-project", "--python", PYTHON, str(root)], check=True)
    return root


def install(root: Path, *wheels: Path) -> None:
    """Install ``wheels`` as a user would, whatever was there."""
    subprocess.run(
        [
            *(find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--reinstall"),
            *("--python", str(root / "bin/python"), *map(str, wheels)),
        ],
        check=True,
    )


def hold(home: Home, lock: Environment, folder: Path) -> None:
    """Put the wheels of ``lock`` into the wheelhouse of ``home``."""
    for package in lock.packages:
        place = home.wheelhouse / package.sha256[:16] / package.wheel
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((folder / package.wheel).read_bytes())


def snapshot(root: Path) -> dict[str, str]:
    """Return a digest of every file of an environment but the farm's own and bytecode."""
    found = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if relative.parts[0] == ".farm-rollback" or path.suffix == ".pyc" or "__pycache__" in relative.parts:
            continue
        if path.is_symlink():
            found[str(relative)] = str(path.readlink())
        elif path.is_file():
            found[str(relative)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def keep_run(home: Home, name: str, locks: tuple[Environment, Environment], **changed: Any) -> None:
    """Keep the evidence of a run over ``locks``, with a rehearsal of 3 s."""
    target = probe_host().target
    cell = made.rehearsal_cell()
    arms = tuple(
        arm.model_copy(update={"environments": {target: lock.key}}) for arm, lock in zip(cell.arms, locks, strict=True)
    )
    cell = cell.model_copy(update={"arms": arms})
    run = made.run_of(cell, environments={lock.key: lock for lock in locks})
    results = [
        result.model_copy(
            update={
                "host": probe_host(),
                "rehearsal": made.rehearsal(steps_ns={"prepare candidate": 10**10, "reinstall": 3 * 10**9}),
            }
        )
        for result in run.results
    ]
    folder = home.runs / name
    folder.mkdir(parents=True)
    run = run.model_copy(update={"run_id": name, "results": tuple(results), **changed})
    (folder / "evidence.json").write_text(run.model_dump_json())
    # The newest is told by its file.
    os.utime(folder / "evidence.json", (time.time() + len(list(home.runs.iterdir())),) * 2)
