"""Idle counts from the last token of the last turn, and never while a turn runs or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.session import NEVER_IDLE_S, Presence, SessionState
from sessiond.service.judge import is_due_in_window
from sessiond.testing.values import a_session
from sessiond.testing.world import AGENT, World, report

if TYPE_CHECKING:
    from sessiond.testing.fake_engine import FakeEngine

IDLE_S = 300.0


async def is_swept(world: World) -> bool:
    return (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.anyio
async def test_a_generation_longer_than_the_timeout_is_not_cut_off(
    world: World, engine: FakeEngine
) -> None:
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"idle_timeout_s": 2.0})
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    for _ in range(10):
        world.pass_time(1)
        swept = await world.services.sweeper.sweep()
        assert (swept.watched, swept.due) == (1, 0)
    engine.end_turn(DEFAULT_TENANT, AGENT)
    assert not await is_swept(world)
    world.pass_time(1)
    assert not await is_swept(world)  # idle since its end, not since its begin
    world.pass_time(2)
    assert await is_swept(world)


@pytest.mark.anyio
async def test_one_of_two_turns_that_ends_leaves_the_session_at_work(
    world: World, engine: FakeEngine
) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    engine.begin_turn(DEFAULT_TENANT, AGENT)  # waits in the engine's queue
    engine.end_turn(DEFAULT_TENANT, AGENT)
    world.pass_time(10 * IDLE_S)
    assert (await world.services.sweeper.sweep()).due == 0
    engine.end_turn(DEFAULT_TENANT, AGENT)
    world.pass_time(IDLE_S + 1)
    assert await is_swept(world)


@pytest.mark.anyio
async def test_a_resumed_session_has_its_whole_timeout_before_it(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine()
    world.pass_time(10 * IDLE_S)  # since its last token; the resume is newer
    report(await world.resume())
    world.pass_time(IDLE_S - 10)
    assert (await world.services.sweeper.sweep()).due == 0
    world.pass_time(20)
    assert await is_swept(world)


@pytest.mark.anyio
async def test_a_clock_that_is_put_back_delays_by_one_timeout_at_most(
    world: World, engine: FakeEngine
) -> None:
    world.pass_time(-10 * 3600)
    assert not await is_swept(world)
    world.pass_time(IDLE_S / 2)
    assert not await is_swept(world)
    world.pass_time(-3600)  # and once more
    assert not await is_swept(world)
    world.pass_time(IDLE_S + 1)
    assert await is_swept(world)
    assert sum(seen.op == "suspend" for seen in engine.seen) == 1


@pytest.mark.anyio
async def test_a_clock_that_leaps_forward_ends_no_turn(world: World, engine: FakeEngine) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    world.pass_time(30 * 86_400)
    assert (await world.services.sweeper.sweep()).due == 0
    assert (await world.show()).state is SessionState.RUNNING


@pytest.mark.parametrize(
    ("own_s", "turns", "unkept", "idle_s", "due"),
    [
        (None, 0, "", 300.0, True),
        (None, 0, "", 299.0, False),
        (7200.0, 0, "", 300.0, True),  # its own longer timeout does not count in a window
        (60.0, 0, "", 100.0, False),  # a shorter one is the ordinary sweep's business
        (NEVER_IDLE_S, 0, "", 1e6, False),
        (None, 1, "", 1e6, False),
        (None, 0, "not_text", 1e6, False),
    ],
)
def test_who_is_due_in_a_window(
    own_s: float | None, turns: int, unkept: str, idle_s: float, *, due: bool
) -> None:
    presence = Presence("engine", turns, 100, 96, "", idle_since_unix_s=0.0, unkept=unkept)
    session = a_session(idle_timeout_s=own_s)
    assert is_due_in_window(session, presence, 300.0, idle_s) is due
