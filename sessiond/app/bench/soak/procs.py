"""What a process holds: descriptors, threads, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from sessiond.app.bench.machine import private_bytes

_POLL_S: Final = 0.25


@dataclass(frozen=True)
class Holding:
    """What one process holds at one moment."""

    descriptors: Mapping[str, int]  #: open ones, by what they are
    threads: int
    memory_bytes: int  #: for itself, without what it shares


@dataclass(frozen=True)
class Limits:
    """By how much a process may hold more than before, without that being a leak."""

    descriptors: int  #: of each kind
    threads: int
    memory_bytes: int


def holding(pid: int) -> Holding:
    """Look at a process.

    :raises OSError: it is gone.
    """
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            kinds[_kind(str(link.readlink()))] += 1
    threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    return Holding(kinds, threads, private_bytes(pid))


def grown(name: str, before: Holding, now: Holding, limits: Limits) -> list[str]:
    """Return, in words, of what a process holds more than it may."""
    found = [
        f"{name}: {count} descriptors of {kind}, {before.descriptors.get(kind, 0)} before"
        for kind, count in sorted(now.descriptors.items())
        if count > before.descriptors.get(kind, 0) + limits.descriptors
    ]
    if now.threads > before.threads + limits.threads:
        found.append(f"{name}: {now.threads} threads, {before.threads} before")
    if now.memory_bytes > before.memory_bytes + limits.memory_bytes:
        sizes = (one.memory_bytes >> 20 for one in (now, before))
        found.append("{}: {} MiB of memory, {} before".format(name, *sizes))
    return found


def settled(
    look: Callable[[], Holding], is_done: Callable[[Holding], bool], timeout_s: float
) -> Holding:
    """Return what is held as soon as that is *done*, or after a while.

    What a server still finishes for callers that have left is no leak.
    """
    until_s = monotonic() + timeout_s
    while not is_done(found := look()) and monotonic() < until_s:
        sleep(_POLL_S)
    return found


def parent_of(pid: int) -> int:
    """Return a process's parent.

    :raises OSError: it is gone.
    """
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _kind(target: str) -> str:
    """Return what a descriptor leads to: each file of the disk is a kind of its own."""
    kind, colon, _ = target.partition(":")
    if colon and not target.startswith("/"):
        return kind if kind != "anon_inode" else target
    return target.removesuffix(" (deleted)")
