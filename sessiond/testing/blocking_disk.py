"""A disk that hangs when it is told to: an ext4 file system that blocks in the kernel.

The file system lies on a loop device, and that on the one file of a FUSE server, which is this
module run as a program. While it holds back reads or writes, whoever waits for one sleeps
uninterruptibly, as with a dead disk or a network that is gone; no signal wakes it. When the
server ends, everything that waits fails, so nothing can stay blocked for ever.

Needs root, ``/dev/fuse``, loop devices and mkfs.ext4.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

_DISK_BYTES = 96 << 20
_MAX_WRITE_BYTES = 128 << 10
_FILE_NAME = b"disk"
_ROOT_NODE, _FILE_NODE = 1, 2

# include/uapi/linux/fuse.h
_READ, _WRITE = 15, 16
_UNANSWERED = frozenset({2, 36, 42})  # forget, interrupt, batch-forget
_HEADER = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_INIT_ANSWER = struct.Struct("<IIIIHHIIHHI7I")
_AT = struct.Struct("<QQI")  # read and write: file handle, offset, size
_WRITE_HEADER_BYTES = 40
_DIRECT_IO = 1  # the loop device's own pages must not cache what we serve


class CannotBlockError(RuntimeError):
    """This machine, or this user, has no such disk; the text says why."""


class BlockingDisk:
    """A mounted file system whose disk can be made to hang. Use it as a context.

    :param folder: where to put everything
    :raises CannotBlockError: it cannot be had here
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mounted"  #: the file system
        self._image, self._fuse = folder / "image", folder / "fuse"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or not Path("/dev/fuse").exists() or not shutil.which("mkfs.ext4"):
            raise CannotBlockError("It takes root, /dev/fuse and mkfs.ext4.")
        with self._stack as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.go_on()
        self._stack.close()

    def hang(self, what: str) -> None:
        """Hold back from now on: ``reads`` or ``writes``."""
        self._tell(what)

    def go_on(self) -> None:
        """Answer what was held back, and hold back nothing any more."""
        self._tell("nothing")

    def _tell(self, word: str) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(word.encode() + b"\n")
        self._server.stdin.flush()
        self._server.stdout.readline()  # it has understood

    def _begin(self, stack: contextlib.ExitStack) -> None:
        self.path.mkdir()
        self._fuse.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", str(self._image))
        command = [sys.executable, "-m", __name__, str(self._image), str(self._fuse)]
        self._server = subprocess.Popen(  # noqa: S603 - this module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.callback(_run, "umount", "--lazy", str(self._fuse))
        stack.callback(self._end_server)
        assert self._server.stdout is not None
        if not self._server.stdout.readline():
            raise CannotBlockError("FUSE cannot be mounted here.")
        _run("mount", "-o", "loop", str(self._fuse / "disk"), str(self.path))
        stack.callback(_run, "umount", str(self.path))

    def _end_server(self) -> None:
        # What still waits fails now; the unmount that comes next finds nothing busy.
        self._server.kill()
        self._server.communicate()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        raise CannotBlockError(f"{command[0]}: {error} {said.decode()}") from error


class _Server:
    """Serves one file; runs in a process of its own."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self._disk = os.open(image, os.O_RDWR)
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        self._held = 0  # the operation that is not answered
        self._waiting: list[bytes] = []
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"sessiond-test", os.fsencode(mount_point), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), "mount")

    def run(self) -> None:
        """Serve until standard input ends."""
        while True:
            ready, _, _ = select.select([self._fuse, 0], [], [])
            if 0 in ready and not self._obey(os.read(0, 100)):
                return
            if self._fuse in ready:
                self._handle(os.read(self._fuse, _MAX_WRITE_BYTES + 4096))

    def _obey(self, words: bytes) -> bool:
        if not words:
            return False
        self._held = {b"reads": _READ, b"writes": _WRITE}.get(words.strip(), 0)
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._handle(request)
        os.write(1, b"done\n")
        return True

    def _handle(self, request: bytes) -> None:
        _, operation, unique, node, *_ = _HEADER.unpack_from(request)
        if operation in _UNANSWERED:
            return
        if operation == self._held:
            self._waiting.append(request)
            return
        answer = self._answer(operation, node, request[_HEADER.size :])
        error, data = (answer, b"") if isinstance(answer, int) else (0, answer)
        os.write(self._fuse, _ANSWER.pack(_ANSWER.size + len(data), error, unique) + data)

    def _answer(self, operation: int, node: int, body: bytes) -> bytes | int:
        """Return what an operation answers, or a negative error number."""
        match operation:
            case 1:  # lookup
                answer = self._lookup(body)
            case 3 | 4:  # getattr, setattr
                answer = struct.pack("<QII", 1, 0, 0) + self._attributes(node)
            case 14:  # open
                answer = struct.pack("<QIi", 0, _DIRECT_IO, 0)
            case 15 | 16:
                answer = self._move(operation, body)
            case 18 | 20 | 25:  # release, fsync, flush
                answer = b""
            case 26:  # init
                limits = (0, 0, 16, 12, _MAX_WRITE_BYTES, 1, 32, 0, 0, *[0] * 7)
                answer = _INIT_ANSWER.pack(7, 31, *limits)
            case _:
                answer = -errno.ENOSYS
        return answer

    def _move(self, operation: int, body: bytes) -> bytes:
        _, offset, size = _AT.unpack_from(body)
        if operation == _READ:
            return os.pread(self._disk, size, offset)
        data = body[_WRITE_HEADER_BYTES : _WRITE_HEADER_BYTES + size]
        return struct.pack("<II", os.pwrite(self._disk, data, offset), 0)

    def _lookup(self, name: bytes) -> bytes | int:
        if name.rstrip(b"\0") != _FILE_NAME:
            return -errno.ENOENT
        return _ENTRY.pack(_FILE_NODE, 0, 1, 1, 0, 0) + self._attributes(_FILE_NODE)

    def _attributes(self, node: int) -> bytes:
        is_root = node == _ROOT_NODE
        size = 0 if is_root else os.fstat(self._disk).st_size
        mode = stat.S_IFDIR | 0o700 if is_root else stat.S_IFREG | 0o600
        return _ATTR.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    server = _Server(Path(sys.argv[1]), Path(sys.argv[2]))
    os.write(1, b"mounted\n")
    server.run()
