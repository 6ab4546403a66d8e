"""The mover's work: threads for reads, and slower ones for writes.

Reads go before writes: the writers run at a lower CPU and I/O priority and pause between
chunks while a read waits.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sessiond.connector.mover import protocol
from sessiond.connector.mover.failures import as_json, cause_of
from sessiond.connector.mover.heads import head_of
from sessiond.connector.mover.loadjobs import LoadJob
from sessiond.connector.mover.loads import LoadPlan, open_load
from sessiond.connector.mover.lossy import lossy_codec
from sessiond.connector.mover.memory import PlanRoom, divide, plan_bytes
from sessiond.connector.mover.meter import MeteredOps
from sessiond.connector.mover.priority import ReadGate
from sessiond.connector.mover.progress import now_and_then
from sessiond.connector.mover.suspends import SuspendPlan
from sessiond.connector.mover.writes import ChunkWriters
from sessiond.domain.errors import SessiondError, SessionNotFoundError
from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.keys import KeyRing
from sessiond.domain.kvgroups import groups_of
from sessiond.domain.loss import LOSSY_FIELD
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import TOKEN_BYTES
from sessiond.store import fp8kernels, planes
from sessiond.store.codecchoice import Speeds, choose_codec
from sessiond.store.codecs import Codec
from sessiond.store.keyfile import load_server_key
from sessiond.store.priority import lower_this_thread
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_NO_ROOM = Cause(Reason.STORE_FAILED, "too many open snapshots for mover_memory_bytes")

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
        if LOSSY_FIELD in hello.fingerprint:
            fp8kernels.kernels()
        self._raw_send = send
        self._send_lock = threading.Lock()
        self._ops = MeteredOps()
        self._store = Store.open(
            Path(hello.root),
            KeyRing.from_server_key(load_server_key(Path(hello.key_file), create=False)),
            ops=self._ops,
            floor_bytes=hello.floor_bytes,
        )
        self._shares = divide(
            hello.memory_bytes, hello.chunk_bytes, hello.read_threads, hello.write_threads
        )
        self._room = PlanRoom(self._shares.plans_bytes)
        self._fingerprint = Fingerprint(hello.fingerprint)
        self._bytes_digest = self._fingerprint.digest(FieldClass.BYTES)
        self._groups = groups_of(self._fingerprint, hello.chunk_tokens)
        self._lossy = lossy_codec(self._fingerprint)
        self._gate = ReadGate()
        self._reads = ThreadPoolExecutor(self._shares.read_threads, "read")
        # Opening a snapshot waits for reads of data if both share threads; it must not.
        self._opens = ThreadPoolExecutor(1, "open")
        # One thread does what suspends ask for in its order; others help it with the chunks.
        self._writes = ThreadPoolExecutor(1, "write", initializer=lower_this_thread)
        self._writers = ChunkWriters(self._shares.write_threads, self._gate)
        self._heads = ThreadPoolExecutor(1, "head")
        self._loads: dict[int, LoadPlan] = {}
        self._suspends: dict[int, SuspendPlan] = {}
        self._discarded: set[int] = set()  # plans that must not be committed any more

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
            case protocol.DiscardSuspend():
                self._discarded.add(message.plan_id)
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

    def _progress_of(self, job: protocol.Load | protocol.Store) -> Callable[[], None]:
        """Return what tells the tier, now and then, that the job has moved something."""
        return now_and_then(lambda: self._send(protocol.Progress(job.job_id)))

    def _write_head(self, message: protocol.WriteHead) -> None:
        causes: list[Cause] = []
        try:
            self._store.write_head(head_of(message, self._hello.engine_id))
        except SessionNotFoundError:
            logger.info("a head is dropped: its session was deleted")
        except (SessiondError, OSError) as error:
            logger.warning("a head was not written: %s", error)
            causes = [cause_of(error)]
        self._send(protocol.HeadWritten(message.head_id, as_json(causes)))

    def _open_load(self, message: protocol.OpenLoad) -> None:
        plan, causes = open_load(self._store, self._fingerprint, message)
        if not self._room.take(message.plan_id, plan_bytes(len(plan.records), 0)):
            plan.let_go()
            plan, causes = LoadPlan(), [_NO_ROOM]
        self._loads[message.plan_id] = plan
        self._send(
            protocol.LoadOpened(
                message.plan_id,
                plan.chunks,
                as_json(causes),
                plan.tokens_total,
                plan.tokens_restorable,
                plan.common_tokens,
            )
        )

    def _start_load(self, message: protocol.Load) -> None:
        plan, threads = self._loads[message.plan_id], self._shares.read_threads
        pace = self._shares.pace
        if message.until_s:
            pace = replace(pace, until_s=message.until_s)
        filling = plan.begin(message.items, self._slot, self._bytes_digest, pace)
        job = LoadJob(message.job_id, plan, filling, threads)
        plan.hold()
        for _ in range(threads):
            self._reads.submit(self._guarded, partial(self._work, job), message)

    def _work(self, job: LoadJob, message: protocol.Load) -> None:
        done = job.work(self._progress_of(message))
        if done is None:
            return
        job.plan.let_go()
        self._gate.leave()
        self._send(done)

    def _close_plan(self, message: protocol.ClosePlan) -> None:
        self._room.give_back(message.plan_id)
        plan = self._loads.pop(message.plan_id, None)
        if plan is not None:
            plan.let_go()

    def _open_suspend(self, message: protocol.OpenSuspend) -> None:
        size_bytes = len(message.payload)
        chunks = size_bytes // TOKEN_BYTES // self._hello.chunk_tokens * self._groups.count
        if not self._room.take(message.plan_id, plan_bytes(chunks, size_bytes)):
            self._send(protocol.SuspendOpened(message.plan_id, [], as_json([_NO_ROOM])))
            return
        try:
            plan = SuspendPlan(
                self._store, self._hello, self._fingerprint, message, self._choose_codec
            )
        except (SessiondError, OSError) as error:
            self._room.give_back(message.plan_id)
            causes = as_json([cause_of(error)])
            self._send(protocol.SuspendOpened(message.plan_id, [], causes))
            return
        self._suspends[message.plan_id] = plan
        self._send(protocol.SuspendOpened(message.plan_id, plan.durable_chunks, []))

    def _store_chunks(self, message: protocol.Store) -> None:
        plan = self._suspends[message.plan_id]
        progress = self._progress_of(message)
        causes = self._writers.write(plan, message.items, self._slot, progress)
        self._send(protocol.StoreDone(message.job_id, as_json(causes)))

    def _finish_suspend(self, message: protocol.FinishSuspend) -> None:
        self._room.give_back(message.plan_id)
        plan = self._suspends.pop(message.plan_id, None)
        if plan is None:  # it could not be opened
            self._send(protocol.SuspendFinished(message.plan_id, None, []))
            return
        snapshot: dict[str, Any] | None = None
        causes: list[Cause] = []
        try:
            if message.commit:
                snapshot, causes = plan.commit(lambda: message.plan_id in self._discarded)
        except (SessiondError, OSError) as error:
            causes = [cause_of(error)]
        finally:
            plan.close()
            self._discarded.discard(message.plan_id)
        self._send(protocol.SuspendFinished(message.plan_id, snapshot, as_json(causes)))

    def _choose_codec(self, raw: memoryview) -> Codec:
        """Return the codec for a segment that begins with this chunk."""
        if self._lossy is not None:
            return self._lossy
        if self._hello.codec != "auto":
            return Codec[self._hello.codec.upper().replace("-", "_")]
        assumed = Speeds()
        speeds = Speeds(
            read_bytes_s=self._ops.read_bytes_s(assumed.read_bytes_s),
            write_bytes_s=self._ops.write_bytes_s(assumed.write_bytes_s),
            read_threads=self._shares.read_threads,
            write_threads=self._shares.write_threads,
        )
        return choose_codec(raw, item_bytes=self._hello.item_bytes, speeds=speeds)

    def _slot(self, slot: int) -> memoryview:
        start = slot * self._hello.chunk_bytes
        return self._region[start : start + self._hello.chunk_bytes]
