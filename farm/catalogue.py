"""What workloads declare, read from their source without running it: a coordinator has no torch.

A workload is one file with one subclass of `Workload` whose declarations are literals in the class body.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from farm.errors import UsageError

__all__ = ["NO_PACKAGE", "CaseSpec", "PathSpec", "WorkloadSpec", "catalogue", "read_workload", "workload_digest"]

GROUP = "farm.workloads"

#: Declarations and the type that each must have.
DECLARATIONS: dict[str, type] = {
    "item": str,
    "parameters": dict,
    "paths": dict,
    "cases": dict,
    "track": str,
    "compiles": bool,
    "exports": bool,
}

#: What a case may say, and the types that each may have.
CASE: dict[str, tuple[type, ...]] = {
    "suites": (list, tuple),
    "parameters": (dict,),
    "production_shape": (bool,),
    "packages": (bool,),
}

NO_PACKAGE = "packages = True needs a workload that says exports = True: what is packaged is the exported program"

#: Files of the package that hold none.
NO_WORKLOADS = ("__init__", "contract")

Value = int | float | str | bool
TRACKS = ("production", "prototype")


@dataclass(frozen=True)
class PathSpec:
    """One implementation path; ``needs`` is the first release that has it, or None."""

    name: str
    doc: str
    needs: Version | None


@dataclass(frozen=True)
class CaseSpec:
    """One set of parameters: complete, with the defaults filled in."""

    name: str
    suites: tuple[str, ...]
    parameters: Mapping[str, Value]
    production_shape: bool
    packages: bool = False
    """Whether its program is compiled ahead of time, too."""


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload as its file declares it."""

    name: str
    summary: str
    item: str
    track: str
    compiles: bool
    exports: bool
    parameters: Mapping[str, Mapping[str, Any]]
    paths: tuple[PathSpec, ...]
    """The old path first."""
    cases: tuple[CaseSpec, ...]
    digest: str
    """SHA-256 of the source, and of the files of ours that it builds on."""
    source: str
    file: Path

    @property
    def shipped(self) -> bool:
        """Whether every worker has it; else its source travels with the plan."""
        return self.file.parent == Path(str(files("workloads")))

    def case_parameters(self, given: Mapping[str, Any], where: str) -> dict[str, Value]:
        """Return every parameter's value, ``given`` over the defaults. Raises UsageError for what is not declared."""
        values: dict[str, Value] = {name: entry["default"] for name, entry in self.parameters.items()}
        for name, value in given.items():
            if name not in self.parameters:
                raise UsageError(f"{where}: no parameter '{name}'; allowed are {', '.join(self.parameters)}")
            declared = self.parameters[name]
            choices = declared.get("choices")
            if choices and value not in choices:
                raise UsageError(f"{where}: {name} = {value!r}; allowed are {', '.join(map(str, choices))}")
            if type(value) is not type(declared["default"]):
                kind = type(declared["default"]).__name__
                raise UsageError(f"{where}: {name} = {value!r} must be {kind}")
            values[name] = value
        return values


def catalogue() -> dict[str, WorkloadSpec]:
    """Return every workload by name: the files of our own package, and what others name as farm.workloads.

    Raises UsageError for a workload of theirs that has the name of another, or whose module is gone.
    """
    folder = Path(str(files("workloads")))
    found = {path.stem: _read(path, path.stem) for path in sorted(folder.glob("*.py")) if path.stem not in NO_WORKLOADS}
    for entry in sorted(entry_points(group=GROUP)):
        if entry.name in found:
            raise UsageError(f"workload '{entry.name}': '{entry.module}' has the name of another workload; rename it")
        found[entry.name] = _installed(entry.name, entry.module)
    return dict(sorted(found.items()))


