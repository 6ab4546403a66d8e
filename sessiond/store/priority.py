"""Low priority for threads that others must not have to wait for."""

from __future__ import annotations

import ctypes
import os
import threading

# ioprio_set(2): IOPRIO_WHO_PROCESS, class best-effort (2 << 13), lowest level (7).
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
_IOPRIO_LOWEST = (2 << 13) | 7
_NICE = 10


def lower_this_thread() -> None:
    """Give the calling thread a lower CPU and I/O priority (both are per thread on Linux)."""
    thread_id = threading.get_native_id()
    lower = max(_NICE, os.getpriority(os.PRIO_PROCESS, thread_id))  # raising needs a privilege
    os.setpriority(os.PRIO_PROCESS, thread_id, lower)
    if _SYS_IOPRIO_SET is not None:
        ctypes.CDLL(None).syscall(_SYS_IOPRIO_SET, 1, thread_id, _IOPRIO_LOWEST)
