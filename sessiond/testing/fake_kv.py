"""KV bytes for a fake engine: made from tokens, kept in a real store, checked when loaded."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreError,
    StoreFullError,
)
from sessiond.domain.fingerprint import FieldClass
from sessiond.domain.reasons import Reason
from sessiond.domain.snapshot import ChunkRecord, Manifest
from sessiond.domain.tokens import chain_digests, common_prefix_tokens, whole_chunk_tokens
from sessiond.store.checksums import ChunkPosition
from sessiond.store.codecs import Codec
from sessiond.store.loading import WantedChunk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.tokens import TokenIds
    from sessiond.store.store import Store

_REASONS: dict[type[Exception], Reason] = {
    GenerationExistsError: Reason.GENERATION_EXISTS,
    SessionNotFoundError: Reason.SESSION_DELETED,
    StoreFullError: Reason.STORE_FULL,
    StoreError: Reason.STORE_FAILED,
}


class KeepError(Exception):
    """A snapshot was not committed."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Kept:
    """A snapshot that was committed."""

    manifest: Manifest
    new_bytes: int

    def facts(self, seconds: float) -> dict[str, int | float]:
        """Return what the connector reports of it."""
        manifest = self.manifest
        return {
            "generation": manifest.generation,
            "tokens_total": len(manifest.tokens),
            "tokens_restorable": manifest.restorable_tokens,
            "chunks": len(manifest.chunks),
            "raw_bytes": manifest.raw_bytes,
            "stored_bytes": manifest.stored_bytes,
            "new_bytes": self.new_bytes,
            "shared_bytes": manifest.stored_bytes - self.new_bytes,
            "seconds": seconds,
        }


@dataclass(frozen=True)
class Loaded:
    """How many leading tokens of a snapshot could be read, and why no more."""

    tokens: int
    reason: Reason | None = None


@dataclass(frozen=True)
class Wish:
    """A snapshot that is to be made of the first *chunks* chunks of *tokens*."""

    tenant: TenantId
    session_id: SessionId
    generation: int
    tokens: TokenIds[int]
    chunks: int
    adapter_digest: str = ""


class FakeKv:
    """The mover's part of a fake engine."""

    def __init__(self, store: Store, info: EngineInfo) -> None:
        self._store = store
        self._info = info
        self._bytes_digest = info.fingerprint.digest(FieldClass.BYTES)

    def keep(self, wish: Wish, max_new_chunks: int) -> Kept:
        """Commit a snapshot, sharing what the newest one has; at most so many new chunks.

        :raises KeepError: nothing was committed.
        """
        try:
            return self._keep(wish, max_new_chunks)
        except (*_REASONS,) as error:
            reason = next(r for kind, r in _REASONS.items() if isinstance(error, kind))
            raise KeepError(reason) from error

    def load(self, manifest: Manifest, tokens: TokenIds[int]) -> Loaded:
        """Read the chunks that *tokens* has in common with a snapshot, and compare every byte."""
        common = whole_chunk_tokens(
            common_prefix_tokens(tokens, manifest.tokens), self._info.chunk_tokens
        )
        if manifest.bytes_digest != self._bytes_digest:
            return Loaded(0, Reason.INTERNAL_ERROR)
        digests = chain_digests(tokens, self._info.chunk_tokens)
        done = 0
        for record, digest in zip(manifest.chunks, digests, strict=False):
            if record.end_token > common:
                break
            if not self._load_chunk(record, digest):
                return Loaded(done, Reason.SNAPSHOT_CORRUPT)
            done = record.end_token
        return Loaded(done)

    def _keep(self, wish: Wish, max_new_chunks: int) -> Kept:
        digests = chain_digests(wish.tokens, self._info.chunk_tokens)[: wish.chunks]
        parent = self._parent(wish)
        shared = self._shared(parent, digests)
        new = digests[len(shared) : len(shared) + max_new_chunks]
        records, size_bytes = self._write(wish.tenant, len(shared), new)
        manifest = Manifest(
            tenant=wish.tenant,
            session=wish.session_id,
            generation=wish.generation,
            parent_generation=parent.generation if parent else 0,
            engine_id=self._info.engine_id,
            adapter_digest=wish.adapter_digest,
            created_unix_s=time.time(),
            fingerprint=self._info.fingerprint,
            chunk_tokens=self._info.chunk_tokens,
            tokens=wish.tokens,
            chunks=(*shared, *records),
        )
        self._store.commit_manifest(manifest)
        return Kept(manifest, size_bytes)

    def _parent(self, wish: Wish) -> Manifest | None:
        key = wish.tenant, wish.session_id
        for generation in reversed(self._store.generations(*key)):
            with suppress(StoreError, SnapshotNotFoundError):
                manifest = self._store.read_manifest(*key, generation)
                if generation < wish.generation and manifest.bytes_digest == self._bytes_digest:
                    return manifest
        return None

    def _shared(self, parent: Manifest | None, digests: list[bytes]) -> list[ChunkRecord]:
        if parent is None:
            return []
        known = chain_digests(parent.tokens, self._info.chunk_tokens)
        pairs = zip(parent.chunks, known, digests, strict=False)
        shared: list[ChunkRecord] = []
        for record, theirs, ours in pairs:
            if theirs != ours or not self._is_sound(record):
                break
            shared.append(record)
        return shared

    def _is_sound(self, record: ChunkRecord) -> bool:
        try:
            with self._store.open_segment(record.segment_id):
                return record.offset_bytes not in self._store.bad_chunks(record.segment_id)
        except (StoreError, SnapshotNotFoundError):
            return False

    def _write(
        self, tenant: TenantId, first_chunk: int, digests: list[bytes]
    ) -> tuple[list[ChunkRecord], int]:
        if not digests:
            return [], 0
        step = self._info.chunk_tokens
        with self._store.new_segment(tenant, self._bytes_digest) as writer:
            records = [
                writer.append(
                    ChunkPosition(0, at * step, (at + 1) * step, digest),
                    memoryview(self._bytes(digest)),
                    Codec.RAW,
                )
                for at, digest in enumerate(digests, first_chunk)
            ]
            writer.finish()
        return records, sum(record.stored_bytes for record in records)

    def _load_chunk(self, record: ChunkRecord, digest: bytes) -> bool:
        out = bytearray(record.raw_bytes)
        wanted = WantedChunk(record, digest, memoryview(out))
        try:
            with self._store.open_segment(record.segment_id) as reader:
                (error,) = reader.load([wanted], self._bytes_digest)
        except (StoreError, SnapshotNotFoundError):
            return False
        if error is not None:
            return False
        assert out == self._bytes(digest), "the store returned wrong bytes as right ones"
        return True

    def _bytes(self, digest: bytes) -> bytes:
        """Return the KV that this model computes for a chunk: by its tokens and weights."""
        seed = hashlib.sha256(digest + self._bytes_digest).digest()
        return (seed * (self._info.chunk_bytes // len(seed) + 1))[: self._info.chunk_bytes]


def fake_fields(changes: Mapping[str, str | int] | None = None) -> dict[str, str | int]:
    """Return the facts of a fake engine, with the given ones changed."""
    return {
        "weights_digest": "a" * 64,
        "model_config_digest": "b" * 64,
        "tokenizer_digest": "c" * 64,
        "chat_template_digest": "d" * 64,
        "kv_dtype": "bfloat16",
        "chunk_tokens": 16,
        "connector_format": 1,
        "vllm_version": "0.32.0",
        **(changes or {}),
    }
