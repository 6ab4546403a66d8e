"""What files were found to hold, for as long as it is certain that they are the same.

Every turn asks for the same heads, manifests and engine files. A look at a file's stamp, one
system call, is enough where nothing has changed.
"""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from sessiond.store.tree import open_regular, read_open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.store.fileio import FileOps
    from sessiond.store.layout import Folder

_T = TypeVar("_T")

#: What all that is kept may take.
DEFAULT_LIMIT_BYTES = 64 << 20
#: Tokens take their own size when parsed; chunk records, as objects, several times theirs.
_BYTES_PER_FILE_BYTE = 4
_BYTES_PER_FILE = 1024
#: File systems take times from a clock that ticks every 1 to 10 ms; old ones count seconds.
_TICK_NS = 50_000_000
_COARSE_TICK_NS = 2_500_000_000
_SECOND_NS = 1_000_000_000


class Stamp(NamedTuple):
    """What the system tells of a file, and what differs after every change of its contents."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> Stamp:
        """Return the stamp in a file's status."""
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)

    def is_settled(self, now_ns: int) -> bool:
        """Whether a change after *now_ns* gives another stamp.

        A file that took another's place may have its inode and size. If both came within one
        tick of the clock, their times are the same too.
        """
        newest_ns = max(self.modified_ns, self.changed_ns)
        coarse = self.modified_ns % _SECOND_NS == 0 and self.changed_ns % _SECOND_NS == 0
        return now_ns - newest_ns > (_COARSE_TICK_NS if coarse else _TICK_NS)


@dataclass(frozen=True)
class _Known:
    stamp: Stamp
    contents: object
    cost_bytes: int


class ParsedFiles:
    """Keeps parsed contents by place and stamp, the least used ones no longer than there is room.

    Safe to use from several threads. What it returns is shared: nobody may change it.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._known: OrderedDict[tuple[Folder, str], _Known] = OrderedDict()
        self._lock = Lock()

    def read(
        self,
        ops: FileOps,
        place: tuple[Folder, str],
        folder_fd: int,
        limit_bytes: int,
        parse: Callable[[bytes], _T],
    ) -> _T:
        """Return ``parse`` of a whole file; the same place always has the same *parse*.

        What *parse* raises is not kept.

        :param place: the folder, which is open as *folder_fd*, and the file's name
        :raises FileNotFoundError: there is none.
        :raises StoreCorruptError: it is no regular file, or longer than *limit_bytes*.
        """
        info = os.stat(place[1], dir_fd=folder_fd, follow_symlinks=False)
        if stat.S_ISREG(info.st_mode) and (known := self._find(place, Stamp.of(info))):
            return cast("_T", known.contents)
        now_ns = time.time_ns()
        fd = open_regular(ops, place[1], os.O_RDONLY, dir_fd=folder_fd)
        try:
            stamp = Stamp.of(os.fstat(fd))
            contents = parse(read_open_file(ops, fd, place[1], limit_bytes))
        finally:
            ops.close(fd)
        if stamp.is_settled(now_ns):
            cost_bytes = _BYTES_PER_FILE_BYTE * stamp.size_bytes + _BYTES_PER_FILE
            self._keep(place, _Known(stamp, contents, cost_bytes))
        return contents

    def _find(self, place: tuple[Folder, str], stamp: Stamp) -> _Known | None:
        with self._lock:
            known = self._known.get(place)
            if known is None or known.stamp != stamp:
                return None
            self._known.move_to_end(place)
            return known

    def _keep(self, place: tuple[Folder, str], known: _Known) -> None:
        with self._lock:
            earlier = self._known.pop(place, None)
            self._used_bytes += known.cost_bytes - (earlier.cost_bytes if earlier else 0)
            self._known[place] = known
            while self._used_bytes > self._limit_bytes:
                _, oldest = self._known.popitem(last=False)
                self._used_bytes -= oldest.cost_bytes
