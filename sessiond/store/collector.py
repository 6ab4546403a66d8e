"""Freeing the bytes that no manifest references any more.

The rule that makes it safe: whoever will reference or read a segment holds a shared lock on it
until the manifest is durable or the load is done. The collector takes the exclusive lock
without waiting, and scans the manifests *again* while it holds it: what was committed before
is seen by that scan, and what will be committed must get the lock first, and then finds the
segment unlinked.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreError
from sessiond.store import layout
from sessiond.store.catalogue import segment_ids, tenant_names
from sessiond.store.fileio import is_unsupported, try_lock
from sessiond.store.format import IndexEntry, align_up
from sessiond.store.notes import COLLECTED, BadNote, add_note
from sessiond.store.references import References, ReferenceScan
from sessiond.store.segments import read_contents
from sessiond.store.tree import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessiond.domain.ids import SegmentId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.store.tree import Tree


@dataclass
class CollectReport:
    """What a collection did."""

    segments_removed: int = 0
    frames_freed: int = 0  #: dead frames of segments that live on
    bytes_freed: int = 0  #: as the file system counts them
    segments_busy: int = 0  #: dead, but locked by a reader or writer; the next collection's
    segments_broken: int = 0  #: cannot be read; ``verify`` tells more
    #: Folder names of tenants that were left alone, because a manifest of theirs is unreadable.
    tenants_held: list[str] = field(default_factory=list)


#: Segments that are locked at once: one scan of the manifests serves them all.
_BATCH = 32


def collect(
    tree: Tree,
    keys: KeyRing,
    *,
    tenant: TenantId | None = None,
    only: Iterable[SegmentId] | None = None,
    scan: ReferenceScan | None = None,
) -> CollectReport:
    """Remove dead segments, and free dead frames of living ones.

    :param tenant: only this tenant's; everything otherwise.
    :param only: look at these segments alone.
    :param scan: one that has read manifests before; each collection makes its own otherwise.
    :raises OSError: manifests could not be scanned; nothing was removed on their account.
    """
    names = tenant_names(tree) if tenant is None else [keys.tenant_name(tenant)]
    scan = scan or ReferenceScan(tree, keys)
    references = scan.scan(names)
    report = CollectReport(tenants_held=sorted(references.unreadable))
    candidates = iter(segment_ids(tree) if only is None else only)
    while batch := list(islice(candidates, _BATCH)):
        with contextlib.ExitStack() as locks:
            collection = _Collection(tree, report, locks)
            concerned = None if tenant is None else names[0]
            for segment_id in batch:
                collection.lock_if_dead(segment_id, references, concerned)
            # Under the locks: nothing that references these segments can be missed now.
            collection.free(scan.scan(collection.tenant_names))
    return report


@dataclass(frozen=True)
class _Locked:
    """A segment that seemed to have dead frames, under its exclusive lock."""

    fd: int
    segment_id: SegmentId
    tenant_name: str
    entries: list[IndexEntry]


class _Collection:
    """Some segments at a time; their locks go with *locks*."""

    def __init__(self, tree: Tree, report: CollectReport, locks: contextlib.ExitStack) -> None:
        self._tree, self._report, self._locks = tree, report, locks
        self._locked: list[_Locked] = []

    @property
    def tenant_names(self) -> set[str]:
        """The tenants whose manifests may reference the locked segments."""
        return {segment.tenant_name for segment in self._locked}

    def lock_if_dead(
        self, segment_id: SegmentId, references: References, tenant_name: str | None
    ) -> None:
        """Lock a segment if it has dead frames by *references*, and belongs to the tenant."""
        fd = self._open(segment_id)
        if fd < 0:
            return
        try:
            header, entries = read_contents(self._tree.ops, fd)
        except StoreError:
            self._report.segments_broken += 1
            return
        segment = _Locked(fd, segment_id, header.tenant_name, entries)
        if tenant_name not in {None, segment.tenant_name} or not _is_dead(segment, references):
            return
        if not try_lock(fd, exclusive=True):
            self._report.segments_busy += 1
        elif os.fstat(fd).st_nlink:  # else another collection has removed it
            self._locked.append(segment)

    def free(self, references: References) -> None:
        """Free what is dead of the locked segments by *references*, taken under the locks."""
        for segment in self._locked:
            if not _is_dead(segment, references):
                continue
            before = _bytes_on_disk(segment.fd)
            live = references.live_offsets(segment.segment_id)
            if live:
                self._punch(segment, live)
                self._report.bytes_freed += max(0, before - _bytes_on_disk(segment.fd))
            else:
                remove_segment(self._tree, segment.segment_id)
                self._report.segments_removed += 1
                self._report.bytes_freed += before

    def _open(self, segment_id: SegmentId) -> int:
        """Return a descriptor, closed with the locks; -1 if the segment is gone or no file."""
        name = layout.segment_file(segment_id)
        try:
            with self._tree.folder(layout.segment_folder(segment_id)) as folder_fd:
                # For writing, because holes are punched through it.
                fd = self._tree.ops.open(name, os.O_RDWR | os.O_NONBLOCK, dir_fd=folder_fd)
        except OSError:
            return -1
        self._locks.callback(self._tree.ops.close, fd)
        return fd

    def _punch(self, segment: _Locked, live: set[int]) -> None:
        for entry in segment.entries:
            if not _holds_dead_bytes(segment.fd, entry, live):
                continue
            # The note first: whoever might share the frame reads it under the segment's lock.
            note = BadNote(entry.offset_bytes, COLLECTED)
            if not add_note(self._tree, segment.segment_id, note):
                return  # the bytes go with the whole segment
            try:
                size_bytes = align_up(entry.stored_bytes)
                self._tree.ops.punch(segment.fd, entry.offset_bytes, size_bytes)
            except OSError as error:
                if is_unsupported(error):
                    return  # this file system cannot; the bytes go with the whole segment
                raise
            self._report.frames_freed += 1


def _is_dead(segment: _Locked, references: References) -> bool:
    """Whether it is certain that some frame of the segment is not referenced, or all."""
    if segment.tenant_name in references.unreadable:
        return False
    live = references.live_offsets(segment.segment_id)
    return not live or any(_holds_dead_bytes(segment.fd, entry, live) for entry in segment.entries)


def _holds_dead_bytes(fd: int, entry: IndexEntry, live: set[int]) -> bool:
    """Whether a frame that no manifest references still takes room on the disk."""
    if entry.offset_bytes in live:
        return False
    try:
        data_bytes = os.lseek(fd, entry.offset_bytes, os.SEEK_DATA)
    except OSError:
        return False  # nothing but a hole up to the file's end
    return data_bytes < entry.offset_bytes + align_up(entry.stored_bytes)


def remove_segment(tree: Tree, segment_id: SegmentId) -> None:
    """Unlink a segment and its notes, durably; the caller holds its exclusive lock."""
    folder = layout.segment_folder(segment_id)
    tree.unlink(folder, layout.segment_file(segment_id))
    tree.unlink(folder, layout.bad_notes_file(segment_id))


def _bytes_on_disk(fd: int) -> int:
    return os.fstat(fd).st_blocks * BLOCK_BYTES
