"""The PostgreSQL that other tests use is real, and never outlives them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from sessiond.testing.postgres import PostgresServer, postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator

POSTMASTER = "postmaster.pid"


def postmaster_pid(server: PostgresServer) -> int:
    return int((server.socket_dir / "data" / POSTMASTER).read_text().split()[0])


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def orphans_are_ours() -> Iterator[None]:
    """Become the parent of grandchildren whose parent ends, so that we can wait for them."""
    set_child_subreaper = 36  # a number of prctl(2)
    libc = ctypes.CDLL(None)
    libc.prctl(set_child_subreaper, 1)
    yield
    libc.prctl(set_child_subreaper, 0)


def ended(pid: int) -> bool:
    deadline_s = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG)[0] != pid:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def test_it_is_a_real_server_of_an_ordinary_account(postgres: PostgresServer) -> None:
    name = postgres.create_database()
    with psycopg.connect(postgres.url(name)) as connection:
        version = connection.execute("SHOW server_version_num").fetchone()
    postgres.drop_database(name)
    assert version is not None
    assert int(version[0]) >= 180_000
    assert Path(f"/proc/{postmaster_pid(postgres)}").stat().st_uid != 0


def test_it_ends_when_a_test_fails() -> None:
    servers: list[tuple[PostgresServer, int]] = []

    def fail() -> None:
        with postgres_server() as server, psycopg.connect(server.url()):
            servers.append((server, postmaster_pid(server)))
            raise ZeroDivisionError  # with a connection open

    with pytest.raises(ZeroDivisionError):
        fail()
    ((server, pid),) = servers
    assert not alive(pid)
    assert not server.socket_dir.exists()


@pytest.mark.usefixtures("orphans_are_ours")
def test_it_ends_when_its_user_is_killed() -> None:
    program = (
        "from sessiond.testing.postgres import postgres_server\n"
        "with postgres_server() as server:\n"
        "    print(server.socket_dir, flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout
        server = PostgresServer(Path(os.fsdecode(user.stdout.readline().strip())))
        pid = postmaster_pid(server)
        assert alive(pid)
        user.send_signal(signal.SIGKILL)
        user.wait()
    assert ended(pid)
    shutil.rmtree(server.socket_dir)  # which nobody else can do now
