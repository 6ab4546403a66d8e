"""Which frames of which segments the committed manifests keep alive, and whose they are."""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sessiond.domain.errors import StoreError
from sessiond.store import layout
from sessiond.store.catalogue import read_manifest, session_folders
from sessiond.store.format import align_up
from sessiond.store.tree import BLOCK_BYTES, Tree, list_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sessiond.domain.ids import SegmentId, SessionId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import ChunkRecord
    from sessiond.store.layout import Folder

#: Offsets of frames, or their sizes: eight bytes each, because a store holds millions.
_Numbers: TypeAlias = "array[int]"


@dataclass(frozen=True)
class Frames:
    """The frames of one segment that one manifest references."""

    offsets: _Numbers
    sizes: _Numbers  #: on disk, in the same order


@dataclass(frozen=True)
class ManifestFacts:
    """What the store's upkeep needs of one manifest."""

    tenant: TenantId
    session: SessionId
    created_unix_s: float
    raw_bytes: int
    stored_bytes: int
    frames: Mapping[SegmentId, Frames]


@dataclass(frozen=True)
class KnownManifest:
    """A manifest's file, as it was found."""

    generation: int
    identity: tuple[int, int]  #: inode and change time: the name may come to be another file
    disk_bytes: int
    facts: ManifestFacts | None  #: ``None``: cannot be read

    def is_still(self, earlier: KnownManifest) -> bool:
        """Whether the same snapshot was found earlier, and not another one of its number."""
        if self.identity == earlier.identity:
            return True
        # A link to the file, as a backup makes it, changes its change time.
        return (
            self.facts is not None
            and earlier.facts is not None
            and self.generation == earlier.generation
            and self.facts.created_unix_s == earlier.facts.created_unix_s
            and self.facts.frames.keys() == earlier.facts.frames.keys()
        )


@dataclass(frozen=True)
class References:
    """What the manifests of some tenants say."""

    _frames: Mapping[SegmentId, Sequence[_Numbers]]
    #: Tenants with a manifest that cannot be read: nothing of theirs may be called dead.
    unreadable: frozenset[str]

    def live_offsets(self, segment_id: SegmentId) -> set[int]:
        """Return the offsets of the segment's frames that a manifest references."""
        return set().union(*self._frames.get(segment_id, ()))


class ReferenceScan:
    """Scans manifests, again and again; each is read once, because it is immutable.

    Several threads may use one scan: each replaces what is known of a session as a whole.
    """

    def __init__(self, tree: Tree, keys: KeyRing) -> None:
        self._tree, self._keys = tree, keys
        self._known: dict[Folder, dict[int, KnownManifest]] = {}

    def scan(self, tenant_names: Iterable[str]) -> References:
        """Return what the manifests of these tenants reference now.

        :raises OSError: a folder or file could not be read; nothing is known then.
        """
        frames: dict[SegmentId, list[_Numbers]] = defaultdict(list)
        unreadable = set()
        for tenant_name in tenant_names:
            for folder in session_folders(self._tree, tenant_name):
                for known in self.session(folder):
                    if known.facts is None:
                        unreadable.add(tenant_name)
                        continue
                    for segment_id, found in known.facts.frames.items():
                        frames[segment_id].append(found.offsets)
        return References(frames, frozenset(unreadable))

    def session(self, folder: Folder) -> list[KnownManifest]:
        """Return what is known of a session's manifests as they are now, oldest first.

        :raises OSError: the folder or a file could not be read.
        """
        earlier = self._known.get(folder, {})
        found: dict[int, KnownManifest] = {}
        gone = (FileNotFoundError, NotADirectoryError)
        with contextlib.suppress(*gone), self._tree.folder(folder) as fd:
            for generation in filter(None, map(layout.generation_of, list_names(fd))):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    known = earlier.get(generation)
                    found[generation] = self._manifest(folder, generation, fd, known)
        self._known[folder] = found
        return [found[generation] for generation in sorted(found)]

    def forget_others(self, folders: Collection[Folder]) -> None:
        """Forget the sessions that are not among *folders*: they are gone."""
        for folder in self._known.keys() - set(folders):
            self._known.pop(folder, None)

    def _manifest(
        self, folder: Folder, generation: int, folder_fd: int, earlier: KnownManifest | None
    ) -> KnownManifest:
        name = layout.manifest_file(generation)
        info = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        identity = (info.st_ino, info.st_ctime_ns)
        # What could not be read is tried again: the disk may have been dark for a moment.
        if earlier is not None and earlier.facts is not None and earlier.identity == identity:
            return earlier
        facts = self._facts(folder, generation)
        return KnownManifest(generation, identity, info.st_blocks * BLOCK_BYTES, facts)

    def _facts(self, folder: Folder, generation: int) -> ManifestFacts | None:
        try:
            manifest = read_manifest(self._tree, self._keys, folder, generation)
        except StoreError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None  # a bad sector under one manifest must not cost the other tenants
        return ManifestFacts(
            manifest.tenant,
            manifest.session,
            manifest.created_unix_s,
            manifest.raw_bytes,
            manifest.stored_bytes,
            _frames_of(manifest.chunks),
        )


def _frames_of(chunks: Iterable[ChunkRecord]) -> Mapping[SegmentId, Frames]:
    frames: dict[SegmentId, Frames] = {}
    for chunk in chunks:
        found = frames.setdefault(chunk.segment_id, Frames(array("Q"), array("Q")))
        found.offsets.append(chunk.offset_bytes)
        found.sizes.append(align_up(chunk.stored_bytes))
    return frames
