from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sessiond.connector.mover.priority import ReadGate


def test_without_reads_writers_do_not_wait() -> None:
    began_s = time.monotonic()
    ReadGate().wait_until_idle(longest_s=30)
    assert time.monotonic() - began_s < 5


def test_a_writer_waits_for_all_reads() -> None:
    gate = ReadGate()
    gate.enter()
    gate.enter()
    passed = threading.Event()

    def write() -> None:
        gate.wait_until_idle(longest_s=30)
        passed.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        gate.leave()
        assert not passed.wait(0.05)
        gate.leave()
        assert passed.wait(10)


def test_a_writer_does_not_wait_for_ever() -> None:
    gate = ReadGate()
    gate.enter()
    gate.wait_until_idle(longest_s=0.01)
    gate.leave()
