from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.reasons import Reason
from sessiond.domain.session import OnEvicted, Presence, SessionState
from sessiond.service.judge import is_due
from sessiond.service.sweep import SweepReport
from sessiond.testing.values import a_session
from sessiond.testing.world import AGENT, QUICK, World, open_world, report, suspends, text

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.service.catalogue import Changes
    from sessiond.testing.fake_engine import FakeEngine

IDLE_S = 300.0


@pytest.mark.anyio
async def test_an_idle_session_is_suspended(world: World, engine: FakeEngine) -> None:
    assert await world.services.sweeper.sweep() == SweepReport(1, 0, 0, 0)
    world.pass_time(IDLE_S + 1)
    assert await world.services.sweeper.sweep() == SweepReport(1, 1, 1, 0)
    assert (await world.show()).state is SessionState.SUSPENDED
    assert (await world.services.sweeper.sweep()).due == 0
    assert suspends(engine) == 1


@pytest.mark.anyio
async def test_a_long_turn_is_not_idle(world: World, engine: FakeEngine) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    world.pass_time(10 * IDLE_S)
    assert (await world.services.sweeper.sweep()).due == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("engine")
async def test_a_timeout_of_its_own_comes_first(world: World) -> None:
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"idle_timeout_s": 2.0})
    world.pass_time(3)
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
@pytest.mark.usefixtures("engine")
async def test_a_pinned_session_is_left_alone_until_it_is_not(world: World) -> None:
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"pinned": True})
    world.pass_time(10 * IDLE_S)
    assert (await world.services.sweeper.sweep()).due == 0
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"pinned": False})
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
async def test_two_sweeps_at_once_suspend_once(world: World, engine: FakeEngine) -> None:
    world.pass_time(IDLE_S + 1)
    await asyncio.gather(world.services.sweeper.sweep(), world.services.sweeper.sweep())
    assert suspends(engine) == 1


@pytest.mark.anyio
async def test_a_failed_suspend_is_not_repeated_at_once(world: World, engine: FakeEngine) -> None:
    engine.faults.refusals["suspend"] = Reason.STORE_FAILED
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).failed == 1
    assert (await world.services.sweeper.sweep()).due == 0
    engine.faults.refusals.clear()
    world.pass_time(world.services.context.limits.sweep_retry_s + 1)
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
async def test_a_session_without_enough_tokens_is_no_crash(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(3))
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).failed == 1


@pytest.mark.anyio
async def test_a_resumed_session_that_goes_idle_is_suspended_again(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    world.kill_engine(engine)
    engine = world.start_engine()
    report(await world.resume())
    assert (await world.services.sweeper.sweep()).due == 0
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).suspended == 1
    assert (await world.show()).state is SessionState.SUSPENDED
    assert suspends(engine) == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("engine")
async def test_a_new_daemon_finds_what_the_old_one_watched(world: World) -> None:
    keys = world.services.context.watchlist.keys()
    world.services.context.watchlist.drop(keys, now_unix_s=1e12)
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).watched == 0
    assert await world.services.sweeper.watch_all() == 1
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
async def test_sessions_that_left_the_engine_are_forgotten(
    world: World, engine: FakeEngine
) -> None:
    await world.create(SessionId("never-used"))
    world.kill_engine(engine)
    world.pass_time(world.services.context.limits.turn_ticket_s + 60)
    await world.services.sweeper.sweep()
    assert world.services.context.watchlist.keys() == []


@given(
    turns=st.integers(0, 2),
    idle_s=st.floats(-10, 1e6),
    timeout_s=st.none() | st.floats(0, 1e6),
    default_s=st.floats(0, 1e6),
)
def test_due_means_no_turn_and_time_passed(
    turns: int, idle_s: float, timeout_s: float | None, default_s: float
) -> None:
    presence = Presence("engine", turns, 100, 96, "", idle_since_unix_s=0.0)
    session = a_session(idle_timeout_s=timeout_s)
    limit_s = default_s if timeout_s is None else timeout_s
    expected = turns == 0 and idle_s >= limit_s
    assert is_due(session, presence, default_s, idle_s) is expected


