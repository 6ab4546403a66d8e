"""Loading: from a snapshot's segments, verified, into slots of the RAM tier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sessiond.connector.mover.failures import cause_of
from sessiond.connector.mover.protocol import OpenLoad
from sessiond.domain.errors import SessiondError, StoreError
from sessiond.domain.fingerprint import FieldClass, Fingerprint, causes, compare
from sessiond.domain.ids import SegmentId, SessionId, TenantId
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.snapshot import ChunkRecord, Manifest
from sessiond.domain.tokens import chain_digests, common_prefix_tokens, from_bytes
from sessiond.store.loading import SegmentLoad, WantedChunk
from sessiond.store.reading import DEFAULT_PACE, ReadPace
from sessiond.store.segments import SegmentReader
from sessiond.store.store import Store


@dataclass(frozen=True)
class Filling:
    """Slots that are being filled, by chunk indexes and the loads of the segments they are in."""

    parts: list[tuple[list[int], SegmentLoad]]

    def work(self, on_run: Callable[[], None] | None = None) -> None:
        """Fill until nothing is left. Several threads may work at once."""
        for _, load in self.parts:
            load.work(on_run)

    def results(self) -> dict[int, Exception | None]:
        """Return the error, or ``None``, by chunk index; when nobody works any more."""
        return {
            index: error
            for indexes, load in self.parts
            for index, error in zip(indexes, load.results, strict=True)
        }


@dataclass
class LoadPlan:
    """The chunks of one snapshot that one prompt may use; its segments stay locked.

    Whoever opened it and every load that runs hold it; the last to let go unlocks the segments.
    """

    records: tuple[ChunkRecord, ...] = ()
    chain: list[bytes] = field(default_factory=list)
    readers: dict[SegmentId, SegmentReader] = field(default_factory=dict)
    _holders: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def chunks(self) -> int:
        """Leading chunks of the prompt that can be loaded."""
        return len(self.records)

    def begin(
        self,
        items: list[list[int]],
        slot: Callable[[int], memoryview],
        bytes_digest: bytes,
        pace: ReadPace = DEFAULT_PACE,
    ) -> Filling:
        """Return the work of filling slots; a slot is touched only with verified bytes.

        :param items: pairs of (chunk index, slot)
        """
        parts = []
        for segment_id, part in self._by_segment(items).items():
            wanted = [
                WantedChunk(self.records[index], self.chain[index], slot(slot_index))
                for index, slot_index in part
            ]
            load = self.readers[segment_id].begin(wanted, bytes_digest, pace)
            parts.append(([index for index, _ in part], load))
        return Filling(parts)

    def stored_bytes(self, index: int) -> int:
        """Bytes on disk of one chunk."""
        return self.records[index].stored_bytes

    def hold(self) -> None:
        """A load begins."""
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """A load has ended, or the plan is closed."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                for reader in self.readers.values():
                    reader.close()

    def _by_segment(self, items: list[list[int]]) -> dict[SegmentId, list[list[int]]]:
        grouped: dict[SegmentId, list[list[int]]] = {}
        for item in items:
            grouped.setdefault(self.records[item[0]].segment_id, []).append(item)
        return grouped


def open_load(store: Store, live: Fingerprint, asked: OpenLoad) -> tuple[LoadPlan, list[Cause]]:
    """Open what a prompt may use of a snapshot: its longest common prefix in whole chunks.

    Everything that can be known without reading KV is checked here: seal, fingerprint, adapter,
    tokens, known bad chunks, and that each segment is there, whole and locked.
    """
    tokens = from_bytes(asked.payload)
    tenant, session = TenantId(asked.tenant), SessionId(asked.session)
    try:
        manifest = store.read_manifest(tenant, session, asked.generation)
    except (SessiondError, OSError) as error:
        return LoadPlan(), [cause_of(error)]
    refused = _refusal(manifest, live, asked.adapter_digest)
    if refused:
        return LoadPlan(), refused
    common = common_prefix_tokens(manifest.tokens, tokens)
    usable = [chunk for chunk in manifest.chunks if chunk.end_token <= common]
    found: list[Cause] = []
    if common < min(len(manifest.tokens), len(tokens)):
        found.append(Cause(Reason.DIVERGED, detail=f"at token {common}"))
    readers, problem = _open_segments(store, usable)
    if problem is not None:
        found.insert(0, problem)
    records = _good_prefix(store, usable, readers)
    if problem is None and len(records) < len(usable):
        found.insert(0, Cause(Reason.SNAPSHOT_CORRUPT))
    chain = chain_digests(tokens, manifest.chunk_tokens)[: len(records)]
    return LoadPlan(tuple(records), chain, readers), found


def _refusal(manifest: Manifest, live: Fingerprint, adapter_digest: str) -> list[Cause]:
    mismatches = compare(manifest.fingerprint, live)
    refused = causes(mismatches, FieldClass.BYTES)
    if manifest.adapter_digest != adapter_digest:
        refused.append(
            Cause(Reason.ADAPTER_MISMATCH, stored=manifest.adapter_digest, live=adapter_digest)
        )
    return refused


def _open_segments(
    store: Store, records: list[ChunkRecord]
) -> tuple[dict[SegmentId, SegmentReader], Cause | None]:
    """Open the segments in the order of use, up to the first that cannot be opened."""
    readers: dict[SegmentId, SegmentReader] = {}
    for record in records:
        if record.segment_id in readers:
            continue
        try:
            readers[record.segment_id] = store.open_segment(record.segment_id)
        except (SessiondError, OSError) as error:
            return readers, cause_of(error)
    return readers, None


def _good_prefix(
    store: Store, records: list[ChunkRecord], readers: dict[SegmentId, SegmentReader]
) -> list[ChunkRecord]:
    bad = {segment_id: _known_bad(store, segment_id) for segment_id in readers}
    good = []
    for record in records:
        if record.segment_id not in readers or record.offset_bytes in bad[record.segment_id]:
            break
        good.append(record)
    return good


def _known_bad(store: Store, segment_id: SegmentId) -> set[int]:
    try:
        return store.bad_chunks(segment_id)
    except StoreError:
        return set()  # notes save work; every read verifies all the same
