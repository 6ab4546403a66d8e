"""Looking at the machine and at the store root; nothing is changed."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sessiond.app.doctor.measured import Facts
from sessiond.app.filesystems import file_system_of
from sessiond.domain.retention import floor_bytes
from sessiond.store import planes
from sessiond.store.fileio import FileOps
from sessiond.store.reading import direct_io_works

_HUGE_PAGES: Final = "kernel/mm/transparent_hugepage/enabled"


@dataclass(frozen=True)
class Look:
    """Where it is looked; other folders are for tests."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    shm: Path = Path("/dev/shm")  # noqa: S108 - where an engine's RAM tier lies


def find_facts(root: Path, folder: Path, floor: int | None, look: Look | None = None) -> Facts:
    """Return what is to be known of the machine.

    :param root: the store root, which may be missing
    :param folder: one on its file system, in which files may be made
    :param floor: bytes to stay free; ``None``: the default
    :raises OSError: no file can be made in *folder*.
    """
    look = look or Look()
    probe = folder / "probe"
    probe.write_bytes(bytes(4096))
    usage = shutil.disk_usage(folder)
    return Facts(
        store_root=str(root),
        exists=root.is_dir(),
        is_ours=root.is_dir() and _is_private(root),
        file_system=file_system_of(folder.resolve()),
        direct_io=_has_direct_io(probe),
        free_bytes=usage.free,
        total_bytes=usage.total,
        floor_bytes=floor_bytes(floor, usage.total),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(look),
        load_average=os.getloadavg()[0],
        huge_pages=huge_pages(look),
        kernels=planes.kernels().name,
        shm_free_bytes=shutil.disk_usage(look.shm).free if look.shm.is_dir() else 0,
        memory_free_bytes=_memory_free_bytes(look),
        clock_offset_s=probe.stat().st_mtime - time.time(),
        now_unix_s=time.time(),
    )


def usable_cores(look: Look) -> float:
    """Return how many cores this process may keep busy: by affinity, and by quota."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(look)])


def huge_pages(look: Look) -> str:
    """Return whether there are transparent huge pages; empty where the kernel does not say."""
    _, _, chosen = _text(look.sys / _HUGE_PAGES).partition("[")
    return chosen.partition("]")[0]


def _quotas(look: Look) -> list[float]:
    """Return the quotas of the process' control groups and of those around them, in cores."""
    groups = look.sys / "fs/cgroup"
    found = []
    for line in _text(look.proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container, the path may be the host's, and the group is mounted at the top.
        top = groups / "cpu" if controllers else groups
        for place in (Path(path), *Path(path).parents):
            folder = top / str(place).lstrip("/")
            found += _quota_of(folder)
    return found


def _quota_of(folder: Path) -> list[float]:
    words = _text(folder / "cpu.max").split()
    if not words:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return []  # "max", -1, or no such group
    return [int(words[0]) / int(words[1])]


def _memory_free_bytes(look: Look) -> int:
    for line in _text(look.proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 0


def _is_private(root: Path) -> bool:
    found = root.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _has_direct_io(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return direct_io_works(FileOps(), fd)
    finally:
        os.close(fd)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
