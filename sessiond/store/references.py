"""Which frames of which segments the committed manifests keep alive."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sessiond.domain.errors import StoreError
from sessiond.store import layout
from sessiond.store.catalogue import session_folders
from sessiond.store.manifests import unpack_manifest
from sessiond.store.sealed import MAX_SEALED_BYTES
from sessiond.store.tree import Tree, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.keys import KeyRing
    from sessiond.store.layout import Folder

#: Offsets of frames: eight bytes each, because a store holds millions.
_Offsets: TypeAlias = "array[int]"


@dataclass(frozen=True)
class References:
    """What the manifests of some tenants say."""

    _frames: Mapping[SegmentId, Sequence[_Offsets]]
    #: Tenants with a manifest that cannot be read: nothing of theirs may be called dead.
    unreadable: frozenset[str]

    def live_offsets(self, segment_id: SegmentId) -> set[int]:
        """Return the offsets of the segment's frames that a manifest references."""
        return set().union(*self._frames.get(segment_id, ()))


@dataclass(frozen=True)
class _Known:
    identity: tuple[int, int]  #: inode and change time: the name may come to be another file
    frames: Mapping[SegmentId, _Offsets] | None  #: ``None``: cannot be read


class ReferenceScan:
    """Scans manifests, again and again; each is read once, because it is immutable."""

    def __init__(self, tree: Tree, keys: KeyRing) -> None:
        self._tree, self._keys = tree, keys
        self._known: dict[tuple[Folder, str], _Known] = {}

    def scan(self, tenant_names: Iterable[str]) -> References:
        """Return what the manifests of these tenants reference now.

        :raises OSError: a folder or file could not be read; nothing is known then.
        """
        frames: dict[SegmentId, list[_Offsets]] = defaultdict(list)
        unreadable = set()
        for tenant_name in tenant_names:
            for folder in session_folders(self._tree, tenant_name):
                for known in self._scan_session(folder):
                    if known.frames is None:
                        unreadable.add(tenant_name)
                        continue
                    for segment_id, offsets in known.frames.items():
                        frames[segment_id].append(offsets)
        return References(frames, frozenset(unreadable))

    def _scan_session(self, folder: Folder) -> list[_Known]:
        found = []
        for name in self._tree.names(folder):
            if layout.generation_of(name):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found.append(self._manifest(folder, name))
        return found

    def _manifest(self, folder: Folder, name: str) -> _Known:
        with self._tree.folder(folder) as fd:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            identity = (info.st_ino, info.st_ctime_ns)
            known = self._known.get((folder, name))
            if known is None or known.identity != identity:
                known = _Known(identity, self._frames_of(name, fd))
                self._known[folder, name] = known
            return known

    def _frames_of(self, name: str, folder_fd: int) -> Mapping[SegmentId, _Offsets] | None:
        try:
            data = read_file(self._tree.ops, name, MAX_SEALED_BYTES, dir_fd=folder_fd)
            manifest = unpack_manifest(data, self._keys)
        except StoreError:
            return None
        frames: dict[SegmentId, _Offsets] = {}
        for chunk in manifest.chunks:
            frames.setdefault(chunk.segment_id, array("Q")).append(chunk.offset_bytes)
        return frames
