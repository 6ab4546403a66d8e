"""The system calls of the store, and the one way in which its files come into being.

Nothing else in sessiond renames, links or syncs. :class:`FileOps` is the seam for tests: each
method is one system call, so a test can make any of them fail, or crash at any step.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

from sessiond.domain.errors import StoreError, StoreFullError
from sessiond.domain.ids import new_hex_id
from sessiond.store import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILE_MODE = 0o600
FOLDER_MODE = 0o700

_FALLOC_KEEP_SIZE = 0x01
_FALLOC_PUNCH_HOLE = 0x02
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]


class Space(NamedTuple):
    """The room of a file system, as an ordinary user may use it."""

    free_bytes: int
    total_bytes: int


class FileOps:
    """One method for each system call that the store makes on its files."""

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        """Open without following a symlink in the last component; close-on-exec."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        """Close; locks held through *fd* are gone."""
        os.close(fd)

    def mkdir(self, name: str, *, dir_fd: int | None) -> None:
        """Make a folder that only the owner can enter."""
        os.mkdir(name, FOLDER_MODE, dir_fd=dir_fd)

    def rmdir(self, name: str, *, dir_fd: int) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=dir_fd)

    def pread(self, fd: int, buffer: memoryview, offset_bytes: int) -> int:
        """Read into *buffer*; returns how many bytes came."""
        return os.preadv(fd, [buffer], offset_bytes)

    def pwrite(self, fd: int, data: bytes | memoryview, offset_bytes: int) -> int:
        """Write; returns how many bytes went."""
        return os.pwrite(fd, data, offset_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Set the file's length."""
        os.ftruncate(fd, size_bytes)

    def allocate(self, fd: int, offset_bytes: int, size_bytes: int) -> None:
        """Reserve space, and extend the file over it."""
        _call_fallocate(fd, 0, offset_bytes, size_bytes)

    def punch(self, fd: int, offset_bytes: int, size_bytes: int) -> None:
        """Give a range's space back; it reads as zeros."""
        _call_fallocate(fd, _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE, offset_bytes, size_bytes)

    def size_bytes(self, fd: int) -> int:
        """Return the length of an open file."""
        return os.fstat(fd).st_size

    def space(self, fd: int) -> Space:
        """Return the room of the file system that an open file is on."""
        found = os.fstatvfs(fd)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def sync(self, fd: int) -> None:
        """Make a file's bytes, or a folder's entries, durable."""
        os.fsync(fd)

    def rename(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        """Move, replacing what is there."""
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)

    def link(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        """Give a second name; fails if it is taken."""
        os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=dir_fd)


REAL_OPS = FileOps()


