"""Many resumes at once: in order of who waits, none lost, none computed again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.engines import EngineInfo
from sessiond.domain.ids import DEFAULT_TENANT, EngineId, SessionId
from sessiond.domain.reasons import Reason
from sessiond.domain.session import OperationStatus
from sessiond.service.rebuild import rebuild_registry
from sessiond.service.resume_queue import MOST_AT_ONCE, ResumeQueue
from sessiond.testing.values import an_engine
from sessiond.testing.world import AGENT, PATIENT, World, open_world, problem, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessiond.domain.session import Operation
    from sessiond.service.watch import Key
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

ENGINE = an_engine(chunk_tokens=16, ram_tier_chunks=10, max_model_tokens=8192)
CHUNKS = 6  # of a session
STORM = 50


def key_of(number: int) -> Key:
    return DEFAULT_TENANT, SessionId(f"s{number:02}")


class Story:
    """Resumes that last until they are told to end."""

    def __init__(self, queue: ResumeQueue, engine: EngineInfo = ENGINE) -> None:
        self.queue, self.engine = queue, engine
        self.begun: list[int] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, asyncio.Event] = {}
        self._chunks: dict[int, int] = {}

    async def join(self, chunks: int) -> int:
        """Let one more come; return its number."""
        number = len(self._tasks)
        self._ends[number], self._chunks[number] = asyncio.Event(), chunks
        self._tasks[number] = asyncio.create_task(self._run(number, chunks))
        await self.settle()
        return number

    async def _run(self, number: int, chunks: int) -> None:
        async with self.queue.place(key_of(number), self.engine, chunks):
            self.begun.append(number)
            await self._ends[number].wait()

    async def settle(self) -> None:
        """Let whoever can run do so: nothing here waits for anything but events."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self, number: int) -> None:
        """End one that has begun."""
        self._ends[number].set()
        await self._tasks[number]
        await self.settle()

    async def leave(self, number: int) -> None:
        """Cancel one, wherever it is."""
        self._tasks[number].cancel()
        await asyncio.gather(self._tasks[number], return_exceptions=True)
        await self.settle()

    @property
    def running(self) -> list[int]:
        return [number for number in self.begun if not self._tasks[number].done()]

    @property
    def waiting(self) -> list[int]:
        alive = (number for number, task in self._tasks.items() if not task.done())
        return [number for number in alive if number not in self.begun]

    def chunks(self, numbers: list[int]) -> int:
        return sum(min(self._chunks[n], self.engine.ram_tier_chunks) for n in numbers)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 14)),
        st.tuples(st.sampled_from(["end", "leave"]), st.integers(0, 20)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=steps)
