"""What processes take, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Work:
    """Since the processes began; two of them subtract."""

    cpu_s: float = 0.0
    read_bytes: int = 0  #: from devices, not from the page cache
    written_bytes: int = 0  #: to devices

    def __sub__(self, other: Work) -> Work:
        """Return what was done between."""
        return Work(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(Work)))

    def __add__(self, other: Work) -> Work:
        """Return what both did."""
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Work)))


@dataclass(frozen=True)
class Memory:
    """Now."""

    rss_bytes: int  #: added up; what processes share counts more than once
    pss_bytes: int  #: what they share counts once
    shm_bytes: int  #: of that, shared memory: the RAM tier and its like


def work(pids: Iterable[int]) -> Work:
    """Return what these processes did; those that ended are left out."""
    total = Work()
    for pid in pids:
        with contextlib.suppress(OSError):
            total += _work(Path(f"/proc/{pid}"))
    return total


def memory(pids: Iterable[int]) -> Memory:
    """Return what these processes hold."""
    total = {"Rss": 0, "Pss": 0, "Pss_Shmem": 0}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name, value in _fields(Path(f"/proc/{pid}/smaps_rollup")):
                if name in total:
                    total[name] += int(value.removesuffix(" kB")) << 10
    return Memory(*total.values())


def _work(process: Path) -> Work:
    times = (process / "stat").read_text().rpartition(")")[2].split()
    moved = dict(_fields(process / "io"))
    cpu_s = (int(times[11]) + int(times[12])) / _TICKS_PER_S
    return Work(cpu_s, int(moved["read_bytes"]), int(moved["write_bytes"]))


def _fields(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()
