from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector import scratch


@pytest.fixture
def parent() -> Iterator[Path]:
    """A short path: sockets have to fit into it."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def made(parent: Path) -> scratch.Scratch:
    own = scratch.make(parent)
    assert own is not None
    return own


def abandoned(parent: Path) -> Path:
    """Return a folder whose engine is dead."""
    own = made(parent)
    os.close(own.lock_fd)
    return own.path


def test_a_folder_is_private_and_takes_sockets(parent: Path) -> None:
    own = made(parent)
    assert own.path.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(own.path / "01234567-0123-0123-0123-0123456789ab"))
    own.close()
    assert list(parent.iterdir()) == []


def test_a_folder_too_deep_for_sockets_is_not_made(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    assert scratch.make(deep) is None
    assert list(deep.iterdir()) == []


def test_what_dead_engines_left_is_removed_and_what_is_held_is_not(parent: Path) -> None:
    dead, alive = abandoned(parent), made(parent)
    (dead / "below").mkdir()
    (dead / "below" / "file").touch()
    assert scratch.reclaim(parent) == [dead]
    assert list(parent.iterdir()) == [alive.path]
    os.close(alive.lock_fd)


@pytest.mark.parametrize(
    "name",
    ["sessiond-engine-", "sessiond-engine-0123456", "sessiond-engine-0123456g", "engine-01234567"],
)
def test_other_folders_are_not_touched(parent: Path, name: str) -> None:
    (parent / name).mkdir()
    assert scratch.reclaim(parent) == []
    assert (parent / name).is_dir()


def test_files_of_that_name_are_not_touched(parent: Path) -> None:
    (parent / "sessiond-engine-01234567").touch()
    assert scratch.reclaim(parent) == []
    assert (parent / "sessiond-engine-01234567").is_file()


def test_a_folder_of_another_user_is_not_touched(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = abandoned(parent)
    monkeypatch.setattr(os, "getuid", lambda: dead.stat().st_uid + 1)
    assert scratch.reclaim(parent) == []
    assert dead.is_dir()


def test_links_are_not_followed(parent: Path) -> None:
    target = parent / "target"
    target.mkdir()
    (target / "file").touch()
    (parent / "sessiond-engine-01234567").symlink_to(target)
    dead = abandoned(parent)
    (dead / "link").symlink_to(target)
    assert scratch.reclaim(parent) == [dead]
    assert (target / "file").exists()
    assert (parent / "sessiond-engine-01234567").is_symlink()


def test_compiled_code_stays_where_it_was_or_where_the_user_wants_it(parent: Path) -> None:
    own = made(parent)
    default = own.environment({})["TORCHINDUCTOR_CACHE_DIR"]
    assert Path(default).parent == Path(tempfile.gettempdir())
    wanted = {"TORCHINDUCTOR_CACHE_DIR": "/cache"}
    assert own.environment(wanted) == {"TMPDIR": str(own.path), **wanted}
    own.close()


CHILD = """
import sys
from sessiond.connector import scratch
scratch.hold()
print("held", flush=True)
sys.stdin.read()
"""
# Becomes a first process that inherits the lock; its child does not, and holds it by itself.
FIRST = """
import os, sys
from sessiond.connector import scratch
own = scratch.make()
print(own.path, flush=True)
start_child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
env = {**os.environ, "TMPDIR": str(own.path)}
os.execve(sys.executable, [sys.executable, "-c", start_child, sys.argv[1]], env)
"""


def test_a_folder_is_held_across_exec_and_by_children_that_outlive_the_first_process(
    parent: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FIRST, CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(parent)},
    ) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        folder = Path(first.stdout.readline().decode().strip())
        assert scratch.reclaim(parent) == []
        assert first.stdout.readline() == b"held\n"
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert scratch.reclaim(parent) == []
        first.stdin.close()
        assert first.stdout.read() == b""  # the child has ended
        assert scratch.reclaim(parent) == [folder]


def test_an_engine_without_such_a_folder_holds_nothing(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    assert scratch.hold() is None
    monkeypatch.setattr(tempfile, "tempdir", str(parent / "sessiond-engine-01234567"))
    assert scratch.hold() is None  # somebody removed it
