"""What is installed, held against what its packages recorded: damaged files, strays, bytecode of what is gone."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import struct
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

__all__ = [
    "Row",
    "WheelFacts",
    "build_rows",
    "bytecode_fits",
    "damaged_files",
    "files_digest",
    "found_in",
    "recorded",
    "stale_bytecode",
    "strays",
    "top_folders",
    "touched_files",
    "wheel_facts",
]

#: Findings of one kind that are listed; a release that is wrong is wrong in thousands of files.
SHOWN = 20

#: Path, relative to site-packages, and digest ("sha256=…", "" where none was recorded) of one file.
Row = tuple[str, str]


def found_in(sites: Iterable[Path]) -> dict[str, Distribution]:
    """Return every distribution in the folders ``sites`` by normalised name; without a name it is left out."""
    found: dict[str, Distribution] = {}
    for distribution in distributions(path=[str(site) for site in sites]):
        known = {key.lower() for key in distribution.metadata}
        if {"name", "version"} <= known:
            found.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution)
    return found


def recorded(distribution: Distribution) -> list[Row]:
    """Return every file that ``distribution`` brought, as its RECORD says; empty where that is lost."""
    return _rows(distribution.read_text("RECORD") or "")


def _rows(text: str) -> list[Row]:
    return [(row[0], row[1]) for row in csv.reader(text.splitlines()) if len(row) >= 2]


def build_rows(rows: Iterable[Row]) -> set[Row]:
    """Return those of ``rows`` that every installer takes over from the wheel unchanged: they tell builds apart."""
    return {
        (path, digest)
        for path, digest in rows
        if digest and not path.startswith(("..", "/")) and ".dist-info/" not in path and ".data/" not in path
    }


def files_digest(rows: Iterable[Row]) -> str:
    """Return one digest over ``build_rows``: another build of the same version has another."""
    text = "\n".join(f"{path},{digest}" for path, digest in sorted(build_rows(rows)))
    return hashlib.sha256(text.encode()).hexdigest()


def damaged_files(site: Path, distribution: Distribution) -> list[str]:
    """Return the files of ``distribution`` that are missing or not as its RECORD says."""
    found = []
    for name, digest in recorded(distribution):
        path = site / name
        if not path.is_file():
            # Bytecode may be thrown away at any time.
            if digest or not name.endswith(".pyc"):
                found.append(f"{name} is missing")
        elif digest and digest.partition("=")[2] != _digest(path, digest.partition("=")[0]):
            found.append(f"{name} is not what the wheel holds")
    return found


def touched_files(site: Path, distribution: Distribution) -> list[str]:
    """Return the files of ``distribution`` that are missing or of another size than its RECORD says. It reads none.

    For packages that stay: whoever replaces a neighbour in a folder of both takes away or writes over shared files.
    """
    found = []
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        name, digest, size = (*row, "", "", "")[:3]
        try:
            there = (site / name).stat().st_size
        except OSError:
            if digest:
                found.append(f"{name} of {distribution.metadata['Name']} is missing")
            continue
        if digest and size.isdecimal() and there != int(size):
            found.append(f"{name} of {distribution.metadata['Name']} is {there} bytes long, recorded are {size}")
    return found


def top_folders(rows: Iterable[Row]) -> set[str]:
    """Return the folders of site-packages that ``rows`` lie in; metadata and what lies outside is left out."""
    first = (name.partition("/") for name, _ in rows)
    outside = ("..", "")
    metadata = (".dist-info", ".data")
    return {top for top, slash, _ in first if slash and top not in outside and not top.endswith(metadata)}


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        raw = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def strays(sites: Collection[Path], folders: Collection[str] = ("torch",)) -> list[str]:
    """Return files under ``folders`` that no distribution owns: what a replaced release left behind."""
    owned = {
        os.path.realpath(Path(str(distribution.locate_file("")), name))
        for distribution in distributions(path=[str(site) for site in sites])
        for name, _ in recorded(distribution)
    }
    found = []
    for site in sites:
        for path in sorted(path for folder in folders for path in (site / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and os.path.realpath(path) not in owned:
                found.append(f"{path.relative_to(site)} belongs to no installed package")
    return found[:SHOWN]


def stale_bytecode(site: Path, since: float, replaced: Iterable[Distribution]) -> list[str]:
    """Return bytecode beside the sources of ``replaced`` that is older than their replacement, ``since`` (epoch).

    Python takes bytecode by the time and size of its source (PEP 552), and any where there is no source at all. That a
    source was put there since is read from its change time, so only what was just installed, from a cache of its own,
    may be asked about: linking a file elsewhere changes that time too, and an installer's cache is shared.
    """
    found = []
    owned = {name for distribution in replaced for name, _ in recorded(distribution) if name.endswith(".py")}
    for folder in sorted({str(Path(name).parent) for name in owned}):
        for path in sorted([*(site / folder).glob("*.pyc"), *(site / folder).glob("__pycache__/*.pyc")]):
            if path.stat().st_mtime >= since:
                continue
            cached = path.parent.name == "__pycache__"
            source = site / folder / f"{path.name.partition('.')[0]}.py"
            if not source.is_file():
                if not cached:
                    found.append(f"{path.relative_to(site)} is bytecode without a source, and would be run")
            elif str(source.relative_to(site)) in owned and (
                bytecode_fits(path, source.stat()) and source.stat().st_ctime >= since
            ):
                found.append(f"{path.relative_to(site)} is bytecode of what was replaced, and would be run")
    return found[:SHOWN]


def bytecode_fits(path: Path, source: os.stat_result) -> bool:
    """Return whether Python would take the bytecode at ``path`` for that of ``source``."""
    with path.open("rb") as file:
        header = file.read(16)
    flags, modified, size = struct.unpack("<3I", header[4:16]) if len(header) == 16 else (0, 0, -1)
    if flags:
        # By hash: unchecked it always fits, checked Python looks itself.
        return not flags & 0b10
    return bool((modified, size) == (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF))


@dataclass(frozen=True)
class WheelFacts:
    """What a wheel says of itself, read from it without installing it."""

    requires: tuple[str, ...]
    rows: tuple[Row, ...]
    unpacked_bytes: int


def wheel_facts(wheel: Path) -> WheelFacts:
    """Return requirements, record and unpacked size of ``wheel``. Raises OSError or BadZipFile for what is none."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next((name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA")), None)
        if info is None:
            raise zipfile.BadZipFile(f"'{wheel.name}' holds no metadata")
        metadata = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode("utf-8", "replace"))
        record = f"{info}/RECORD"
        return WheelFacts(
            requires=tuple(metadata.get_all("Requires-Dist") or ()),
            rows=tuple(_rows(archive.read(record).decode()) if record in names else ()),
            unpacked_bytes=sum(entry.file_size for entry in archive.infolist()),
        )
