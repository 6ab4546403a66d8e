from __future__ import annotations

import asyncio
import errno
import itertools
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.drains import AtRisk, most_valuable_first
from sessiond.domain.errors import EngineNotFoundError, RegistryUnavailableError
from sessiond.domain.heads import add_branch
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.jsonbody import parse_body
from sessiond.domain.reasons import Reason
from sessiond.domain.session import SessionState
from sessiond.service.calls import Call, Endpoint
from sessiond.service.drain_scan import DrainScan, Found
from sessiond.service.engines import ANYWHERE, Where
from sessiond.service.routing import Router
from sessiond.testing.files import FaultyOps
from sessiond.testing.world import PATIENT, World, open_world, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from sessiond.domain.drains import DrainReport
    from sessiond.domain.tokens import TokenIds
    from sessiond.service.watch import Key
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

A, B, C = SessionId("a"), SessionId("b"), SessionId("c")
#: Longer than anything takes: who waits for so long has failed.
LONG_S = 60.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, limits=PATIENT) as world:
        yield world


@pytest.fixture
def engine(world: World) -> FakeEngine:
    return world.start_engine()


@pytest.fixture
async def one_at_a_time(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, limits=replace(PATIENT, sweep_concurrency=1)) as world:
        yield world


async def used(
    world: World, session_id: SessionId, tokens: int = 100, seed: int | None = None
) -> None:
    await world.create(session_id)
    await world.turn(session_id, text(tokens, seed or ord(session_id[0])))


async def drain(world: World, engine: FakeEngine, deadline_s: float = LONG_S) -> DrainReport:
    engine_id = engine.info.engine_id
    return await world.services.drainer.drain(DEFAULT_TENANT, engine_id, deadline_s)


async def drain_in_doubt(world: World, engine: FakeEngine, reason: Reason) -> DrainReport:
    """Return what a drain tells that cannot be complete, once it has seen why."""
    async with asyncio.timeout(LONG_S):
        while True:
            told = await drain(world, engine, 0.1)
            assert not told.complete
            if [cause.reason for cause in told.causes] == [reason]:
                return told


def saved(told: DrainReport) -> dict[str, int]:
    return {one.session_id: one.tokens for one in told.saved}


def unsaved(told: DrainReport) -> dict[str, tuple[str, int]]:
    return {one.session_id: (one.code, one.tokens) for one in told.unsaved}


async def state(world: World, session_id: SessionId) -> SessionState:
    return (await world.show(session_id)).state


async def until(world: World, session_id: SessionId, kind: str) -> None:
    """Wait until the session's trail tells of *kind*."""
    async with asyncio.timeout(LONG_S):
        while kind not in [
            event.kind for event in world.registry.list_events(DEFAULT_TENANT, session_id)
        ]:
            await asyncio.sleep(0.005)


# What is stored


async def test_all_sessions_of_the_engine_are_stored(world: World, engine: FakeEngine) -> None:
    for name in (A, B, C):
        await used(world, name)
    told = await drain(world, engine)
    assert (told.complete, told.unsaved) == (True, ())
    assert saved(told) == {A: 96, B: 96, C: 96}
    for name in (A, B, C):
        assert await state(world, name) is SessionState.SUSPENDED


async def test_an_empty_engine_is_drained_at_once(world: World, engine: FakeEngine) -> None:
    told = await drain(world, engine)
    assert (told.complete, told.saved, told.unsaved) == (True, (), ())


