"""Manifests as bytes: the JSON header, the tokens and the chunk records of a snapshot."""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import SegmentId, SessionId, TenantId, is_hex_id
from sessiond.domain.kvgroups import MAX_GROUPS
from sessiond.domain.snapshot import ChunkRecord, Manifest
from sessiond.domain.tokens import TOKEN_BYTES, from_bytes, to_bytes
from sessiond.store import sealed
from sessiond.store.fields import Fields
from sessiond.store.format import ALIGNMENT_BYTES, HEADER_BYTES, MAX_CHUNK_BYTES
from sessiond.store.losses import (
    LOSS_TAG,
    loss_fault,
    pack_losses,
    require_known_way,
    with_losses,
)
from sessiond.store.origins import FORKED_FROM, pack_origin, unpack_origin

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.keys import KeyRing

_TOKENS = b"TOKS"
_CHUNKS = b"CHNK"
_RECORD = struct.Struct("<IIIIQQQHH4x16s")
RECORD_BYTES = 64
assert _RECORD.size == RECORD_BYTES


def pack_manifest(manifest: Manifest, keys: KeyRing) -> bytes:
    """Return the manifest's file.

    :raises ValueError: the chunks are not gapless, or impossible; see :func:`fault_of`.
    """
    fault = fault_of(manifest)
    if fault:
        raise ValueError(f"This manifest must not be written: {fault}.")
    segments = sorted(manifest.segment_ids)
    places = {segment_id: place for place, segment_id in enumerate(segments)}
    values: dict[str, JsonValue] = {
        "tenant": manifest.tenant,
        "session": manifest.session,
        "generation": manifest.generation,
        "parent_generation": manifest.parent_generation,
        FORKED_FROM: pack_origin(manifest.forked_from),
        "engine_id": manifest.engine_id,
        "adapter_digest": manifest.adapter_digest,
        "created_unix_s": manifest.created_unix_s,
        "fingerprint": dict(manifest.fingerprint.fields),
        "chunk_tokens": manifest.chunk_tokens,
        "segments": segments,
        "wrapped_keys": [
            {"segment": segment_id, "key": key.hex()} for segment_id, key in manifest.wrapped_keys
        ],
        "totals": {
            "tokens": len(manifest.tokens),
            "restorable_tokens": manifest.restorable_tokens,
            "chunks": len(manifest.chunks),
            "raw_bytes": manifest.raw_bytes,
            "stored_bytes": manifest.stored_bytes,
        },
    }
    sections = {
        _TOKENS: to_bytes(manifest.tokens),
        _CHUNKS: b"".join(_pack_record(chunk, places) for chunk in manifest.chunks),
        **pack_losses(manifest),
    }
    return sealed.pack(sealed.Sealed(sealed.Kind.MANIFEST, values, sections), keys)


def unpack_manifest(data: bytes, keys: KeyRing) -> Manifest:
    """Read a manifest's file.

    :raises StoreCorruptError: it is damaged.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreKeyError: it was sealed with another key.
    """
    return manifest_of(sealed.unpack(data, sealed.Kind.MANIFEST, keys))


def manifest_of(contents: sealed.Sealed) -> Manifest:
    """Return the manifest that a sealed file holds.

    :raises StoreCorruptError: it holds none, or one that cannot be.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    """
    fields = Fields(contents.values)
    segments = fields.texts("segments")
    manifest = Manifest(
        tenant=TenantId(fields.text("tenant")),
        session=SessionId(fields.text("session")),
        generation=fields.count("generation"),
        parent_generation=fields.count("parent_generation"),
        engine_id=fields.text("engine_id"),
        adapter_digest=fields.text("adapter_digest"),
        created_unix_s=fields.number("created_unix_s"),
        fingerprint=Fingerprint(fields.mapping("fingerprint")),
        chunk_tokens=fields.count("chunk_tokens"),
        tokens=from_bytes(_section(contents, _TOKENS, TOKEN_BYTES)),
        chunks=_unpack_records(_section(contents, _CHUNKS, RECORD_BYTES), segments),
        wrapped_keys=tuple(_wrapped_key(item) for item in fields.objects("wrapped_keys")),
        forked_from=unpack_origin(fields),
    )
    require_known_way(manifest)
    fault = fault_of(manifest)
    if fault:
        raise StoreCorruptError(f"The manifest cannot be true: {fault}.")
    return with_losses(manifest, contents.sections.get(LOSS_TAG))


