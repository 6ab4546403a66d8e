"""KV of as many bytes that means something else: no size can tell, so the fingerprint must.

bfloat16 and float16, and the layouts that vLLM once called NHD and HND, differ in no length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from sessiond.connector.mover.loads import open_load
from sessiond.connector.mover.protocol import OpenLoad
from sessiond.domain.canonical import canonical_json
from sessiond.domain.errors import StoreCorruptError
from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.reasons import Reason
from sessiond.domain.snapshot import Manifest
from sessiond.domain.tokens import chain_digests, to_bytes
from sessiond.store import sealed
from sessiond.store.loading import WantedChunk
from sessiond.store.store import Store
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    SESSION,
    TENANT,
    SnapshotPlan,
    a_key_ring,
    write_snapshot,
)

KEYS = a_key_ring()
FIELDS = {"kv_dtype": "bfloat16", "model_dtype": "bfloat16", "kv_layout": "LBNHC"}


@dataclass(frozen=True)
class Kind:
    """Another engine, whose KV has as many bytes."""

    name: str
    value: str
    reason: Reason

    @property
    def live(self) -> Fingerprint:
        return Fingerprint({**FIELDS, self.name: self.value})


KINDS = (
    Kind("kv_dtype", "float16", Reason.KV_DTYPE_MISMATCH),
    Kind("model_dtype", "float16", Reason.MODEL_DTYPE_MISMATCH),
    Kind("kv_layout", "LBHNC", Reason.KV_LAYOUT_MISMATCH),
)
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", KEYS)


@pytest.fixture
def manifest(store: Store) -> Manifest:
    return write_snapshot(store, SnapshotPlan(fingerprint=Fingerprint(FIELDS)))


def asked(manifest: Manifest) -> OpenLoad:
    return OpenLoad(1, TENANT, SESSION, manifest.generation, "", to_bytes(manifest.tokens))


def test_the_same_engine_loads_it(store: Store, manifest: Manifest) -> None:
    plan, causes = open_load(store, Fingerprint(FIELDS), asked(manifest))
    assert (len(plan.chunks), causes) == (len(manifest.chunks), [])
    plan.let_go()


@EACH
def test_another_one_loads_nothing_and_names_the_field(
    store: Store, manifest: Manifest, kind: Kind
) -> None:
    plan, (cause,) = open_load(store, kind.live, asked(manifest))
    assert not plan.chunks
    assert (cause.reason, cause.stored, cause.live) == (kind.reason, FIELDS[kind.name], kind.value)


@EACH
def test_a_segment_refuses_another_engine_whatever_a_manifest_says(
    store: Store, manifest: Manifest, kind: Kind
) -> None:
    chunk = manifest.chunks[0]
    (chain, *_) = chain_digests(manifest.tokens, CHUNK_TOKENS)
    out = bytearray(chunk.raw_bytes)
    wanted = WantedChunk(chunk, chain, memoryview(out))
    with store.open_segment(chunk.segment_id) as reader:
        (error,) = reader.load([wanted], kind.live.digest(FieldClass.BYTES))
        assert isinstance(error, StoreCorruptError)
        assert not any(out)  # not one byte reached the slot
        assert reader.load([wanted], manifest.bytes_digest) == [None]
    assert any(out)


@EACH
def test_a_manifest_whose_field_was_edited_is_refused(
    store: Store, manifest: Manifest, kind: Kind
) -> None:
    (path,) = store.root.rglob("*.manifest")
    data = bytearray(path.read_bytes())
    old = json.dumps({kind.name: FIELDS[kind.name]}, separators=(",", ":"))[1:-1].encode()
    new = json.dumps({kind.name: kind.value}, separators=(",", ":"))[1:-1].encode()
    assert old in data
    path.chmod(0o600)
    # All that a manifest says of its own lengths is put right; what cannot be is the seal.
    path.write_bytes(_with_lengths(bytes(data), old, new))
    plan, (cause,) = open_load(store, kind.live, asked(manifest))
    assert not plan.chunks
    assert cause.reason is Reason.SNAPSHOT_CORRUPT


def _with_lengths(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace text in a sealed file, its header and section table fitting, its seal the old one."""
    was = sealed.unpack(data, sealed.Kind.MANIFEST, KEYS)
    text = canonical_json(was.values).replace(old, new)
    values = json.loads(text)
    forged = sealed.pack(sealed.Sealed(was.kind, values, was.sections), KEYS)
    changed = forged[: -sealed.SEAL_BYTES] + data[-sealed.SEAL_BYTES :]
    assert sealed.read_unsealed(changed).values == values
    return changed
