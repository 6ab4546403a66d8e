"""SIGKILL at step N: counts what a process does to the disk, and kills before one step.

The count lies in shared memory, so that whoever outlives the killed process can read it.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from typing import TYPE_CHECKING
from unittest.mock import patch

from sessiond.store.store import Store
from sessiond.testing.files import STEPS, SteppedOps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from sessiond.domain.keys import KeyRing

_COUNT = struct.Struct("<Q")
_POLL_S = 0.001


class Killer:
    """Kills a process before a step; make it before the processes that share it fork.

    :param at_step: 1 kills before the first step; 0 only counts
    :param victim_pid: 0 is the process that takes the step
    """

    def __init__(self, at_step: int, victim_pid: int = 0) -> None:
        self._at_step = at_step
        self._victim_pid = victim_pid
        self._count = mmap.mmap(-1, _COUNT.size)
        self._lock = threading.Lock()
        self.armed = True

    @property
    def steps(self) -> int:
        """How many steps were begun."""
        return int(_COUNT.unpack(self._count)[0])

    def step(self) -> None:
        """Note a step, or kill."""
        if not self.armed:
            return
        with self._lock:
            count = self.steps + 1
            _COUNT.pack_into(self._count, 0, count)
            if count == self._at_step:
                _kill(self._victim_pid or os.getpid())


def _kill(pid: int) -> None:
    """Return when the process is dead; the caller's own death comes first."""
    os.kill(pid, signal.SIGKILL)
    while os.getppid() == pid or pid == os.getpid():
        time.sleep(_POLL_S)


class KillingOps(SteppedOps):
    """Real file operations that are a killer's steps.

    :param calls: which of them
    """

    def __init__(self, killer: Killer, calls: Iterable[str] = STEPS) -> None:
        self._killer = killer
        self._calls = frozenset(calls)

    def before(self, call: str, name: str) -> None:
        """Take the step."""
        del name
        if call in self._calls:
            self._killer.step()


def arm_stores(killer: Killer, calls: Iterable[str] = STEPS) -> None:
    """Make every store that this process opens from now on take a killer's steps."""
    opened = Store.open
    ops = KillingOps(killer, calls)

    def open_armed(root: Path, keys: KeyRing, **options: Any) -> Store:  # noqa: ANN401 - as open
        return opened(root, keys, **{**options, "ops": ops})

    patch.object(Store, "open", open_armed).start()
