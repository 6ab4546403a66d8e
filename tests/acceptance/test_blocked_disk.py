"""A disk that hangs in the kernel: the mover is given up, nothing that it held is used too soon."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.moverwatch import JobDone, MoverWatch
from sessiond.connector.questions import Question
from sessiond.domain.ids import SessionId
from sessiond.domain.tokens import to_bytes
from sessiond.store.store import Store
from sessiond.testing.blocking_disk import BlockingDisk, CannotBlockError
from sessiond.testing.mover_rig import an_engine, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, TENANT, a_key_ring, bf16_bytes, some_tokens

pytestmark = pytest.mark.alone

M = TypeVar("M", bound=protocol.Message)
CHUNKS = 4
CHUNK_BYTES = 1 << 20
HEAD = some_tokens(CHUNKS * CHUNK_TOKENS + 1)
ITEMS = [[chunk, chunk] for chunk in range(CHUNKS)]
EMPTY = bytes(CHUNK_BYTES)
HEALTHY, BLOCKED = 0, 1
DEADLINE_S = 4.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[BlockingDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        with BlockingDisk(folder) as disk:
            yield disk
    except CannotBlockError as error:
        pytest.skip(f"no disk can be made to hang here: {error}")
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


class Engine:
    """An engine's data plane without vLLM; its first mover serves the disk that will hang."""

    def __init__(self, folder: Path, disk: BlockingDisk) -> None:
        self.region_fd = os.memfd_create("region")
        os.ftruncate(self.region_fd, CHUNKS * CHUNK_BYTES)
        self.region = mmap.mmap(self.region_fd, 0)
        hello = replace(make_hello(folder), chunk_bytes=CHUNK_BYTES, region_chunks=CHUNKS)
        roots = (folder / "root", disk.path / "root")
        self.stores = [Store.open(root, a_key_ring(), floor_bytes=0) for root in roots]
        self.files = [store.publish_engine(an_engine(hello)) for store in self.stores]
        self._hellos = [replace(hello, root=str(root)) for root in roots]
        self.movers: list[MoverClient] = []
        self.watch = MoverWatch(self._start, DEADLINE_S, lambda: None, lambda: None)
        self._ids = iter(range(1, 1000))
        self._answers: list[protocol.Message] = []
        self.done: list[JobDone] = []
        self.wait_for_mover()

    def _start(self) -> MoverClient:
        hello = self._hellos[HEALTHY if self.movers else BLOCKED]
        self.movers.append(MoverClient(hello, self.region_fd))
        return self.movers[-1]

    def close(self) -> None:
        self.watch.close()
        for mover in self.movers:
            mover.close()
        for file in self.files:
            file.close()
        self.region.close()
        os.close(self.region_fd)

    def poll(self) -> None:
        self._answers += self.watch.poll()
        self.done += self.watch.take_done()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end_s, what
            self.poll()
            time.sleep(0.005)

    def wait_for_mover(self) -> None:
        """Wait until a mover that was just started answers: that takes as long as it takes."""
        self.watch.tell(protocol.OpenLoad(next(self._ids), TENANT, "nobody", 1, ""))
        self._answer(protocol.LoadOpened)

    def ask(self, question: Question, answer: type[M]) -> M:
        self.watch.ask(question)
        return self._answer(answer)

    def _answer(self, answer: type[M]) -> M:
        self.until(lambda: any(isinstance(one, answer) for one in self._answers), str(answer))
        (found,) = (one for one in self._answers if isinstance(one, answer))
        self._answers.remove(found)
        return found

    # Slot n holds, or gets, chunk n, which is made from seed n.

    def fill(self) -> None:
        for chunk in range(CHUNKS):
            self.region[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES] = chunk_bytes(chunk)

    def empty(self) -> None:
        self.region[:] = bytes(len(self.region))

    def slots(self) -> list[bytes]:
        whole = bytes(self.region)
        return [whole[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES] for chunk in range(CHUNKS)]

    def begin_store(self) -> int:
        plan = next(self._ids)
        self.ask(
            protocol.OpenSuspend(plan, TENANT, "s", 1, "", to_bytes(HEAD)), protocol.SuspendOpened
        )
        job = next(self._ids)
        self.watch.begin(job, frozenset(range(CHUNKS)))
        self.watch.ask(protocol.Store(job, plan, ITEMS))
        return plan

    def suspend(self) -> None:
        self.fill()
        plan = self.begin_store()
        finished = self.ask(protocol.FinishSuspend(plan, commit=True), protocol.SuspendFinished)
        (stored,) = (one for one in self._answers if isinstance(one, protocol.StoreDone))
        self._answers.remove(stored)
        self.watch.end(stored.job_id)
        assert finished.snapshot is not None

    def open_load(self) -> int:
        plan = next(self._ids)
        opened = self.ask(
            protocol.OpenLoad(plan, TENANT, "s", 1, "", to_bytes(HEAD)), protocol.LoadOpened
        )
        assert opened.chunks == list(range(CHUNKS))
        return plan

    def begin_load(self, plan: int) -> int:
        self.empty()
        job = next(self._ids)
        self.watch.begin(job, frozenset(range(CHUNKS)))
        self.watch.ask(protocol.Load(job, plan, ITEMS))
        return job

    def load(self) -> None:
        job = self.begin_load(self.open_load())
        self.until(lambda: bool(self._answers), "the load is not answered")
        self._answers.clear()
        self.watch.end(job)
        assert self.slots() == [chunk_bytes(chunk) for chunk in range(CHUNKS)]


