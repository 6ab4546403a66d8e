"""Sealed files: manifests and heads, and the readable ones of sessions and engines."""

from __future__ import annotations

import hmac
import json
import struct

from sessiond.domain.canonical import canonical_json
from sessiond.domain.engines import EngineInfo
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit
from sessiond.domain.ids import EngineId, SegmentId
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.snapshot import ChunkRecord
from sessiond.domain.timing import TurnTiming
from sessiond.store import engines, heads, manifests, sealed, sessions
from sessiond.store.checksums import short_check
from sessiond.store.notes import parse_notes
from sessiond.store.root import read_format
from sessiond.testing.fuzz.base import KEYS, Target, by_mode, refused
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    a_fingerprint,
    manifest_of_plan,
)


def _sealed_as_it_is(data: bytes) -> None:
    _read_sealed(data)


def _sealed_anew(data: bytes) -> None:
    """A file whose length, check and seal fit what it holds."""
    if len(data) < sealed.HEADER_BYTES + sealed.SEAL_BYTES:
        return
    header = data[:112] + struct.pack("<Q", len(data))
    message = header + short_check(header) + data[128 : -sealed.SEAL_BYTES]
    _read_sealed(message + hmac.digest(KEYS.seal_key, message, "sha256"))


def _sealed_sections(data: bytes) -> None:
    """Sections of which two lengths are in front; the rest is JSON."""
    if len(data) < 5:
        return
    kind, first, second = struct.unpack("<BHH", data[:5])
    parts = {
        b"TOKS": data[5 : 5 + first],
        b"CHNK": data[5 + first : 5 + first + second],
        b"JSON": data[5 + first + second :],
    }
    table = b"".join(struct.pack("<4s4xQ", tag, len(part)) for tag, part in parts.items())
    content = table + b"".join(parts.values())
    header = struct.pack(
        "<8s4sHHHHI16s12s60sQ",
        sealed.MAGIC,
        (b"MANI", b"HEAD")[kind % 2],
        1,
        0,
        len(parts),
        0,
        0,
        KEYS.key_id,
        bytes(12),
        bytes(60),
        sealed.HEADER_BYTES + len(content) + sealed.SEAL_BYTES,
    )
    message = header + short_check(header) + content
    _read_sealed(message + hmac.digest(KEYS.seal_key, message, "sha256"))


def _read_sealed(data: bytes) -> None:
    for read in (manifests.unpack_manifest, heads.unpack_head):
        with refused():
            read(data, KEYS)
    for build in (manifests.manifest_of, heads.head_of):
        with refused():
            build(sealed.read_unsealed(data))


def _sealed_seeds() -> list[bytes]:
    plan = SnapshotPlan(chunks=2)
    chunks = [
        ChunkRecord(
            position.group,
            position.start_token,
            position.end_token,
            SegmentId("5" * 32),
            4096 * (place + 1),
            9,
            10,
            2,
            b"c" * 16,
        )
        for place, position in enumerate(plan.positions())
    ]
    manifest = manifests.pack_manifest(manifest_of_plan(plan, chunks), KEYS)
    split = TurnSplit(16, 8, 4, 4)
    branch = Branch(plan.tokens, "", "salt", 1.5, split)
    timing = TurnTiming(lookup_s=0.5, ready_s=0.5, read_bytes=9, prefill_to_token=16)
    turn = LastTurn(2.0, split, 9, 8, 7, (Cause(Reason.DIVERGED, "at token 7"),), "op-1", timing)
    whole = Head(TENANT, SESSION, "e" * 32, 3, 0, 2.5, (branch,), turn, "not_text")
    head = heads.pack_head(whole, KEYS)
    seeds = [bytes([mode]) + data for mode in (0, 1) for data in (manifest, head)]
    for kind, data in enumerate((manifest, head)):
        sections = dict(sealed.read_unsealed(data).sections)
        tokens, records = sections[b"TOKS"], sections.get(b"CHNK", b"")
        values = canonical_json(sealed.read_unsealed(data).values)
        lengths = struct.pack("<BHH", kind, len(tokens), len(records))
        seeds.append(b"\2" + lengths + tokens + records + values)
    return seeds


def _json_as_it_is(data: bytes) -> None:
    for read in (sessions.unpack_session, engines.unpack_engine):
        with refused():
            read(data, KEYS)
    with refused():
        read_format(data)
    with refused():
        parse_notes(data)


def _json_sealed_anew(data: bytes) -> None:
    """A record in a file with the right seal."""
    for kind in ("session", "engine"):
        try:
            record = json.loads(data)
            message = f"sessiond {kind} 1\0".encode() + canonical_json(record)
        except (ValueError, RecursionError, TypeError):
            return  # nobody can have sealed that
        seal = hmac.digest(KEYS.seal_key, message, "sha256").hex()
        outer = {
            "kind": kind,
            "version": 1,
            "key_id": KEYS.key_id.hex(),
            "record": record,
            "seal": seal,
        }
        _json_as_it_is(json.dumps(outer).encode())


def _json_seeds() -> list[bytes]:
    session = sessions.pack_session(
        sessions.SessionRecord(TENANT, SESSION, 1.0, 2.0, "m", 3.0, None, pinned=True), KEYS
    )
    info = EngineInfo(
        EngineId("e" * 32),
        "http://x:1",
        "m",
        1,
        1.0,
        2.0,
        a_fingerprint(),
        16,
        10,
        3,
        99,
        "0.32.0",
        (),
    )
    engine = engines.pack_engine(info, KEYS)
    records = [canonical_json(json.loads(data)["record"]) for data in (session, engine)]
    notes = b'{"at_unix_s":1,"offset_bytes":4096,"why":"collected"}\n{"x":1}\n'
    stated = b'{"format":"sessiond store","version":1,"key_id":"' + b"0" * 32 + b'"}'
    whole = [b"\0" + data for data in (session, engine, notes, stated)]
    return [*whole, *(b"\1" + record for record in records)]


SEALED = Target(by_mode(_sealed_as_it_is, _sealed_anew, _sealed_sections), _sealed_seeds)
JSON = Target(by_mode(_json_as_it_is, _json_sealed_anew), _json_seeds)
