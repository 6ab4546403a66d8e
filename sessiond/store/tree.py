"""A store root and its folders, opened component by component so that no symlink is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError, StoreInsecureError
from sessiond.store import layout
from sessiond.store.fileio import DurableFile, FileOps, Publish, read_fully, try_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sessiond.store.layout import Folder

#: The unit of ``st_blocks``.
BLOCK_BYTES = 512
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY
#: What opening a symlink, a socket, a device or (for writing) a folder answers.
_NO_FILE_OF_OURS = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR})


@dataclass(frozen=True)
class Tree:
    """File access below one root."""

    root: Path
    ops: FileOps

    @contextlib.contextmanager
    def folder(self, parts: Folder, *, create: bool = False) -> Iterator[int]:
        """Open a folder; yields its descriptor.

        :raises FileNotFoundError: there is none, and *create* is false.
        """
        fd = self.open_folder(parts, create=create)
        try:
            yield fd
        finally:
            self.ops.close(fd)

    @contextlib.contextmanager
    def inner_folder(self, name: str, folder_fd: int) -> Iterator[int]:
        """Open a folder in an open one; yields its descriptor.

        :raises FileNotFoundError: there is none.
        """
        fd = self._step(name, folder_fd, create=False)
        try:
            yield fd
        finally:
            self.ops.close(fd)

    def open_folder(self, parts: Folder, *, create: bool = False) -> int:
        """Open a folder; the caller closes the descriptor."""
        fd = self.ops.open(str(self.root), _OPEN_FOLDER)
        for part in parts:
            try:
                inner = self._step(part, fd, create=create)
            finally:
                self.ops.close(fd)
            fd = inner
        return fd

    def _step(self, part: str, fd: int, *, create: bool) -> int:
        try:
            return self.ops.open(part, _OPEN_FOLDER, dir_fd=fd)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):  # another process was quicker
            self.ops.mkdir(part, dir_fd=fd)
        # Also when the other process made it: its sync may not be done yet.
        self.ops.sync(fd)
        return self.ops.open(part, _OPEN_FOLDER, dir_fd=fd)

    def names(self, parts: Folder) -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder."""
        try:
            with self.folder(parts) as fd:
                return list_names(fd)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, parts: Folder, name: str, limit_bytes: int) -> bytes:
        """Return a whole file.

        :raises FileNotFoundError: there is none.
        :raises StoreCorruptError: it is no regular file, or longer than *limit_bytes*.
        """
        with self.folder(parts) as folder_fd:
            return read_file(self.ops, name, limit_bytes, dir_fd=folder_fd)

    def write(
        self,
        parts: Folder,
        name: str,
        data: bytes,
        how: Publish,
        last_check: Callable[[], None] | None = None,
    ) -> None:
        """Bring a file into being with all of *data*, or leave everything as it was.

        :param last_check: called right before the file gets its name; may raise.
        :raises FileExistsError: the name is taken and *how* is ``CREATE``.
        """
        with (
            self.folder(parts, create=True) as folder_fd,
            self.folder(layout.TMP) as tmp_fd,
            DurableFile(self.ops, tmp_fd) as file,
        ):
            file.write(data, 0)
            file.publish(folder_fd, name, how, last_check)

    def unlink(self, parts: Folder, name: str, *, sync: bool = True) -> bool:
        """Remove a file; returns whether it was there."""
        try:
            with self.folder(parts) as fd:
                self.ops.unlink(name, dir_fd=fd)
                if sync:
                    self.ops.sync(fd)
        except FileNotFoundError:
            return False
        return True

    def move(self, parts: Folder, name: str, new_parts: Folder, new_name: str) -> None:
        """Move a file to another folder, durably."""
        with self.folder(parts) as source_fd, self.folder(new_parts) as target_fd:
            self.ops.rename(name, new_name, source_fd=source_fd, target_fd=target_fd)
            self.ops.sync(target_fd)
            self.ops.sync(source_fd)

    def exists(self, parts: Folder, name: str) -> bool:
        """Whether a regular file of this name is there."""
        try:
            with self.folder(parts) as fd:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(info.st_mode)

    def remove_folder(self, parts: Folder) -> None:
        """Remove a folder if it is there and empty."""
        with contextlib.suppress(FileNotFoundError), self.folder(parts[:-1]) as fd:
            self.ops.rmdir(parts[-1], dir_fd=fd)

    def sweep_tmp(self) -> int:
        """Remove temporary files whose writer is gone; returns how many."""
        with self.folder(layout.TMP) as fd:
            return sum(self._sweep(name, fd) for name in list_names(fd))

    def _sweep(self, name: str, tmp_fd: int) -> bool:
        try:
            fd = self.ops.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=tmp_fd)
        except OSError:
            return False  # gone already, or nothing of ours (a symlink, a socket)
        try:
            if not try_lock(fd, exclusive=True):
                return False
            with contextlib.suppress(FileNotFoundError):
                self.ops.unlink(name, dir_fd=tmp_fd)
                return True
            return False
        finally:
            self.ops.close(fd)


def list_names(folder_fd: int) -> list[str]:
    """Return the sorted names in an open folder."""
    return sorted(os.listdir(folder_fd))


def open_regular(ops: FileOps, name: str, flags: int, *, dir_fd: int | None) -> int:
    """Open a regular file.

    :raises FileNotFoundError: there is none.
    :raises StoreCorruptError: something else lies under the name.
    """
    # O_NONBLOCK: opening a FIFO that somebody planted must not wait for a writer.
    try:
        fd = ops.open(name, flags | os.O_NONBLOCK, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _NO_FILE_OF_OURS:
            raise
        raise StoreCorruptError(f"{Path(name).name} is not a regular file.") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        ops.close(fd)
        raise StoreCorruptError(f"{Path(name).name} is not a regular file.")
    return fd


def read_file(ops: FileOps, name: str, limit_bytes: int, *, dir_fd: int | None = None) -> bytes:
    """Return a whole file, of at most *limit_bytes*.

    :raises FileNotFoundError: there is none.
    :raises StoreCorruptError: it is no regular file, or too long.
    """
    fd = open_regular(ops, name, os.O_RDONLY, dir_fd=dir_fd)
    try:
        return read_open_file(ops, fd, name, limit_bytes)
    finally:
        ops.close(fd)


def read_open_file(ops: FileOps, fd: int, name: str, limit_bytes: int) -> bytes:
    """Return all of an open file, of at most *limit_bytes*.

    :raises StoreCorruptError: it is too long.
    """
    size_bytes = ops.size_bytes(fd)
    if size_bytes > limit_bytes:
        raise StoreCorruptError(f"{Path(name).name} is too long ({size_bytes} bytes).")
    data = bytearray(size_bytes)
    return bytes(data[: read_fully(ops, fd, memoryview(data), 0)])


def require_private(info: os.stat_result, what: str) -> None:
    """Refuse what others than the owner can reach.

    :raises StoreInsecureError: *what* belongs to another user, or others have rights on it.
    """
    if info.st_uid != os.geteuid():
        raise StoreInsecureError(f"{what} belongs to another user.")
    if info.st_mode & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise StoreInsecureError(f"Others than the owner can reach {what} (mode {mode:04o}).")
