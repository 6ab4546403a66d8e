"""Starts servers as processes, waits until they are ready, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sessiond.connector import leftovers, scratch
from sessiond.domain.engines import SharedFile

_POLL_S = 0.1
_LOG_TAIL_LINES = 40


class ServerFailedError(RuntimeError):
    """The server ended, or was not ready in time; the message holds the end of its log.

    :ivar log: all of it: why an engine did not start is often told long before the end
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Server:
    """One server process in a session of its own.

    :param command: what to run
    :param ready_url: answers 200 when the server is ready
    :param log: its output
    :param own_scratch: a temporary folder that only it uses; removed with it
    """

    def __init__(
        self,
        command: Sequence[str],
        ready_url: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        own_scratch: scratch.Scratch | None = None,
    ) -> None:
        self._ready_url = ready_url
        self._scratch = own_scratch
        self._shared: frozenset[SharedFile] = frozenset()
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - callers run our own programs
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                # Its own session: whatever it starts can be ended with it, and nothing else.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one C call, which takes no locks
            )

    @property
    def pid(self) -> int:
        """The process id, which is the id of its process group and session too."""
        return self._process.pid

    def wait_ready(self, timeout_s: float = 180.0) -> Self:
        """Return when the server answers.

        :raises ServerFailedError: it ended, or *timeout_s* passed
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise self._failure(f"ended with {self._process.returncode}")
            if answers(self._ready_url):
                return self
            time.sleep(_POLL_S)
        raise self._failure(f"was not ready after {timeout_s:.0f} s")

    def wait_end(self, timeout_s: float = 120.0) -> int:
        """Wait until the server ends by itself and return its exit status."""
        return self._process.wait(timeout_s)

    def is_running(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """Return what the server has printed."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL the server and all it started, wait for their end, remove what they left."""
        self._note_shared_memory()
        self._kill_members()
        self._process.wait()
        self._wait_members_gone()
        leftovers.reclaim(self._shared)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        scratch.reclaim()

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM the server, then kill what is left of its group."""
        if self._process.poll() is None:
            self._note_shared_memory()
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _note_shared_memory(self) -> None:
        self._shared |= leftovers.mapped_by(session_members(self.pid))

    def _kill_members(self) -> None:
        for pid in session_members(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait_members_gone(self) -> None:
        for _ in range(100):
            if not session_members(self.pid):
                return
            self._kill_members()
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> ServerFailedError:
        log = self.log_text()
        tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
        return ServerFailedError(f"The server {what}. The end of its log:\n{tail}", log)


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    # Whoever is killed before it could stop its servers leaves none behind.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def session_members(leader: int) -> list[int]:
    """Return the processes of a session (of process groups) that are no zombies."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            # A zombie whose other threads are still ending holds its files, and so its locks.
            gone = fields[0] == "Z" and int(fields[17]) <= 1
            if int(fields[3]) == leader and not gone:
                members.append(int(stat.parent.name))
    return members


def answers(url: str) -> bool:
    """Whether *url* answers with 200 right now."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - http on loopback
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def free_port() -> int:
    """Return a port on the loopback interface that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def engine_server(  # noqa: PLR0913 - what one process is started with
    model: Path,
    log: Path,
    *,
    port: int,
    env: Mapping[str, str],
    options: Sequence[str] = (),
    python: str = sys.executable,
) -> Server:
    """Start ``sessiond engine`` on the CPU; not yet ready when returned.

    :param python: of the environment whose vLLM it is
    """
    command = [
        python,
        "-m",
        "sessiond.app.main",
        "engine",
        str(model),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        *CPU_ENGINE_OPTIONS,
        *options,
    ]
    return Server(command, f"http://127.0.0.1:{port}/health", log, {**CPU_ENGINE_ENV, **env})


def plain_engine_server(  # noqa: PLR0913 - what one process is started with
    model: Path,
    log: Path,
    *,
    port: int,
    options: Sequence[str],
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Server:
    """Start vLLM without sessiond on the CPU; not yet ready when returned.

    :param python: of the environment whose vLLM it is
    """
    own = scratch.make()
    whole = {**CPU_ENGINE_ENV, **(env or {}), **(own.environment(os.environ) if own else {})}
    command = [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        "--enable-prompt-tokens-details",
        *CPU_ENGINE_OPTIONS,
        *options,
    ]
    return Server(command, f"http://127.0.0.1:{port}/health", log, whole, own)


def daemon_server(log: Path, *, port: int, env: Mapping[str, str]) -> Server:
    """Start ``sessiond serve``; not yet ready when returned."""
    command = [sys.executable, "-m", "sessiond.app.main", "serve"]
    ports = {"SESSIOND_HOST": "127.0.0.1", "SESSIOND_PORT": str(port)}
    return Server(command, f"http://127.0.0.1:{port}/readyz", log, {**ports, **env})


_CORES = os.cpu_count() or 1
CPU_ENGINE_OPTIONS = ("--enforce-eager", "--dtype", "bfloat16")
CPU_ENGINE_ENV: Mapping[str, str] = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{min(_CORES, 8) - 1}" if _CORES > 1 else "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