def test_the_line_is_in_order_and_always_moves(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        queue = ResumeQueue()
        story = Story(queue)
        for step, number in steps:
            if step == "join":
                await story.join(number)
            elif story.running and step == "end":
                await story.end(story.running[number % len(story.running)])
            elif story.waiting and step == "leave":
                await story.leave(story.waiting[number % len(story.waiting)])
            assert story.begun == sorted(story.begun)  # first come, first served
            assert story.running or not story.waiting  # nobody waits for nothing
            # What fits, and at most one more.
            assert story.chunks(story.running[:-1]) < ENGINE.ram_tier_chunks or not story.running
            assert len(story.running) <= MOST_AT_ONCE
            positions = [queue.position(key_of(n)) for n in story.waiting]
            assert positions == list(range(len(story.waiting)))
            assert queue.length(ENGINE.engine_id) == len(story.running) + len(story.waiting)
        while story.running:
            await story.end(story.running[0])
        assert story.waiting == []
        assert (queue.waiting, queue.length(ENGINE.engine_id)) == (0, 0)

    asyncio.run(run())


async def test_who_is_cancelled_while_running_makes_room() -> None:
    story = Story(ResumeQueue())
    for _ in range(4):
        await story.join(CHUNKS)
    assert story.begun == [0, 1]
    await story.leave(0)
    assert story.begun == [0, 1, 2]
    for number in (1, 2, 3):
        await story.end(number)


async def test_two_of_one_session_are_two() -> None:
    queue = ResumeQueue()
    begun: list[int] = []
    ends = [asyncio.Event(), asyncio.Event(), asyncio.Event()]

    async def run(number: int) -> None:
        async with queue.place(key_of(0), replace(ENGINE, ram_tier_chunks=1), 1):
            begun.append(number)
            await ends[number].wait()

    tasks = [asyncio.create_task(run(number)) for number in range(3)]
    while queue.length(ENGINE.engine_id) < 3:
        await asyncio.sleep(0)
    tasks[1].cancel()  # its lease was lost
    ends[0].set()
    ends[2].set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [0, 2]
    assert queue.length(ENGINE.engine_id) == 0


async def test_small_ones_are_bounded_as_well() -> None:
    story = Story(ResumeQueue(), replace(ENGINE, ram_tier_chunks=1000))
    for _ in range(MOST_AT_ONCE + 1):
        await story.join(1)
    assert len(story.begun) == MOST_AT_ONCE
    await story.end(0)
    assert len(story.begun) == MOST_AT_ONCE + 1
    for number in range(1, MOST_AT_ONCE + 1):
        await story.end(number)


async def test_engines_do_not_wait_for_each_other() -> None:
    queue = ResumeQueue()
    one = Story(queue)
    other = Story(queue, replace(ENGINE, engine_id=EngineId("f" * 32)))
    for story in (one, other):
        for _ in range(3):
            await story.join(9)
    assert (one.begun, other.begun) == ([0, 1], [0, 1])
    for story in (one, other):
        for number in range(3):
            await story.end(number)


# With the whole service


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A service whose clocks decide nothing, however slow the machine is."""
    async with open_world(tmp_path, limits=PATIENT) as world:
        yield world


async def storm(world: World, many: int) -> list[Operation]:
    """Suspend so many sessions, kill their engine, start one with room for three; resume all."""
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    manifest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    for number in range(many):  # sessions with the same snapshot are made quickly
        session_id = key_of(number)[1]
        world.store.write_session(replace(record, session=session_id))
        world.store.commit_manifest(replace(manifest, session=session_id))
    rebuild_registry(world.store, world.registry)
    world.kill_engine(engine)
    fresh = world.start_engine(ram_tier_chunks=3 * CHUNKS)
    fresh.faults.gates["resume"] = asyncio.Event()
    resume = world.services.lifecycle.resume
    operations = [await resume(*key_of(number)) for number in range(many)]
    async with asyncio.timeout(60):
        while resumes(fresh) < 3 or world.services.context.resume_queue.waiting < many - 3:
            await asyncio.sleep(0.005)
    return operations


def resumes(engine: FakeEngine) -> int:
    return sum(seen.op == "resume" for seen in engine.seen)


async def test_a_storm_is_restored_in_order_and_without_computing(world: World) -> None:
    operations = await storm(world, STORM)
    engine = world.started[-1]
    position = world.services.operations.queue_position
    assert [position(one) for one in operations] == [None] * 3 + list(range(STORM - 3))
    assert resumes(engine) == 3  # the others are not even sent
    engine.faults.gates["resume"].set()
    told = [report(await world.ended(one)) for one in operations]
    assert {one["outcome"] for one in told} <= {"restored", "warm"}  # of the same tokens
    assert {one["tokens_restored"] for one in told} == {96}
    assert all(one["queued_s"] <= one["seconds"] for one in told)
    assert told[-1]["queued_s"] > told[0]["queued_s"]
    order = [seen.session for seen in engine.seen if seen.op == "resume"]
    assert order == [one.session_id for one in operations]
    assert world.services.context.resume_queue.waiting == 0


async def test_who_has_waited_for_long_begins_as_if_it_had_come_now(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    context = world.services.context
    async with context.resume_queue.place(key_of(0), engine.info, chunks=10**6):
        operation = await world.services.lifecycle.resume(DEFAULT_TENANT, AGENT)
        while world.services.operations.queue_position(operation) != 0:
            await asyncio.sleep(0)
        world.pass_time(2 * context.limits.operation_ticket_s)  # no ticket of before is valid
    told = report(await world.ended(operation))
    assert (told["outcome"], told["causes"]) == ("warm", [])


async def test_when_the_engine_dies_all_that_wait_are_told(world: World) -> None:
    operations = await storm(world, 6)
    engine = world.started[-1]
    world.kill_engine(engine)
    engine.faults.aborts.add("resume")
    engine.faults.gates["resume"].set()
    assert {problem(await world.ended(one)) for one in operations} == {"engine_unreachable"}
    world.start_engine()
    assert report(await world.resume(key_of(5)[1]))["outcome"] == "restored"


async def test_a_full_ram_tier_is_waited_for_again(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    engine = world.start_engine()
    engine.faults.busy_resumes = 3
    assert report(await world.resume())["outcome"] == "restored"
    assert resumes(engine) == 4
    world.kill_engine(engine)
    engine = world.start_engine()
    engine.faults.busy_resumes = 1000
    told = report(await world.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", Reason.RAM_TIER_BUSY)


async def test_the_place_is_shown_while_it_waits(world: World) -> None:
    operations = await storm(world, 5)
    engine = world.started[-1]
    last = operations[-1]
    assert last.status is OperationStatus.RUNNING
    probe = await world.services.prober.probe(*key_of(4))
    assert probe.resumes_ahead == 5
    transport = httpx.ASGITransport(world.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://daemon") as api:
        metrics = (await api.get("/metrics")).text
        shown = (await api.get(f"/v1/operations/{last.operation_id}")).json()
        first = (await api.get(f"/v1/operations/{operations[0].operation_id}")).json()
        joined = await api.post(f"/v1/sessions/{last.session_id}/resume", params={"wait": 0})
    assert "sessiond_resumes_waiting 2.0" in metrics
    assert (shown["queue_position"], first["queue_position"]) == (1, None)
    assert (joined.status_code, joined.json()["queue_position"]) == (202, 1)
    engine.faults.gates["resume"].set()
    for one in operations:
        await world.ended(one)
