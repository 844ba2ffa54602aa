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
from farm.envelope import MAX_UNPACKED_BYTES, EnvelopeRefused, load_key, pack, public_text, seal, unpack, unseal
from farm.errors import InfrastructureFailed
from farm.model import SCHEMA_VERSION, CellResult, Plan
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


def by_the_book(payload: bytes, folder: Path) -> str:
    """Return an envelope as another program would make it."""
    key = load_key(folder, "worker")
    signature = key.sign(b"farm.v1.result." + payload)
    fields = {"v": SCHEMA_VERSION, "kind": "result", "key": public_text(key)}
    coded = {"payload": base64.b64encode(payload).decode(), "signature": base64.b64encode(signature).decode()}
    return json.dumps(fields | coded)


def compressed(content: object) -> bytes:
    return zstandard.compress(msgpack.packb(content))


def test_an_envelope_made_by_the_book_is_taken(folder: Path) -> None:
    assert unseal(by_the_book(pack(RESULT), folder), "result", CellResult) == RESULT


def test_an_order_that_is_renamed_never_passes_for_a_result(folder: Path) -> None:
    renamed = json.loads(seal("order", RESULT, load_key(folder, "worker"))) | {"kind": "result"}
    with pytest.raises(EnvelopeRefused, match="the signature does not fit the payload"):
        unseal(json.dumps(renamed), "result", CellResult)


@pytest.mark.parametrize("missing", ["v", "kind", "key", "payload", "signature"])
def test_a_part_that_is_missing_is_named(sealed: str, missing: str) -> None:
    fields = {name: part for name, part in json.loads(sealed).items() if name != missing}
    with pytest.raises(EnvelopeRefused, match=f"malformed envelope: KeyError: '{missing}'"):
        unseal(json.dumps(fields), "result", CellResult)


@pytest.mark.parametrize(
    "text",
    ["", "null", "1" * 5000, "NaN", "{", "\x00", "\ud800", "[" * 100_000, '{"a":' * 9999],
    ids=lambda t: ascii(t[:9]),
)
def test_text_that_is_hard_to_read_is_refused(text: str) -> None:
    with pytest.raises(EnvelopeRefused, match="malformed envelope"):
        unseal(text, "result", CellResult)


@given(st.data())
def test_a_letter_that_was_changed_or_cut_off_changes_nothing_or_is_refused(
    sealed: str, folder: Path, data: st.DataObject
) -> None:
    """White space between the parts and the last bits of base64 are the only letters that mean nothing."""
    place = data.draw(st.integers(0, len(sealed) - 1))
    letter = data.draw(st.characters(codec="utf-8") | st.sampled_from(sealed))
    with pytest.raises(EnvelopeRefused):
        unseal(sealed[:place], "result", CellResult)
    trusted = public_text(load_key(folder, "worker"))
    try:
        found = unseal(sealed[:place] + letter + sealed[place + 1 :], "result", CellResult, trusted)
    except EnvelopeRefused:
        return
    assert found == RESULT


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "cannot be unpacked"),
        (zstandard.compress(b""), "cannot be unpacked"),
        (zstandard.compress(b"\xc1"), "cannot be unpacked"),
        (zstandard.compress(b"\x93\x01"), "cannot be unpacked"),
        (zstandard.compress(b"\x91" * 5000), "cannot be unpacked"),
        (zstandard.compress(b"\xa1\xff"), "cannot be unpacked"),
        (zstandard.compress(b"\x81\x90\x00"), "cannot be unpacked"),
        (zstandard.compress(b"\xd4\xff\x00"), "cannot be unpacked"),
        (pack(RESULT)[:-1], "cannot be unpacked"),
        (pack(RESULT) + b"more", "cannot be unpacked"),
        (compressed([1, 2]), "schema version None"),
        (compressed({"schema_version": [1]}), r"schema version \[1\]"),
        (compressed({"schema_version": 1}), "is no CellResult: run_id: Field required"),
        (compressed(RESULT.model_dump() | {"attempt": "soon"}), "is no CellResult: attempt: "),
        (compressed(RESULT.model_dump() | {"prio": 3}), "is no CellResult: prio: Extra inputs are not permitted"),
        (compressed(RESULT.model_dump() | {"host": {"name": 3}}), r"is no CellResult: host\.name: "),
    ],
)
def test_a_well_signed_payload_that_is_no_result_is_refused_saying_why(
    folder: Path, payload: bytes, words: str
) -> None:
    with pytest.raises(EnvelopeRefused, match=words):
        unseal(by_the_book(payload, folder), "result", CellResult)


def without_its_size(size: int) -> bytes:
    """Return so many zeros in a frame that does not say how much it holds."""
    maker = zstandard.ZstdCompressor().compressobj()
    return b"".join(maker.compress(bytes(2**20)) for _ in range(size // 2**20)) + maker.flush()


@pytest.mark.parametrize("make", [lambda size: zstandard.compress(bytes(size)), without_its_size], ids=["sized", "not"])
def test_a_compressed_bomb_is_refused_for_its_size_and_not_for_what_is_in_it(make) -> None:
    with pytest.raises(EnvelopeRefused, match="cannot be decompressed"):
        unpack(make(MAX_UNPACKED_BYTES + 2**20), CellResult)


def test_a_frame_that_claims_more_than_all_memory_is_refused_without_asking_for_it() -> None:
    # Magic number, a descriptor that announces eight bytes of content size in one segment, and that size.
    claimed = b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(EnvelopeRefused, match=f"{2**62} bytes are more than the {MAX_UNPACKED_BYTES} that are taken"):
        unpack(claimed, CellResult)
