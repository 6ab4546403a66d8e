"""What an engine may leave behind is planted, and found."""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.app.bench.soak import servers as module
from sessiond.app.bench.soak.servers import FIRST, Servers
from sessiond.domain.ids import new_hex_id
from sessiond.testing.servers import Server, session_members
from sessiond.testing.stack import Stack

_PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").close()
time.sleep(600)
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path / "stack") as made:
        yield made


@pytest.fixture
def servers(stack: Stack, tmp_path: Path) -> Servers:
    return Servers(stack, tmp_path / "model", tmp_path)


@pytest.fixture
def shared_file() -> Iterator[Path]:
    path = Path("/dev/shm") / f"psm_{new_hex_id()[:8]}"
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield path
    path.unlink(missing_ok=True)


class _Engine:
    """This process, in the place of an engine."""

    pid = os.getpid()


def test_shared_memory_that_an_engine_mapped_and_left_is_found(
    servers: Servers, stack: Stack, shared_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "_engine", _Engine)
    monkeypatch.setattr(module, "session_members", lambda _leader: [os.getpid()])
    with shared_file.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        servers._note_shared()
    assert shared_file.name in servers.shared_memory()
    assert servers.shared_memory(of_the_dead=True) == []
    shared_file.unlink()
    shared_file.write_bytes(b"somebody else's, under the same name")
    assert shared_file.name not in servers.shared_memory()


def test_a_process_that_outlives_its_engine_is_told_and_ended(
    servers: Servers, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_S", 0.3)
    monkeypatch.setattr(module, "_VICTIMS", (FIRST,))
    begun = tmp_path / "begun"
    with Server([sys.executable, "-c", _PARENT, str(begun)], "", tmp_path / "log") as engine:
        monkeypatch.setattr(stack, "_engine", engine)
        while not begun.exists():
            assert engine.is_running()
            time.sleep(0.01)
        assert len(session_members(engine.pid)) == 2
        assert servers.kill_engine() == FIRST
        assert len(servers.leaked) == 1
        assert "outlived its engine" in servers.leaked[0]
        engine.kill()  # waits until nothing of it is left
        assert session_members(engine.pid) == []
