"""A RAM tier and a store, and a mover between them: in this process, or a real one."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.mover.server import Mover
from sessiond.connector.settings import ConnectorSettings
from sessiond.domain.engines import EngineInfo
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import EngineId, new_hex_id
from sessiond.domain.tokens import TokenIds, to_bytes
from sessiond.store.store import Store
from sessiond.testing.snapshots import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    TENANT,
    a_fingerprint,
    a_key_ring,
    bf16_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

M = TypeVar("M", bound=protocol.Message)
REGION_CHUNKS = 24
_PATIENCE_S = 30.0


class Link(Protocol):
    """Both kinds of mover."""

    def send(self, message: protocol.Message) -> None:
        """Pass a message on."""

    def poll(self) -> list[protocol.Message]:
        """Return what it answered."""

    def close(self) -> None:
        """End it."""


class LocalMover:
    """A mover in this process; only for work that it can do (else it ends the process)."""

    def __init__(self, hello: protocol.Hello, region: memoryview) -> None:
        self._answers: queue.SimpleQueue[protocol.Message] = queue.SimpleQueue()
        self.mover = Mover(hello, region, self._answers.put)
        self.send = self.mover.handle

    def poll(self) -> list[protocol.Message]:
        """Return what it answered."""
        answers = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        return answers

    def close(self) -> None:
        """Do nothing: its threads end with it."""


def make_hello(
    folder: Path, fingerprint: Fingerprint | None = None, segment_limit_bytes: int = 1 << 30
) -> protocol.Hello:
    """Return what a mover of this folder's store serves; makes the key file."""
    key_file = folder / "server.key"
    if not key_file.exists():
        key_file.touch(0o600)
        key_file.write_bytes(bytes([7]) * 32)
    defaults = ConnectorSettings(folder / "root", key_file)
    return protocol.Hello(
        root=str(folder / "root"),
        key_file=str(key_file),
        engine_id=new_hex_id(),
        fingerprint=dict((fingerprint or a_fingerprint()).fields),
        chunk_tokens=CHUNK_TOKENS,
        chunk_bytes=CHUNK_BYTES,
        region_chunks=REGION_CHUNKS,
        codec="planar-zstd",
        item_bytes=2,
        read_threads=defaults.read_threads,
        write_threads=defaults.write_threads,
        memory_bytes=defaults.mover_memory_bytes,
        segment_limit_bytes=segment_limit_bytes,
    )


def an_engine(hello: protocol.Hello) -> EngineInfo:
    """Return what the store is told of the engine that a mover serves."""
    return EngineInfo(
        engine_id=EngineId(hello.engine_id),
        url="",
        model="model",
        pid=os.getpid(),
        started_unix_s=time.time(),
        heartbeat_unix_s=time.time(),
        fingerprint=Fingerprint(hello.fingerprint),
        chunk_tokens=hello.chunk_tokens,
        chunk_bytes=hello.chunk_bytes,
        ram_tier_chunks=hello.region_chunks,
        max_model_tokens=1 << 20,
        vllm_version="0.32.0",
        shared_files=(),
    )


class MoverRig:
    """Speaks to a mover as the engine does, and looks into slots and store."""

    def __init__(self, folder: Path, hello: protocol.Hello, *, in_process: bool) -> None:
        self.hello = hello
        self.region_fd = os.memfd_create("region")
        os.ftruncate(self.region_fd, hello.region_chunks * hello.chunk_bytes)
        self._map = mmap.mmap(self.region_fd, 0)
        self.region = memoryview(self._map)
        self.store = Store.open(folder / "root", a_key_ring())
        self.engine = self.store.publish_engine(an_engine(hello))
        self.link: Link = (
            LocalMover(hello, self.region) if in_process else MoverClient(hello, self.region_fd)
        )
        self._answers: list[protocol.Message] = []
        self._numbers = iter(range(1, 1 << 30))

    @property
    def local(self) -> Mover:
        """The mover in this process."""
        assert isinstance(self.link, LocalMover)
        return self.link.mover

    def close(self) -> None:
        """End the mover."""
        self.link.close()
        self.engine.close()
        self.region.release()
        with contextlib.suppress(BufferError):  # a mover in this process has slices of it
            self._map.close()
        os.close(self.region_fd)

    # Messages

    def send(self, message: protocol.Message) -> None:
        """Pass a message on."""
        self.link.send(message)

    def wait_for(self, kind: type[M]) -> M:
        """Return the next answer of this kind.

        :raises TimeoutError: none came
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            self._answers += self.link.poll()
            for answer in self._answers:
                if isinstance(answer, kind):
                    self._answers.remove(answer)
                    return answer
            time.sleep(0.002)
        raise TimeoutError(f"no {kind.__name__} came")

    # Slots

    def slot(self, slot: int) -> bytes:
        """Return a slot's bytes."""
        start = slot * self.hello.chunk_bytes
        return bytes(self.region[start : start + self.hello.chunk_bytes])

    def fill(self, slot: int, seed: int) -> bytes:
        """Put KV-like bytes into a slot, and return them."""
        start = slot * self.hello.chunk_bytes
        self.region[start : start + self.hello.chunk_bytes] = bf16_bytes(seed)
        return bf16_bytes(seed)

    # Suspends

    def open_suspend(
        self, session: str, tokens: TokenIds[int], generation: int = 1, adapter_digest: str = ""
    ) -> protocol.SuspendOpened:
        """Begin a suspend."""
        plan_id = next(self._numbers)
        self.send(
            protocol.OpenSuspend(
                plan_id, TENANT, session, generation, adapter_digest, to_bytes(tokens)
            )
        )
        return self.wait_for(protocol.SuspendOpened)

    def store_chunks(self, plan_id: int, items: Iterable[Sequence[int]]) -> protocol.StoreDone:
        """Hand chunks over: pairs of (chunk index, slot)."""
        self.send(protocol.Store(next(self._numbers), plan_id, [list(item) for item in items]))
        return self.wait_for(protocol.StoreDone)

    def finish_suspend(self, plan_id: int, *, commit: bool = True) -> protocol.SuspendFinished:
        """End a suspend."""
        self.send(protocol.FinishSuspend(plan_id, commit))
        return self.wait_for(protocol.SuspendFinished)

    def suspend(
        self, session: str, tokens: TokenIds[int], generation: int = 1, adapter_digest: str = ""
    ) -> protocol.SuspendFinished:
        """Do a whole suspend; chunk *n* lies in slot *n* and was made from seed *n*."""
        opened = self.open_suspend(session, tokens, generation, adapter_digest)
        whole = range(len(tokens) // CHUNK_TOKENS)
        new = [chunk for chunk in whole if chunk not in opened.durable_chunks]
        for chunk in new:
            self.fill(chunk, seed=chunk)
        self.store_chunks(opened.plan_id, [(chunk, chunk) for chunk in new])
        return self.finish_suspend(opened.plan_id)

    # Loads

    def open_load(
        self, session: str, tokens: TokenIds[int], generation: int = 1, adapter_digest: str = ""
    ) -> protocol.LoadOpened:
        """Open a snapshot for a prompt."""
        plan_id = next(self._numbers)
        self.send(
            protocol.OpenLoad(
                plan_id, TENANT, session, generation, adapter_digest, to_bytes(tokens)
            )
        )
        return self.wait_for(protocol.LoadOpened)

    def load(self, plan_id: int, items: Iterable[Sequence[int]]) -> protocol.LoadDone:
        """Read chunks: pairs of (chunk index, slot)."""
        self.send(protocol.Load(next(self._numbers), plan_id, [list(item) for item in items]))
        return self.wait_for(protocol.LoadDone)
