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
_MAPPED = re.compile(r" (\d+) +/dev/shm/((?:psm_|sem\.mp-|vllm_offload_)[^/\s]+)$", re.MULTILINE)


def mapped_by(process_ids: Iterable[int]) -> frozenset[SharedFile]:
    """Return the shared memory that these processes map."""
    return frozenset(file for process_id in process_ids for file in _maps(process_id))


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


def _maps(process_id: int) -> Iterator[SharedFile]:
    try:
        text = Path(f"/proc/{process_id}/maps").read_text()
    except OSError:
        return  # it ended, or is not ours to look at; then its files are not ours either
    for inode, name in _MAPPED.findall(text):
        yield SharedFile(name, int(inode))


def _all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _parent(process_id: int) -> int:
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def _inode(name: str) -> int:
    # No path from a file on disk is trusted: a bare name only, and never through a link.
    if "/" in name or not _MAPPED.search(f" 1 /dev/shm/{name}"):
        return 0
    try:
        return (_FOLDER / name).lstat().st_ino
    except OSError:
        return 0
