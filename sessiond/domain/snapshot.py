"""Snapshots: immutable, committed lists of the chunks of one session at one moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.ids import SegmentId, SessionId, TenantId
from sessiond.domain.kvgroups import KvGroups, groups_of
from sessiond.domain.loss import LOSSY_FIELD, ChunkLoss, SnapshotLoss, loss_of
from sessiond.domain.tokens import TokenIds


@dataclass(frozen=True)
class ChunkRecord:
    """Where one chunk lies and how to prove its bytes."""

    group: int
    start_token: int
    end_token: int
    segment_id: SegmentId
    offset_bytes: int
    stored_bytes: int
    raw_bytes: int
    codec: int  #: see ``sessiond.store.codecs``
    checksum: bytes  #: 16 bytes, over raw bytes, position, token chain and fingerprint digest
    #: What a lossy codec lost; empty where nothing was. Only manifests know it.
    loss: ChunkLoss = field(default=(), compare=False)


@dataclass(frozen=True)
class Origin:
    """The snapshot of another session that a fork began with."""

    session_id: SessionId
    generation: int


def _gapless(chunks: Iterable[ChunkRecord], groups: int) -> list[list[int]]:
    """Return where each group's chunks end, ascending, as far as none is missing."""
    found: list[list[int]] = [[] for _ in range(groups)]
    for chunk in sorted(chunks, key=attrgetter("start_token")):
        ends = found[chunk.group]
        if chunk.start_token == (ends[-1] if ends else 0):
            ends.append(chunk.end_token)
    return found


def _last_within(ends: Sequence[int], tokens: int) -> int:
    """Return the last of ascending *ends* that is at most *tokens*; 0 if there is none."""
    at = bisect_right(ends, tokens)
    return ends[at - 1] if at else 0


@dataclass(frozen=True)
class Manifest:
    """One snapshot.

    ``chunks`` are gapless from token 0 in every group of full attention, and complete for some
    windows in the others; ``tokens`` is the whole head, of which ``restorable_tokens`` are
    covered by chunks.
    """

    tenant: TenantId
    session: SessionId
    generation: int
    parent_generation: int  #: 0 where there is none
    engine_id: str
    adapter_digest: str  #: empty without an adapter
    created_unix_s: float
    fingerprint: Fingerprint
    chunk_tokens: int
    tokens: TokenIds[int]
    chunks: tuple[ChunkRecord, ...]
    #: Segment id to wrapped data key; empty without encryption (the field is part of format 1).
    wrapped_keys: tuple[tuple[str, bytes], ...] = ()
    forked_from: Origin | None = None  #: of a fork's first snapshot: all its chunks are shared

    @cached_property
    def groups(self) -> KvGroups:
        """The KV groups of the engine that wrote it."""
        named = max((chunk.group for chunk in self.chunks), default=0) + 1
        return groups_of(self.fingerprint, self.chunk_tokens, named)

    @cached_property
    def restorable_tokens(self) -> int:
        """The longest context that the chunks restore."""
        return self.restorable_up_to(len(self.tokens))

    def restorable_up_to(self, tokens: int, bad: Collection[ChunkRecord] = ()) -> int:
        """Return the longest context of at most *tokens* tokens that the chunks restore.

        Where all groups have full attention, every whole chunk is one; with a window, only those
        at whose end all chunks of the window were kept.

        :param bad: chunks that must not be used
        """
        groups = self.groups
        sound = [chunk for chunk in self.chunks if chunk not in bad] if bad else self.chunks
        if groups.windowed:
            numbers = (self.number(chunk, groups) for chunk in sound)
            return groups.reach(numbers, tokens // self.chunk_tokens) * self.chunk_tokens
        reached = self._ends if not bad else _gapless(sound, groups.count)
        return min(_last_within(ends, tokens) for ends in reached)

    @cached_property
    def _ends(self) -> list[list[int]]:
        return _gapless(self.chunks, self.groups.count)

    def number(self, chunk: ChunkRecord, groups: KvGroups) -> int:
        """Return the number that a chunk has in an engine with these groups."""
        return groups.number(chunk.group, chunk.start_token // self.chunk_tokens)

    @property
    def bytes_digest(self) -> bytes:
        """The digest of the fingerprint's ``bytes`` class: 32 bytes."""
        return self.fingerprint.digest(FieldClass.BYTES)

    @cached_property
    def loss(self) -> SnapshotLoss | None:
        """What was lost by storing it; ``None`` where KV is stored as it was."""
        way = self.fingerprint.fields.get(LOSSY_FIELD)
        return loss_of(str(way), (chunk.loss for chunk in self.chunks)) if way else None

    @property
    def raw_bytes(self) -> int:
        """KV bytes that the chunks hold when decoded."""
        return sum(chunk.raw_bytes for chunk in self.chunks)

    @property
    def stored_bytes(self) -> int:
        """KV bytes as they lie on disk."""
        return sum(chunk.stored_bytes for chunk in self.chunks)

    @property
    def segment_ids(self) -> frozenset[SegmentId]:
        """The segments that this snapshot keeps alive."""
        return frozenset(chunk.segment_id for chunk in self.chunks)


@dataclass(frozen=True)
class SnapshotSummary:
    """What the registry and the interfaces tell of a snapshot."""

    generation: int
    parent_generation: int
    created_unix_s: float
    tokens_total: int
    tokens_restorable: int
    chunks: int
    raw_bytes: int
    stored_bytes: int
    new_bytes: int  #: stored by this suspend
    shared_bytes: int  #: taken over from earlier snapshots
    seconds: float
    engine_id: str
    model: str
    lossy: SnapshotLoss | None = None  #: ``None``: KV is stored as it was
