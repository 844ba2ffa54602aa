"""Where things are and what is configured: the home folder, the environment, `farm.toml`."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from farm.errors import UsageError

__all__ = ["Home", "Settings", "load_settings", "wheelhouse_limit"]

#: Keys that `farm.toml` may have, with what each means.
KEYS = {
    "url": "the coordinator's server, redis://… (FARM_URL wins)",
    "home": "where environments, wheels and evidence are kept (FARM_HOME wins)",
    "baseline": "the release to compare with when --baseline is not given",
    "matrix": "a matrix of your own in place of the one that ships with the farm",
    "wheelhouse_limit": 'how large the wheelhouse may become, "20 GB" (FARM_WHEELHOUSE_LIMIT wins)',
}

#: Decimal, as the disks themselves are sold and `df -H` says.
SIZES = {"MB": 10**6, "GB": 10**9, "TB": 10**12}

#: Inductor splits its C++ command lines at these: every compiled path would fail, and look like the release's fault.
UNFIT = re.compile(r"[\s'\"\\]")


@dataclass(frozen=True)
class Home:
    """The folder that holds everything the farm keeps on this machine."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """Return the home that FARM_HOME names, else `farm.toml` here, else the platform's data folder."""
        named = os.environ.get("FARM_HOME")
        if named:
            return cls(Path(named).expanduser())
        configured = Path.cwd() / "farm.toml"
        named = _read(configured).get("home") if configured.is_file() else None
        if named:
            return cls(configured.parent / Path(named).expanduser())
        usual = platformdirs.user_data_path("farm")
        # macOS keeps application data in a folder with a space.
        return cls(Path.home() / ".farm" if UNFIT.search(str(usual)) else usual)

    @property
    def database(self) -> Path:
        return self.root / "farm.db"

    @property
    def environments(self) -> Path:
        return self.root / "envs"

    @property
    def wheelhouse(self) -> Path:
        return self.root / "wheelhouse"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def stage(self) -> Path:
        return self.root / "stage"

    @property
    def caches(self) -> Path:
        """Compiled code, by environment and cell."""
        return self.root / "caches"

    @property
    def traces(self) -> Path:
        """Profiler traces that are too large to travel, by digest."""
        return self.root / "traces"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def server(self) -> Path:
        return self.root / "server"

    def prepare(self) -> Home:
        """Make the folders and prove that they can be written. Raises UsageError where they cannot, or are unfit."""
        if UNFIT.search(str(self.root)):
            raise UsageError(
                f"home '{self.root}' has a space or a quote in its path, and torch.compile cannot build there; "
                "set FARM_HOME to a folder without"
            )
        try:
            for folder in (self.root, self.runs, self.outbox, self.keys, self.logs, self.stage, self.scratch):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".writable-{os.getpid()}"
            probe.write_text("")
            probe.unlink()
            self.keys.chmod(0o700)
        except OSError as error:
            raise UsageError(
                f"home '{self.root}' cannot be written: {error.strerror}; set FARM_HOME to a folder that can"
            ) from error
        return self


@dataclass(frozen=True)
class Settings:
    """What is configured, and where the file that said so is."""

    url: str | None = None
    baseline: str | None = None
    matrix: Path | None = None
    source: Path | None = None
    wheelhouse_limit: str | None = None


def load_settings(folder: Path | None = None) -> Settings:
    """Return the settings of FARM_URL and the first `farm.toml` in ``folder`` (default: here) or the home.

    Raises UsageError naming file, key and what is allowed.
    """
    url = os.environ.get("FARM_URL") or None
    for path in ((folder or Path.cwd()) / "farm.toml", Home.default().root / "farm.toml"):
        if not path.is_file():
            continue
        values = _read(path)
        matrix = values.get("matrix")
        return Settings(
            url=url or values.get("url"),
            baseline=values.get("baseline"),
            matrix=(path.parent / Path(matrix).expanduser()) if matrix else None,
            source=path,
            wheelhouse_limit=values.get("wheelhouse_limit"),
        )
    return Settings(url=url)


def wheelhouse_limit() -> int | None:
    """Return how many bytes the wheelhouse may hold; None: as many as the disk. Raises UsageError for no size."""
    named = os.environ.get("FARM_WHEELHOUSE_LIMIT")
    text, source = (named, "FARM_WHEELHOUSE_LIMIT") if named else (load_settings().wheelhouse_limit, "wheelhouse_limit")
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(MB|GB|TB)", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"{source} '{text}' is not a size; write \"20 GB\"")
    return round(float(found[1]) * SIZES[found[2].upper()])


class _Number(str):
    """A number as it was written: 2.10 read as a number would be shown as 2.1."""

    __slots__ = ()


def _read(path: Path) -> dict[str, str]:
    try:
        values = tomllib.loads(path.read_text(), parse_float=_Number)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}") from error
    for key, value in values.items():
        if key not in KEYS:
            raise UsageError(f"'{path}': unknown key '{key}'; allowed are {', '.join(sorted(KEYS))}")
        if isinstance(value, _Number):
            raise UsageError(f"'{path}': {key} = {value} is a number; a version is a text: {key} = \"{value}\"")
        if not isinstance(value, str):
            raise UsageError(f"'{path}': {key} must be a text, not {type(value).__name__}: {KEYS[key]}")
    return values
