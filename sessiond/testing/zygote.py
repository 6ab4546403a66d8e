"""Warm processes that fork others: real processes, real signals, without their start-up time.

``python -m sessiond.testing.zygote FD…`` reads one request a line (``role`` and its arguments)
from each socket, and answers when the process of that role, and all that it started, is gone.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PATIENCE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36
#: Where a role writes its result, and what tells that it and its children are gone.
LIFELINE_FD = 3


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    signal: int  #: that killed it; 0 if it ended by itself
    result: dict[str, Any] = field(default_factory=dict)  #: empty if it was killed


class Zygote:
    """The caller's side of one of them; each runs one role at a time."""

    def __init__(self, link: socket.socket) -> None:
        self._lines = link.makefile("rw", encoding="utf-8")
        link.close()

    def run(self, role: str, **arguments: Any) -> Ended:  # noqa: ANN401 - the role's
        """Run a role in a process of its own, and wait until all of it is gone.

        :raises RuntimeError: it failed, or was not gone after a minute
        """
        self._lines.write(json.dumps({"role": role, **arguments}) + "\n")
        self._lines.flush()
        answer = json.loads(self._lines.readline())
        if "error" in answer:
            raise RuntimeError(f"{role} {arguments}: {answer['error']}")
        return Ended(**answer)

    def close(self) -> None:
        """End it."""
        self._lines.close()


@contextmanager
def zygotes(count: int) -> Iterator[list[Zygote]]:
    """Yield so many warm processes, which were warmed together."""
    pairs = [socket.socketpair() for _ in range(count)]
    theirs = [pair[1].fileno() for pair in pairs]
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", __name__, *map(str, theirs)],
        stdin=subprocess.DEVNULL,
        pass_fds=theirs,
    )
    for _, their in pairs:
        their.close()
    links = [Zygote(own) for own, _ in pairs]
    try:
        yield links
    finally:
        for link in links:
            link.close()
        process.wait(_PATIENCE_S)


def serve(roles: Mapping[str, Callable[..., dict[str, Any]]], fds: Sequence[int]) -> None:
    """Answer requests on each descriptor until its other end closes."""
    gc.freeze()  # what is never looked at is never copied
    for fd in fds:
        if os.fork() == 0:
            keep_only({fd})
            _serve_one(roles, fd)
            os._exit(0)
        os.close(fd)
    for _ in fds:
        os.wait()


def _serve_one(roles: Mapping[str, Callable[..., dict[str, Any]]], fd: int) -> None:
    # What a killed process leaves behind becomes ours to wait for.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with socket.socket(fileno=fd) as link:
        lines = link.makefile("rw", encoding="utf-8")
        for line in lines:
            request = json.loads(line)
            answer = _forked(roles[request.pop("role")], request)
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


def _forked(role: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> dict[str, Any]:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(role, arguments, write_fd)
    os.close(write_fd)
    try:
        written = _read_to_end(read_fd)
    except TimeoutError:
        os.killpg(pid, signal.SIGKILL)
        return {"error": f"not gone after {_PATIENCE_S:.0f} s"}
    finally:
        os.close(read_fd)
        status = os.waitpid(pid, 0)[1]
        _reap_orphans()
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    result: dict[str, Any] = json.loads(written or '{"error": "it told nothing"}')
    return result if "error" in result else {"signal": 0, "result": result}


def _become(role: Callable[..., dict[str, Any]], arguments: dict[str, Any], write_fd: int) -> None:
    try:
        os.setsid()
        os.dup2(write_fd, LIFELINE_FD)
        null_fd = os.open(os.devnull, os.O_RDWR)
        os.dup2(null_fd, 0)
        keep_only({LIFELINE_FD})
        text = json.dumps(role(**arguments))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        text = json.dumps({"error": repr(error)})
    with suppress(OSError):
        os.write(LIFELINE_FD, text.encode())
    os._exit(0)


def keep_only(fds: set[int]) -> None:
    """Close all descriptors but the standard ones and these, as a spawned process has it."""
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _read_to_end(fd: int) -> bytes:
    read = b""
    while select.select([fd], [], [], _PATIENCE_S)[0]:
        part = os.read(fd, 1 << 16)
        if not part:
            return read
        read += part
    raise TimeoutError


def _reap_orphans() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    from sessiond.testing.killed_daemon import ROLES as DAEMON
    from sessiond.testing.killed_engine import ROLES as ENGINE

    serve({**ENGINE, **DAEMON}, [int(text) for text in sys.argv[1:]])
