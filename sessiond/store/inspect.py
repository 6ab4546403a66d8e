"""Any file of a store in a readable form. Token ids are counted, never shown."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError, StoreError, StoreKeyError
from sessiond.store import layout, sealed
from sessiond.store.codecs import Codec
from sessiond.store.fileio import REAL_OPS, store_errors
from sessiond.store.manifests import manifest_of
from sessiond.store.notes import MAX_NOTES_BYTES, parse_notes
from sessiond.store.root import read_format
from sessiond.store.segments import read_contents
from sessiond.store.tree import open_regular, read_file

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import ChunkRecord
    from sessiond.store.format import IndexEntry

_JSON_KINDS = ("session", "engine")


def describe(path: Path, keys: KeyRing | None) -> JsonValue:
    """Return what the file at *path* holds, as a JSON value.

    :param keys: to check seals with; without them, the answer says that they were not checked.
    :raises StoreCorruptError: the file is damaged, or none of a store.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreError: it cannot be read.
    """
    with store_errors("Reading the file"):
        if layout.segment_of(path.name) or path.suffix == layout.SEGMENT_SUFFIX:
            return _segment(path)
        data = read_file(REAL_OPS, str(path), sealed.MAX_SEALED_BYTES)
    if data.startswith(sealed.MAGIC):
        return _sealed(data, keys)
    if path.name == layout.FORMAT_FILE:
        return {"file": "format", **read_format(data)}
    if path.suffix == layout.BAD_NOTES_SUFFIX:
        notes = parse_notes(data[:MAX_NOTES_BYTES])
        return {"file": "bad chunk notes", "notes": [asdict(note) for note in notes]}
    return _json(data, keys)


def _segment(path: Path) -> JsonValue:
    fd = open_regular(REAL_OPS, str(path), os.O_RDONLY, dir_fd=None)
    try:
        header, entries = read_contents(REAL_OPS, fd)
        info = os.fstat(fd)
    finally:
        os.close(fd)
    return {
        "file": "segment",
        "segment_id": header.segment_id,
        "tenant_name": header.tenant_name,
        "bytes_digest": header.bytes_digest.hex(),
        "key_id": header.key_id.hex(),
        "created_unix_ms": header.created_unix_ms,
        "flags": header.flags,
        "file_bytes": info.st_size,
        "disk_bytes": info.st_blocks * 512,
        "chunks": [_chunk(entry) for entry in entries],
    }


def _chunk(entry: IndexEntry | ChunkRecord) -> dict[str, JsonValue]:
    shown = {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in asdict(entry).items()
    }
    return {**shown, "codec": _codec_name(entry.codec)}


def _codec_name(codec: int) -> str:
    try:
        return Codec(codec).name.lower().replace("_", "-")
    except ValueError:
        return f"unknown ({codec})"


def _sealed(data: bytes, keys: KeyRing | None) -> JsonValue:
    contents = sealed.read_unsealed(data)
    described: dict[str, JsonValue] = {
        "file": contents.kind.name.lower(),
        "key_id": sealed.read_header(data).key_id.hex(),
        "seal": _seal_state(data, contents.kind, keys),
        **contents.values,
        "section_bytes": {
            tag.decode("ascii", "replace"): len(section)
            for tag, section in contents.sections.items()
        },
    }
    if contents.kind is sealed.Kind.MANIFEST:
        described["chunks"] = [_chunk(chunk) for chunk in manifest_of(contents).chunks]
    return described


def _seal_state(data: bytes, kind: sealed.Kind, keys: KeyRing | None) -> str:
    if keys is None:
        return "not checked"
    try:
        sealed.unpack(data, kind, keys)
    except StoreKeyError:
        return "made with another key"
    except StoreCorruptError:
        return "broken"
    return "valid"


def _json(data: bytes, keys: KeyRing | None) -> JsonValue:
    outer = sealed.parse_json_object(data)
    kind = outer.get("kind")
    if kind not in _JSON_KINDS:
        raise StoreCorruptError("The file is none of a store.")
    return {**outer, "file": kind, "seal": _json_seal_state(data, kind, keys)}


def _json_seal_state(data: bytes, kind: str, keys: KeyRing | None) -> str:
    if keys is None:
        return "not checked"
    try:
        sealed.unpack_json(data, kind, keys)
    except StoreKeyError:
        return "made with another key"
    except StoreError:
        return "broken"
    return "valid"