def _call_fallocate(fd: int, mode: int, offset_bytes: int, size_bytes: int) -> None:
    if _fallocate(fd, mode, offset_bytes, size_bytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Turn an ``OSError`` into a store error; its text names no path.

    :raises StoreFullError: there was no room.
    :raises StoreError: anything else that the system refused.
    """
    try:
        yield
    except OSError as error:
        raise store_error(doing, error) from error


def store_error(doing: str, error: OSError) -> StoreError:
    """Return the store error for a system error."""
    text = os.strerror(error.errno) if error.errno else "unexpected end"
    if error.errno in _FULL:
        return StoreFullError(f"{doing} failed: {text}.")
    return StoreError(f"{doing} failed: {text}.")


def is_unsupported(error: OSError) -> bool:
    """Whether the file system cannot do at all what was asked."""
    return error.errno in _NOT_SUPPORTED


def write_fully(ops: FileOps, fd: int, data: bytes | memoryview, offset_bytes: int) -> None:
    """Write all of *data*, however many calls it takes."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        written = ops.pwrite(fd, view[done:], offset_bytes + done)
        if written <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += written


def read_fully(ops: FileOps, fd: int, buffer: memoryview, offset_bytes: int) -> int:
    """Fill *buffer* as far as the file goes; returns how many bytes came."""
    done = 0
    while done < len(buffer):
        got = ops.pread(fd, buffer[done:], offset_bytes + done)
        if got == 0:
            break
        done += got
    return done


def lock_shared(fd: int) -> None:
    """Wait for a shared lock on the open file."""
    fcntl.flock(fd, fcntl.LOCK_SH)


def lock_exclusive(fd: int) -> None:
    """Wait for the exclusive lock on the open file."""
    fcntl.flock(fd, fcntl.LOCK_EX)


def try_lock(fd: int, *, exclusive: bool) -> bool:
    """Take a lock if nobody holds a conflicting one."""
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_linked(fd: int, name: str, *, dir_fd: int) -> bool:
    """Whether *name* is still the open file: a lock on an unlinked file protects nothing."""
    try:
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


class Publish(Enum):
    """How a finished file takes its name."""

    CREATE = "create"  #: durable; the name must be free
    REPLACE = "replace"  #: durable; takes the place of what is there
    HINT = "hint"  #: like REPLACE, but a power failure may leave the old file, or an empty one


class DurableFile:
    """A file in ``tmp/`` that is invisible until it is published, whole, under its name.

    The writer holds a shared lock on it, before and after; who sweeps ``tmp/`` or collects
    segments needs the exclusive one. The owner ends with :meth:`close`, which removes a file
    that was not published.
    """

    def __init__(self, ops: FileOps, tmp_fd: int) -> None:
        """Make the file; *tmp_fd* is the open ``tmp/``, which the caller keeps open."""
        self._ops = ops
        self._tmp_fd = tmp_fd
        self._in_tmp = False
        self.fd = -1
        while self.fd < 0:
            self._create()

    def _create(self) -> None:
        self._name = f"{new_hex_id()}{layout.TMP_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        fd = self._ops.open(self._name, flags, dir_fd=self._tmp_fd)
        # A sweep may take the file between its creation and its lock: then begin again.
        if try_lock(fd, exclusive=False) and is_linked(fd, self._name, dir_fd=self._tmp_fd):
            self.fd = fd
            self._in_tmp = True
        else:
            self._ops.close(fd)

    def write(self, data: bytes | memoryview, offset_bytes: int) -> None:
        """Write at an offset; safe from several threads."""
        write_fully(self._ops, self.fd, data, offset_bytes)

    def publish(
        self,
        folder_fd: int,
        name: str,
        how: Publish,
        last_check: Callable[[], None] | None = None,
    ) -> None:
        """Give the file its name; when this returns, the file is whole and has it.

        :param last_check: called right before; the file gets no name if it raises.
        :raises FileExistsError: the name is taken and *how* is ``CREATE``.
        """
        if how is not Publish.HINT:
            self._ops.sync(self.fd)
        if last_check is not None:
            last_check()
        if how is Publish.CREATE:
            self._ops.link(self._name, name, source_fd=self._tmp_fd, target_fd=folder_fd)
        else:
            self._ops.rename(self._name, name, source_fd=self._tmp_fd, target_fd=folder_fd)
            self._in_tmp = False
        if how is not Publish.HINT:
            self._sync_folder(folder_fd, name, undo=how is Publish.CREATE)
        self._remove()

    def _sync_folder(self, folder_fd: int, name: str, *, undo: bool) -> None:
        try:
            self._ops.sync(folder_fd)
        except OSError:
            # The caller is told that it failed, so it must not be found later.
            if undo:
                with contextlib.suppress(OSError):
                    self._ops.unlink(name, dir_fd=folder_fd)
            raise

    def _remove(self) -> None:
        if self._in_tmp:
            self._in_tmp = False
            with contextlib.suppress(OSError):  # a sweep takes what cannot be removed now
                self._ops.unlink(self._name, dir_fd=self._tmp_fd)

    def close(self) -> None:
        """Remove an unpublished file, and give up the lock."""
        if self.fd >= 0:
            self._remove()
            self._ops.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
