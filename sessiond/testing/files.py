"""Faults in the store's files: refused and short system calls, crashes, flipped bytes.

Give one of these to :meth:`sessiond.store.store.Store.open` as ``ops``. A crash is an exception
that no cleanup survives: after it, every call raises it again. The files that were open are
closed, because the system closes a dead process's files too, and with them go its locks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sessiond.store.fileio import FileOps, Space
from sessiond.store.format import ALIGNMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

#: The calls that change the disk; each is one step.
STEPS = (
    "create",
    "mkdir",
    "rmdir",
    "pwrite",
    "truncate",
    "allocate",
    "punch",
    "sync",
    "rename",
    "link",
    "unlink",
)


class Crash(BaseException):
    """The process died here. No ``except Exception`` catches it."""


class SteppedOps(FileOps):
    """Real file operations, each of which passes :meth:`before` first."""

    def before(self, call: str, name: str) -> None:
        """Do something before a call; *name* is what it works on, if that has a name."""

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        """Count only what may create a file."""
        self.before("create" if flags & os.O_CREAT else "open", name)
        return super().open(name, flags, dir_fd=dir_fd)

    def mkdir(self, name: str, *, dir_fd: int | None) -> None:
        """See :class:`FileOps`, as for the calls below."""
        self.before("mkdir", name)
        super().mkdir(name, dir_fd=dir_fd)

    def rmdir(self, name: str, *, dir_fd: int) -> None:
        """Remove an empty folder."""
        self.before("rmdir", name)
        super().rmdir(name, dir_fd=dir_fd)

    def pread(self, fd: int, buffer: memoryview, offset_bytes: int) -> int:
        """Read."""
        self.before("pread", "")
        return super().pread(fd, buffer, offset_bytes)

    def pwrite(self, fd: int, data: bytes | memoryview, offset_bytes: int) -> int:
        """Write."""
        self.before("pwrite", "")
        return super().pwrite(fd, data, offset_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Set the length."""
        self.before("truncate", "")
        super().truncate(fd, size_bytes)

    def allocate(self, fd: int, offset_bytes: int, size_bytes: int) -> None:
        """Reserve space."""
        self.before("allocate", "")
        super().allocate(fd, offset_bytes, size_bytes)

    def punch(self, fd: int, offset_bytes: int, size_bytes: int) -> None:
        """Give space back."""
        self.before("punch", "")
        super().punch(fd, offset_bytes, size_bytes)

    def sync(self, fd: int) -> None:
        """Make durable."""
        self.before("sync", "")
        super().sync(fd)

    def rename(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        """Move."""
        self.before("rename", target)
        super().rename(source, target, source_fd=source_fd, target_fd=target_fd)

    def link(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        """Give a second name."""
        self.before("link", target)
        super().link(source, target, source_fd=source_fd, target_fd=target_fd)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        """Remove a name."""
        self.before("unlink", name)
        super().unlink(name, dir_fd=dir_fd)


class RecordingOps(SteppedOps):
    """Writes down the calls that change the disk."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def before(self, call: str, name: str) -> None:
        """Note the call."""
        if call in STEPS:
            self.calls.append((call, name))


class CrashingOps(SteppedOps):
    """Crashes before a given step; after that nothing works any more.

    With *power_failure*, what was not synced is lost with the crash, as far as a journalling
    file system may lose it: files keep their names and become empty, new names and new folders
    disappear. (Removed names stay removed, and replaced files replaced.)
    """

    def __init__(self, crash_at_step: int, *, power_failure: bool = False) -> None:
        """:param crash_at_step: 0 crashes before the first step."""
        self._crash_at_step = crash_at_step
        self._power_failure = power_failure
        self._unsynced = _Unsynced()
        self._open_fds: set[int] = set()
        self.steps = 0
        self.crashed = False

    def before(self, call: str, name: str) -> None:
        """Count the step, or die."""
        del name
        if self.crashed:
            raise Crash
        if call not in STEPS:
            return
        if self.steps >= self._crash_at_step:
            self._die()
        self.steps += 1

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        """Open; closed by the crash, as the system closes a dead process's files."""
        fd = super().open(name, flags, dir_fd=dir_fd)
        self._open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close, unless the crash has."""
        if fd in self._open_fds:
            self._open_fds.remove(fd)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes | memoryview, offset_bytes: int) -> int:
        """Write; lost at a power failure unless it was synced."""
        written = super().pwrite(fd, data, offset_bytes)
        self._unsynced.add(fd, partial(os.truncate, _path_of(fd), 0))
        return written

    def link(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        """Give a second name; lost at a power failure unless its folder was synced."""
        super().link(source, target, source_fd=source_fd, target_fd=target_fd)
        self._unsynced.add(target_fd, partial(os.unlink, _path_of(target_fd) / target))

    def mkdir(self, name: str, *, dir_fd: int | None) -> None:
        """Make a folder; lost at a power failure unless the folder around it was synced."""
        super().mkdir(name, dir_fd=dir_fd)
        assert dir_fd is not None
        self._unsynced.add(dir_fd, partial(shutil.rmtree, _path_of(dir_fd) / name))

    def sync(self, fd: int) -> None:
        """Make durable."""
        super().sync(fd)
        self._unsynced.forget(fd)

    def _die(self) -> None:
        self.crashed = True
        if self._power_failure:
            self._unsynced.undo()
        while self._open_fds:
            super().close(self._open_fds.pop())
        raise Crash


class _Unsynced:
    """How to undo what was not synced, by file or folder."""

    def __init__(self) -> None:
        self._undo: list[tuple[tuple[int, int], Callable[[], object]]] = []

    def add(self, fd: int, undo: Callable[[], object]) -> None:
        self._undo.append((_identity(fd), undo))

    def forget(self, fd: int) -> None:
        identity = _identity(fd)
        self._undo = [(known, undo) for known, undo in self._undo if known != identity]

    def undo(self) -> None:
        for _, undo in reversed(self._undo):
            with contextlib.suppress(FileNotFoundError):  # its name is another now, or none
                undo()


@dataclass
class _Fault:
    call: str
    error_number: int
    skip: int
    times: int
    name_part: str


class UnsyncedOps(FileOps):
    """Leaves it to the system when bytes become durable: for tests that cut no power."""

    def sync(self, fd: int) -> None:
        """Do nothing."""


class FaultyOps(SteppedOps):
    """Refuses chosen calls with a system error, or lets them do half their work."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._short_reads = 0
        self._short_writes = 0
        #: What the file system pretends to have; ``None``: the truth.
        self.pretended_space: Space | None = None

    def fail(
        self, call: str, error_number: int, *, skip: int = 0, times: int = 1, name_part: str = ""
    ) -> None:
        """Let a call fail, such as ``fail("pwrite", errno.ENOSPC)``.

        :param call: one of :data:`STEPS`, ``open`` or ``pread``.
        :param skip: let this many matching calls pass first.
        :param times: then refuse this many; the calls after them work again.
        :param name_part: only calls on names that contain this.
        """
        self._faults.append(_Fault(call, error_number, skip, times, name_part))

    def shorten(self, *, reads: int = 0, writes: int = 0) -> None:
        """Let the next reads and writes move only half of what they are asked for."""
        self._short_reads += reads
        self._short_writes += writes

    def before(self, call: str, name: str) -> None:
        """Refuse the call if a fault is due."""
        for fault in self._faults:
            if fault.call != call or fault.name_part not in name:
                continue
            if fault.skip:
                fault.skip -= 1
            elif fault.times:
                fault.times -= 1
                raise OSError(fault.error_number, os.strerror(fault.error_number))

    def space(self, fd: int) -> Space:
        """Return the room, or what is pretended."""
        return self.pretended_space or super().space(fd)

    def pread(self, fd: int, buffer: memoryview, offset_bytes: int) -> int:
        """Read, half of it if that was asked for."""
        if self._short_reads:
            self._short_reads -= 1
            buffer = buffer[: _half(len(buffer))]
        return super().pread(fd, buffer, offset_bytes)

    def pwrite(self, fd: int, data: bytes | memoryview, offset_bytes: int) -> int:
        """Write, half of it if that was asked for."""
        if self._short_writes:
            self._short_writes -= 1
            data = memoryview(data)[: _half(len(data))]
        return super().pwrite(fd, data, offset_bytes)


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


def _half(size_bytes: int) -> int:
    half = size_bytes // 2
    if size_bytes % ALIGNMENT_BYTES == 0:  # direct I/O moves nothing but whole blocks
        half = half // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    return half or size_bytes


def count_steps(action: Callable[[FileOps], object]) -> int:
    """Return how many steps *action* takes, by doing it."""
    ops = RecordingOps()
    action(ops)
    return len(ops.calls)


def flip_byte(path: Path, offset_bytes: int) -> None:
    """Change one byte of a file on disk; a negative offset counts from the end."""
    with path.open("r+b") as file:
        file.seek(offset_bytes, os.SEEK_SET if offset_bytes >= 0 else os.SEEK_END)
        place = file.tell()
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0xFF]))
        file.flush()
        os.fsync(file.fileno())
