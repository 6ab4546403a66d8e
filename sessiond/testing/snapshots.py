"""Real snapshots of made-up KV, for tests of the store and of what stands on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.ids import SegmentId, SessionId, TenantId
from sessiond.domain.keys import KeyRing
from sessiond.domain.loss import FP8, LOSSY_FIELD
from sessiond.domain.snapshot import ChunkRecord, Manifest
from sessiond.domain.tokens import TokenIds, chain_digests, token_ids
from sessiond.store.checksums import ChunkPosition
from sessiond.store.codecs import LOSSY, Codec, Coder, payload_bound_bytes
from sessiond.store.loading import WantedChunk

if TYPE_CHECKING:
    from sessiond.domain.errors import StoreError
    from sessiond.store.store import Store

TENANT = TenantId("acme")
SESSION = SessionId("s-1")
CHUNK_TOKENS = 16
#: Odd on purpose: neither a multiple of a page nor of a block; even, for 16-bit items.
CHUNK_BYTES = 10_006


def a_key_ring(fill: int = 7) -> KeyRing:
    """Return the keys of a server key that is one byte repeated."""
    return KeyRing.from_server_key(bytes([fill]) * 32)


def a_fingerprint(weights: str = "w1", lossy: str = "") -> Fingerprint:
    """Return a small fingerprint, with the given weights digest and way of losing something."""
    return Fingerprint(
        {
            "weights_digest": weights,
            "kv_dtype": "bfloat16",
            "vllm_version": "0.32.0",
            **({LOSSY_FIELD: lossy} if lossy else {}),
        }
    )


def some_tokens(count: int, seed: int = 0) -> TokenIds[int]:
    """Return token ids; the same seed gives the same beginning, however many are asked for."""
    return token_ids((seed * 1_000_003 + place * 7919) % 49_152 for place in range(count))


def bf16_bytes(seed: int, size_bytes: int = CHUNK_BYTES) -> bytes:
    """Return normally distributed bfloat16 values, about as compressible as real KV."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(size_bytes // 2, dtype=np.float32)
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes().ljust(size_bytes, b"\0")


@dataclass(frozen=True)
class SnapshotPlan:
    """What a made-up snapshot is made of."""

    generation: int = 1
    chunks: int = 3  #: for each group
    groups: int = 1
    extra_tokens: int = 5  #: beyond the last whole chunk
    seed: int = 0  #: of tokens and bytes
    codec: Codec = Codec.PLANAR_ZSTD
    chunk_bytes: int = CHUNK_BYTES
    tenant: TenantId = TENANT
    session: SessionId = SESSION
    fingerprint: Fingerprint = field(default_factory=a_fingerprint)

    @property
    def tokens(self) -> TokenIds[int]:
        """The head's tokens."""
        return some_tokens(self.chunks * CHUNK_TOKENS + self.extra_tokens, self.seed)

    @property
    def bytes_digest(self) -> bytes:
        """The fingerprint's digest that checksums cover."""
        return self.fingerprint.digest(FieldClass.BYTES)

    def positions(self) -> list[ChunkPosition]:
        """Return all chunks' positions, in the order of a resume."""
        digests = chain_digests(self.tokens, CHUNK_TOKENS)
        return [
            ChunkPosition(group, place * CHUNK_TOKENS, (place + 1) * CHUNK_TOKENS, digest)
            for place, digest in enumerate(digests[: self.chunks])
            for group in range(self.groups)
        ]

    def raw(self, position: ChunkPosition) -> bytes:
        """Return the KV bytes of one chunk: always the same for the same context."""
        seed = int.from_bytes(position.chain_digest[:4], "little") + position.group
        return bf16_bytes(seed, self.chunk_bytes)


def a_plan(codec: Codec, **fields: Any) -> SnapshotPlan:  # noqa: ANN401 - any field
    """Return a plan for this codec; a lossy one needs an engine that asks for it."""
    lossy = FP8 if codec in LOSSY else ""
    return SnapshotPlan(codec=codec, fingerprint=a_fingerprint(lossy=lossy), **fields)


def write_snapshot(
    store: Store, plan: SnapshotPlan | None = None, *, parent: Manifest | None = None
) -> Manifest:
    """Suspend: write a segment with what *parent* lacks, then commit the manifest."""
    plan = plan or SnapshotPlan()
    shared = list(parent.chunks) if parent else []
    places = {(chunk.group, chunk.start_token) for chunk in shared}
    with store.new_segment(plan.tenant, plan.bytes_digest) as writer:
        new = [
            writer.append(position, memoryview(plan.raw(position)), plan.codec)
            for position in plan.positions()
            if (position.group, position.start_token) not in places
        ]
        writer.finish()
        manifest = manifest_of_plan(plan, [*shared, *new], parent)
        store.commit_manifest(manifest)
    return manifest


def manifest_of_plan(
    plan: SnapshotPlan, chunks: list[ChunkRecord], parent: Manifest | None = None
) -> Manifest:
    """Return the manifest of a plan whose chunks were stored."""
    return Manifest(
        tenant=plan.tenant,
        session=plan.session,
        generation=plan.generation,
        parent_generation=parent.generation if parent else 0,
        engine_id="e" * 32,
        adapter_digest="",
        created_unix_s=1_800_000_000.5 + plan.generation,
        fingerprint=plan.fingerprint,
        chunk_tokens=CHUNK_TOKENS,
        tokens=plan.tokens,
        chunks=tuple(chunks),
    )


def load_snapshot(store: Store, manifest: Manifest) -> list[bytes | StoreError]:
    """Resume: load every chunk of a snapshot; an error in the place of one that failed."""
    digests = chain_digests(manifest.tokens, manifest.chunk_tokens)
    loaded: dict[ChunkRecord, bytes | StoreError] = {}
    for segment_id in manifest.segment_ids:
        wanted = [
            WantedChunk(
                chunk,
                digests[chunk.end_token // manifest.chunk_tokens - 1],
                memoryview(bytearray(chunk.raw_bytes)),
            )
            for chunk in manifest.chunks
            if chunk.segment_id == segment_id
        ]
        with store.open_segment(SegmentId(segment_id)) as reader:
            results = reader.load(wanted, manifest.bytes_digest)
        for chunk, error in zip(wanted, results, strict=True):
            loaded[chunk.record] = error or bytes(chunk.out)
    return [loaded[chunk] for chunk in manifest.chunks]


def expected_bytes(plan: SnapshotPlan) -> list[bytes]:
    """Return what :func:`load_snapshot` must give for a snapshot written from scratch."""
    return [as_stored(plan.codec, plan.raw(position)) for position in plan.positions()]


def as_stored(codec: Codec, raw: bytes) -> bytes:
    """Return what encoding and decoding makes of bytes: the same, but for a lossy codec."""
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    coder = Coder()
    used, stored_bytes = coder.encode(codec, np.frombuffer(raw, np.uint8), payload)
    out = np.empty(len(raw), np.uint8)
    coder.decode(used, payload[:stored_bytes], len(raw)).copy_to(out)
    return out.tobytes()
