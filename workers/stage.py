"""The folder that a runner starts in: our runner, the workloads, and nothing else of ours.

Content-addressed, so that arms of a cell run the very same bytes and a later run finds them again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

from farm.errors import InfrastructureFailed

__all__ = ["make_stage", "workload_reference"]

#: Packages that travel into a measured environment, by the name that they have there.
STAGED = {"runner": "workers.runner", "workloads": "workloads"}

#: Module of a user's own workload in the stage.
USER_MODULE = "user_workload"


def make_stage(root: Path, source: str | None) -> Path:
    """Return the folder under ``root`` that holds the runner, the catalogue and ``source``; make it if need be."""
    files: dict[str, bytes] = {}
    for target, package in STAGED.items():
        folder = _package_folder(package)
        for path in sorted(folder.rglob("*.py")):
            files[f"{target}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    if source is not None:
        files[f"{USER_MODULE}.py"] = source.encode()
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    stage = root / digest.hexdigest()[:20]
    if stage.is_dir():
        return stage
    root.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=root))
    for name, content in files.items():
        path = making / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    try:
        making.replace(stage)
    except OSError:
        # Another worker made the same stage first: the content is the same by construction.
        shutil.rmtree(making)
    return stage


def workload_reference(workload: str, source: str | None) -> str:
    """Return the module that a runner imports for ``workload``."""
    return f"workloads.{workload}" if source is None else USER_MODULE


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InfrastructureFailed(f"package '{package}' is not installed beside the worker; install the farm again")
    return Path(next(iter(spec.submodule_search_locations)))
