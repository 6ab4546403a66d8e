"""Reads before writes."""

from __future__ import annotations

import ctypes
import os
import threading

# ioprio_set(2): IOPRIO_WHO_PROCESS, class best-effort (2 << 13), lowest level (7).
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
_IOPRIO_LOWEST = (2 << 13) | 7
_NICE = 10
#: However busy reads are, writes go on: a write that starves would be taken for a hanging one.
_LONGEST_PAUSE_S = 0.2


class ReadGate:
    """Counts waiting and running reads; writers wait while there are any."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._reads = 0

    def enter(self) -> None:
        """A read was asked for."""
        with self._condition:
            self._reads += 1

    def leave(self) -> None:
        """A read has ended."""
        with self._condition:
            self._reads -= 1
            self._condition.notify_all()

    def wait_until_idle(self, longest_s: float = _LONGEST_PAUSE_S) -> None:
        """Return once no read waits or runs, or after *longest_s*."""
        with self._condition:
            self._condition.wait_for(lambda: self._reads == 0, longest_s)


def lower_this_thread() -> None:
    """Give the calling thread a lower CPU and I/O priority (both are per thread on Linux)."""
    thread_id = threading.get_native_id()
    lower = max(_NICE, os.getpriority(os.PRIO_PROCESS, thread_id))  # raising needs a privilege
    os.setpriority(os.PRIO_PROCESS, thread_id, lower)
    if _SYS_IOPRIO_SET is not None:
        ctypes.CDLL(None).syscall(_SYS_IOPRIO_SET, 1, thread_id, _IOPRIO_LOWEST)
