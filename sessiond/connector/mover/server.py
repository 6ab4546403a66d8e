"""The mover's work: one thread pool for reads, one slower thread for writes.

Reads go before writes: the writer runs at a lower CPU and I/O priority and pauses between
chunks while a read waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from sessiond.connector.mover import protocol
from sessiond.connector.mover.failures import cause_of
from sessiond.connector.mover.loads import LoadPlan, open_load
from sessiond.connector.mover.priority import ReadGate, lower_this_thread
from sessiond.connector.mover.suspends import SuspendPlan
from sessiond.domain.errors import SessiondError
from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.keys import KeyRing
from sessiond.domain.reasons import Cause
from sessiond.domain.tokens import TOKEN_BYTES, from_bytes
from sessiond.store import planes
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

Send = Callable[[protocol.Message], None]


class Mover:
    """Handles the engine's messages in their order; answers come when the work is done.

    :param region: the RAM tier, ``region_chunks * chunk_bytes`` long
    """

    def __init__(self, hello: protocol.Hello, region: memoryview, send: Send) -> None:
        self._hello = hello
        self._region = region
        # Compiled on first use, which takes a second: now, while the engine boots.
        planes.kernels()
        self._raw_send = send
        self._send_lock = threading.Lock()
        self._store = Store.open(
            Path(hello.root),
            KeyRing.from_server_key(load_server_key(Path(hello.key_file), create=False)),
        )
        self._fingerprint = Fingerprint(hello.fingerprint)
        self._bytes_digest = self._fingerprint.digest(FieldClass.BYTES)
        self._gate = ReadGate()
        self._reads = ThreadPoolExecutor(hello.read_threads, "read")
        # Opening a snapshot waits for reads of data if both share threads; it must not.
        self._opens = ThreadPoolExecutor(1, "open")
        self._writes = ThreadPoolExecutor(1, "write", initializer=lower_this_thread)
        self._heads = ThreadPoolExecutor(1, "head")
        self._loads: dict[int, LoadPlan] = {}
        self._suspends: dict[int, SuspendPlan] = {}

    def handle(self, message: protocol.Message) -> None:
        """Start the work that *message* asks for."""
        match message:
            case protocol.WriteHead():
                self._heads.submit(self._guarded, self._write_head, message)
            case protocol.OpenLoad():
                self._opens.submit(self._guarded, self._open_load, message)
            case protocol.Load():
                self._gate.enter()
                self._start_load(message)
            case protocol.ClosePlan():
                self._opens.submit(self._guarded, self._close_plan, message)
            case protocol.OpenSuspend():
                self._writes.submit(self._guarded, self._open_suspend, message)
            case protocol.Store():
                self._writes.submit(self._guarded, self._store_chunks, message)
            case protocol.FinishSuspend():
                self._writes.submit(self._guarded, self._finish_suspend, message)
            case _:
                raise ValueError(f"The mover does not handle {message.kind!r}.")

    def _guarded(self, work: Callable[[Any], None], message: protocol.Message) -> None:
        try:
            work(message)
        except Exception:
            # Unanswered work would hold its slots until the deadline. Ending says more, sooner:
            # the tier fails the jobs and starts a fresh mover.
            logger.exception("cannot handle %s; the mover ends", message.kind)
            os._exit(70)

    def _send(self, message: protocol.Message) -> None:
        with self._send_lock:
            self._raw_send(message)

    def _write_head(self, message: protocol.WriteHead) -> None:
        head = Head(
            tenant=message.tenant,
            session=message.session,
            engine_id=self._hello.engine_id,
            sequence=message.sequence,
            turns_in_flight=message.turns_in_flight,
            updated_unix_s=message.updated_unix_s,
            branches=_branches(message.branches, memoryview(message.payload)),
        )
        try:
            self._store.write_head(head)
        except (SessiondError, OSError) as error:
            logger.warning("a head was not written: %s", error)  # a hint, never the truth
        self._send(protocol.HeadWritten(message.head_id))

    def _open_load(self, message: protocol.OpenLoad) -> None:
        plan, causes = open_load(self._store, self._fingerprint, message)
        self._loads[message.plan_id] = plan
        self._send(protocol.LoadOpened(message.plan_id, plan.chunks, _as_json(causes)))

    def _start_load(self, message: protocol.Load) -> None:
        job = _LoadJob(message, self._loads[message.plan_id], self._hello.read_threads)
        job.plan.hold()
        for part in job.parts:
            self._reads.submit(self._guarded, partial(self._load_part, job, part), message)

    def _load_part(self, job: _LoadJob, part: list[list[int]], _message: protocol.Message) -> None:
        done = job.finish_part(job.plan.load(part, self._slot, self._bytes_digest))
        if done is None:
            self._send(protocol.Progress())
            return
        job.plan.let_go()
        self._gate.leave()
        self._send(done)

    def _close_plan(self, message: protocol.ClosePlan) -> None:
        plan = self._loads.pop(message.plan_id, None)
        if plan is not None:
            plan.let_go()

    def _open_suspend(self, message: protocol.OpenSuspend) -> None:
        try:
            plan = SuspendPlan(self._store, self._hello, self._fingerprint, message)
        except (SessiondError, OSError) as error:
            causes = _as_json([cause_of(error)])
            self._send(protocol.SuspendOpened(message.plan_id, 0, causes))
            return
        self._suspends[message.plan_id] = plan
        self._send(protocol.SuspendOpened(message.plan_id, plan.durable_chunks, []))

    def _store_chunks(self, message: protocol.Store) -> None:
        plan = self._suspends[message.plan_id]
        causes: list[Cause] = []
        for index, slot in message.items:
            self._gate.wait_until_idle()
            try:
                plan.append(index, self._slot(slot))
            except (SessiondError, OSError) as error:
                causes = [cause_of(error)]
                plan.fail(causes[0])
                break
            self._send(protocol.Progress())
        self._send(protocol.StoreDone(message.job_id, _as_json(causes)))

    def _finish_suspend(self, message: protocol.FinishSuspend) -> None:
        plan = self._suspends.pop(message.plan_id, None)
        if plan is None:  # it could not be opened
            self._send(protocol.SuspendFinished(message.plan_id, None, []))
            return
        snapshot: dict[str, Any] | None = None
        causes: list[Cause] = []
        try:
            if message.commit:
                snapshot, causes = plan.commit()
        except (SessiondError, OSError) as error:
            causes = [cause_of(error)]
        finally:
            plan.close()
        self._send(protocol.SuspendFinished(message.plan_id, snapshot, _as_json(causes)))

    def _slot(self, slot: int) -> memoryview:
        start = slot * self._hello.chunk_bytes
        return self._region[start : start + self._hello.chunk_bytes]


#: A thread reads at most so many chunks before it reports progress.
_PART_CHUNKS = 32


class _LoadJob:
    """One load, split into a run of neighbouring chunks for each thread."""

    def __init__(self, message: protocol.Load, plan: LoadPlan, threads: int) -> None:
        self.plan = plan
        self._job_id = message.job_id
        self._began_s = time.monotonic()
        size = min(-(-len(message.items) // threads), _PART_CHUNKS)
        items = message.items
        self.parts = [items[start : start + size] for start in range(0, len(items), size)]
        self._lock = threading.Lock()
        self._parts_left = len(self.parts)
        self._results: dict[int, Exception | None] = {}

    def finish_part(self, results: dict[int, Exception | None]) -> protocol.LoadDone | None:
        """Add a part's results; the last one returns the answer."""
        with self._lock:
            self._results.update(results)
            self._parts_left -= 1
            if self._parts_left:
                return None
        errors = [error for error in self._results.values() if error is not None]
        read = [index for index, error in self._results.items() if error is None]
        return protocol.LoadDone(
            job_id=self._job_id,
            failed=sorted(self._results.keys() - read),
            causes=_as_json(list({cause_of(error) for error in errors})),
            seconds=time.monotonic() - self._began_s,
            read_bytes=sum(self.plan.stored_bytes(index) for index in read),
        )


def _as_json(causes: list[Cause]) -> list[dict[str, Any]]:
    return [dict(cause.as_json()) for cause in causes]


def _branches(described: list[dict[str, Any]], payload: memoryview) -> tuple[Branch, ...]:
    branches = []
    start = 0
    for branch in described:
        end = start + branch["tokens"] * TOKEN_BYTES
        tokens: array[int] = from_bytes(payload[start:end])
        start = end
        branches.append(
            Branch(
                tokens=tokens,
                adapter_digest=branch["adapter_digest"],
                cache_salt_hash=branch["cache_salt_hash"],
                updated_unix_s=branch["updated_unix_s"],
                split=TurnSplit(**branch["split"]),
            )
        )
    return tuple(branches)
