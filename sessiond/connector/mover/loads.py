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
from sessiond.domain.kvgroups import KvGroups, groups_of
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.snapshot import ChunkRecord, Manifest
from sessiond.domain.tokens import chain_digests, common_prefix_tokens, from_bytes
from sessiond.store.loading import LoadSpent, SegmentLoad, WantedChunk
from sessiond.store.reading import DEFAULT_PACE, ReadPace
from sessiond.store.segments import SegmentReader
from sessiond.store.store import Store


@dataclass(frozen=True)
class Filling:
    """Slots that are being filled, by chunk numbers and the loads of the segments they are in."""

    parts: list[tuple[list[int], SegmentLoad]]

    def work(self, on_run: Callable[[], None] | None = None) -> None:
        """Fill until nothing is left. Several threads may work at once."""
        for _, load in self.parts:
            load.work(on_run)

    def results(self) -> dict[int, Exception | None]:
        """Return the error, or ``None``, by chunk number; when nobody works any more."""
        return {
            number: error
            for numbers, load in self.parts
            for number, error in zip(numbers, load.results, strict=True)
        }

    def spent(self) -> LoadSpent:
        """Return what it took, added over threads; when nobody works any more."""
        return LoadSpent.sum(part for _, load in self.parts for part in load.spent)


@dataclass
class LoadPlan:
    """The chunks of one snapshot that one prompt may use; its segments stay locked.

    Whoever opened it and every load that runs hold it; the last to let go unlocks the segments.
    """

    records: dict[int, ChunkRecord] = field(default_factory=dict)  #: by chunk number
    chain: list[bytes] = field(default_factory=list)
    groups: KvGroups = field(default_factory=KvGroups)
    readers: dict[SegmentId, SegmentReader] = field(default_factory=dict)
    tokens_total: int = 0  #: of the snapshot
    tokens_restorable: int = 0
    common_tokens: int = 0  #: of the snapshot and the prompt
    _holders: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def chunks(self) -> list[int]:
        """The numbers of the prompt's chunks that can be loaded."""
        return sorted(self.records)

    def begin(
        self,
        items: list[list[int]],
        slot: Callable[[int], memoryview],
        bytes_digest: bytes,
        pace: ReadPace = DEFAULT_PACE,
    ) -> Filling:
        """Return the work of filling slots; bytes that are not proven do not stay in one.

        :param items: pairs of (chunk number, slot)
        """
        parts = []
        for segment_id, part in self._by_segment(items).items():
            wanted = [
                WantedChunk(
                    self.records[number],
                    self.chain[self.groups.position(number)],
                    slot(slot_index),
                )
                for number, slot_index in part
            ]
            load = self.readers[segment_id].begin(wanted, bytes_digest, pace)
            parts.append(([number for number, _ in part], load))
        return Filling(parts)

    def stored_bytes(self, number: int) -> int:
        """Bytes on disk of one chunk."""
        return self.records[number].stored_bytes

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
    common = common_prefix_tokens(manifest.tokens, tokens)
    plan = LoadPlan(
        tokens_total=len(manifest.tokens),
        tokens_restorable=manifest.restorable_tokens,
        common_tokens=common,
    )
    refused = _refusal(manifest, live, asked.adapter_digest)
    if refused:
        return plan, refused
    usable = [chunk for chunk in manifest.chunks if chunk.end_token <= common]
    plan.readers, problem = _open_segments(store, usable)
    good = _good(store, usable, plan.readers)
    plan.groups = manifest.groups
    plan.records = {manifest.number(record, plan.groups): record for record in good}
    plan.chain = chain_digests(tokens, manifest.chunk_tokens)
    if problem is None and len(good) < len(usable):
        problem = Cause(Reason.SNAPSHOT_CORRUPT)
    return plan, [problem] if problem else []


def _refusal(manifest: Manifest, live: Fingerprint, adapter_digest: str) -> list[Cause]:
    mismatches = compare(manifest.fingerprint, live)
    refused = causes(mismatches, FieldClass.BYTES)
    if manifest.adapter_digest != adapter_digest:
        refused.append(
            Cause(Reason.ADAPTER_MISMATCH, stored=manifest.adapter_digest, live=adapter_digest)
        )
    if not refused and manifest.groups != groups_of(live, manifest.chunk_tokens):
        # Chunks would have other numbers here. Equal fingerprints with other chunks: our own bug.
        refused.append(Cause(Reason.KV_GROUPS_MISMATCH, "the chunks are of other groups"))
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


def _good(
    store: Store, records: list[ChunkRecord], readers: dict[SegmentId, SegmentReader]
) -> list[ChunkRecord]:
    """Return what can be read as far as is known; of full attention, what lies beyond a gap
    is of no use, but whoever asks for it finds out by itself.
    """
    bad = {segment_id: _known_bad(store, segment_id) for segment_id in readers}
    return [
        record
        for record in records
        if record.segment_id in readers and record.offset_bytes not in bad[record.segment_id]
    ]


def _known_bad(store: Store, segment_id: SegmentId) -> set[int]:
    try:
        return store.bad_chunks(segment_id)
    except StoreError:
        return set()  # notes save work; every read verifies all the same
