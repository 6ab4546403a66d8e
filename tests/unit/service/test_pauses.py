from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import InvalidInputError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.pause import Pause
from sessiond.domain.session import SessionState
from sessiond.service.pauses import Pauses
from sessiond.testing.world import World, report, suspends, text

if TYPE_CHECKING:
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

IDLE_S = 300.0


@pytest.fixture
async def engine(engine: FakeEngine, world: World) -> FakeEngine:
    world.pass_time(IDLE_S + 1)
    return engine


async def test_it_stops_sweeps_until_it_is_taken_back(world: World, engine: FakeEngine) -> None:
    pauses = world.services.pauses
    assert await pauses.current() is None
    paused = await pauses.pause(DEFAULT_TENANT, "a backup runs", None)
    assert await pauses.current() == paused
    assert (paused.by, paused.reason) == (DEFAULT_TENANT, "a backup runs")
    swept = await world.services.sweeper.sweep()
    assert (swept.watched, swept.due, swept.suspended, swept.paused) == (1, 1, 0, True)
    assert suspends(engine) == 0
    assert "sessiond_sweeps_paused 1.0" in world.metrics.exposition(1).decode()
    assert await pauses.unpause(DEFAULT_TENANT)
    assert not await pauses.unpause(DEFAULT_TENANT)
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.usefixtures("engine")
async def test_what_clients_ask_for_is_done(world: World) -> None:
    await world.services.pauses.pause(DEFAULT_TENANT, "", None)
    report(await world.suspend())
    report(await world.resume())
    assert (await world.show()).state is SessionState.ACTIVE


@pytest.mark.usefixtures("engine")
async def test_it_ends_by_itself(world: World) -> None:
    pauses, now = world.services.pauses, world.services.context.now()
    await pauses.pause(DEFAULT_TENANT, "", now + 60)
    assert (await world.services.sweeper.sweep()).paused
    world.pass_time(61)
    assert await pauses.current() is None
    assert (await world.services.sweeper.sweep()).suspended == 1
    assert not await pauses.unpause(DEFAULT_TENANT)


async def test_one_that_has_ended_already_is_refused(world: World) -> None:
    now = world.services.context.now()
    with pytest.raises(InvalidInputError, match="future"):
        await world.services.pauses.pause(DEFAULT_TENANT, "", now - 1)
    assert await world.services.pauses.current() is None


async def test_the_second_takes_the_place_of_the_first(world: World) -> None:
    pauses, now = world.services.pauses, world.services.context.now()
    await pauses.pause(DEFAULT_TENANT, "one", now + 60)
    await pauses.pause(DEFAULT_TENANT, "two", None)
    world.pass_time(3600)
    found = await pauses.current()
    assert found is not None
    assert (found.reason, found.until_unix_s) == ("two", None)


async def test_another_daemon_of_the_registry_obeys_it(world: World) -> None:
    await world.services.pauses.pause(DEFAULT_TENANT, "for all", None)
    other = Pauses(replace(world.services.context, owner="other"))
    found = await other.current()
    assert found is not None
    assert found.reason == "for all"
    await other.unpause(DEFAULT_TENANT)
    assert await world.services.pauses.current() is None


async def test_a_sweep_that_runs_begins_no_more(world: World, engine: FakeEngine) -> None:
    others = [SessionId(f"other-{number}") for number in range(4)]
    for number, session_id in enumerate(others):
        await world.create(session_id)
        await world.turn(session_id, text(100, seed=2 + number))
    world.pass_time(IDLE_S + 1)
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    sweep = asyncio.create_task(world.services.sweeper.sweep())
    async with asyncio.timeout(10):
        while suspends(engine) < world.services.context.limits.sweep_concurrency:
            await asyncio.sleep(0.01)
    await world.services.pauses.pause(DEFAULT_TENANT, "", None)
    gate.set()
    swept = await sweep
    # Those that ran went on to their ends.
    assert (swept.due, swept.suspended, swept.failed, swept.paused) == (5, 2, 0, True)


@pytest.mark.parametrize(
    ("until_unix_s", "now_unix_s", "over"),
    [(None, 1e12, False), (10.0, 9.9, False), (10.0, 10.0, True), (10.0, 11.0, True)],
)
async def test_when_it_is_over(
    until_unix_s: float | None, now_unix_s: float, *, over: bool
) -> None:
    assert Pause("default", 0.0, "", until_unix_s).is_over(now_unix_s) is over