def chunk_bytes(chunk: int) -> bytes:
    return bf16_bytes(chunk, CHUNK_BYTES)


def states(pid: int) -> set[str]:
    """Return the states of a process's threads."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found


@pytest.fixture
def engine(tmp_path: Path, disk: BlockingDisk) -> Iterator[Engine]:
    engine = Engine(tmp_path, disk)
    yield engine
    disk.go_on()
    engine.close()


def given_up(engine: Engine) -> MoverClient:
    """Wait until the mover was killed, and replaced; it still hangs in the kernel."""
    old = engine.movers[0]
    engine.until(lambda: len(engine.movers) == 2, "it is not replaced")
    engine.wait_for_mover()
    assert "D" in states(old.pid)
    assert states(old.pid) <= set("DZX")
    assert old._process.poll() is None
    return old


def test_reads_that_hang_cost_their_job_and_touch_no_slot_for_ever(
    engine: Engine, disk: BlockingDisk
) -> None:
    engine.suspend()
    engine.load()
    plan = engine.open_load()
    disk.hang("reads")
    job = engine.begin_load(plan)

    old = given_up(engine)
    assert engine.done == [JobDone(job, frozenset(), all_good=False)]
    engine.suspend()  # on a disk that works, with the same slots
    engine.load()

    engine.empty()
    disk.go_on()  # what hung for so long is read at last: nobody is left to put it anywhere
    engine.until(lambda: old._process.poll() is not None, "it never ends")
    assert engine.slots() == [EMPTY] * CHUNKS


def test_writes_that_hang_cost_their_suspend_and_leave_nothing(
    engine: Engine, disk: BlockingDisk
) -> None:
    engine.fill()
    disk.hang("writes")
    plan = engine.begin_store()
    engine.watch.ask(protocol.FinishSuspend(plan, commit=True))

    old = given_up(engine)
    assert [one.all_good for one in engine.done] == [False]
    engine.suspend()
    engine.load()

    disk.go_on()
    engine.until(lambda: old._process.poll() is not None, "it never ends")
    blocked = engine.stores[BLOCKED]
    assert blocked.generations(TENANT, SessionId("s")) == []
    blocked.sweep_tmp()
    assert [path for path in (blocked.root / "segments").rglob("*") if path.is_file()] == []
    assert list((blocked.root / "tmp").iterdir()) == []
