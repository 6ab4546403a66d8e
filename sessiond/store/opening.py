"""Opening a segment under a shared lock that protects it from collection."""

from __future__ import annotations

import contextlib
import os
from functools import partial

from sessiond.domain.errors import SnapshotNotFoundError, StoreCorruptError
from sessiond.domain.ids import SegmentId, is_hex_id
from sessiond.store import layout
from sessiond.store.fileio import is_linked, lock_shared
from sessiond.store.notes import BadNote, add_note
from sessiond.store.reading import use_direct_io
from sessiond.store.segments import SegmentReader
from sessiond.store.tree import Tree, open_regular


def open_segment(tree: Tree, segment_id: SegmentId, *, note_bad: bool = True) -> SegmentReader:
    """Open a segment, to be closed by the caller.

    :param note_bad: note beside the segment which of its chunks are found damaged.
    :raises SnapshotNotFoundError: there is no such segment (any more).
    :raises StoreCorruptError: its header, footer or index is broken.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises OSError: the system could not read.
    """
    if not is_hex_id(segment_id):
        raise SnapshotNotFoundError("This is no segment's id.")
    fd = _open_locked(tree, segment_id)
    try:
        use_direct_io(tree.ops, fd)
        on_bad = partial(_note_bad, tree, segment_id) if note_bad else _ignore
        reader = SegmentReader(tree.ops, fd, on_bad)
        if reader.segment_id != segment_id:
            raise StoreCorruptError("The file is another segment.")
    except BaseException:
        tree.ops.close(fd)
        raise
    return reader


def _open_locked(tree: Tree, segment_id: SegmentId) -> int:
    """Return a descriptor that holds a shared lock on a segment that is still there."""
    name = layout.segment_file(segment_id)
    try:
        with tree.folder(layout.segment_folder(segment_id)) as folder_fd:
            fd = open_regular(tree.ops, name, os.O_RDONLY, dir_fd=folder_fd)
            lock_shared(fd)  # waits while a collection looks at the segment
            if is_linked(fd, name, dir_fd=folder_fd):
                return fd
            tree.ops.close(fd)
    except FileNotFoundError:
        pass
    raise SnapshotNotFoundError("The segment does not exist any more.")


def _note_bad(tree: Tree, segment_id: SegmentId, offset_bytes: int, why: str) -> None:
    # The load's own answer is what counts; a full disk must not turn it into another.
    with contextlib.suppress(OSError):
        add_note(tree, segment_id, BadNote(offset_bytes, why))


def _ignore(_offset_bytes: int, _why: str) -> None:
    """Change nothing: the caller only looks."""
