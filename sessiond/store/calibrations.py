"""What was measured of each kind of engine: small files, hints, each replaced as a whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import StoreCorruptError, StoreError
from sessiond.store import layout
from sessiond.store.fileio import Publish, lock_exclusive, store_errors
from sessiond.store.sealed import parse_json_object
from sessiond.store.tree import list_names

if TYPE_CHECKING:
    from sessiond.store.tree import Tree

#: Far more than the samples of one kind of engine take.
MAX_FILE_BYTES: Final = 1 << 20
#: Of so many kinds of engines, the files that were written last stay.
MOST_FILES: Final = 64

#: Makes what is to be kept of what is.
Change: TypeAlias = Callable[[Mapping[str, JsonValue] | None], Mapping[str, JsonValue]]


class Calibrations:
    """The files below ``calibration/``."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self, kind: str) -> dict[str, JsonValue] | None:
        """Return what was written last of a kind of engine; ``None`` if nothing was.

        :raises StoreError: it is damaged, or the system could not read it.
        """
        with store_errors("Reading a calibration"):
            try:
                name = layout.calibration_file(kind)
                data = self._tree.read(layout.CALIBRATIONS, name, MAX_FILE_BYTES)
            except FileNotFoundError:
                return None
        return parse_json_object(data)

    def revise(self, kind: str, change: Change) -> None:
        """Replace what is kept of a kind of engine by what *change* makes of it; durable.

        Other daemons wait meanwhile, so that none overwrites what another has written.

        :param kind: a digest: lower-case hex digits
        :param change: gets what is kept; ``None`` if that is nothing, or damaged
        :raises StoreError: it is too large, or could not be written; what was there stays.
        """
        with (
            store_errors("Writing a calibration"),
            self._tree.folder(layout.CALIBRATIONS, create=True) as fd,
        ):
            lock_exclusive(fd)  # until it is closed
            data = canonical_json(dict(change(self._known(kind)))) + b"\n"
            if len(data) > MAX_FILE_BYTES:
                raise StoreError("A calibration is too large to be kept.")
            name = layout.calibration_file(kind)
            self._tree.write(layout.CALIBRATIONS, name, data, Publish.REPLACE)
            self._remove_oldest(fd)

    def _known(self, kind: str) -> dict[str, JsonValue] | None:
        try:
            return self.read(kind)
        except StoreCorruptError:
            return None

    def _remove_oldest(self, fd: int) -> None:
        """Remove the files of engines that were not seen for the longest time."""
        names = [name for name in list_names(fd) if layout.is_calibration_file(name)]
        if len(names) <= MOST_FILES:
            return
        names.sort(key=lambda name: os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime)
        for name in names[:-MOST_FILES]:
            with contextlib.suppress(FileNotFoundError):
                self._tree.ops.unlink(name, dir_fd=fd)
