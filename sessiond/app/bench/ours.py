"""Suspends and restores by a real mover process, with the messages that the engine sends."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

from sessiond.app.bench.kv import CHUNK_TOKENS
from sessiond.app.bench.machine import private_bytes
from sessiond.app.bench.region import Region, Window
from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.keys import KeyRing
from sessiond.domain.tokens import TokenIds, to_bytes
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store
from sessiond.testing.mover_rig import an_engine, make_hello
from sessiond.testing.snapshots import some_tokens

M = TypeVar("M", bound=protocol.Message)
_TENANT = TenantId("bench")
#: vLLM hands a suspend's chunks over in jobs of about this many.
_JOB_CHUNKS = 64
_PATIENCE_S = 600.0


class MoverFailedError(RuntimeError):
    """The mover did not do what it was asked for."""


class Ours:
    """One mover with one codec, over a store of its own. Use it as a context.

    :param folder: the store and its key are made in it
    """

    def __init__(
        self, folder: Path, region: Region, codec: str, read_threads: int | None = None
    ) -> None:
        self.name = codec
        self.stored_bytes = 0  #: of the last suspend
        self.open_s = 0.0  #: until the last restore could begin: manifest, fingerprint, locks
        self.private_bytes = 0  #: the mover's own memory, the most that was seen
        folder.mkdir()
        hello = make_hello(folder)
        hello = dataclasses.replace(
            hello,
            chunk_tokens=CHUNK_TOKENS,
            chunk_bytes=region.chunk_bytes,
            region_chunks=region.slots,
            codec=codec,
            read_threads=read_threads or hello.read_threads,
        )
        key = load_server_key(Path(hello.key_file), create=False)
        self._store = Store.open(Path(hello.root), KeyRing.from_server_key(key))
        # A mover commits only for an engine that lives.
        self._engine = self._store.publish_engine(an_engine(hello))
        self._mover = MoverClient(hello, region.fd)
        self._answers: deque[protocol.Message] = deque()
        self._session = ""
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mover.close()
        self._engine.close()

    def store(self, window: Window) -> float:
        """Suspend: encode, write, sync, commit; returns the seconds."""
        plan_id = self._next()
        self._session = f"{window.session}-{plan_id}"  # a deleted session's id stays taken
        tokens = to_bytes(self._tokens(window))
        began_s = time.perf_counter()
        self._mover.send(protocol.OpenSuspend(plan_id, _TENANT, self._session, 1, "", tokens))
        self._wait_for(protocol.SuspendOpened)
        items = [[index, slot] for index, slot in enumerate(window.slots)]
        jobs = [items[start : start + _JOB_CHUNKS] for start in range(0, len(items), _JOB_CHUNKS)]
        for job in jobs:
            self._mover.send(protocol.Store(self._next(), plan_id, job))
        for _ in jobs:
            self._require(self._wait_for(protocol.StoreDone).causes)
        self._mover.send(protocol.FinishSuspend(plan_id, commit=True))
        finished = self._wait_for(protocol.SuspendFinished)
        seconds = time.perf_counter() - began_s
        self._require(finished.causes)
        if finished.snapshot is None or finished.snapshot["chunks"] != window.chunks:
            raise MoverFailedError(f"The mover committed {finished.snapshot}.")
        self.stored_bytes = int(finished.snapshot["new_bytes"])
        self._note_memory()
        return seconds

    def load(self, window: Window) -> float:
        """Restore: read, verify, decode into the slots; returns the seconds.

        Opening the snapshot is not in them; see :attr:`open_s`.
        """
        plan_id = self._next()
        tokens = to_bytes(self._tokens(window))
        opening_s = time.perf_counter()
        self._mover.send(protocol.OpenLoad(plan_id, _TENANT, self._session, 1, "", tokens))
        self._require(self._wait_for(protocol.LoadOpened).causes)
        began_s = time.perf_counter()
        self.open_s = began_s - opening_s
        items = [[index, slot] for index, slot in enumerate(window.slots)]
        self._mover.send(protocol.Load(self._next(), plan_id, items))
        done = self._wait_for(protocol.LoadDone)
        seconds = time.perf_counter() - began_s
        self._mover.send(protocol.ClosePlan(plan_id))
        self._require(done.causes)
        if done.failed:
            raise MoverFailedError(f"The mover did not load the chunks {done.failed}.")
        self._note_memory()
        return seconds

    def discard(self, window: Window) -> None:
        """Delete the session and free its bytes."""
        del window
        self._store.delete_session(_TENANT, SessionId(self._session))
        deadline_s = time.monotonic() + _PATIENCE_S
        # The mover lets go of its locks a moment after it was told to.
        while self._store.collect().segments_busy and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _tokens(self, window: Window) -> TokenIds[int]:
        return some_tokens(window.tokens, seed=window.number)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _note_memory(self) -> None:
        self.private_bytes = max(self.private_bytes, private_bytes(self._mover.pid))

    def _wait_for(self, kind: type[M]) -> M:
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s and self._mover.is_connected():
            while self._answers:
                message = self._answers.popleft()
                if isinstance(message, kind):
                    return message
            self._mover.wait(0.1)
            self._answers.extend(self._mover.poll())
        raise MoverFailedError(f"No {kind.__name__} came from the mover.")

    def _require(self, causes: Sequence[object]) -> None:
        if causes:
            raise MoverFailedError(f"The mover could not do it: {causes}.")
