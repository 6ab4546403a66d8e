"""The container of manifests and heads: named sections under one HMAC.

The first section, ``JSON``, is canonical JSON; the others are plain binary. FORMAT.md tables
the bytes. The fixed header carries its own check beside the HMAC, so that a file sealed with
another key (a whole header, another key id) is never taken for a damaged one.
"""

from __future__ import annotations

import hmac
import json
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import StoreCorruptError, StoreKeyError, StoreVersionError
from sessiond.store.checksums import short_check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.keys import KeyRing

SEALED_VERSION = 1
#: A longer manifest or head is not looked at.
MAX_SEALED_BYTES = 64 << 20
HEADER_BYTES = 128
SEAL_BYTES = 32

#: How every manifest and head begins.
MAGIC = b"SESSIOND"
_HEADER = struct.Struct("<8s4sHHHHI16s12s60sQ")
_CHECK_OFFSET = HEADER_BYTES - 8
_SECTION = struct.Struct("<4s4xQ")
_JSON_TAG = b"JSON"
_MAX_SECTIONS = 16
_NO_NONCE = bytes(12)
_NO_WRAPPED_KEY = bytes(60)
assert _HEADER.size == _CHECK_OFFSET


class Kind(Enum):
    """What a sealed file is."""

    MANIFEST = b"MANI"
    HEAD = b"HEAD"


@dataclass(frozen=True)
class Sealed:
    """The contents of a sealed file."""

    kind: Kind
    values: Mapping[str, JsonValue]
    sections: Mapping[bytes, bytes] = field(default_factory=dict)  #: four-byte tag to bytes


def pack(sealed: Sealed, keys: KeyRing) -> bytes:
    """Return the file's bytes, sealed with the ring's key."""
    parts = {_JSON_TAG: canonical_json(sealed.values), **sealed.sections}
    table = b"".join(_SECTION.pack(tag, len(data)) for tag, data in parts.items())
    content = table + b"".join(parts.values())
    file_bytes = HEADER_BYTES + len(content) + SEAL_BYTES
    body = _HEADER.pack(
        MAGIC,
        sealed.kind.value,
        SEALED_VERSION,
        0,
        len(parts),
        0,
        0,
        keys.key_id,
        _NO_NONCE,
        _NO_WRAPPED_KEY,
        file_bytes,
    )
    message = body + short_check(body) + content
    return message + _seal(message, keys)


def unpack(data: bytes, kind: Kind, keys: KeyRing) -> Sealed:
    """Read a sealed file, after its seal was found right.

    :raises StoreCorruptError: it is damaged, cut, grown, or of another kind.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreKeyError: it was sealed with another key.
    """
    header = read_header(data)
    if header.kind is not kind:
        raise StoreCorruptError(f"The file is no {kind.name.lower()}.")
    if header.key_id != keys.key_id:
        raise StoreKeyError
    if not hmac.compare_digest(data[-SEAL_BYTES:], _seal(data[:-SEAL_BYTES], keys)):
        raise StoreCorruptError(f"The {kind.name.lower()}'s seal is broken.")
    return read_unsealed(data)


@dataclass(frozen=True)
class SealedHeader:
    """The fixed part of a sealed file, as far as it can be read without a key."""

    kind: Kind
    version: int
    flags: int
    sections: int
    key_id: bytes


def read_header(data: bytes) -> SealedHeader:
    """Read the fixed header; its check proves that it is whole, not who wrote it.

    :raises StoreCorruptError: it is damaged, or the file was cut or grown.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    """
    whole = (
        len(data) >= HEADER_BYTES + SEAL_BYTES
        and data[: len(MAGIC)] == MAGIC
        and data[_CHECK_OFFSET:HEADER_BYTES] == short_check(data[:_CHECK_OFFSET])
    )
    if not whole:
        raise StoreCorruptError("The file's header is damaged.")
    _, kind, version, flags, sections, _, _, key_id, _, _, file_bytes = _HEADER.unpack_from(data)
    if version != SEALED_VERSION or flags:
        raise StoreVersionError(f"The file has version {version}, flags {flags:#x}.")
    if file_bytes != len(data) or sections > _MAX_SECTIONS:
        raise StoreCorruptError("The file's header does not fit the file.")
    try:
        return SealedHeader(Kind(kind), version, flags, sections, key_id)
    except ValueError as error:
        raise StoreCorruptError("The file is of no known kind.") from error


