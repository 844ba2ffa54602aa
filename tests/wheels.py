"""Tiny real wheels, and a real index on loopback that serves them: what an installer does is tested without torch."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from farm.model import Environment, LockedPackage, Release
from farm.pip_settings import pip_settings
from workers.probe import probe_host

__all__ = [
    "ANY",
    "ELSEWHERE",
    "Index",
    "environment_of",
    "installers_alone",
    "make_companions",
    "make_torch",
    "make_wheel",
    "serve",
    "small_disk",
]

#: Runs everywhere.
ANY = "py3-none-any"
#: Runs on no machine that has a worker.
ELSEWHERE = f"cp3{sys.version_info.minor}-cp3{sys.version_info.minor}-win32"


def installers_alone(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Take every setting of this machine from pip and uv; ``cache`` is uv's cache."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower() in {"http_proxy", "https_proxy", "all_proxy"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pip_settings.cache_clear()


def make_companions(folder: Path) -> Path:
    """Put what is installed beside torch into ``folder``; return it."""
    for name in ("numpy", "msgpack"):
        make_wheel(folder, name, "1.0")
    return folder


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    tag: str = ANY,
) -> Path:
    """Return a wheel with right hashes in its RECORD; without ``files`` it holds one module that is importable."""
    module = canonicalize_name(name).replace("-", "_")
    files = {f"{module}/__init__.py": f"__version__ = {version!r}\n"} if files is None else files
    info = f"{module}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    contents = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = [f"{path},sha256={_digest(text.encode())},{len(text.encode())}" for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in contents.items():
            # A fixed date: equal contents give equal hashes.
            archive.writestr(zipfile.ZipInfo(inside, (2026, 7, 8, 0, 0, 0)), text)
    return path


def make_torch(
    folder: Path,
    version: str,
    *,
    says: str | None = None,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    tag: str = ANY,
) -> Path:
    """Return a wheel that calls itself torch ``version``; imported, it says that its version is ``says``."""
    modules = {
        "torch/__init__.py": f"from torch import version\n\n__version__ = {says or version!r}\n",
        "torch/version.py": "cuda = None\nhip = None\n",
        **(files or {}),
    }
    return make_wheel(folder, "torch", version, requires=requires, files=modules, tag=tag)


def environment_of(*wheels: Path, requirement: str = "") -> Environment:
    """Return the lock that holds exactly ``wheels``, torch's among them."""
    packages = []
    for wheel in sorted(wheels):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        packages.append(
            LockedPackage(name=name, version=str(version), wheel=wheel.name, sha256=sha256, url=wheel.as_uri())
        )
    torch = next(package for package in packages if package.name == "torch")
    version = Version(torch.version)
    return Environment(
        python=probe_host().python,
        packages=tuple(packages),
        release=Release(
            version=version.public,
            local=version.local,
            variant=version.local or "cpu",
            platform=probe_host().platform,
            wheel=torch.wheel,
            sha256=torch.sha256,
            origin="a local folder",
            requirement=requirement or f"torch==={torch.version}",
        ),
    )


@contextmanager
def small_disk(folder: Path, megabytes: int = 1) -> Iterator[Path]:
    """Mount a file system of so many megabytes at ``folder``; skip the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass
class Index:
    """A package index (PEP 503) over HTTP: `add` wheels, `yank` them, `remove` them."""

    url: str
    root: Path
    yanked: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Paths that were asked for, in order."""
    credentials: str | None = None
    """"user:password" that is asked for, if any."""

    @property
    def with_credentials(self) -> str:
        """The index's address, with user and password in it."""
        return self.url.replace("://", f"://{self.credentials}@")

    def add(self, wheel: Path) -> str:
        """Serve ``wheel``; return its address."""
        files = self.root / "files"
        files.mkdir(exist_ok=True)
        shutil.copy(wheel, files / wheel.name)
        self._write(parse_wheel_filename(wheel.name)[0])
        return f"{self.url.removesuffix('/simple')}/files/{wheel.name}"

    def yank(self, wheel: Path, reason: str) -> None:
        """Leave ``wheel`` where it is and mark it as withdrawn (PEP 592)."""
        self.yanked[wheel.name] = reason
        self._write(parse_wheel_filename(wheel.name)[0])

    def remove(self, wheel: Path) -> None:
        """Serve ``wheel`` no more."""
        (self.root / "files" / wheel.name).unlink()
        self._write(parse_wheel_filename(wheel.name)[0])

    def _write(self, name: str) -> None:
        links = []
        for path in sorted((self.root / "files").glob("*.whl")):
            if parse_wheel_filename(path.name)[0] == name:
                sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
                reason = self.yanked.get(path.name)
                yanked = f' data-yanked="{html.escape(reason)}"' if reason is not None else ""
                links.append(f'<a href="../../files/{path.name}#sha256={sha256}"{yanked}>{path.name}</a>')
        page = self.root / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n")


@contextmanager
def serve(root: Path) -> Iterator[Index]:
    """Serve an empty index from ``root`` on loopback for as long as the block runs."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, directory=str(root), **keywords)

        def do_GET(self) -> None:
            index.asked.append(self.path)
            if index.credentials is not None:
                wanted = "Basic " + base64.b64encode(index.credentials.encode()).decode()
                if self.headers.get("Authorization") != wanted:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="wheels"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            super().do_GET()

        def log_message(self, *arguments: Any) -> None:
            """Say nothing: a test's output is its own."""

    root.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index = Index(f"http://127.0.0.1:{server.server_port}/simple", root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
