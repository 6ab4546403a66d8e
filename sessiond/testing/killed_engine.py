"""An engine without vLLM, with a real coordinator and real movers, that is killed at step N.

For :mod:`sessiond.testing.zygote`. The movers run the real program in forked processes, which
saves starting an interpreter for each of hundreds of them.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self
from unittest.mock import patch

from sessiond.connector.limits import Limits
from sessiond.connector.mover import __main__ as mover_program
from sessiond.connector.mover import client
from sessiond.connector.mover.client import MoverClient
from sessiond.domain.engines import EngineInfo
from sessiond.domain.ids import EngineId, SessionId, TenantId
from sessiond.domain.tickets import TicketOp
from sessiond.store import planes
from sessiond.store.store import Store
from sessiond.testing.fake_scheduler import (
    CHUNK_TOKENS,
    ENGINE_ID,
    LIMITS,
    RAM_CHUNKS,
    FakeScheduler,
    tokens_of,
)
from sessiond.testing.files import STEPS
from sessiond.testing.killing import Killer, arm_stores
from sessiond.testing.mover_rig import make_hello
from sessiond.testing.snapshots import a_fingerprint, a_key_ring, bf16_bytes
from sessiond.testing.zygote import LIFELINE_FD, keep_only

CHUNK_BYTES = 2006
SESSION = SessionId("s-1")
TENANT = TenantId("acme")
#: The calls that a load takes; a suspend takes :data:`sessiond.testing.files.STEPS`.
LOAD_STEPS = ("pread",)
_PATIENCE_S = 30.0
_POLL_S = 0.001

planes.kernels()  # compiled before anything is forked


class ForkedMover:
    """A mover's process, as far as its client needs ``Popen``.

    It is forked early, while its parent has one thread, and begins when it gets its descriptors.
    """

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._control, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _become_mover(theirs, prepare)
        theirs.close()
        self._status: int | None = None

    def begin(self, socket_fd: int, region_fd: int) -> None:
        """Give it its descriptors."""
        socket.send_fds(self._control, [b"."], [socket_fd, region_fd])
        self._control.close()

    def poll(self) -> int | None:
        """Return its exit status, if it has ended."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status

    def wait(self, timeout_s: float) -> int:
        """Return its exit status when it has ended."""
        deadline_s = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("mover", timeout_s)
            time.sleep(_POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def _become_mover(control: socket.socket, prepare: Callable[[], None]) -> NoReturn:
    try:
        keep_only({LIFELINE_FD, control.fileno()})
        _, fds, _, _ = socket.recv_fds(control, 1, 2)
        if len(fds) == 2:  # otherwise its parent has ended without needing it
            sys.argv = ["mover", *map(str, fds)]
            prepare()
            mover_program.main()
    finally:
        os._exit(71)


class KilledEngine:
    """One engine. Use it as a context.

    :param prepare: what the first mover does before it begins; then a second one is at hand
    """

    def __init__(self, folder: Path, prepare: Callable[[], None] | None = None) -> None:
        self._stack = ExitStack()
        self.store = Store.open(folder / "root", a_key_ring())
        # As the connector does at boot.
        self.store.remove_dead_engines()
        self.store.sweep_tmp()
        self._stack.enter_context(self.store.publish_engine(_info()))
        self._hello = replace(
            make_hello(folder, a_fingerprint()),
            engine_id=ENGINE_ID,
            chunk_tokens=CHUNK_TOKENS,
            chunk_bytes=CHUNK_BYTES,
            region_chunks=RAM_CHUNKS,
        )
        self._region_fd = os.memfd_create("region")
        os.ftruncate(self._region_fd, RAM_CHUNKS * CHUNK_BYTES)
        self._region = mmap.mmap(self._region_fd, 0)
        self._spares = [ForkedMover(prepare)] if prepare else []
        self._spares.append(ForkedMover(_nothing))
        self.movers_started = 0
        self._stack.enter_context(patch.object(client, "_spawn", self._spawn))
        self.vllm = FakeScheduler(time, limits=_limits(), start_mover=self._start_mover)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.vllm.coordinator.close()
        for spare in self._spares:
            spare.send_signal(signal.SIGKILL)
            spare.wait(_PATIENCE_S)
        self._stack.close()

    def _start_mover(self) -> MoverClient:
        return MoverClient(self._hello, self._region_fd)

    def _spawn(self, socket_fd: int, region_fd: int) -> ForkedMover:
        mover = self._spares.pop(0)
        mover.begin(socket_fd, region_fd)
        self.movers_started += 1
        return mover

    def suspend(self, chunks: int, generation: int) -> dict[str, Any]:
        """Take a turn and suspend the session; returns what the commit request is told."""
        vllm, head = self.vllm, tokens_of(chunks)
        vllm.take_turn(head, session=SESSION)
        named = {"generation": generation, "operation_id": f"suspend-{generation}"}
        request = vllm.begin_suspend(head, chunks, session=SESSION, **named)
        commit = vllm.commit(**named)
        self._until(lambda: vllm.may_match(request) or vllm.may_match(commit))
        if vllm.match(request, vram_tokens=chunks * CHUNK_TOKENS):
            wanted = vllm.storable(request, range(chunks))
            for chunk in wanted:
                self._region[_slot(chunk)] = chunk_bytes(chunk)
            vllm.store(generation, request, wanted)
        vllm.finish(request)
        self._until(lambda: vllm.may_match(commit))
        return vllm.finish(commit)

    def load(self, chunks: int, generation: int) -> tuple[list[int], bool]:
        """Load a snapshot.

        :return: the chunks that came, and whether every byte of them is right
        """
        vllm = self.vllm
        ticket = vllm.ticket(TicketOp.TURN, session=SESSION, generation=generation)
        request = vllm.arrive(ticket, tokens_of(chunks))
        self._until(lambda: vllm.may_match(request))
        offered = vllm.offered(request, range(chunks))
        good: set[int] = set()
        if offered:
            for chunk in offered:
                self._region[_slot(chunk)] = bytes(CHUNK_BYTES)
            vllm.load(1000 + generation, request, offered)
            self._until(lambda: self._note_done(good))
        vllm.match(request, external_tokens=len(good) * CHUNK_TOKENS)
        vllm.finish(request)
        right = all(self._region[_slot(chunk)] == chunk_bytes(chunk) for chunk in good)
        return sorted(good), right

    def wait_for_movers(self, started: int) -> None:
        """Wait until so many movers were started: one that was killed is replaced."""
        self._until(lambda: self.movers_started == started)

    def _note_done(self, good: set[int]) -> bool:
        done = self.vllm.done()
        for job in done:
            good |= job.good_chunks
        return bool(done)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError
            self.vllm.coordinator.poll()
            time.sleep(_POLL_S)


def chunk_bytes(chunk: int) -> bytes:
    """Return the KV bytes of one chunk."""
    return bf16_bytes(chunk, CHUNK_BYTES)


def suspend_with_kill(folder: str, step: int, victim: str) -> dict[str, Any]:
    """Suspend what has grown since the last snapshot; mover or engine dies at a step of it.

    An engine that outlives its mover suspends once more.
    """
    killer = Killer(step, os.getpid() if victim == "engine" else 0)
    with KilledEngine(Path(folder), lambda: arm_stores(killer, STEPS)) as engine:
        first = engine.suspend(4, generation=2)
        steps = killer.steps
        if step:
            engine.wait_for_movers(2)
        generations = engine.store.generations(TENANT, SESSION)
        second = engine.suspend(5, generation=generations[-1] + 1)
        return {"steps": steps, "first": first, "generations": generations, "second": second}


def load_with_kill(folder: str, step: int) -> dict[str, Any]:
    """Load the newest snapshot, twice; the first mover dies at a step of the first load."""
    killer = Killer(step)
    with KilledEngine(Path(folder), lambda: arm_stores(killer, LOAD_STEPS)) as engine:
        first = engine.load(3, generation=1)
        steps = killer.steps
        if step:
            engine.wait_for_movers(2)
        return {"steps": steps, "first": first, "second": engine.load(3, generation=1)}


def suspend_first(folder: str, chunks: int) -> dict[str, Any]:
    """Suspend a session for the first time."""
    with KilledEngine(Path(folder)) as engine:
        return engine.suspend(chunks, generation=1)


def load_and_suspend(folder: str, chunks: int) -> dict[str, Any]:
    """What an engine does after the one before it is gone: load the newest, suspend what is new."""
    with KilledEngine(Path(folder)) as engine:
        generations = engine.store.generations(TENANT, SESSION)
        return {
            "generations": generations,
            "loaded": engine.load(chunks, generations[-1]),
            "suspended": engine.suspend(chunks, generations[-1] + 1),
        }


def _slot(chunk: int) -> slice:
    return slice(chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES)


def _limits() -> Limits:
    # A dead mover is noticed by its socket; deadlines are for those that hang.
    return replace(LIMITS, job_deadline_s=_PATIENCE_S)


def _info() -> EngineInfo:
    return EngineInfo(
        engine_id=EngineId(ENGINE_ID),
        url="",
        model="m",
        pid=os.getpid(),
        started_unix_s=time.time(),
        heartbeat_unix_s=time.time(),
        fingerprint=a_fingerprint(),
        chunk_tokens=CHUNK_TOKENS,
        chunk_bytes=CHUNK_BYTES,
        ram_tier_chunks=RAM_CHUNKS,
        max_model_tokens=1024,
        vllm_version="0.32.0",
    )


def _nothing() -> None:
    pass


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "suspend": suspend_with_kill,
    "load": load_with_kill,
    "first": suspend_first,
    "next": load_and_suspend,
}
