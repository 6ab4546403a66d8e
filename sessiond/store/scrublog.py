"""How far the scrub is: one small file, which the daemon that scrubs holds locked."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.canonical import canonical_json
from sessiond.domain.errors import StoreCorruptError
from sessiond.store import layout
from sessiond.store.fields import Fields
from sessiond.store.fileio import read_fully, store_errors, try_lock, write_fully
from sessiond.store.sealed import parse_json_object
from sessiond.store.tree import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.store.fileio import FileOps
    from sessiond.store.tree import Tree

_MAX_LOG_BYTES = 4096


@dataclass(frozen=True)
class ScrubPlace:
    """What the present round has done."""

    began_unix_s: float
    next_name: str  #: session folders whose names come before are done


class ScrubLog:
    """Reads and writes the place. A hint: one that cannot be read begins a new round."""

    def __init__(self, ops: FileOps, fd: int) -> None:
        """Use the open file, which the caller keeps open and locked."""
        self._ops, self._fd = ops, fd

    def read(self) -> ScrubPlace | None:
        """Return the place; ``None`` before the first round."""
        data = bytearray(_MAX_LOG_BYTES)
        with store_errors("Reading the scrub's log"):
            size_bytes = read_fully(self._ops, self._fd, memoryview(data), 0)
        try:
            fields = Fields(parse_json_object(bytes(data[:size_bytes])))
            return ScrubPlace(fields.number("began_unix_s"), fields.text("next_name"))
        except StoreCorruptError:
            return None

    def write(self, place: ScrubPlace) -> None:
        """Replace the place. Not durable: what a crash loses is read once more."""
        data = canonical_json({"began_unix_s": place.began_unix_s, "next_name": place.next_name})
        with store_errors("Writing the scrub's log"):
            write_fully(self._ops, self._fd, data, 0)
            self._ops.truncate(self._fd, len(data))


@contextlib.contextmanager
def claim_scrub(tree: Tree) -> Iterator[ScrubLog | None]:
    """Yield the log under its lock; ``None`` if another daemon scrubs now.

    :raises StoreError: the file cannot be opened.
    """
    with store_errors("Opening the scrub's log"), tree.folder(layout.ROOT) as folder_fd:
        flags = os.O_RDWR | os.O_CREAT
        fd = open_regular(tree.ops, layout.SCRUB_FILE, flags, dir_fd=folder_fd)
    try:
        yield ScrubLog(tree.ops, fd) if try_lock(fd, exclusive=True) else None
    finally:
        tree.ops.close(fd)
