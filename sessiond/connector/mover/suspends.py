"""Suspending: from slots of the RAM tier into segments, then the manifest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

from sessiond.connector.mover.protocol import Hello, OpenSuspend
from sessiond.domain.errors import SessiondError
from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.ids import EngineId, SegmentId, SessionId, TenantId
from sessiond.domain.kvgroups import groups_of
from sessiond.domain.reasons import Cause
from sessiond.domain.snapshot import ChunkRecord, Manifest, SnapshotSummary
from sessiond.domain.tokens import chain_digests, common_prefix_tokens, from_bytes
from sessiond.store.checksums import ChunkPosition
from sessiond.store.codecs import Codec
from sessiond.store.segments import SegmentReader
from sessiond.store.segmentwriter import SegmentWriter
from sessiond.store.store import Store

#: Chooses for a whole segment by its first chunk.
ChooseCodec: TypeAlias = Callable[[memoryview], Codec]


class SuspendPlan:
    """One round of one suspend. Several threads may :meth:`append` at once; nothing else.

    Chunks that the parent generation holds already (same tenant, fingerprint, adapter and token
    chain) are referenced, not written again; their segments stay locked until the commit.

    :raises StoreError: the session's snapshots cannot be listed
    """

    def __init__(
        self,
        store: Store,
        hello: Hello,
        fingerprint: Fingerprint,
        asked: OpenSuspend,
        choose: ChooseCodec,
    ) -> None:
        self._began_s = time.monotonic()
        self._store = store
        self._hello = hello
        self._fingerprint = fingerprint
        self._bytes_digest = fingerprint.digest(FieldClass.BYTES)
        self._tenant = TenantId(asked.tenant)
        self._session = SessionId(asked.session)
        self._generation = asked.generation
        self._adapter_digest = asked.adapter_digest
        self._tokens = from_bytes(asked.payload)
        self._chain = chain_digests(self._tokens, hello.chunk_tokens)
        self._choose = choose
        self._lock = threading.Lock()
        self._writers: list[SegmentWriter] = []
        self._codec = Codec.RAW  # of the newest writer
        self._locked: dict[SegmentId, SegmentReader] = {}
        self._cause: Cause | None = None
        self._is_overtaken = False  # whether a newer snapshot than the parent is another engine's
        parent = self._find_parent()
        self._parent_generation = parent.generation if parent else 0
        self._groups = groups_of(fingerprint, hello.chunk_tokens)
        self._shared = self._lock_shared(parent) if parent else {}
        self._written: dict[int, ChunkRecord] = {}

    @property
    def durable_chunks(self) -> list[int]:
        """The numbers of the chunks that need not be handed over."""
        return sorted(self._shared)

    @property
    def has_failed(self) -> bool:
        """Whether nothing more will be written."""
        return self._cause is not None

    def append(
        self, number: int, raw: memoryview, before_write: Callable[[], None] | None = None
    ) -> None:
        """Write one chunk.

        :param number: see :mod:`sessiond.domain.kvgroups`
        :param before_write: called when it is encoded; may wait
        :raises StoreError: it could not be written
        :raises OSError: the same
        """
        if self._cause is not None or number in self._shared or number in self._written:
            return
        size, at = self._hello.chunk_tokens, self._groups.position(number)
        group = self._groups.group(number)
        position = ChunkPosition(group, at * size, (at + 1) * size, self._chain[at])
        writer, codec = self._writer(raw)
        self._written[number] = writer.append(
            position, raw, codec, before_write, half_bytes=self._hello.half_bytes
        )

    def fail(self, cause: Cause) -> None:
        """Remember why nothing more is written; what came before it may still be committed."""
        self._cause = self._cause or cause

    def commit(
        self, is_discarded: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, Any] | None, list[Cause]]:
        """Make segments, then the manifest, durable.

        A mover can outlive its engine for a while. It commits nothing then.

        :param is_discarded: asked until the last moment whether nothing may be committed
        :return: the summary (``None`` if there is nothing new to commit) and why chunks lack
        :raises EngineNotFoundError: the engine has ended
        :raises StoreError: nothing was committed
        :raises OSError: the same
        """
        records = self._useful()
        causes = [self._cause] if self._cause else []
        if not self._is_new(records) or is_discarded():
            return None, causes
        require_live = partial(self._store.require_live, self._hello.engine_id)
        require_live()  # else not even segments are left
        for writer in self._writers:
            writer.finish()
        manifest = self._manifest(records)
        if is_discarded():
            return None, causes  # what was written is garbage, and is collected
        summary = asdict(self._summary(manifest, records))  # what fails must fail before
        self._store.commit_manifest(manifest, fence=require_live)
        return summary, causes

    def close(self) -> None:
        """Unlock; discard what was not finished."""
        for writer in self._writers:
            writer.close()
        for reader in self._locked.values():
            reader.close()

    def _find_parent(self) -> Manifest | None:
        for generation in reversed(self._store.generations(self._tenant, self._session)):
            if generation >= self._generation:
                continue
            try:
                manifest = self._store.read_manifest(self._tenant, self._session, generation)
            except (SessiondError, OSError):
                continue  # a snapshot that cannot be read shares nothing
            if self._may_share(manifest):
                return manifest
            self._is_overtaken = True
        return None

    def _is_new(self, records: dict[int, ChunkRecord]) -> bool:
        """Whether there is something to commit.

        What another engine has overtaken is, with nothing written: else the newest snapshot,
        which retention keeps and others look for first, stayed the other engine's.
        """
        if records.keys() <= self._shared.keys():
            return bool(records) and self._is_overtaken
        return True

    def _may_share(self, parent: Manifest) -> bool:
        return (
            parent.bytes_digest == self._bytes_digest
            and parent.adapter_digest == self._adapter_digest
            and parent.chunk_tokens == self._hello.chunk_tokens
        )

    def _lock_shared(self, parent: Manifest) -> dict[int, ChunkRecord]:
        """Return what the parent restores of these tokens.

        Of groups with windows that is the newest window; of its older ones this snapshot need
        not know any more.
        """
        common = common_prefix_tokens(parent.tokens, self._tokens)
        size, groups = parent.chunk_tokens, self._groups
        bad = {
            chunk for chunk in parent.chunks if chunk.end_token > common or not self._keep(chunk)
        }
        window = set(groups.needed(parent.restorable_up_to(common, bad) // size))
        shared: dict[int, ChunkRecord] = {}
        for chunk in parent.chunks:
            number = parent.number(chunk, groups)
            if chunk not in bad and (groups.keeps_all(chunk.group) or number in window):
                shared[number] = chunk
        return shared

    def _keep(self, record: ChunkRecord) -> bool:
        try:
            if record.segment_id not in self._locked:
                self._locked[record.segment_id] = self._store.open_segment(record.segment_id)
            return record.offset_bytes not in self._store.bad_chunks(record.segment_id)
        except (SessiondError, OSError):
            return False

    def _writer(self, raw: memoryview) -> tuple[SegmentWriter, Codec]:
        """Return where the next chunk goes, and how; *raw* decides for a whole segment."""
        limit = self._hello.segment_limit_bytes
        with self._lock:
            if not self._writers or self._writers[-1].size_bytes >= limit:
                self._writers.append(self._store.new_segment(self._tenant, self._bytes_digest))
                self._codec = self._choose(raw)
            return self._writers[-1], self._codec

    def _useful(self) -> dict[int, ChunkRecord]:
        """Return the chunks without those beyond a gap in a group of full attention, in order."""
        there = {**self._shared, **self._written}
        kept: dict[int, ChunkRecord] = {}
        for number in sorted(there):
            before = number - self._groups.count
            full = self._groups.keeps_all(self._groups.group(number))
            if not full or before < 0 or before in kept:
                kept[number] = there[number]
        return kept

    def _manifest(self, records: dict[int, ChunkRecord]) -> Manifest:
        return Manifest(
            tenant=self._tenant,
            session=self._session,
            generation=self._generation,
            parent_generation=self._parent_generation,
            engine_id=self._hello.engine_id,
            adapter_digest=self._adapter_digest,
            created_unix_s=time.time(),
            fingerprint=self._fingerprint,
            chunk_tokens=self._hello.chunk_tokens,
            tokens=self._tokens,
            chunks=tuple(records.values()),
        )

    def _summary(self, manifest: Manifest, records: dict[int, ChunkRecord]) -> SnapshotSummary:
        new_bytes = sum(records[number].stored_bytes for number in records.keys() - self._shared)
        return SnapshotSummary(
            generation=manifest.generation,
            parent_generation=manifest.parent_generation,
            created_unix_s=manifest.created_unix_s,
            tokens_total=len(manifest.tokens),
            tokens_restorable=manifest.restorable_tokens,
            chunks=len(manifest.chunks),
            raw_bytes=manifest.raw_bytes,
            stored_bytes=manifest.stored_bytes,
            new_bytes=new_bytes,
            shared_bytes=manifest.stored_bytes - new_bytes,
            seconds=time.monotonic() - self._began_s,
            engine_id=EngineId(manifest.engine_id),
            model="",
            lossy=manifest.loss,
        )
