from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessiond.app.bench.resume import files, usage
from sessiond.app.bench.resume.noise import Noise, beside
from sessiond.app.bench.resume.usage import Work

_PATIENCE_S = 30.0


@contextmanager
def child(code: str) -> Iterator[int]:
    """Run Python code that prints a line when it is ready, and then waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint(1, flush=True)\nimport sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        assert process.stdout.readline()
        yield process.pid
    finally:
        process.communicate()


def test_work_is_counted_per_process_and_subtracts() -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    with child(busy) as first, child("pass") as second:
        both, one = usage.work([first, second]), usage.work([first])
        assert one.cpu_s >= 0.19
        assert both.cpu_s >= one.cpu_s
    assert Work(3.0, 20, 5) - Work(1.0, 15, 5) == Work(2.0, 5, 0)
    assert Work(3.0, 20, 5) + Work(1.0, 15, 5) == Work(4.0, 35, 10)


def test_ended_processes_are_left_out() -> None:
    with child("pass") as pid:
        pass
    assert usage.work([pid]) == Work()
    assert usage.memory([pid]).rss_bytes == 0


def test_shared_memory_is_told_apart() -> None:
    code = "import mmap\nm = mmap.mmap(-1, 32 << 20)\nm.write(b'x' * (32 << 20))"
    with child(code) as pid:
        held = usage.memory([pid])
    assert held.shm_bytes >= 32 << 20
    assert held.rss_bytes >= held.pss_bytes >= held.shm_bytes


def test_finished_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b.tmp").write_bytes(b"x" * 50)
    assert files.stored_bytes(tmp_path) == 1000
    assert files.wait_for(tmp_path, 1000, 5) < 5
    with pytest.raises(RuntimeError, match="1000 of 1001"):
        files.wait_for(tmp_path, 1001, 0.05)


def test_forgetting_files_changes_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(os.urandom(1 << 20))
    before = path.read_bytes()
    files.forget(tmp_path)
    assert path.read_bytes() == before


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def test_competition_goes_on_until_it_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    with beside(path) as noise:
        wait_until(lambda: path.exists() and path.stat().st_size >= 8 << 20)
        assert path.stat().st_size >= 8 << 20
        assert noise.is_running()
        assert noise.work().cpu_s > 0
    assert not path.exists()
    assert not noise.is_running()


def test_competition_that_ended_by_itself_was_none(tmp_path: Path) -> None:
    noise = Noise(tmp_path / "no folder" / "noise")
    wait_until(lambda: not noise.is_running())
    with pytest.raises(RuntimeError, match="ended with 1"):
        noise.close()
