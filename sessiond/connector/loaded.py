"""Is what lies at a path still what a process has loaded from there?

A file that was changed after the process had begun may have been loaded before or after that.
Times are compared in the wall clock, because files have no other. Grains of clocks do no harm:
files are loaded seconds after a process begins, times of files are never rounded up. What is not
noticed: a clock of a file server that runs behind this machine's, or one that is set forward
while the engine starts; and a folder above the model's that was moved here and then got another
entry, which makes its two times one.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_MAX_STEPS = 400
_SNAPSHOTS = "snapshots"


def process_start_ns(pid: int) -> int:
    """Return when a process began, in nanoseconds of the wall clock as it is set now.

    :raises OSError: there is no such process
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    # Rounded up to the next tick: a file that was written right before is none that was changed.
    started_ns = (int(fields[19]) + 1) * 1_000_000_000 // ticks_per_s
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns
    return time.time_ns() - age_ns


def server_start_ns() -> int:
    """Return when the engine's API server began: the process that made this one, or this one."""
    own_ns = process_start_ns(os.getpid())
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return own_ns
    try:
        return min(own_ns, process_start_ns(parent.pid))
    except OSError:
        return own_ns


def is_changed_since(
    path: Path, since_ns: int, *, named: bool = False, touched: bool = False
) -> bool:
    """Whether *path* may have led to another file at that time.

    :param named: the file's own name tells its content, so it may be younger: a download
    :param touched: its content is known to be what it was before, however young it looks
    :raises OSError: nothing lies there
    """
    return any(
        found.st_ctime_ns > since_ns and _tells(place, found, named=named, touched=touched)
        for place, found in _way(path)
    )


def _tells(place: Path, found: os.stat_result, *, named: bool, touched: bool) -> bool:
    """Whether a part of the way, younger than it should be, makes another file of its end."""
    if stat.S_ISLNK(found.st_mode):
        # A download makes the links of a snapshot, each to a file that is named by its content.
        return not (named and place.parent.parent.name == _SNAPSHOTS)
    if stat.S_ISDIR(found.st_mode):
        # Moved here (or given other rights): new entries would have changed both times.
        return not named and found.st_ctime_ns != found.st_mtime_ns
    return not (named or touched)


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder, link and file that is passed on the way to *path*."""
    left = list(reversed(path.absolute().parts[1:]))
    at = Path("/")
    for _ in range(_MAX_STEPS):
        if not left:
            return
        part = left.pop()
        if part == "..":
            at = at.parent
            continue
        found = (at / part).lstat()
        yield at / part, found
        if not stat.S_ISLNK(found.st_mode):
            at = at / part
            continue
        target = (at / part).readlink()
        at = Path("/") if target.is_absolute() else at
        left.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
