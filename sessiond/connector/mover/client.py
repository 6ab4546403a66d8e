"""The engine's side of the mover: spawn it, talk to it, replace it."""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from sessiond.connector.mover import protocol

logger = logging.getLogger("vllm.sessiond.mover")

# A thread in one of these states runs no more code: dead, zombie, or uninterruptible sleep.
_STILL_STATES = frozenset("XxZD")


class MoverClient:
    """One mover process. Every method returns at once; two threads do the talking.

    :param hello: what the mover serves
    :param region_fd: the RAM tier's shared memory, inherited by the mover
    :raises OSError: no process could be started
    """

    def __init__(self, hello: protocol.Hello, region_fd: int) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs, _closed_on_error(self._socket):
            self._process = _spawn(theirs.fileno(), region_fd)
        self._outgoing: queue.SimpleQueue[protocol.Message | None] = queue.SimpleQueue()
        self._incoming: deque[protocol.Message] = deque()
        self._arrived = threading.Event()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, name="sessiond-send", daemon=True),
            threading.Thread(target=self._receive_all, name="sessiond-receive", daemon=True),
        ]
        self.send(hello)
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The mover's process id."""
        return self._process.pid

    def send(self, message: protocol.Message) -> None:
        """Queue a message; it is lost if the mover is gone."""
        self._outgoing.put(message)

    def poll(self) -> list[protocol.Message]:
        """Return what arrived since the last call."""
        self._arrived.clear()
        messages = []
        while self._incoming:
            messages.append(self._incoming.popleft())
        return messages

    def wait(self, timeout_s: float) -> None:
        """Return when something arrives, or after *timeout_s*."""
        self._arrived.wait(timeout_s)

    def is_connected(self) -> bool:
        """Whether the mover still holds its end of the socket."""
        return not self._closed.is_set()

    def kill(self) -> None:
        """Send SIGKILL; :meth:`is_gone` tells when it may be taken for dead."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether no thread of the mover can touch the RAM tier any more."""
        if self._process.poll() is not None:
            return True
        return _all_threads_still(self._process.pid)

    def close(self, wait_s: float = 5.0) -> None:
        """End the mover: its socket closes, it exits; what hangs is killed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        for thread in self._threads:
            thread.join(wait_s)

    def _send_all(self) -> None:
        while (message := self._outgoing.get()) is not None:
            try:
                protocol.send(self._socket, message)
            except OSError:
                self._closed.set()
                return

    def _receive_all(self) -> None:
        try:
            while (message := protocol.receive(self._socket)) is not None:
                self._incoming.append(message)
                self._arrived.set()
        except (OSError, ValueError):
            logger.exception("sessiond: the mover's answer cannot be read")
        self._closed.set()
        self._arrived.set()
        self._outgoing.put(None)
        self._threads[0].join()  # it writes to the socket: nothing else may get its number
        self._socket.close()


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _spawn(socket_fd: int, region_fd: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sessiond.connector.mover", str(socket_fd), str(region_fd)]
    # Spawned, not forked: a fork of EngineCore would copy its locks and its CUDA state.
    return subprocess.Popen(  # noqa: S603 - our own module, run by our own interpreter
        command, pass_fds=(socket_fd, region_fd), stdin=subprocess.DEVNULL, close_fds=True
    )


def _all_threads_still(pid: int) -> bool:
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(stat.read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue  # the thread ended while we looked
    return all(state in _STILL_STATES for state in states)
