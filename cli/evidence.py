"""A run's evidence, kept beside its page in the home, and found again by its id."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from farm.broker.client import FarmClient
from farm.errors import InfrastructureFailed, UsageError
from farm.model import Evidence, Judgement, Plan, RunState, Side
from farm.reading import read_evidence
from farm.settings import Home, Settings, load_settings
from farm.store import Store

__all__ = [
    "evidence_folder",
    "find_evidence",
    "given_evidence",
    "keep_evidence",
    "keep_judgement",
    "known_nightly",
    "other_judgements",
]

FILE = "evidence.json"
JUDGEMENTS = "judgements"


def keep_evidence(home: Home, evidence: Evidence) -> Path:
    """Write ``evidence`` into the run's folder and return the folder. Raises InfrastructureFailed for a full disk."""
    folder = home.runs / evidence.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / f".{FILE}"
        making.write_text(evidence.model_dump_json(), encoding="utf-8")
        making.replace(folder / FILE)
    except OSError as error:
        raise InfrastructureFailed(
            f"evidence of run '{evidence.run_id}' cannot be kept in {folder}: {error}"
        ) from error
    return folder


def evidence_folder(home: Home, run_id: str) -> Path | None:
    """Return the folder of a run whose evidence is kept in ``home``."""
    folder = home.runs / run_id
    return folder if (folder / FILE).is_file() else None


def keep_judgement(folder: Path, judgement: Judgement) -> Path:
    """Write ``judgement`` beside those that are there, named by its content, and return the file.

    One that is there already is left as it is. Raises InfrastructureFailed for a full disk.
    """
    kind = "registered" if judgement.registered else "afterwards"
    path = folder / JUDGEMENTS / f"{kind}-{judgement.digest()[:16]}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        if not path.is_file():
            making = path.with_name(f".{path.name}")
            making.write_text(judgement.model_dump_json(indent=2), encoding="utf-8")
            making.replace(path)
    except OSError as error:
        raise InfrastructureFailed(f"the judgement cannot be kept in {path.parent}: {error}") from error
    return path


def other_judgements(home: Home, run_id: str) -> list[Path]:
    """Return the judgements of a run under limits that were named afterwards."""
    return sorted((home.runs / run_id / JUDGEMENTS).glob("afterwards-*.json"))


def find_evidence(home: Home, settings: Settings, run_id: str | None) -> Evidence:
    """Return the evidence of ``run_id``, by default of the newest run here. Raises UsageError where there is none."""
    if run_id is None:
        run_id = _newest(home, settings)
    path = home.runs / run_id / FILE
    if path.is_file():
        try:
            return read_evidence(path.read_bytes(), str(path))
        except UsageError as error:
            # We wrote it: whoever asks for the run cannot mend it.
            raise InfrastructureFailed(f"a kept file is damaged or of another version: {error}") from error
    if settings.url is not None:
        client = FarmClient(settings.url)
        if client.state(run_id) is RunState.RUNNING:
            # A run in stages shows what is over while the rest goes on; it is not kept, for there will be more.
            if (so_far := client.evidence_so_far(run_id)) is not None:
                return so_far
            raise UsageError(f"run '{run_id}' is still running; follow it: farm watch {run_id}")
        return client.evidence(run_id)
    if not home.database.is_file():
        # Opening a store makes one: a question about a run leaves nothing behind.
        raise UsageError(f"there is no run '{run_id}' in {home.root}; start one: farm submit --candidate 2.13")
    return Store.open(home).evidence(run_id)


def known_nightly(home: Home, plan: Plan) -> str | None:
    """Return, of a plan that asked for `nightly`, that the last run here measured the same wheel; else None."""
    if plan.requested.get("candidate") != "nightly":
        return None
    now = {place: one for place, one in plan.releases.items() if place.startswith(f"{Side.CANDIDATE}@")}
    for path in sorted(home.runs.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            earlier = json.loads(path.read_bytes())["plan"]
            if earlier["requested"].get("candidate") != "nightly":
                continue
            wheels = {release["sha256"] for release in earlier["releases"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        same = {one.version for one in now.values() if one.sha256 in wheels}
        if same:
            return f"nightly is still {max(same)}, the wheel of run {path.parent.name}: tonight's is not there"
        return None
    return None


def given_evidence(given: str, home: Home) -> tuple[Evidence, Path | None]:
    """Return what a person named: a file, - for stdin, or a run; and the run's folder where it is kept in ``home``.

    A file that is a kept run's own is that run. Raises UsageError for what is none of these.
    """
    if given == "-":
        return read_evidence(sys.stdin.buffer.read(), "stdin"), None
    path = Path(given)
    if path.suffix == ".json" or path.is_file():
        try:
            evidence = read_evidence(path.read_bytes(), given)
        except OSError as error:
            raise UsageError(f"evidence '{given}' cannot be read: {error.strerror or error}") from error
        folder = evidence_folder(home, evidence.run_id)
        return evidence, folder if folder and path.resolve() == (folder / FILE).resolve() else None
    if "/" in given:
        raise UsageError(f"there is no file '{given}'; name a file, - for stdin, or a run (farm status lists them)")
    return find_evidence(home, load_settings(), given), evidence_folder(home, given)


def _newest(home: Home, settings: Settings) -> str:
    """Return the newest run whose evidence is here, or else the newest that the farm at FARM_URL has ended."""
    found = sorted(home.runs.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    if found:
        return found[-1].parent.name
    for run in FarmClient(settings.url).runs() if settings.url else ():
        if run.state is not RunState.RUNNING:
            return run.run_id
    raise UsageError("there is no run yet; start one: farm submit --candidate 2.13")
