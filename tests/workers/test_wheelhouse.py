"""What was installed is kept whole, by hash and for whom; what may go goes safely; what is lost is had elsewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from farm.errors import EnvironmentFailed, Incomplete, InfrastructureFailed, UsageError
from farm.model import Environment, Side, WatchedWheel, WheelhouseManifest, WheelState
from farm.pip_settings import pip_settings
from farm.settings import Home
from farm.store import Store
from tests import evidence as made
from tests.wheels import Index, environment_of, installers_alone, make_companions, make_torch, serve, small_disk
from workers.environments import build
from workers.wheelhouse import (
    held,
    keep,
    keep_closure,
    kept_environments,
    kept_wheels,
    place_of,
    uses,
    using,
)
from workers.wheelhouse_care import Pruning, inventory, prune, verify
from workers.wheelhouse_pull import pull
from workers.wheelhouse_watch import watch

OLD = "torch-2.12.1-py3-none-any.whl"
NEW = "torch-2.13.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index on loopback, the only place where the installers look; it serves 2.12.1, 2.13.0 and companions."""
    installers_alone(monkeypatch, cache)
    monkeypatch.delenv("FARM_WHEELHOUSE_LIMIT", raising=False)
    monkeypatch.setattr("workers.wheelhouse.RESERVE_BYTES", 0)
    monkeypatch.chdir(tmp_path)
    wheels = make_companions(tmp_path / "wheels")
    for version in ("2.12.1", "2.13.0"):
        make_torch(wheels, version)
    with serve(tmp_path / "index") as index:
        for wheel in wheels.iterdir():
            index.add(wheel)
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield index
    pip_settings.cache_clear()


def locked(index: Index, version: str) -> Environment:
    """The lock of one release, its wheels downloaded from the index."""
    names = [f"torch-{version}-py3-none-any.whl", "numpy-1.0-py3-none-any.whl", "msgpack-1.0-py3-none-any.whl"]
    environment = environment_of(*(index.root / "files" / name for name in names))
    base = index.url.removesuffix("/simple")
    packages = tuple(p.model_copy(update={"url": f"{base}/files/{p.wheel}"}) for p in environment.packages)
    return environment.model_copy(update={"packages": packages})


def local(index: Index, version: str) -> Environment:
    """The lock of one release, its wheels linked from the index's own files."""
    return environment_of(*(index.root / "files" / package.wheel for package in locked(index, version).packages))


@pytest.fixture
def old(index: Index) -> Environment:
    return local(index, "2.12.1")


@pytest.fixture
def new(index: Index) -> Environment:
    return local(index, "2.13.0")


@pytest.fixture
def downloaded(index: Index) -> Environment:
    return locked(index, "2.12.1")


def silent(_: str) -> None:
    """Say nothing."""


def by_wheel(found: tuple[WheelState, ...]) -> dict[str, WheelState]:
    return {state.wheel: state for state in found}


def damage(path: Path) -> None:
    """Change one byte of a kept wheel, and nothing of the file that it may be linked to."""
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF
    path.unlink()
    path.write_bytes(content)


def lose(home: Home, name: str) -> None:
    next(home.wheelhouse.glob(f"*/{name}")).unlink()


# -- kept


def test_every_wheel_of_what_is_built_is_kept_with_its_origin_and_for_whom(
    index: Index, downloaded: Environment, new: Environment, home: Home
) -> None:
    build(downloaded, home, [Side.BASELINE])
    build(new, home, [Side.CANDIDATE])
    found = by_wheel(inventory(home))
    assert set(found) == {OLD, NEW, "numpy-1.0-py3-none-any.whl", "msgpack-1.0-py3-none-any.whl"}
    base = index.url.removesuffix("/simple")
    torch = found[OLD]
    assert (torch.condition, torch.origin) == ("whole", f"{base}/files/{OLD}")
    assert torch.size_bytes == (index.root / "files" / OLD).stat().st_size
    assert torch.needed_by == (f"baseline 2.12.1+cpu ({downloaded.key[:12]})",)
    assert len(found["numpy-1.0-py3-none-any.whl"].needed_by) == 2
    manifest = WheelhouseManifest.model_validate_json((home.wheelhouse / "wheelhouse.json").read_text())
    assert {wheel.wheel for wheel in manifest.wheels} == set(found)