async def test_what_is_stored_already_is_left_alone(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    await used(world, B)
    report(await world.suspend(A))
    assert saved(await drain(world, engine)) == {B: 96}
    assert world.store.generations(DEFAULT_TENANT, A) == [1]
    assert (await drain(world, engine)).saved == ()  # repeating it finds nothing


async def test_pinned_sessions_of_all_tenants_are_stored(world: World, engine: FakeEngine) -> None:
    other = TenantId("other")
    await world.create(A, pinned=True)
    await world.turn(A, text(100))
    await world.services.catalogue.create(other, B)
    await world.turn(B, text(100), tenant=other)
    told = await drain(world, engine)
    assert {(one.tenant, one.session_id) for one in told.saved} == {
        (DEFAULT_TENANT, A), (other, B),
    }  # fmt: skip


async def test_sessions_of_other_engines_are_left_alone(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    world.kill_engine(engine)
    second = world.start_engine("second")
    await used(world, B)
    third = world.start_engine("third")
    told = await drain(world, third)
    assert (told.complete, told.saved) == (True, ())
    assert saved(await drain(world, second)) == {B: 96}


async def test_a_session_that_went_elsewhere_is_not_the_engines(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    second = world.start_engine("second")
    engine.update(tier_off="test", tier_off_reason="tier_off")
    await world.turn(A, text(120, ord("a")))
    presence = (await world.show(A)).presence
    assert presence is not None
    assert presence.engine_id == second.info.engine_id
    engine.update(tier_off="", tier_off_reason="")
    told = await drain(world, engine)
    assert (told.complete, told.saved, told.unsaved) == (True, (), ())


async def turn_on(world: World, engine: FakeEngine, prompt: TokenIds[int]) -> None:
    """Take a turn of A on this engine, wherever its KV is."""
    where = Where(engine.info.engine_id)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, A, where=where)
    await world.use(ticket, prompt)


async def test_a_turn_elsewhere_that_has_only_begun_is_waited_for(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    second = world.start_engine("second")
    second.begin_turn(DEFAULT_TENANT, A)
    told = await drain(world, engine, 0.2)
    assert (told.complete, unsaved(told)) == (False, {A: ("turn_in_flight", 96)})
    running = asyncio.create_task(drain(world, engine))
    second.end_turn(DEFAULT_TENANT, A)  # and leaves nothing
    told = await running
    assert (told.complete, saved(told)) == (True, {A: 96})


async def test_a_turn_in_flight_counts_although_one_elsewhere_is_newer(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    second = world.start_engine("second")
    engine.begin_turn(DEFAULT_TENANT, A)
    await turn_on(world, second, text(120, ord("a")))
    told = await drain(world, engine, 0.2)
    assert (told.complete, unsaved(told)) == (False, {A: ("turn_in_flight", 108)})
    engine.end_turn(DEFAULT_TENANT, A)
    told = await drain(world, engine)
    assert (told.complete, told.saved, told.unsaved) == (True, (), ())


async def test_after_a_side_call_elsewhere_the_conversation_is_stored(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A, 400)
    second = world.start_engine("second")
    await turn_on(world, second, text(64, seed=8))
    told = await drain(world, second)
    assert (told.complete, told.saved, told.unsaved) == (True, (), ())
    assert saved(await drain(world, engine)) == {A: 400}


async def test_what_the_engine_has_more_than_another_one_that_was_resumed_is_told(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    report(await world.suspend(A))
    await world.turn(A, text(200, ord("a")))
    second = world.start_engine("second")
    (ours,) = world.store.read_heads(DEFAULT_TENANT, A)
    assert ours.main is not None
    part = replace(ours.main, tokens=ours.main.tokens[:97], updated_unix_s=time.time())
    second.write_head(
        add_branch(replace(ours, engine_id=second.info.engine_id, branches=()), part, time.time())
    )
    told = await drain(world, engine)
    assert (told.complete, unsaved(told)) == (False, {A: ("went_elsewhere", 208 - 16 - 96)})
    await turn_on(world, second, text(220, ord("a")))
    assert (await drain(world, engine)).complete


async def test_a_turn_of_which_nobody_knows_whether_it_is_a_side_call_is_told(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    report(await world.suspend(A))
    world.kill_engine(engine)
    second = world.start_engine("second")
    await world.turn(A, text(400, seed=9))
    told = await drain(world, second)
    assert (told.complete, unsaved(told)) == (False, {A: ("side_call", 400)})
    await world.turn(A, text(440, seed=9))
    assert saved(await drain(world, second)) == {A: 448 - 16}


# What heads do not tell yet


async def test_turns_of_which_no_head_tells_yet_are_stored(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    report(await world.suspend(A))
    engine.faults.late_heads = True
    await world.turn(A, text(200, ord("a")))
    await used(world, B)
    told = await drain(world, engine)
    assert (told.complete, told.causes) == (True, ())
    assert saved(told) == {A: 208 - 16, B: 96}


async def test_an_engine_that_does_not_tell_what_it_has_is_not_drained(
    tmp_path: Path,
) -> None:
    limits = replace(PATIENT, heads_settle_s=0.05)
    async with open_world(tmp_path, limits=limits) as world:
        engine = world.start_engine()
        await used(world, A)
        engine.faults.hangs.add("heads")
        told = await drain_in_doubt(world, engine, Reason.HEAD_UNCONFIRMED)
        assert told.unsaved == ()
        engine.faults.hangs.clear()
        told = await drain(world, engine)
        assert (told.complete, told.causes) == (True, ())


async def test_an_engine_that_does_not_know_itself_yet_is_not_drained(
    world: World, engine: FakeEngine
) -> None:
    engine.update(tier_off="16 GB", tier_off_reason="identity_pending")
    engine.faults.refusals["heads"] = Reason.IDENTITY_PENDING
    await drain_in_doubt(world, engine, Reason.IDENTITY_PENDING)


async def test_an_engine_that_sleeps_has_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(PATIENT, heads_settle_s=0.05)) as world:
        engine = world.start_engine()
        await used(world, A)
        engine.reset()
        engine.faults.hangs.add("heads")
        assert (await drain(world, engine)).complete


@pytest.mark.parametrize("answers", [True, False])
async def test_what_an_engine_without_a_mover_has_is_not_known(
    world: World,
    engine: FakeEngine,
    answers: bool,  # noqa: FBT001 - a parameter
) -> None:
    engine.update(tier_off="5 times", tier_off_reason="mover_failed")
    if answers:
        engine.faults.refusals["heads"] = Reason.MOVER_FAILED
    else:
        engine.faults.hangs.add("heads")
    expected = Reason.MOVER_FAILED if answers else Reason.HEAD_UNCONFIRMED
    await drain_in_doubt(world, engine, expected)


async def test_a_turn_that_ends_while_another_one_is_waited_for_is_stored(
    world: World, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create(A)
    await world.create(B)
    gate = engine.faults.gates["heads"] = asyncio.Event()
    waits, loop, among = asyncio.Event(), asyncio.get_running_loop(), DrainScan.among

    def noted(self: DrainScan, keys: Iterable[Key]) -> Found:
        keys = list(keys)
        if keys == [(DEFAULT_TENANT, A)]:
            loop.call_soon_threadsafe(waits.set)
        return among(self, keys)

    draining = asyncio.create_task(drain(world, engine))
    async with asyncio.timeout(LONG_S):
        while not engine.seen:
            await asyncio.sleep(0.005)
        engine.begin_turn(DEFAULT_TENANT, A)
        gate.set()
        monkeypatch.setattr(DrainScan, "among", noted)
        await waits.wait()  # the engine has told, and A's turn is waited for
        await world.turn(B, text(100))
        engine.end_turn(DEFAULT_TENANT, A)
        assert saved(await draining) == {B: 96}


async def test_a_turn_that_is_sent_during_the_last_look_is_stored(
    world: World, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create(A)
    looked, goes_on, looks = threading.Event(), threading.Event(), itertools.count(1)
    everywhere = DrainScan.everywhere

    def slow(self: DrainScan) -> Found:
        found = everywhere(self)
        if next(looks) == 2:
            looked.set()
            assert goes_on.wait(LONG_S)
        return found

    monkeypatch.setattr(DrainScan, "everywhere", slow)
    draining = asyncio.create_task(drain(world, engine))
    async with asyncio.timeout(LONG_S):
        while not looked.is_set():
            await asyncio.sleep(0.005)
        await world.turn(A, text(100))
        goes_on.set()
        assert saved(await draining) == {A: 96}


async def test_when_time_is_up_before_the_engine_has_told_that_is_said(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.hangs.add("heads")
    told = await drain(world, engine, 0.2)
    assert (told.complete, [cause.reason for cause in told.causes]) == (
        False,
        [Reason.HEAD_UNCONFIRMED],
    )


async def test_a_turn_that_is_on_its_way_to_the_engine_is_waited_for(
    world: World, engine: FakeEngine
) -> None:
    await world.create(A)
    with world.services.context.on_the_way.to(engine.info.engine_id):
        draining = asyncio.create_task(drain(world, engine))
        await drain_in_doubt(world, engine, Reason.TURN_IN_FLIGHT)
        await world.turn(A, text(100))
    assert saved(await draining) == {A: 96}


# The order


@pytest.mark.parametrize(
    ("found", "order"),
    [
        ({"a": (100, 0), "b": (200, 0)}, "ba"),
        ({"a": (100, 0), "b": (100, 60)}, "ab"),
        ({"a": (100, 0), "b": (190, 3600)}, "ab"),
        ({"a": (100, 0), "b": (210, 3600)}, "ba"),
        ({"a": (100, 7200), "b": (30, 0)}, "ba"),
        ({"b": (100, 0), "a": (100, 0)}, "ab"),
        ({"a": (100, 1e9), "b": (1, 0)}, "ba"),
        ({"a": (1, -5), "b": (1, 0)}, "ab"),  # a clock that was turned back
    ],
)
def test_the_most_valuable_first(found: dict[str, tuple[int, float]], order: str) -> None:
    now = 1e10
    given = [
        AtRisk(DEFAULT_TENANT, SessionId(name), tokens, now - idle_s)
        for name, (tokens, idle_s) in found.items()
    ]
    assert "".join(one.session_id for one in most_valuable_first(given, now)) == order


async def test_sessions_are_stored_in_this_order(one_at_a_time: World) -> None:
    world = one_at_a_time
    engine = world.start_engine()
    for name, tokens in ((A, 60), (B, 300), (C, 150)):
        await used(world, name, tokens)
    told = await drain(world, engine)
    assert [one.session_id for one in told.saved] == [B, C, A]


# Time


async def test_after_the_deadline_it_tells_what_was_not_stored(one_at_a_time: World) -> None:
    world = one_at_a_time
    engine = world.start_engine()
    for name, tokens in ((A, 100), (B, 300)):
        await used(world, name, tokens)
    engine.faults.gates["suspend"] = asyncio.Event()
    told = await drain(world, engine, 0.3)
    assert not told.complete
    assert unsaved(told) == {B: ("deadline_exceeded", 304), A: ("deadline_exceeded", 96)}
    assert [one.session_id for one in told.unsaved] == [B, A]
    engine.faults.gates["suspend"].set()
    assert (await drain(world, engine)).complete


async def test_without_time_it_marks_the_engine_and_tells(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    told = await drain(world, engine, 0.0)
    assert (told.complete, told.saved) == (False, ())
    assert unsaved(told) == {A: ("deadline_exceeded", 96)}
    assert (await world.services.context.engines.get(engine.info.engine_id)).draining


async def test_a_turn_in_flight_is_waited_for(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    await used(world, B)
    engine.begin_turn(DEFAULT_TENANT, A)
    running = asyncio.create_task(drain(world, engine))
    await until(world, B, "suspended")
    assert not running.done()
    engine.end_turn(DEFAULT_TENANT, A)
    told = await running
    assert (told.complete, saved(told)) == (True, {A: 96, B: 96})


async def test_a_turn_that_does_not_end_is_named(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    engine.begin_turn(DEFAULT_TENANT, A)
    told = await drain(world, engine, 0.3)
    assert unsaved(told) == {A: ("turn_in_flight", 108)}


async def test_one_that_hangs_holds_up_no_other(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    await used(world, B)
    engine.begin_turn(DEFAULT_TENANT, B)
    held = engine.faults.gates["suspend"] = asyncio.Event()
    running = asyncio.create_task(drain(world, engine))
    async with asyncio.timeout(LONG_S):
        while "suspend" not in [seen.op for seen in engine.seen]:
            await asyncio.sleep(0.005)
    del engine.faults.gates["suspend"]  # for those who come after it
    engine.end_turn(DEFAULT_TENANT, B)
    await until(world, B, "suspended")
    assert not running.done()
    held.set()
    told = await running
    assert (told.complete, saved(told)) == (True, {B: 96, A: 96})


async def test_two_at_once_are_one(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    engine.faults.gates["suspend"] = asyncio.Event()
    first = asyncio.create_task(drain(world, engine))
    short = await drain(world, engine, 0.2)
    assert unsaved(short) == {A: ("deadline_exceeded", 96)}
    engine.faults.gates["suspend"].set()
    assert saved(await first) == {A: 96}
    assert [seen.op for seen in engine.seen].count("suspend") == 1


# What goes wrong


async def test_what_cannot_be_stored_is_named_and_costs_the_others_nothing(
    world: World, engine: FakeEngine
) -> None:
    await used(world, A)
    await used(world, B)
    head = next(
        head for head in world.store.drains.heads_of(engine.info.engine_id) if head.session == A
    )
    engine.write_head(replace(head, unkept=Reason.NOT_TEXT.value))
    told = await drain(world, engine)
    assert not told.complete
    assert unsaved(told) == {A: ("not_text", 108)}
    assert saved(told) == {B: 96}


async def test_a_session_that_cannot_be_looked_at_is_named_and_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, limits=PATIENT, ops=ops) as world:
        engine = world.start_engine()
        await used(world, A)
        await used(world, B)
        folder = world.store.keys.session_name(DEFAULT_TENANT, A)
        found = list(world.store.drains.heads_of(engine.info.engine_id))
        # Its head was read before the disk failed.
        monkeypatch.setattr(world.store.drains, "heads_of", lambda _: iter(found))
        ops.fail("open", errno.EIO, times=10_000, name_part=folder)
        told = await drain(world, engine)
    assert (told.complete, saved(told)) == (False, {B: 96})
    assert unsaved(told) == {A: ("store_error", 0)}


async def test_kv_that_was_evicted_is_told(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    engine.evict(keep_tokens=32)
    told = await drain(world, engine)
    assert saved(told) == {}  # not wholly
    assert unsaved(told) == {A: ("kv_evicted", 64)}
    assert told.unsaved[0].saved_tokens == 32


async def test_a_failure_that_may_pass_is_tried_again(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    engine.faults.http_errors["suspend"] = 503
    running = asyncio.create_task(drain(world, engine))
    await until(world, A, "suspend_failed")
    engine.faults.http_errors.clear()
    told = await running
    assert (told.complete, saved(told)) == (True, {A: 96})


async def test_what_is_stored_is_told_though_its_suspend_failed(
    world: World, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise RegistryUnavailableError

    await used(world, A)
    monkeypatch.setattr(world.registry, "record_snapshot", down)
    told = await drain(world, engine)
    assert "suspend_failed" in [
        event.kind for event in world.registry.list_events(DEFAULT_TENANT, A)
    ]
    assert (told.complete, saved(told), told.unsaved) == (True, {A: 96}, ())
    assert told.saved[0].generation == 1


async def test_what_was_stored_during_a_look_is_not_told_as_missing(
    world: World, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(world, A)
    held = engine.faults.gates["suspend"] = asyncio.Event()
    loop, look, drainer = asyncio.get_running_loop(), DrainScan.among, world.services.drainer

    def slowly(scan: DrainScan, keys: Iterable[Key]) -> Found:
        found = look(scan, keys)
        running = drainer._running.get(engine.info.engine_id)
        if running is None or not running[0]._at_work:
            return found  # the first one
        loop.call_soon_threadsafe(held.set)
        end_s = time.monotonic() + LONG_S
        while not running[0]._heard_of and time.monotonic() < end_s:
            time.sleep(0.005)
        running[0].end_s = 0.0
        return found

    monkeypatch.setattr(DrainScan, "among", slowly)
    told = await drain(world, engine)
    assert (saved(told), told.unsaved) == ({A: 96}, ())


async def test_each_is_in_one_list_when_the_caches_are_reset_meanwhile(
    one_at_a_time: World,
) -> None:
    world = one_at_a_time
    engine = world.start_engine()
    for name, tokens in ((A, 400), (B, 300), (C, 100)):
        await used(world, name, tokens)
    of_first = engine.faults.gates["suspend"] = asyncio.Event()
    running = asyncio.create_task(drain(world, engine))
    await suspends_of(engine, [A])
    of_second = engine.faults.gates["suspend"] = asyncio.Event()
    of_first.set()
    await suspends_of(engine, [A, B])
    engine.reset()
    of_second.set()
    told = await running
    assert (told.complete, saved(told)) == (False, {A: 400})
    assert unsaved(told) == {B: ("kv_evicted", 304), C: ("kv_evicted", 96)}


async def test_what_a_reset_took_is_told_although_another_engine_has_an_older_turn(
    world: World, engine: FakeEngine
) -> None:
    second = world.start_engine("second")
    await world.create(A)
    await turn_on(world, second, text(50, ord("a")))
    await turn_on(world, engine, text(100, ord("a")))
    held = engine.faults.gates["suspend"] = asyncio.Event()
    running = asyncio.create_task(drain(world, engine))
    await suspends_of(engine, [A])
    engine.reset()
    held.set()
    assert unsaved(await running) == {A: ("kv_evicted", 96)}


async def suspends_of(engine: FakeEngine, sessions: list[SessionId]) -> None:
    """Wait until these suspends have arrived, in this order."""
    async with asyncio.timeout(LONG_S):
        while [seen.session for seen in engine.seen if seen.op == "suspend"] != sessions:
            await asyncio.sleep(0.005)


async def test_what_somebody_else_stored_meanwhile_is_told(
    world: World, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(world, A)
    engine.begin_turn(DEFAULT_TENANT, A)
    loop, look, looks = asyncio.get_running_loop(), DrainScan.among, list[int]()

    def with_somebody_else(scan: DrainScan, keys: Iterable[Key]) -> Found:
        looks.append(1)
        if len(looks) == 2:
            engine.end_turn(DEFAULT_TENANT, A)
            report(asyncio.run_coroutine_threadsafe(world.suspend(A), loop).result(LONG_S))
        return look(scan, keys)

    monkeypatch.setattr(DrainScan, "among", with_somebody_else)
    told = await drain(world, engine)
    assert (told.complete, saved(told), told.unsaved) == (True, {A: 96}, ())


async def test_an_engine_that_dies_meanwhile_is_told(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    await used(world, B)
    engine.begin_turn(DEFAULT_TENANT, A)
    running = asyncio.create_task(drain(world, engine))
    await until(world, B, "suspended")
    world.kill_engine(engine)
    told = await running
    assert (told.complete, saved(told)) == (False, {B: 96})
    assert unsaved(told) == {A: ("turn_in_flight", 108)}


async def test_an_engine_that_does_not_live_is_not_drained(
    world: World, engine: FakeEngine
) -> None:
    world.kill_engine(engine)
    with pytest.raises(EngineNotFoundError):
        await drain(world, engine)
    with pytest.raises(EngineNotFoundError):
        await world.services.drainer.undrain(engine.info.engine_id)
    assert list((world.store.root / "engines").iterdir()) == []


# Where new work goes


async def test_new_turns_go_elsewhere_if_they_can(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    second = world.start_engine("second")
    assert (await world.services.turns.ticket(DEFAULT_TENANT, A)).engine == engine.info
    await drain(world, engine)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, A)
    assert ticket.engine == second.info
    assert ticket.generation == 1
    assert report(await world.resume(A))["engine_id"] == second.info.engine_id
    assert await world.services.drainer.undrain(engine.info.engine_id)
    assert not await world.services.drainer.undrain(engine.info.engine_id)


async def test_calls_of_no_known_model_go_elsewhere_if_they_can(
    world: World, engine: FakeEngine
) -> None:
    router = Router(world.services.context, world.services.catalogue, world.services.turns)
    call = Call(DEFAULT_TENANT, Endpoint.CHAT, None, parse_body(b'{"model": "unheard"}'), [])
    older = engine.info
    newer = world.start_engine("second").info
    expected = {older.engine_id: newer, newer.engine_id: older}
    for one, other in expected.items():
        world.store.drains.mark(one, {})
        assert (await router.passage(call, ANYWHERE)).engine == other
        world.store.drains.unmark(one)
    for one in expected:
        world.store.drains.mark(one, {})
    assert (await router.passage(call, ANYWHERE)).engine.engine_id == newer.engine_id


async def test_alone_it_goes_on_serving(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    await drain(world, engine)
    await world.turn(A, text(200, ord("a")))
    assert saved(await drain(world, engine)) == {A: 192}


async def test_every_daemon_of_the_store_sees_it(
    world: World, engine: FakeEngine, tmp_path: Path
) -> None:
    async with open_world(tmp_path, limits=PATIENT) as other:
        await drain(world, engine)
        (seen,) = await other.services.context.engines.live()
        assert seen == replace(engine.info, draining=True)
        engine.update(heartbeat_unix_s=5.0)  # the engine's own file changes nothing of it
        assert (await other.services.context.engines.live())[0].draining
        await other.services.drainer.undrain(engine.info.engine_id)
        assert not (await world.services.context.engines.live())[0].draining


async def test_the_mark_goes_with_the_engine(world: World, engine: FakeEngine) -> None:
    await drain(world, engine)
    assert len(list((world.store.root / "engines").glob("*.drain"))) == 1
    world.kill_engine(engine)
    assert list((world.store.root / "engines").iterdir()) == []


async def test_undraining_ends_a_drain_that_runs(world: World, engine: FakeEngine) -> None:
    await used(world, A)
    engine.begin_turn(DEFAULT_TENANT, A)
    running = asyncio.create_task(drain(world, engine))
    async with asyncio.timeout(LONG_S):
        while not (await world.services.context.engines.live())[0].draining:
            await asyncio.sleep(0.005)
    assert await world.services.drainer.undrain(engine.info.engine_id)
    told = await running
    assert not told.complete


async def test_undraining_ends_the_drains_of_all_daemons(
    world: World, engine: FakeEngine, tmp_path: Path
) -> None:
    await used(world, A)
    await used(world, B)
    engine.begin_turn(DEFAULT_TENANT, A)
    async with open_world(tmp_path, limits=PATIENT) as other:
        running = asyncio.create_task(drain(world, engine))
        await until(world, B, "suspended")
        assert await other.services.drainer.undrain(engine.info.engine_id)
        told = await running
    assert (told.complete, saved(told)) == (False, {B: 96})
    assert unsaved(told) == {A: ("turn_in_flight", 108)}
    engine.end_turn(DEFAULT_TENANT, A)
    assert saved(await drain(world, engine)) == {A: 96}  # nothing is left of the one before


async def test_a_drain_that_is_ended_before_it_began_answers(
    world: World, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drainer = world.services.drainer
    begin = drainer._run_of

    def begin_and_end(tenant: TenantId, engine_id: str) -> Any:  # noqa: ANN401 - passed on
        begun = begin(tenant, engine_id)
        begun[1].cancel()
        return begun

    monkeypatch.setattr(drainer, "_run_of", begin_and_end)
    async with asyncio.timeout(LONG_S):
        assert not (await drain(world, engine)).complete
