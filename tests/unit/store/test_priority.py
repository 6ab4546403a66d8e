from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sessiond.store.priority import lower_this_thread


def in_a_thread(action: Callable[[], int]) -> int:
    """Run in a thread that ends with it: a thread's priority cannot be raised again."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


def test_a_lowered_thread_is_nicer() -> None:
    def nice() -> int:
        lower_this_thread()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_a_thread(nice) == max(10, os.getpriority(os.PRIO_PROCESS, 0))


def test_a_thread_that_is_nicer_already_stays_so() -> None:
    def nice() -> int:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        lower_this_thread()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_a_thread(nice) == 15


def test_other_threads_are_not_touched() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lower_this_thread).result()
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
