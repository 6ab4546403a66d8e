"""What is really on the disk, and whose it is: counted in blocks, as the file system does."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from sessiond.domain.retention import SessionKey, Share, exclusive_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sessiond.domain.ids import SegmentId
    from sessiond.store.fileio import Space
    from sessiond.store.references import Frames, KnownManifest


class DiskKind(StrEnum):
    """What bytes on the disk are for."""

    SEGMENTS = "segments"
    MANIFESTS = "manifests"
    HEADS = "heads"
    SESSIONS = "sessions"  #: session files, and the folders of sessions
    TMP = "tmp"
    QUARANTINE = "quarantine"
    OTHER = "other"


@dataclass(frozen=True)
class SessionUsage:
    """A session that has snapshots."""

    tenant_name: str  #: of the tenant's folder
    manifests: tuple[KnownManifest, ...]  #: oldest first

    @property
    def generations(self) -> list[int]:
        """All committed generations, ascending."""
        return [manifest.generation for manifest in self.manifests]

    @property
    def readable(self) -> list[int]:
        """Those whose manifest can be read."""
        return [manifest.generation for manifest in self.manifests if manifest.facts]

    def segments_of(self, generations: Collection[int]) -> frozenset[SegmentId]:
        """Return the segments that these generations reference."""
        found = [one.facts.frames for one in self.of(generations) if one.facts]
        return frozenset(segment_id for frames in found for segment_id in frames)

    def bytes_of(self, generations: Collection[int]) -> int:
        """Return what these generations have and the session's others have not, on disk."""
        own_bytes = sum(one.disk_bytes for one in self.of(generations))
        return self.frame_bytes_of(generations) + own_bytes

    def frame_bytes_of(self, generations: Collection[int]) -> int:
        """Return what the chunks take that only these generations of the session have."""
        others = [one.generation for one in self.manifests if one.generation not in generations]
        kept = {(segment_id, offset) for segment_id, offset, _ in self._frames(others)}
        going = {(found[0], found[1]): found[2] for found in self._frames(generations)}
        return sum(size for place, size in going.items() if place not in kept)

    def of(self, generations: Collection[int]) -> list[KnownManifest]:
        """Return the manifests of these generations."""
        return [one for one in self.manifests if one.generation in generations]

    def _frames(self, generations: Collection[int]) -> Iterator[tuple[SegmentId, int, int]]:
        for manifest in self.of(generations):
            for segment_id, frames in manifest.facts.frames.items() if manifest.facts else ():
                for offset, size_bytes in zip(frames.offsets, frames.sizes, strict=True):
                    yield segment_id, offset, size_bytes

    @property
    def newest_unix_s(self) -> float:
        """When the newest readable snapshot was made; 0 without one."""
        made = (manifest.facts.created_unix_s for manifest in self.manifests if manifest.facts)
        return max(made, default=0.0)


@dataclass(frozen=True)
class Usage:
    """What a store takes of its disk. Sizes are allocated blocks, in bytes."""

    by_kind: Mapping[DiskKind, int]
    by_tenant: Mapping[str, int]  #: by the tenant's folder name
    sessions: Mapping[SessionKey, SessionUsage]
    shares: tuple[Share, ...]  #: of segments and manifests
    unreferenced: frozenset[SegmentId]  #: no manifest names them: dead, or not committed yet
    #: Folder names of tenants with a manifest that cannot be read: nothing of theirs gets free.
    held: frozenset[str]
    raw_bytes: int  #: KV bytes of all snapshots when decoded
    stored_bytes: int  #: the same as they are stored
    space: Space

    @property
    def total_bytes(self) -> int:
        """Everything below the root."""
        return sum(self.by_kind.values())

    @cached_property
    def exclusive_bytes(self) -> Mapping[SessionKey, int]:
        """What the removal of each session's snapshots would free by itself."""
        return exclusive_bytes(self.shares)


class Tally:
    """Adds up a usage."""

    def __init__(self) -> None:
        self._by_kind: Counter[DiskKind] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._sessions: dict[SessionKey, SessionUsage] = {}
        self._shares: Counter[frozenset[SessionKey]] = Counter()
        self._references: dict[SegmentId, list[tuple[SessionKey, Frames]]] = defaultdict(list)
        self._tenants: dict[SegmentId, str] = {}
        self._unreferenced: set[SegmentId] = set()
        self._held: set[str] = set()
        self._raw_bytes = self._stored_bytes = 0

    def is_referenced(self, segment_id: SegmentId) -> bool:
        """Whether a manifest that was added names the segment."""
        return segment_id in self._references

    def add(self, kind: DiskKind, size_bytes: int, tenant_name: str = "") -> None:
        """Count bytes that belong to no snapshot."""
        self._by_kind[kind] += size_bytes
        if tenant_name:
            self._by_tenant[tenant_name] += size_bytes

    def add_session(self, tenant_name: str, manifests: Sequence[KnownManifest]) -> None:
        """Count a session's manifests, and remember what they reference."""
        key: SessionKey | None = None
        for manifest in manifests:
            self.add(DiskKind.MANIFESTS, manifest.disk_bytes, tenant_name)
            facts = manifest.facts
            if facts is None:
                self._held.add(tenant_name)
                continue
            key = (facts.tenant, facts.session)
            self._raw_bytes += facts.raw_bytes
            self._stored_bytes += facts.stored_bytes
            self._shares[frozenset({key})] += manifest.disk_bytes
            for segment_id, frames in facts.frames.items():
                self._references[segment_id].append((key, frames))
                self._tenants[segment_id] = tenant_name
        if key:
            self._sessions[key] = SessionUsage(tenant_name, tuple(manifests))

    def add_segment(self, segment_id: SegmentId, size_bytes: int, tenant_name: str) -> None:
        """Count a segment; call this after all manifests were added.

        :param tenant_name: the owner of one that no manifest names; empty if unknown.
        """
        self.add(DiskKind.SEGMENTS, size_bytes, self._tenants.get(segment_id, tenant_name))
        references = self._references.get(segment_id)
        if not references:
            self._unreferenced.add(segment_id)
            return
        owners = frozenset(key for key, _ in references)
        if len(owners) > 1:
            size_bytes -= self._add_parts(references, size_bytes)
        self._shares[owners] += size_bytes

    def usage(self, space: Space) -> Usage:
        """Return the result."""
        return Usage(
            by_kind=self._by_kind,
            by_tenant=self._by_tenant,
            sessions=self._sessions,
            shares=tuple(Share(owners, size) for owners, size in self._shares.items()),
            unreferenced=frozenset(self._unreferenced),
            held=frozenset(self._held),
            raw_bytes=self._raw_bytes,
            stored_bytes=self._stored_bytes,
            space=space,
        )

    def _add_parts(self, references: list[tuple[SessionKey, Frames]], size_bytes: int) -> int:
        """Give each set of sessions its frames of a shared segment; return their bytes."""
        owners_of: dict[int, set[SessionKey]] = defaultdict(set)
        sizes: dict[int, int] = {}
        for key, frames in references:
            for offset, frame_bytes in zip(frames.offsets, frames.sizes, strict=True):
                owners_of[offset].add(key)
                sizes[offset] = frame_bytes
        parts: Counter[frozenset[SessionKey]] = Counter()
        for offset, owners in owners_of.items():
            parts[frozenset(owners)] += sizes[offset]
        # A file system that compresses has given fewer blocks than the frames are long.
        scale = min(1.0, size_bytes / (sum(sizes.values()) or 1))
        scaled = {owners: int(part * scale) for owners, part in parts.items()}
        self._shares.update(scaled)
        return sum(scaled.values())