def workload_digest(source: str) -> str:
    """Return the digest of a workload's ``source`` together with the contract that every workload stands on."""
    contract = (files("workloads") / "contract.py").read_bytes()
    digests = [hashlib.sha256(content).hexdigest() for content in (source.encode(), contract)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _installed(name: str, module: str) -> WorkloadSpec:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise UsageError(f"workload '{name}': module '{module}' cannot be found; install its package again")
    return _read(Path(spec.origin), name)


@lru_cache(maxsize=256)
def _read(file: Path, name: str) -> WorkloadSpec:
    return read_workload(file, name)


def read_workload(file: Path, name: str | None = None) -> WorkloadSpec:
    """Return what ``file`` declares. Raises UsageError naming file, line and what is wrong."""
    try:
        source = file.read_text()
        tree = ast.parse(source)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise UsageError(f"workload '{file}'{line}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"workload '{file}' cannot be read: {error}") from error
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and _is_workload(node)]
    if len(found) != 1:
        raise UsageError(f"workload '{file}' has {len(found)} subclasses of Workload; one file holds one")
    return _spec(found[0], tree, file, source, name or file.stem)


def _is_workload(node: ast.ClassDef) -> bool:
    return any(
        (isinstance(base, ast.Name) and base.id == "Workload")
        or (isinstance(base, ast.Attribute) and base.attr == "Workload")
        for base in node.bases
    )


def _digest(tree: ast.Module, source: str) -> str:
    """Return the digest of ``source`` with the workloads of ours that it imports: what they do, it does."""
    total = hashlib.sha256(source.encode())
    ours = sorted({node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module})
    for module in ours:
        package, _, stem = module.partition(".")
        file = Path(str(files("workloads"))) / f"{stem}.py"
        if package == "workloads" and stem not in NO_WORKLOADS and file.is_file():
            total.update(read_workload(file).digest.encode())
    return total.hexdigest()


def _spec(node: ast.ClassDef, tree: ast.Module, file: Path, source: str, name: str) -> WorkloadSpec:
    declared: dict[str, Any] = {}
    for statement in node.body:
        target = _assigned(statement)
        if target not in DECLARATIONS:
            continue
        where = f"workload '{file}', line {statement.lineno}"
        try:
            value = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
        except (ValueError, TypeError):
            raise UsageError(f"{where}: '{target}' must be a literal: it is read without running the file") from None
        if not isinstance(value, DECLARATIONS[target]):
            raise UsageError(f"{where}: '{target}' must be {DECLARATIONS[target].__name__}")
        declared[target] = value
    where = f"workload '{file}', class {node.name}"
    if not declared.get("cases"):
        raise UsageError(f"{where}: 'cases' is missing; declare at least one")
    track = declared.get("track", TRACKS[0])
    if track not in TRACKS:
        raise UsageError(f"{where}: track '{track}'; allowed are {', '.join(TRACKS)}")
    paths = declared.get("paths", {"eager": "as written"})
    if not paths:
        raise UsageError(f"{where}: 'paths' is empty; the old path comes first")
    parameters = declared.get("parameters", {})
    for parameter, entry in parameters.items():
        _check_parameter(parameter, entry, where)
    doc = ast.get_docstring(node) or ast.get_docstring(ast.parse(source)) or ""
    bare = WorkloadSpec(
        name=name,
        summary=doc.strip().splitlines()[0] if doc.strip() else "",
        item=declared.get("item", "samples"),
        track=track,
        compiles=declared.get("compiles", False),
        exports=declared.get("exports", False),
        parameters=parameters,
        paths=tuple(_path(path, entry, where) for path, entry in paths.items()),
        cases=(),
        digest=_digest(tree, source),
        source=source,
        file=file,
    )
    cases = tuple(_case(bare, case, entry, where) for case, entry in declared["cases"].items())
    return WorkloadSpec(**{**vars(bare), "cases": cases})


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        return statement.target.id
    return ""


def _check_parameter(name: str, entry: Any, where: str) -> None:
    if not isinstance(entry, dict) or "default" not in entry or "doc" not in entry:
        raise UsageError(f"{where}: parameter '{name}' needs a 'default' and a 'doc'")
    default, choices = entry["default"], entry.get("choices")
    if not isinstance(default, Value):
        raise UsageError(f"{where}: parameter '{name}': default {default!r} must be int, float, str or bool")
    if choices is not None and (not isinstance(choices, list | tuple) or default not in choices):
        raise UsageError(f"{where}: parameter '{name}': choices must be a list that holds the default {default!r}")


def _path(name: str, entry: Any, where: str) -> PathSpec:
    if not isinstance(entry, dict):
        return PathSpec(name, str(entry), None)
    unknown = entry.keys() - {"doc", "needs"}
    if unknown:
        raise UsageError(f"{where}, path '{name}': unknown key '{min(unknown)}'; allowed are doc, needs")
    needs = entry.get("needs")
    try:
        return PathSpec(name, str(entry.get("doc", "")), None if needs is None else Version(needs))
    except (InvalidVersion, TypeError):
        # A number has lost digits: 2.10 is 2.1.
        raise UsageError(f"{where}, path '{name}': needs {needs!r} is no release; write a text: \"2.13\"") from None


def _case(workload: WorkloadSpec, name: str, entry: Any, where: str) -> CaseSpec:
    where = f"{where}, case '{name}'"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} must be dict")
    for key, value in entry.items():
        if key not in CASE:
            raise UsageError(f"{where}: unknown key '{key}'; allowed are {', '.join(CASE)}")
        if not isinstance(value, CASE[key]):
            raise UsageError(f"{where}: '{key}' must be {' or '.join(kind.__name__ for kind in CASE[key])}")
    if entry.get("packages", False) and not workload.exports:
        raise UsageError(f"{where}: {NO_PACKAGE}")
    return CaseSpec(
        name=name,
        suites=tuple(entry.get("suites", ("standard",))),
        parameters=workload.case_parameters(entry.get("parameters", {}), where),
        production_shape=entry.get("production_shape", False),
        packages=entry.get("packages", False),
    )
