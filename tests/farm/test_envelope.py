"""Whatever is not exactly what was signed is refused, with words, and never with another exception."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from farm import envelope as envelope_module
from farm.envelope import EnvelopeRefused, load_key, pack, public_text, seal, unpack, unseal
from farm.errors import InfrastructureFailed
from farm.model import CellResult, Plan
from tests import evidence as made

RESULT = made.result(made.cell())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def sealed(folder: Path) -> str:
    return seal("result", RESULT, load_key(folder, "worker"))


def test_what_was_sealed_comes_out_again(folder: Path, sealed: str) -> None:
    assert unseal(sealed, "result", CellResult) == RESULT
    assert unseal(sealed, "result", CellResult, public_text(load_key(folder, "worker"))) == RESULT


def test_a_key_is_made_once_and_for_its_owner_alone(folder: Path) -> None:
    assert public_text(load_key(folder, "worker")) == public_text(load_key(folder, "worker"))
    assert (folder / "worker.key").stat().st_mode & 0o077 == 0
    (folder / "broken.key").write_bytes(b"short")
    with pytest.raises(InfrastructureFailed, match=r"broken\.key"):
        load_key(folder, "broken")


def test_another_signer_kind_or_model_is_refused(folder: Path, sealed: str) -> None:
    with pytest.raises(EnvelopeRefused, match="key"):
        unseal(sealed, "result", CellResult, public_text(load_key(folder, "stranger")))
    with pytest.raises(EnvelopeRefused, match="kind"):
        unseal(sealed, "order", CellResult)
    with pytest.raises(EnvelopeRefused, match="is no Plan"):
        unseal(sealed, "result", Plan)


@given(st.data())
def test_a_byte_that_was_changed_is_noticed_wherever_it_is(sealed: str, data: st.DataObject) -> None:
    content = json.loads(sealed)
    name = data.draw(st.sampled_from(["payload", "signature", "key"]))
    raw = bytearray(base64.b64decode(content[name]))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    content[name] = base64.b64encode(bytes(raw)).decode()
    with pytest.raises(EnvelopeRefused):
        unseal(json.dumps(content), "result", CellResult)


JSON = st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c))


@given(st.text() | JSON)
def test_whatever_is_no_envelope_is_refused(content: object) -> None:
    with pytest.raises(EnvelopeRefused):
        unseal(content if isinstance(content, str) else json.dumps(content), "result", CellResult)


@pytest.mark.parametrize("change", [{"v": 99}, {"v": None}, {"payload": "???"}, {"signature": 7}, {"key": "AA=="}])
def test_a_field_that_cannot_be_meant_is_refused(sealed: str, change: dict[str, object]) -> None:
    with pytest.raises(EnvelopeRefused):
        unseal(json.dumps(json.loads(sealed) | change), "result", CellResult)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_payload_are_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeRefused):
        unpack(data, CellResult)
    with pytest.raises(EnvelopeRefused):
        unpack(zstandard.ZstdCompressor().compress(data), CellResult)


def test_another_schema_version_is_refused_and_never_guessed_at() -> None:
    content = RESULT.model_dump(mode="python") | {"schema_version": 2}
    with pytest.raises(EnvelopeRefused, match="version"):
        unpack(zstandard.ZstdCompressor().compress(msgpack.packb(content)), CellResult)


def test_what_is_too_large_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(100_000_000))
    assert len(bomb) < 100_000
    with pytest.raises(EnvelopeRefused):
        unpack(bomb, CellResult)
    monkeypatch.setattr(envelope_module, "MAX_PACKED_BYTES", 10)
    with pytest.raises(EnvelopeRefused, match="more than"):
        unpack(pack(RESULT), CellResult)
    with pytest.raises(EnvelopeRefused, match="too large"):
        unseal("x" * 10_000, "result", CellResult)