def test_wheels_are_downloaded_once_for_keeping_and_installing(
    index: Index, downloaded: Environment, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cold"))
    build(downloaded, home)
    assert index.asked.count(f"/files/{OLD}") == 1


def test_a_second_build_asks_no_index(index: Index, downloaded: Environment, home: Home) -> None:
    build(downloaded, home)
    index.asked.clear()
    build(downloaded, home)
    keep(downloaded.packages, home, downloaded.release.requirement)
    assert index.asked == []


def test_an_environment_that_no_index_serves_any_more_is_built_from_the_wheelhouse(
    index: Index, old: Environment, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_closure(old, home)
    for package in old.packages:
        index.remove(index.root / "files" / package.wheel)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cold"))
    assert build(old, home).installed["torch"] == "2.12.1"


def test_a_kept_wheel_that_went_bad_spoils_no_build_while_the_index_has_it(
    old: Environment, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_closure(old, home)
    damage(next(home.wheelhouse.glob(f"*/{OLD}")))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cold"))
    assert build(old, home).installed["torch"] == "2.12.1"


def test_only_what_is_kept_whole_can_stand_for_an_index(old: Environment, new: Environment, home: Home) -> None:
    keep_closure(old, home)
    keep_closure(new, home)
    lose(home, NEW)
    assert [environment.key for environment in kept_environments(home)] == [old.key]


def test_a_wheel_of_a_local_index_is_linked_and_one_that_was_named_by_its_path_is_copied(
    index: Index, home: Home, tmp_path: Path
) -> None:
    files = index.root / "files"
    environment = environment_of(*(files / p.wheel for p in locked(index, "2.12.1").packages))
    keep(environment.packages, home, environment.release.requirement)
    assert next(home.wheelhouse.glob(f"*/{OLD}")).samefile(files / OLD)
    own = make_torch(tmp_path / "own", "2.14.0a0")
    mine = environment_of(own, requirement=f"torch @ {own.as_uri()}")
    keep(mine.packages, home, mine.release.requirement)
    kept = next(home.wheelhouse.glob(f"*/{own.name}"))
    assert kept.read_bytes() == own.read_bytes()
    assert not kept.samefile(own)


def test_credentials_are_in_no_record(
    index: Index, downloaded: Environment, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.credentials = "me:s3cret"
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.with_credentials)
    assert keep_closure(downloaded, home) == {}
    assert all("s3cret" not in path.read_text() for path in home.wheelhouse.rglob("*.json"))
    assert "s3cret" not in (home.wheelhouse / "index.html").read_text()


# -- not kept


def test_beyond_its_limit_nothing_more_is_kept_but_what_the_way_back_needs(
    old: Environment, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_WHEELHOUSE_LIMIT", "0 MB")
    reasons = keep_closure(old, home, [Side.BASELINE])
    assert set(reasons) == {package.wheel for package in old.packages}
    assert "beyond its limit of 0.00 GB (farm wheelhouse prune, or a higher wheelhouse_limit)" in reasons[OLD]
    assert by_wheel(inventory(home))[OLD].reason == reasons[OLD]
    assert kept_wheels(home) == ()
    assert build(old, home).installed["torch"] == "2.12.1"
    torch = [package for package in old.packages if package.name == "torch"]
    keep(torch, home, old.release.requirement)
    assert [wheel.wheel for wheel in kept_wheels(home)] == [OLD]


def test_room_for_environments_is_left(old: Environment, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.wheelhouse.RESERVE_BYTES", 10**18)
    assert "GB are free" in keep_closure(old, home)[OLD]


def test_what_could_not_be_kept_is_not_tried_again_with_every_cell(
    index: Index, downloaded: Environment, home: Home
) -> None:
    index.remove(index.root / "files" / OLD)
    assert f"'{OLD}' cannot be fetched again" in keep_closure(downloaded, home)[OLD]
    index.asked.clear()
    assert OLD in keep_closure(downloaded, home)
    assert index.asked == []


def test_a_full_disk_is_said_and_no_half_wheel_is_left(index: Index, tmp_path: Path) -> None:
    files = {"torch/big.txt": "0123456789" * 400_000}
    big = make_torch(tmp_path / "big", "2.12.1", files=files)
    environment = environment_of(big)
    with small_disk(tmp_path / "disk") as disk:
        home = Home(disk)
        with pytest.raises(EnvironmentFailed, match=rf"'{OLD}' cannot be kept in .*No space left"):
            keep(environment.packages, home, environment.release.requirement)
        assert kept_wheels(home) == ()
        assert not list(home.wheelhouse.glob("fetching-*"))


def test_a_process_that_is_killed_while_it_fetches_leaves_nothing_that_counts(
    old: Environment, home: Home, tmp_path: Path
) -> None:
    torch = next(package for package in old.packages if package.name == "torch")
    (tmp_path / "lock.json").write_text(old.model_dump_json())
    script = (
        "import pathlib, sys, time\nfrom farm.model import Environment\nfrom farm.settings import Home\n"
        "from workers import wheelhouse\n"
        "def half(package, folder, requirement, *, lend):\n"
        "    (folder / package.wheel).write_bytes(b'PK')\n    print('half', flush=True)\n    time.sleep(60)\n"
        "wheelhouse.fetch = half\n"
        "old = Environment.model_validate_json(pathlib.Path(sys.argv[1]).read_text())\n"
        "wheelhouse.keep(old.packages, Home(pathlib.Path(sys.argv[2])), '')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lock.json"), str(home.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert list(home.wheelhouse.glob("fetching-*/*.whl"))
    assert kept_wheels(home) == ()
    assert held(torch, home) is None
    keep(old.packages, home, old.release.requirement)
    assert held(torch, home) is not None
    assert not list(home.wheelhouse.glob("fetching-*"))


def test_two_workers_on_one_home_fetch_every_wheel_once(index: Index, downloaded: Environment, home: Home) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        assert list(pool.map(lambda _: keep_closure(downloaded, home), range(2))) == [{}, {}]
    assert [index.asked.count(f"/files/{package.wheel}") for package in downloaded.packages] == [1, 1, 1]


# -- verified


def test_what_is_damaged_or_missing_is_named_and_repaired(old: Environment, home: Home) -> None:
    keep_closure(old, home, [Side.BASELINE])
    assert {state.condition for state in verify(home, silent)} == {"whole"}
    damage(next(home.wheelhouse.glob(f"*/{OLD}")))
    lose(home, "numpy-1.0-py3-none-any.whl")
    found = by_wheel(verify(home, silent))
    assert (found[OLD].condition, found[OLD].reason) == ("damaged", "it is not what was kept")
    assert found["numpy-1.0-py3-none-any.whl"].condition == "missing"
    assert found["msgpack-1.0-py3-none-any.whl"].condition == "whole"
    said: list[str] = []
    assert {state.condition for state in verify(home, said.append, repair=True)} == {"whole"}
    assert sorted(said) == ["fetching numpy-1.0-py3-none-any.whl", f"fetching {OLD}"]


def test_what_cannot_be_repaired_keeps_its_reason(index: Index, old: Environment, home: Home) -> None:
    keep_closure(old, home)
    lose(home, OLD)
    index.remove(index.root / "files" / OLD)
    found = by_wheel(verify(home, silent, repair=True))[OLD]
    assert found.condition == "missing"
    assert "cannot be fetched again: no such version" in found.reason


def test_a_wheel_without_a_record_counts_by_its_hash(old: Environment, home: Home) -> None:
    keep_closure(old, home)
    kept = next(home.wheelhouse.glob(f"*/{OLD}"))
    kept.with_name(f"{OLD}.json").unlink()
    assert by_wheel(verify(home, silent))[OLD].condition == "whole"
    kept.with_name(f"{OLD}.json").unlink()
    damage(kept)
    assert by_wheel(verify(home, silent))[OLD].condition == "missing"
    keep_closure(old, home)
    assert by_wheel(verify(home, silent))[OLD].condition == "whole"


# -- pruned

NOW = timedelta(0)


def age(home: Home, environment: Environment, used: str) -> None:
    """Let ``environment`` have been used last at ``used``."""
    path = home.wheelhouse / "environments" / f"{environment.key}.json"
    use = next(use for use in uses(home) if use.environment.key == environment.key)
    path.write_text(use.model_copy(update={"used": used}).model_dump_json())


def gone(found: Pruning) -> set[str]:
    return {wheel.wheel for wheel in found.wheels}


def test_what_nothing_in_use_needs_goes_and_the_last_baseline_stays(
    old: Environment, new: Environment, home: Home
) -> None:
    keep_closure(old, home, [Side.BASELINE])
    keep_closure(new, home, [Side.CANDIDATE])
    age(home, new, "2026-01-01T00:00:00+00:00")
    shown = prune(home, unused_for=timedelta(days=30))
    assert gone(shown) == {NEW}
    assert (home.wheelhouse / "index.html").read_text().count(NEW) == 2
    done = prune(home, unused_for=NOW, do=True)
    assert (gone(done), done.staying) == ({NEW}, {next(iter(done.staying)): "the baseline that was used last"})
    assert {wheel.wheel for wheel in kept_wheels(home)} == {package.wheel for package in old.packages}
    assert [use.environment.key for use in uses(home)] == [old.key]
    assert NEW not in (home.wheelhouse / "index.html").read_text()
    assert gone(prune(home, unused_for=NOW)) == set()


@pytest.mark.parametrize("named", ["2.13.0", "2.13.0+cpu"])
def test_a_release_that_is_named_stays(old: Environment, new: Environment, home: Home, named: str) -> None:
    keep_closure(old, home, [Side.BASELINE])
    keep_closure(new, home, [Side.CANDIDATE])
    assert gone(prune(home, unused_for=NOW, keep_releases=[named])) == set()
    assert gone(prune(home, unused_for=NOW, keep_releases=["2.13.0+cu130", "2.11.0"])) == {NEW}
    with pytest.raises(UsageError, match="--keep-releases 'newest' is not a release"):
        prune(home, unused_for=NOW, keep_releases=["newest"])


def test_what_was_used_lately_and_what_a_run_needs_stays(old: Environment, new: Environment, home: Home) -> None:
    keep_closure(old, home, [Side.BASELINE])
    keep_closure(new, home, [Side.CANDIDATE])
    assert gone(prune(home, unused_for=timedelta(days=1))) == set()
    plan = made.run_of(made.cell(), environments={new.key: new}).plan
    store = Store.open(home)
    store.create_run("20261203-ab", plan)
    store.close()
    found = prune(home, unused_for=NOW)
    assert gone(found) == set()
    assert found.staying[f"candidate 2.13.0+cpu ({new.key[:12]})"] == "needed by run 20261203-ab"


def test_nothing_goes_while_another_process_uses_the_wheelhouse(old: Environment, home: Home) -> None:
    keep_closure(old, home)
    with using(home), pytest.raises(Incomplete, match="another process uses the wheelhouse"):
        prune(home, unused_for=NOW, do=True)
    assert gone(prune(home, unused_for=NOW, do=True)) == {package.wheel for package in old.packages}
    assert list(home.wheelhouse.glob("*/*.whl")) == []


# -- watched


def watched(home: Home) -> dict[str, WatchedWheel]:
    return {wheel.wheel: wheel for wheel in watch(home)}


def test_what_the_baseline_needs_is_asked_for_and_the_candidate_is_not(
    old: Environment, new: Environment, home: Home
) -> None:
    keep_closure(old, home, [Side.BASELINE])
    keep_closure(new, home, [Side.CANDIDATE])
    found = watched(home)
    assert set(found) == {package.wheel for package in old.packages}
    assert {(wheel.served, wheel.kept, wheel.words) for wheel in found.values()} == {("served", True, "")}


@pytest.mark.parametrize("kept", [True, False])
def test_a_wheel_that_is_no_longer_served_is_named_with_what_that_means(
    index: Index, old: Environment, home: Home, kept: bool
) -> None:
    keep_closure(old, home, [Side.BASELINE])
    watch(home)
    index.remove(index.root / "files" / OLD)
    if not kept:
        lose(home, OLD)
    found = watched(home)
    assert (found[OLD].served, found[OLD].kept) == ("no longer served", kept)
    words = "no longer served, kept here: the way back works" if kept else "not kept here: the way back is gone"
    assert words in found[OLD].words
    assert {wheel.served for name, wheel in found.items() if name != OLD} == {"served"}


def test_a_damaged_copy_is_no_way_back(index: Index, old: Environment, home: Home) -> None:
    keep_closure(old, home, [Side.BASELINE])
    index.remove(index.root / "files" / OLD)
    damage(next(home.wheelhouse.glob(f"*/{OLD}")))
    assert not watched(home)[OLD].kept


def test_the_same_name_with_another_hash_is_told_apart(
    index: Index, downloaded: Environment, home: Home, tmp_path: Path
) -> None:
    keep_closure(downloaded, home, [Side.BASELINE])
    index.add(make_torch(tmp_path / "again", "2.12.1", files={"torch/other.py": ""}))
    found = watched(home)[OLD]
    assert (found.served, found.words[:35]) == ("served with another hash", "served with another hash, kept here")


def test_an_index_that_does_not_answer_has_dropped_nothing(
    old: Environment, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_closure(old, home, [Side.BASELINE])
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert {(wheel.served, wheel.words) for wheel in watch(home)} == {("could not ask", "no network; ask again later")}


def test_a_nightly_that_left_the_index_is_expired_upstream_and_kept_here(
    index: Index, home: Home, tmp_path: Path
) -> None:
    nightly = make_torch(tmp_path / "nightly", "2.14.0.dev20260901")
    index.add(nightly)
    environment = local(index, "2.14.0.dev20260901")
    keep_closure(environment, home, [Side.BASELINE])
    assert watched(home)[nightly.name].served == "served"
    index.remove(nightly)
    assert watched(home)[nightly.name].words.startswith("expired upstream, kept here")


def test_a_baseline_that_was_named_by_its_path_is_looked_for_there(index: Index, home: Home, tmp_path: Path) -> None:
    own = make_torch(tmp_path / "own", "2.12.2")
    mine = environment_of(own, requirement=f"torch @ {own.as_uri()}")
    keep_closure(mine, home, [Side.BASELINE])
    assert watched(home)[own.name].served == "served"
    own.unlink()
    assert watched(home)[own.name].served == "no longer served"


# -- pulled


@contextmanager
def ranged(root: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Serve ``root`` by a server that goes on in the middle of a file; note what was asked and how much it gave."""
    asked: list[tuple[str, int]] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            content = (root / self.path.lstrip("/")).read_bytes()
            wanted = self.headers.get("Range")
            rest = content[int(wanted.removeprefix("bytes=").removesuffix("-")) :] if wanted else content
            asked.append((wanted or "", len(rest)))
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def other(old: Environment, new: Environment, tmp_path: Path) -> Home:
    """Another worker's home, which has both releases."""
    home = Home(tmp_path / "other").prepare()
    keep_closure(old, home, [Side.BASELINE])
    keep_closure(new, home, [Side.CANDIDATE])
    return home


@pytest.fixture(params=["folder", "server"])
def place(other: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "folder":
        yield str(other.root)
        return
    with serve(other.wheelhouse) as server:
        yield server.url.removesuffix("/simple")


def test_what_another_worker_keeps_is_pulled_once_and_is_a_copy(
    place: str, old: Environment, other: Home, home: Home
) -> None:
    found = pull(place, home, silent)
    assert ({wheel.wheel for wheel in found.wheels}, found.there, found.failed) == (
        {wheel.wheel for wheel in kept_wheels(other)},
        0,
        {},
    )
    torch = next(package for package in old.packages if package.name == "torch")
    kept = held(torch, home)
    assert kept is not None
    assert not kept.samefile(place_of(torch, other))
    record = next(wheel for wheel in kept_wheels(home) if wheel.wheel == OLD)
    assert record.origin == torch.url
    assert record.pulled_from in (place, str(other.wheelhouse))
    assert (pull(place, home, silent).wheels, pull(place, home, silent).there) == ((), 4)
    assert not (home.wheelhouse / ".arriving").exists()


def test_an_environment_is_built_from_pulled_wheels_alone(
    place: str, index: Index, old: Environment, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(place, home, silent)
    for package in old.packages:
        index.remove(index.root / "files" / package.wheel)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cold"))
    assert build(old, home).installed["torch"] == "2.12.1"


def test_only_what_a_release_needs_is_pulled_where_one_is_named(place: str, home: Home) -> None:
    assert NEW not in {wheel.wheel for wheel in pull(place, home, silent, releases=["2.12.1"]).wheels}
    with pytest.raises(UsageError, match=r"has nothing for release '2\.11\.0'; it has 2\.12\.1\+cpu, 2\.13\.0\+cpu"):
        pull(place, home, silent, releases=["2.11.0"])


def test_what_arrives_damaged_never_counts_and_the_rest_comes(place: str, other: Home, home: Home) -> None:
    damage(next(other.wheelhouse.glob(f"*/{OLD}")))
    lose(other, NEW)
    found = pull(place, home, silent)
    assert found.failed == {
        OLD: "what arrived has another hash than its manifest says",
        NEW: "it is in the manifest and not there",
    }
    assert OLD not in {wheel.wheel for wheel in kept_wheels(home)}
    assert len(found.wheels) == 2


@pytest.mark.parametrize("arrived", [10, 10**6])
def test_an_interrupted_pull_ends_whole_whatever_had_arrived(
    place: str, old: Environment, home: Home, arrived: int
) -> None:
    torch = next(package for package in old.packages if package.name == "torch")
    part = home.wheelhouse / ".arriving" / f"{torch.sha256}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * arrived if arrived > 100 else b"PK\x03\x04")
    pull(place, home, silent)
    assert held(torch, home) is not None


def test_a_server_that_can_is_asked_only_for_what_has_not_arrived(
    other: Home, old: Environment, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = next(package for package in old.packages if package.name == "torch")
    content = place_of(torch, other).read_bytes()
    part = home.wheelhouse / ".arriving" / f"{torch.sha256}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content[:50])
    with ranged(other.wheelhouse) as (url, asked):
        pull(url, home, silent)
    assert ("bytes=50-", len(content) - 50) in asked
    assert held(torch, home) is not None


def test_a_place_that_is_no_wheelhouse_is_refused_in_words(index: Index, home: Home, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        pull(str(tmp_path / "nowhere"), home, silent)
    with pytest.raises(UsageError, match=r"it has no wheelhouse\.json"):
        pull(str(tmp_path), home, silent)
    with pytest.raises(UsageError, match=r"serves no wheelhouse\.json"):
        pull(index.url, home, silent)
    with pytest.raises(InfrastructureFailed, match="cannot be reached"):
        pull("http://127.0.0.1:9", home, silent)
    with pytest.raises(UsageError, match="neither a folder nor an http"):
        pull("ftp://127.0.0.1/", home, silent)


@pytest.mark.parametrize(
    ("old_words", "new_words"),
    [(f'"wheel": "{OLD}"', '"wheel": "../../evil-1.0-py3-none-any.whl"'), ('"sha256": "', '"sha256": "../')],
)
def test_a_manifest_names_no_path(other: Home, home: Home, old_words: str, new_words: str) -> None:
    path = other.wheelhouse / "wheelhouse.json"
    text = path.read_text()
    assert old_words in text
    path.write_text(text.replace(old_words, new_words, 1))
    with pytest.raises(UsageError, match="is not a wheelhouse's manifest"):
        pull(str(other.root), home, silent)


def test_uv_installs_from_the_page_of_links(
    other: Home, old: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.installer import run_uv

    with serve(other.wheelhouse) as server:
        links = server.url.removesuffix("/simple") + "/index.html"
        target = tmp_path / "target"
        arguments = ["pip", "install", "--no-index", "--find-links", links, "--no-cache", "--target", str(target)]
        run_uv([*arguments, "torch==2.12.1"])
    assert (target / "torch/__init__.py").is_file()


def test_an_unfinished_pull_and_a_build_wait_for_each_other_and_not_for_ever(
    old: Environment, other: Home, home: Home
) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        one = pool.submit(lambda: pull(str(other.root), home, silent))
        two = pool.submit(lambda: keep_closure(old, home))
        assert (one.result(timeout=60).failed, two.result(timeout=60)) == ({}, {})
    assert {state.condition for state in verify(home, silent)} == {"whole"}
