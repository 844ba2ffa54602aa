"""A result outlives everything until the coordinator has committed it, and is sent no more often than it need be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from farm.aggregator import result_digest
from farm.broker import keys
from farm.envelope import load_key, public_text, unseal
from farm.model import CellResult
from tests.evidence import RUN, cell, result
from workers.outbox import Outbox

CELL = cell()


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return opened(tmp_path)


def opened(home: Path) -> Outbox:
    """Return the outbox of a worker that has just been started in ``home``."""
    return Outbox(home / "outbox", load_key(home / "keys", "worker"))


def answer(attempt: int = 1, case: str = "infer") -> CellResult:
    return result(cell(case=case), attempt=attempt)


def sent(server: Any) -> list[tuple[str, int]]:
    """Return cell and attempt of every result in the stream, the first one first."""
    found = []
    for _, fields in server.xrange(keys.RESULTS):
        came = unseal(fields[b"envelope"].decode(), "result", CellResult)
        found.append((came.cell_id, came.attempt))
    return found


def commit(server: Any, of: CellResult) -> None:
    """Do what the coordinator does once a result is in its database."""
    server.set(keys.done(result_digest(of.run_id, of.cell_id, of.attempt)), "counted")


def forget(server: Any) -> None:
    """Let as much time pass as a result waits before it is sent again."""
    markers = list(server.scan_iter(match="farm:sent.*"))
    assert markers
    server.delete(*markers)


def test_a_result_is_sent_as_it_was_and_signed_by_this_worker(outbox: Outbox, tmp_path: Path, server: Any) -> None:
    outbox.put(answer())
    assert outbox.flush(server) == 1
    ((_, fields),) = server.xrange(keys.RESULTS)
    key = public_text(load_key(tmp_path / "keys", "worker"))
    assert unseal(fields[b"envelope"].decode(), "result", CellResult, trusted=key) == answer()


def test_a_result_stays_until_it_is_committed(outbox: Outbox, server: Any) -> None:
    path = outbox.put(answer())
    outbox.flush(server)
    assert path.is_file()
    commit(server, answer())
    assert outbox.flush(server) == 0
    assert list(outbox.folder.iterdir()) == []
    assert sent(server) == [(CELL.id, 1)]


def test_a_worker_that_starts_again_sends_what_it_had_left(outbox: Outbox, tmp_path: Path, server: Any) -> None:
    outbox.put(answer())
    again = opened(tmp_path)
    assert again.flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]
    commit(server, answer())
    assert again.flush(server) == 0


def test_a_result_that_waits_in_the_stream_is_not_sent_twice(outbox: Outbox, tmp_path: Path, server: Any) -> None:
    outbox.put(answer())
    for _ in range(5):
        assert outbox.flush(server) == 1
    assert opened(tmp_path).flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]
    (marker,) = server.scan_iter(match="farm:sent.*")
    assert 1 <= server.ttl(marker) <= 10


def test_a_result_that_nobody_commits_is_sent_again_later(outbox: Outbox, server: Any) -> None:
    outbox.put(answer())
    outbox.flush(server)
    server.delete(keys.RESULTS)
    outbox.flush(server)
    assert sent(server) == []
    forget(server)
    assert outbox.flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]


def test_every_attempt_and_every_cell_is_a_result_of_its_own(outbox: Outbox, server: Any) -> None:
    answers = [answer(), answer(attempt=2), answer(case="train")]
    assert len({outbox.put(one) for one in answers}) == 3
    assert outbox.flush(server) == 3
    assert sorted(sent(server)) == sorted((one.cell_id, one.attempt) for one in answers)
    commit(server, answers[1])
    assert outbox.flush(server) == 2


def test_the_same_answer_twice_is_one_file(outbox: Outbox, server: Any) -> None:
    assert outbox.put(answer()) == outbox.put(answer())
    assert outbox.flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]


def test_a_file_is_named_as_the_coordinator_names_its_marker(outbox: Outbox) -> None:
    assert outbox.put(answer()).name == f"{result_digest(RUN, CELL.id, 1)}.json"


def test_a_disk_that_is_full_leaves_nothing_that_looks_like_a_result(
    outbox: Outbox, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            outbox.put(answer())
    assert outbox.flush(server) == 0
    assert sent(server) == []
    outbox.put(answer())
    assert outbox.flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]


def test_a_result_that_was_being_replaced_when_the_worker_died_is_still_the_whole_old_one(
    outbox: Outbox, server: Any
) -> None:
    path = outbox.put(answer())
    path.with_suffix(".making").write_text('{"v": 1, "ki')
    assert outbox.flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]


@pytest.mark.parametrize("broken", ["bytes", "folder"])
def test_a_file_that_cannot_be_read_does_not_keep_the_others(outbox: Outbox, server: Any, broken: str) -> None:
    bad = outbox.folder / "000000.json"
    if broken == "bytes":
        bad.write_bytes(b"\xff\xfe\x00")
    else:
        bad.mkdir()
    outbox.put(answer())
    assert outbox.flush(server) == 2
    assert sent(server) == [(CELL.id, 1)]
    commit(server, answer())
    assert outbox.flush(server) == 1
    assert bad.exists(), "what it held may still be read by somebody"


def test_a_file_that_another_worker_drops_meanwhile_is_no_fault(outbox: Outbox, server: Any) -> None:
    path = outbox.put(answer(case="a"))
    other = outbox.put(answer(case="b"))
    first, second = sorted([path, other])

    class Meanwhile:
        """The server, with a second worker of this home that is a moment quicker."""

        def __getattr__(self, name: str) -> Any:
            return getattr(server, name)

        def exists(self, key: str) -> int:
            second.unlink(missing_ok=True)
            return int(server.exists(key))

    assert outbox.flush(Meanwhile()) == 1
    assert len(sent(server)) == 1
    assert first.is_file()


def test_a_server_that_is_away_loses_nothing(outbox: Outbox, server: Any) -> None:
    outbox.put(answer())
    with pytest.raises(redis.ConnectionError):
        outbox.flush(redis.Redis(port=1, retry=Retry(NoBackoff(), 0)))
    assert outbox.flush(server) == 1
    assert sent(server) == [(CELL.id, 1)]
