"""Shared memory that killed engines leave behind.

vLLM's processes talk through ``/dev/shm/psm_*`` and ``/dev/shm/sem.mp-*`` files, which SIGKILL
leaves there. What an engine maps is written down while it lives; what is written down, is still
the same file (inode) and is mapped by nobody is removed later, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sessiond.domain.engines import SharedFile

_FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_NAME = r"(?:psm_|sem\.mp-|vllm_offload_)[^/\s]+"
_MAPPED = re.compile(r" (\d+) +/dev/shm/\S", re.MULTILINE)


def mapped_by(process_ids: Iterable[int]) -> frozenset[SharedFile]:
    """Return the shared memory that these processes map.

    By inode: glibc makes a named semaphore under another name, which is the one in ``maps``.
    """
    mapped = {inode for process_id in process_ids for inode in _mapped_inodes(process_id)}
    return frozenset(file for file in _present() if file.inode in mapped)


def family_of_this_process() -> list[int]:
    """Return the engine's processes: the API server, EngineCore (this one) and its workers."""
    own = os.getpid()
    children = [pid for pid in _all_processes() if _parent(pid) == own]
    return [os.getppid(), own, *children]


def reclaim(files: Iterable[SharedFile]) -> list[str]:
    """Remove those of *files* that are still there and mapped by nobody; return their names."""
    candidates = [file for file in files if _inode(file.name) == file.inode]
    if not candidates:
        return []
    in_use = mapped_by(_all_processes())
    removed = []
    for file in candidates:
        if file not in in_use:
            with contextlib.suppress(OSError):
                (_FOLDER / file.name).unlink()
                removed.append(file.name)
    return removed


def _present() -> Iterator[SharedFile]:
    for path in _FOLDER.iterdir():
        inode = _inode(path.name)
        if inode is not None:
            yield SharedFile(path.name, inode)


def _mapped_inodes(process_id: int) -> Iterator[int]:
    try:
        text = Path(f"/proc/{process_id}/maps").read_text()
    except OSError:
        return  # it ended, or is not ours to look at; then its files are not ours either
    for inode in _MAPPED.findall(text):
        yield int(inode)


def _all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _parent(process_id: int) -> int:
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def _inode(name: str) -> int | None:
    # No path from a file on disk is trusted: a bare name only, and never through a link.
    if not re.fullmatch(_NAME, name):
        return None
    try:
        return (_FOLDER / name).lstat().st_ino
    except (OSError, ValueError):  # ValueError: the name holds a NUL
        return None
