"""What a sweep's suspends wait for: resumes, and a rate of bytes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.jsonbody import parse_body
from sessiond.service.calls import Call, Endpoint
from sessiond.service.engines import ANYWHERE
from sessiond.service.routing import Router
from sessiond.service.sweep import SweepReport
from sessiond.service.sweep_admission import ByteBudget, Courtesy
from sessiond.service.turns import TurnPlan, TurnTicket
from sessiond.testing.world import QUICK, World, open_world, report, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sessiond.testing.fake_engine import FakeEngine

IDLE_S = 300.0
SESSIONS = [SessionId(f"agent-{number}") for number in range(3)]


@pytest.mark.parametrize(
    ("bytes_per_s", "spent", "at_s", "is_spent"),
    [
        (0, [(10**9, 0.0)], 0.0, False),
        (100, [], 0.0, False),
        (100, [(1000, 0.0)], 9.9, True),
        (100, [(1000, 0.0)], 10.0, False),
        (100, [(1000, 5.0)], 14.9, True),  # since its begin, so the writing counts as well
        (100, [(1000, 0.0), (1000, 0.0)], 19.9, True),  # two at once
        (100, [(1000, 0.0), (1000, 0.0)], 20.0, False),
        (100, [(1000, 0.0), (1000, 50.0)], 59.9, True),  # nothing is saved up
        (100, [(0, 0.0)], 0.0, False),
    ],
)
def test_bytes_are_paid_off(
    bytes_per_s: float, spent: Sequence[tuple[int, float]], at_s: float, *, is_spent: bool
) -> None:
    budget = ByteBudget(bytes_per_s)
    for size_bytes, began_s in spent:
        budget.spend(size_bytes, began_s)
    assert budget.is_spent(at_s) is is_spent


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.integers(1, 100))
def test_the_rate_holds_on_average(sizes: list[int], bytes_per_s: int) -> None:
    budget, now_s = ByteBudget(bytes_per_s), 0.0
    for size_bytes in sizes:
        while budget.is_spent(now_s):
            now_s += 0.5
        budget.spend(size_bytes, now_s)
    # All but what was begun last has had its time.
    assert sum(sizes[:-1]) <= bytes_per_s * now_s + 1e-6


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([(0.0, False), (1.0, False)], [False, False]),
        ([(0.0, True), (29.0, True), (30.0, True)], [True, True, False]),
        # After one that went ahead, the next waits as long again.
        ([(0.0, True), (30.0, True), (31.0, True), (60.0, True)], [True, False, True, False]),
        # A moment without resumes lets all go, and is a new begin.
        ([(0.0, True), (10.0, False), (11.0, True), (35.0, True)], [True, False, True, True]),
        ([(0.0, True), (3600.0, True)], [True, False]),
    ],
)
def test_resumes_go_first_and_not_for_ever(
    looks: list[tuple[float, bool]], waits: list[bool]
) -> None:
    courtesy = Courtesy(30.0)
    assert [courtesy.must_wait(at_s, resumes_run=run) for at_s, run in looks] == waits


def test_no_courtesy_at_all() -> None:
    assert not Courtesy(0.0).must_wait(5.0, resumes_run=True)


async def use(world: World) -> FakeEngine:
    """Let all sessions be used, and go idle."""
    engine = world.start_engine()
    for number, session_id in enumerate(SESSIONS):
        await world.create(session_id)
        await world.turn(session_id, text(100, seed=number))
    world.pass_time(IDLE_S + 1)
    return engine


@pytest.mark.anyio
async def test_enough_bytes_are_enough(tmp_path: Path) -> None:
    limits = replace(QUICK, sweep_bytes_per_s=1, sweep_concurrency=1)
    async with open_world(tmp_path, limits=limits) as world:
        await use(world)
        first = await world.services.sweeper.sweep()
        assert (first.due, first.suspended, first.throttled) == (3, 1, 2)
        second = await world.services.sweeper.sweep()
        assert (second.due, second.suspended, second.throttled) == (2, 0, 2)
        shown = world.metrics.exposition(1).decode()
        assert 'sessiond_sweep_sessions_total{end="throttled"} 4.0' in shown
        for session_id in SESSIONS:
            report(await world.suspend(session_id))  # what clients ask for is not held


@pytest.mark.anyio
async def test_a_rate_that_allows_it_lets_all_through(tmp_path: Path) -> None:
    limits = replace(QUICK, sweep_bytes_per_s=10**9, sweep_patience_s=5.0)
    async with open_world(tmp_path, limits=limits) as world:
        await use(world)
        assert (await world.services.sweeper.sweep()).suspended == 3


@pytest.mark.anyio
async def test_while_a_resume_runs_nothing_is_begun(world: World) -> None:
    engine = await use(world)
    other = SessionId("other")
    await world.create(other)
    await world.turn(other, text(100, seed=9))
    report(await world.suspend(other))
    gate = engine.faults.gates["resume"] = asyncio.Event()
    resume = await world.services.lifecycle.resume(DEFAULT_TENANT, other)
    async with asyncio.timeout(10):
        while not any(seen.op == "resume" for seen in engine.seen):
            await asyncio.sleep(0.01)
    swept = await world.services.sweeper.sweep()
    assert (swept.due, swept.suspended, swept.yielded) == (3, 0, 3)
    assert 'end="yielded"} 3.0' in world.metrics.exposition(1).decode()
    gate.set()
    report(await world.ended(resume))
    assert (await world.services.sweeper.sweep()).suspended == 3


@pytest.mark.anyio
async def test_while_a_turn_loads_that_nobody_sent_through_us_nothing_is_begun(
    world: World,
) -> None:
    engine, other = await use(world), SessionId("other")
    await world.create(other)
    await world.turn(other, text(100, seed=9))
    report(await world.suspend(other))
    engine.reset()
    engine.update(tier_off="", attestable=False)
    for number, session_id in enumerate(SESSIONS):  # what a reset has left
        await world.turn(session_id, text(100, seed=number))
    world.pass_time(IDLE_S + 1)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, other)
    assert ticket.plan is TurnPlan.LOAD
    restores, store = world.services.context.restores, world.store
    now = world.services.context.now
    assert not restores.direct_run(store, now())  # it has not begun
    engine.begin_turn(DEFAULT_TENANT, other)
    swept = await world.services.sweeper.sweep()
    assert (swept.due, swept.suspended, swept.yielded) == (3, 0, 3)
    engine.end_turn(DEFAULT_TENANT, other)
    assert (await world.services.sweeper.sweep()).suspended == 3


async def ticket_of(world: World, session_id: SessionId, *, is_direct: bool) -> TurnTicket:
    services = world.services
    if is_direct:
        return await services.turns.ticket(DEFAULT_TENANT, session_id)
    router = Router(services.context, services.catalogue, services.turns)
    call = Call(DEFAULT_TENANT, Endpoint.COMPLETIONS, session_id, parse_body(b"{}"), [])
    ticket = (await router.passage(call, ANYWHERE)).ticket
    assert ticket is not None
    return ticket


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("is_direct", "waits"),
    [(True, True), (False, False)],  # what we send is counted by us, until its first token
)
async def test_only_turns_that_we_do_not_send_are_looked_for(
    world: World, *, is_direct: bool, waits: bool
) -> None:
    engine = world.start_engine()
    other = SessionId("other")
    await world.create(other)
    await world.turn(other, text(100))
    report(await world.suspend(other))
    world.kill_engine(engine)
    engine = world.start_engine()
    given = await ticket_of(world, other, is_direct=is_direct)
    engine.begin_turn(DEFAULT_TENANT, other)
    context = world.services.context
    look = partial(context.restores.direct_run, context.store)
    assert look(context.now()) is waits
    assert look(given.permit.expires_unix_s + 3600) is waits  # it runs, however long
    engine.end_turn(DEFAULT_TENANT, other)
    assert not look(context.now())
    await world.turn(other, text(120))  # its own ticket is the newest, and it has ended
    assert not look(context.now())
    assert not context.restores._direct


@pytest.mark.anyio
async def test_resumes_without_end_hold_no_sweep_for_ever(tmp_path: Path) -> None:
    limits = replace(QUICK, sweep_yield_s=0.2, sweep_concurrency=1)
    async with open_world(tmp_path, limits=limits) as world:
        await use(world)
        with world.services.context.restores.running():
            reports: list[SweepReport] = []
            async with asyncio.timeout(20):
                while sum(one.suspended for one in reports) < 3:
                    reports.append(await world.services.sweeper.sweep())
        assert any(one.yielded for one in reports)
        assert not world.services.context.restores.are_running


@pytest.mark.anyio
async def test_a_session_that_is_used_while_its_suspend_waits_is_left_alone(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, sweep_concurrency=1)) as world:
        engine = await use(world)
        gate = engine.faults.gates["suspend"] = asyncio.Event()
        sweep = asyncio.create_task(world.services.sweeper.sweep())
        async with asyncio.timeout(10):
            while not any(seen.op == "suspend" for seen in engine.seen):
                await asyncio.sleep(0.01)
        now, running = world.services.context.now(), world.registry.running_operation
        used, pinned = (one for one in SESSIONS if not running(DEFAULT_TENANT, one, now))
        await world.turn(used, text(130, seed=9))
        await world.services.catalogue.change(DEFAULT_TENANT, pinned, {"pinned": True})
        gate.set()
        swept = await sweep
        assert (swept.due, swept.suspended, swept.failed) == (3, 1, 0)
        for session_id in (used, pinned):
            assert (await world.show(session_id)).session.snapshot is None


@pytest.mark.anyio
async def test_all_sweeps_together_keep_the_limit(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, sweep_concurrency=1)) as world:
        engine = await use(world)
        gate = engine.faults.gates["suspend"] = asyncio.Event()
        sweeps = [asyncio.create_task(world.services.sweeper.sweep()) for _ in range(3)]
        async with asyncio.timeout(10):
            while not any(seen.op == "suspend" for seen in engine.seen):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # time enough for a second one to begin
        assert sum(seen.op == "suspend" for seen in engine.seen) == 1
        gate.set()
        reports = await asyncio.gather(*sweeps)
        assert sum(one.suspended for one in reports) == 3
        assert sum(seen.op == "suspend" for seen in engine.seen) == 3
