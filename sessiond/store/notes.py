"""Notes beside a segment about chunks that must not be used: one JSON object a line.

A note is a hint that saves work, never a proof: every read verifies. So lines that cannot be
read are skipped, and a note that cannot be written is not an error.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.canonical import canonical_json
from sessiond.domain.errors import StoreCorruptError
from sessiond.store import layout
from sessiond.store.fields import Fields
from sessiond.store.fileio import Publish
from sessiond.store.sealed import parse_json_object
from sessiond.store.tree import Tree, read_file

if TYPE_CHECKING:
    from sessiond.domain.ids import SegmentId

#: Notes beyond this are not read, and no more are written.
MAX_NOTES_BYTES = 1 << 20
#: Why a frame that no manifest references may not be shared any more.
COLLECTED = "collected"


@dataclass(frozen=True)
class BadNote:
    """One chunk that must not be used."""

    offset_bytes: int
    why: str


def read_notes(tree: Tree, segment_id: SegmentId) -> list[BadNote]:
    """Return the notes of a segment; none if there is no readable file."""
    try:
        with tree.folder(layout.segment_folder(segment_id)) as fd:
            data = read_file(
                tree.ops, layout.bad_notes_file(segment_id), MAX_NOTES_BYTES, dir_fd=fd
            )
    except (FileNotFoundError, StoreCorruptError):
        return []
    return parse_notes(data)


def parse_notes(data: bytes) -> list[BadNote]:
    """Return the notes in a file's bytes, without the lines that cannot be read."""
    return [note for line in data.splitlines() if (note := _parse(line))]


def add_note(tree: Tree, segment_id: SegmentId, note: BadNote) -> bool:
    """Append a note, if it is new; returns whether it stands (a full file takes no more).

    :raises OSError: it cannot be written.
    """
    if note in read_notes(tree, segment_id):
        return True
    line = _line(note)
    with tree.folder(layout.segment_folder(segment_id)) as folder_fd:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        fd = tree.ops.open(layout.bad_notes_file(segment_id), flags, dir_fd=folder_fd)
        try:
            if tree.ops.size_bytes(fd) + len(line) >= MAX_NOTES_BYTES:
                return False
            # One call, appended by the kernel: lines of several writers do not mix. The
            # first newline ends what a crash may have left of an earlier line.
            tree.ops.pwrite(fd, b"\n" + line + b"\n", 0)
            # Durable before what it warns of is: a freed frame must not be shared.
            tree.ops.sync(fd)
            tree.ops.sync(folder_fd)
            return True
        finally:
            tree.ops.close(fd)


def forget_notes(tree: Tree, segment_id: SegmentId, good_offsets: set[int]) -> int:
    """Drop the notes on chunks that were read well; returns how many.

    The caller holds the segment's shared lock: a note that a reader adds meanwhile may be lost,
    and the next read makes it again, but the collector's must stay.
    """
    notes = read_notes(tree, segment_id)
    kept = [note for note in notes if note.offset_bytes not in good_offsets]
    if len(kept) < len(notes):
        folder, name = layout.segment_folder(segment_id), layout.bad_notes_file(segment_id)
        if kept:
            data = b"".join(b"%b\n" % _line(note) for note in kept)
            tree.write(folder, name, data, Publish.REPLACE)
        else:
            tree.unlink(folder, name)
    return len(notes) - len(kept)


def _line(note: BadNote) -> bytes:
    return canonical_json(
        {"offset_bytes": note.offset_bytes, "why": note.why, "at_unix_s": int(time.time())}
    )


def _parse(line: bytes) -> BadNote | None:
    try:
        fields = Fields(parse_json_object(line))
        return BadNote(fields.count("offset_bytes"), fields.text("why"))
    except StoreCorruptError:
        return None