def read_unsealed(data: bytes) -> Sealed:
    """Read a sealed file without looking at its seal; for inspection only.

    :raises StoreCorruptError: it is damaged.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    """
    header = read_header(data)
    sections = _split(data, header.sections)
    values = parse_json_object(sections.pop(_JSON_TAG, b""))
    return Sealed(header.kind, values, sections)


def _split(data: bytes, count: int) -> dict[bytes, bytes]:
    end = len(data) - SEAL_BYTES
    offset = HEADER_BYTES + count * _SECTION.size
    if offset > end:
        raise StoreCorruptError("The file's section table does not fit the file.")
    sections: dict[bytes, bytes] = {}
    for tag, size_bytes in _SECTION.iter_unpack(data[HEADER_BYTES:offset]):
        if size_bytes > end - offset or tag in sections:
            raise StoreCorruptError("The file's sections do not fit the file.")
        sections[tag] = data[offset : offset + size_bytes]
        offset += size_bytes
    if offset != end:
        raise StoreCorruptError("The file's sections do not fill the file.")
    return sections


def _seal(message: bytes, keys: KeyRing) -> bytes:
    return hmac.digest(keys.seal_key, message, "sha256")


def pack_json(kind: str, record: Mapping[str, JsonValue], keys: KeyRing) -> bytes:
    """Return a small readable file: a JSON object with *record* and its seal."""
    seal = hmac.digest(keys.seal_key, _json_message(kind, record), "sha256")
    outer = {
        "kind": kind,
        "version": SEALED_VERSION,
        "key_id": keys.key_id.hex(),
        "record": record,
        "seal": seal.hex(),
    }
    text = json.dumps(outer, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def unpack_json(data: bytes, kind: str, keys: KeyRing) -> Mapping[str, JsonValue]:
    """Read what :func:`pack_json` wrote.

    :raises StoreCorruptError: it is damaged, or of another kind.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreKeyError: it was sealed with another key.
    """
    outer = parse_json_object(data)
    record, seal, key_id = outer.get("record"), outer.get("seal"), outer.get("key_id")
    if outer.get("kind") != kind or not isinstance(record, dict) or not isinstance(seal, str):
        raise StoreCorruptError(f"The file is no {kind} file.")
    if outer.get("version") != SEALED_VERSION:
        raise StoreVersionError(f"The file has version {outer.get('version')!r}.")
    if key_id != keys.key_id.hex() and _is_key_id(key_id):
        raise StoreKeyError
    expected = hmac.digest(keys.seal_key, _json_message(kind, record), "sha256").hex()
    if not hmac.compare_digest(seal.encode(), expected.encode()):
        raise StoreCorruptError(f"The {kind} file's seal is broken.")
    return cast("Mapping[str, JsonValue]", record)


def _is_key_id(value: object) -> bool:
    return isinstance(value, str) and len(value) == 32


def _json_message(kind: str, record: Mapping[str, JsonValue]) -> bytes:
    try:
        return f"sessiond {kind} {SEALED_VERSION}\0".encode() + canonical_json(record)
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(f"The {kind} file holds no plain JSON.") from error


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Read a JSON object that somebody else may have written.

    :raises StoreCorruptError: it is none, is nested too deeply, or holds NaN or an infinity.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError("The file holds no valid JSON.") from error
    if not isinstance(value, dict):
        raise StoreCorruptError("The file holds no JSON object.")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON.")