@pytest.mark.anyio
async def test_idle_sessions_do_not_evict_each_other_for_ever(
    world: World, engine: FakeEngine
) -> None:
    other = SessionId("other")
    await world.create(other)
    await world.turn(other, text(100, seed=2))
    context = world.services.context
    # Room for one snapshot, by what a suspend may need at most, and not for two.
    quota_bytes = world.store.upkeep.usage().total_bytes + 90_000
    limits = replace(context.limits, quota_total_bytes=quota_bytes, sweep_retry_s=0.0)
    object.__setattr__(context, "limits", limits)
    world.pass_time(IDLE_S + 1)
    for _ in range(6):
        await world.services.sweeper.sweep()
        world.pass_time(1)
    assert suspends(engine) == 2  # each one once
    await world.turn(AGENT, text(100))
    await world.turn(other, text(100, seed=2))
    world.pass_time(IDLE_S + 1)
    await world.services.sweeper.sweep()
    assert suspends(engine) > 2  # used again, stored again


@pytest.mark.anyio
async def test_a_suspend_that_is_refused_for_ever_is_tried_less_and_less(
    world: World, engine: FakeEngine
) -> None:
    context = world.services.context
    limits = replace(context.limits, quota_total_bytes=1)
    object.__setattr__(context, "limits", limits)
    world.pass_time(IDLE_S)
    failed = 0
    for _ in range(60):  # an hour
        world.pass_time(limits.sweep_retry_s + 0.1)
        failed += (await world.services.sweeper.sweep()).failed
    assert 5 <= failed <= 7
    assert suspends(engine) == 0


@pytest.mark.anyio
async def test_what_was_evicted_is_not_asked_for_at_every_sweep(
    world: World, engine: FakeEngine
) -> None:
    engine.evict(keep_tokens=32)
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).suspended == 1
    asked = suspends(engine)
    world.pass_time(10 * 3600)
    assert (await world.services.sweeper.sweep()).due == 0
    await world.turn(AGENT, text(130))
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).suspended == 1
    assert suspends(engine) > asked


@pytest.mark.anyio
async def test_what_is_all_gone_is_left_alone_though_it_failed_before(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.refusals["suspend"] = Reason.STORE_FAILED
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).failed == 1
    engine.faults.refusals.clear()
    engine.evict()
    world.pass_time(3600)
    assert (await world.services.sweeper.sweep()).failed == 1
    for _ in range(3):
        world.pass_time(10 * 3600)
        assert (await world.services.sweeper.sweep()).due == 0
    await world.turn(AGENT, text(130))
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
async def test_what_is_gone_is_stored_when_its_owner_has_it_recomputed(
    world: World, engine: FakeEngine
) -> None:
    engine.evict()
    world.pass_time(IDLE_S + 1)
    assert (await world.services.sweeper.sweep()).failed == 1
    change: Changes = {"on_evicted": OnEvicted.RECOMPUTE}
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, change)
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
async def test_what_is_skipped_is_no_failure_and_stays_skipped(
    world: World, engine: FakeEngine
) -> None:
    change: Changes = {"on_evicted": OnEvicted.SKIP}
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, change)
    engine.evict(keep_tokens=32)
    world.pass_time(IDLE_S + 1)
    assert await world.services.sweeper.sweep() == SweepReport(1, 1, 0, 0)
    world.pass_time(10 * 3600)
    assert (await world.services.sweeper.sweep()).due == 0


@pytest.mark.anyio
async def test_a_turn_does_not_wait_for_a_sweeps_suspend(world: World, engine: FakeEngine) -> None:
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    world.pass_time(IDLE_S + 1)
    sweep = asyncio.create_task(world.services.sweeper.sweep())
    async with asyncio.timeout(10):
        while not suspends(engine):
            await asyncio.sleep(0.01)
        await world.turn(AGENT, text(130))
    assert not sweep.done()
    gate.set()
    assert (await sweep).due == 1


@pytest.mark.anyio
async def test_a_suspend_that_hangs_is_given_up(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, suspend_deadline_s=0.2)) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        engine.faults.hangs |= {"suspend", "commit"}
        world.pass_time(IDLE_S + 1)
        assert (await world.services.sweeper.sweep()).failed == 1
        assert "suspend" in engine.aborted
        assert (await world.show()).state is SessionState.ACTIVE


@pytest.mark.anyio
async def test_a_new_turn_does_not_wait_for_what_failed_before(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.refusals["suspend"] = Reason.STORE_FAILED
    world.pass_time(IDLE_S + 1)
    for _ in range(6):
        await world.services.sweeper.sweep()
        world.pass_time(600)
    await world.turn(AGENT, text(130))
    world.pass_time(IDLE_S + 1)
    engine.faults.refusals.clear()
    assert (await world.services.sweeper.sweep()).suspended == 1