def fault_of(manifest: Manifest) -> str:
    """Return what makes *manifest* impossible, or an empty string."""
    if manifest.generation < 1 or manifest.parent_generation >= manifest.generation:
        return "its generations are out of order"
    if manifest.chunk_tokens < 1:
        return "its chunks hold no tokens"
    if any(_impossible(chunk, len(manifest.tokens)) for chunk in manifest.chunks):
        return "it describes an impossible chunk"
    windows = manifest.groups.windows_chunks
    full = [chunk for chunk in manifest.chunks if not windows[chunk.group]]
    windowed = [chunk for chunk in manifest.chunks if windows[chunk.group]]
    gap = _gap_of(full) or _misplaced(windowed, manifest.chunk_tokens)
    return gap or loss_fault(manifest)


def _impossible(chunk: ChunkRecord, tokens: int) -> bool:
    return not (
        is_hex_id(chunk.segment_id)
        and chunk.group < MAX_GROUPS
        and chunk.start_token < chunk.end_token <= tokens
        and chunk.offset_bytes % ALIGNMENT_BYTES == 0
        and chunk.offset_bytes >= HEADER_BYTES
        and 0 < chunk.stored_bytes <= chunk.raw_bytes <= MAX_CHUNK_BYTES
    )


def _gap_of(chunks: list[ChunkRecord]) -> str:
    """Snapshots are gapless from token 0 in every group of full attention."""
    by_group: dict[int, list[ChunkRecord]] = defaultdict(list)
    for chunk in chunks:
        by_group[chunk.group].append(chunk)
    for group, members in by_group.items():
        members.sort(key=lambda chunk: chunk.start_token)
        joined = all(left.end_token == right.start_token for left, right in pairwise(members))
        if members[0].start_token != 0 or not joined:
            return f"group {group} has a gap"
    return ""


def _misplaced(chunks: list[ChunkRecord], chunk_tokens: int) -> str:
    """Of a group with a window, some chunks are there, each once and in its place."""
    places = {(chunk.group, chunk.start_token) for chunk in chunks}
    whole = all(
        chunk.start_token % chunk_tokens == 0
        and chunk.end_token == chunk.start_token + chunk_tokens
        for chunk in chunks
    )
    return "" if whole and len(places) == len(chunks) else "a windowed group's chunk is misplaced"


def _pack_record(chunk: ChunkRecord, places: dict[SegmentId, int]) -> bytes:
    return _RECORD.pack(
        chunk.group,
        chunk.start_token,
        chunk.end_token,
        places[chunk.segment_id],
        chunk.offset_bytes,
        chunk.stored_bytes,
        chunk.raw_bytes,
        chunk.codec,
        0,
        chunk.checksum,
    )


def _unpack_records(data: bytes, segments: list[str]) -> tuple[ChunkRecord, ...]:
    records = []
    for (
        group,
        start,
        end,
        place,
        offset,
        stored,
        raw,
        codec,
        flags,
        checksum,
    ) in _RECORD.iter_unpack(data):
        if place >= len(segments) or flags:
            raise StoreCorruptError("The manifest describes an impossible chunk.")
        segment_id = SegmentId(segments[place])
        records.append(
            ChunkRecord(group, start, end, segment_id, offset, stored, raw, codec, checksum)
        )
    return tuple(records)


def _wrapped_key(fields: Fields) -> tuple[str, bytes]:
    try:
        return fields.text("segment"), bytes.fromhex(fields.text("key"))
    except ValueError as error:
        raise StoreCorruptError("The manifest holds an unreadable key.") from error


def _section(contents: sealed.Sealed, tag: bytes, item_bytes: int) -> bytes:
    data = contents.sections.get(tag)
    if data is None or len(data) % item_bytes:
        raise StoreCorruptError(f"The section {tag.decode()} is missing or cut.")
    return data
