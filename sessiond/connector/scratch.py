"""An engine's own folder for temporary files, which no engine leaves behind for long.

vLLM puts its sockets and rendezvous files into the temporary folder, under names that tell
nobody whose they are, and leaves them there when it is killed. ``sessiond engine`` gives it a
folder of its own. The engine's processes hold that locked for as long as they live; the next
start removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sessiond.domain.ids import new_hex_id

_PREFIX = "sessiond-engine-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{8}}")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
#: A Unix socket's path has at most this many bytes; vLLM's are named by UUIDs of 36.
_SOCKET_PATH_BYTES = 107
_UUID_BYTES = 36


@dataclass(frozen=True)
class Scratch:
    """A folder that lives as long as somebody holds its lock."""

    path: Path
    lock_fd: int  #: kept across ``exec``

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what an engine needs in its environment to use the folder.

        :param env: its environment otherwise
        """
        # Compiled code stays where it would have been: it is wanted again after the next start.
        name = re.sub(r'[\\/:*?"<>|]', "_", _user_name())  # as PyTorch makes it
        cache = Path(tempfile.gettempdir()) / f"torchinductor_{name}"
        return {
            "TMPDIR": str(self.path),
            "TORCHINDUCTOR_CACHE_DIR": env.get("TORCHINDUCTOR_CACHE_DIR", str(cache)),
        }

    def close(self) -> None:
        """Let go of the folder; it is removed unless somebody else holds it."""
        os.close(self.lock_fd)
        _remove_if_free(self.path)


def make(parent: Path | None = None) -> Scratch | None:
    """Make a folder, locked by this process and all that inherit the descriptor.

    :param parent: the system's temporary folder if not given
    :return: ``None`` if sockets in it would have too long a path
    :raises OSError: it cannot be made
    """
    parent = parent or Path(tempfile.gettempdir())
    while True:
        path = parent / f"{_PREFIX}{new_hex_id()[:8]}"
        if len(os.fsencode(path)) + 1 + _UUID_BYTES > _SOCKET_PATH_BYTES:
            return None
        path.mkdir(mode=0o700)
        lock_fd = _locked(path)
        if lock_fd is not None:  # otherwise another start has removed it before it was locked
            os.set_inheritable(lock_fd, True)  # noqa: FBT003 - the name says it
            return Scratch(path, lock_fd)


def hold() -> int | None:
    """Hold the folder that this process was given, until its end.

    Not every process of an engine inherits the descriptor, and the first one may die first.

    :return: the descriptor; ``None`` if this engine has no such folder
    """
    path = Path(tempfile.gettempdir())
    if _NAME.fullmatch(path.name):
        with suppress(OSError):  # an engine that cannot hold it runs all the same
            return _locked(path)
    return None


def reclaim(parent: Path | None = None) -> list[Path]:
    """Remove this user's folders that nobody holds, and return them."""
    parent = parent or Path(tempfile.gettempdir())
    return [path for path in _folders(parent) if _remove_if_free(path)]


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(path for path in parent.iterdir() if _NAME.fullmatch(path.name))


def _remove_if_free(path: Path) -> bool:
    try:
        fd = os.open(path, _OPEN_FOLDER)
    except OSError:
        return False  # gone, or no folder: a link is not followed
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(fd, path):
            return False
        shutil.rmtree(path)  # follows no link either
    except OSError:
        return False  # it is held
    finally:
        os.close(fd)
    return True


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the folder; ``None`` if somebody has removed it."""
    try:
        fd = os.open(path, _OPEN_FOLDER)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    if _is_at(fd, path):
        return fd
    os.close(fd)
    return None


def _is_at(fd: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"
