"""What goes over the wire: a JSON envelope around compressed msgpack bytes, signed over exactly those bytes.

Ed25519 (RFC 8032). Orders are signed by the coordinator, results by the worker; a domain tag keeps one from passing
for the other.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Literal, TypeVar

import msgpack
import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ValidationError

from farm.errors import FarmError, InfrastructureFailed
from farm.model import SCHEMA_VERSION, decompress

__all__ = ["EnvelopeRefused", "load_key", "pack", "public_text", "seal", "unpack", "unseal"]

Kind = Literal["order", "result"]
Payload = TypeVar("Payload", bound=BaseModel)

#: A result of many restarts is well below; a compressed bomb is not.
MAX_PACKED_BYTES = 16 * 1024 * 1024
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
#: What all results of a run together may be.
RESULTS_IN_A_RUN = 64


class EnvelopeRefused(FarmError):
    """Raised for an envelope that is malformed, too large, unsigned, or of another schema; says which."""


def load_key(folder: Path, name: str) -> Ed25519PrivateKey:
    """Return the private key ``name`` in ``folder``, made on first use and readable by its owner alone.

    Raises InfrastructureFailed for a file that holds no key.
    """
    path = folder / f"{name}.key"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        made = Ed25519PrivateKey.generate().private_bytes_raw()
        making = folder / f".{name}.key"
        making.touch(mode=0o600)
        making.write_bytes(made)
        making.replace(path)
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except ValueError as error:
        raise InfrastructureFailed(f"'{path}' holds no key; remove it, and a new one is made") from error


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public half of ``key``, base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def pack(model: BaseModel) -> bytes:
    """Return ``model`` as zstd-compressed msgpack."""
    packed: bytes = msgpack.packb(model.model_dump(mode="python"), use_bin_type=True)
    return zstandard.ZstdCompressor(level=3).compress(packed)


def unpack(data: bytes, kind: type[Payload], times: int = 1) -> Payload:
    """Return the model in ``data``. Raises EnvelopeRefused for what is too large, damaged or of another schema.

    ``times`` multiplies the limits, for what comes from our own database.
    """
    if len(data) > MAX_PACKED_BYTES * times:
        raise EnvelopeRefused(f"{len(data)} bytes are more than the {MAX_PACKED_BYTES * times} that are taken")
    try:
        content = msgpack.unpackb(decompress(data, MAX_UNPACKED_BYTES * times), raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise EnvelopeRefused(f"cannot be unpacked: {error}") from error
    _check_version(content.get("schema_version") if isinstance(content, dict) else None)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise EnvelopeRefused(f"is no {kind.__name__}: {where}: {first['msg']}") from error


def seal(kind: Kind, model: BaseModel, key: Ed25519PrivateKey) -> str:
    """Return ``model`` in a signed envelope."""
    payload = pack(model)
    return json.dumps(
        {
            "v": SCHEMA_VERSION,
            "kind": kind,
            "key": public_text(key),
            "payload": base64.b64encode(payload).decode(),
            "signature": base64.b64encode(key.sign(_domain(kind) + payload)).decode(),
        }
    )


def unseal(text: str, kind: Kind, model: type[Payload], trusted: str | None = None) -> Payload:
    """Return what the envelope holds; ``trusted`` is the only public key that may have signed it, None any."""
    if len(text) > MAX_PACKED_BYTES * 4 // 3 + 4096:
        raise EnvelopeRefused(f"an envelope of {len(text)} bytes is too large")
    try:
        envelope = json.loads(text)
        version, said, signer = envelope["v"], envelope["kind"], envelope["key"]
        payload, signature = (base64.b64decode(envelope[name], validate=True) for name in ("payload", "signature"))
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(signer, validate=True))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvelopeRefused(f"malformed envelope: {type(error).__name__}: {error}") from error
    _check_version(version)
    if said != kind:
        raise EnvelopeRefused(f"an envelope of kind '{said}' where '{kind}' belongs")
    if trusted is not None and signer != trusted:
        raise EnvelopeRefused("signed by a key that is not the coordinator's")
    try:
        public.verify(signature, _domain(kind) + payload)
    except InvalidSignature:
        raise EnvelopeRefused("the signature does not fit the payload") from None
    return unpack(payload, model)


def _check_version(version: object) -> None:
    if version != SCHEMA_VERSION:
        raise EnvelopeRefused(f"schema version {version}, this farm speaks {SCHEMA_VERSION}; update the older side")


def _domain(kind: Kind) -> bytes:
    return f"farm.v1.{kind}.".encode()
