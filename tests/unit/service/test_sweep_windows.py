"""A window: what has been idle for long enough goes, whatever its own timeout is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.cron import parse_cron
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.reasons import Reason
from sessiond.domain.session import NEVER_IDLE_S, SessionState
from sessiond.domain.windows import SweepWindow
from sessiond.testing.world import AGENT, World, suspends, text

if TYPE_CHECKING:
    from sessiond.service.catalogue import Changes
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

EVENING = SweepWindow("evening", parse_cron("0 19 * * *"), "Europe/Berlin", idle_s=60.0)
IDLE_S = 300.0


@pytest.mark.parametrize(
    ("changes", "idle_s", "due"),
    [
        ({}, 61.0, 1),
        ({}, 30.0, 0),
        ({"idle_timeout_s": 86_400.0}, 61.0, 1),
        ({"idle_timeout_s": NEVER_IDLE_S}, 1000.0, 0),
        ({"pinned": True}, 1000.0, 0),
        ({"idle_timeout_s": 1.0}, 30.0, 1),  # due without a window
    ],
    ids=str,
)
async def test_who_goes(
    world: World, engine: FakeEngine, changes: Changes, idle_s: float, due: int
) -> None:
    if changes:
        await world.services.catalogue.change(DEFAULT_TENANT, AGENT, changes)
    world.pass_time(idle_s)
    swept = await world.services.sweeper.sweep(EVENING)
    assert (swept.due, swept.suspended, swept.window) == (due, due, "evening")
    assert swept.windowed == (due if idle_s > EVENING.idle_s else 0)
    assert suspends(engine) == due


async def test_it_may_come_in_every_daemon_and_again(world: World, engine: FakeEngine) -> None:
    world.pass_time(61)
    assert (await world.services.sweeper.sweep(EVENING)).suspended == 1
    assert (await world.services.sweeper.sweep(EVENING)).due == 0
    assert suspends(engine) == 1


async def test_what_failed_then_is_tried_again_later(world: World, engine: FakeEngine) -> None:
    engine.faults.refusals["suspend"] = Reason.STORE_FAILED
    world.pass_time(61)
    assert (await world.services.sweeper.sweep(EVENING)).failed == 1
    engine.faults.refusals.clear()
    world.pass_time(world.services.context.limits.sweep_retry_s + 1)
    swept = await world.services.sweeper.sweep()  # an ordinary one
    assert (swept.windowed, swept.suspended) == (1, 1)
    assert (await world.services.sweeper.sweep()).due == 0


async def test_a_session_that_is_used_again_is_owed_no_more(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.refusals["suspend"] = Reason.STORE_FAILED
    world.pass_time(61)
    await world.services.sweeper.sweep(EVENING)
    engine.faults.refusals.clear()
    await world.turn(AGENT, text(130))
    world.pass_time(world.services.context.limits.sweep_retry_s + 1)
    assert (await world.services.sweeper.sweep()).due == 0


async def test_who_opts_out_meanwhile_is_left_alone(world: World, engine: FakeEngine) -> None:
    engine.faults.refusals["suspend"] = Reason.STORE_FAILED
    world.pass_time(61)
    await world.services.sweeper.sweep(EVENING)
    engine.faults.refusals.clear()
    change: Changes = {"idle_timeout_s": NEVER_IDLE_S}
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, change)
    world.pass_time(world.services.context.limits.sweep_retry_s + 1)
    assert (await world.services.sweeper.sweep()).due == 0


async def test_in_a_pause_it_is_left_out(world: World, engine: FakeEngine) -> None:
    await world.services.pauses.pause(DEFAULT_TENANT, "", None)
    world.pass_time(61)
    swept = await world.services.sweeper.sweep(EVENING)
    assert (swept.paused, swept.due, swept.suspended) == (True, 0, 0)
    await world.services.pauses.unpause(DEFAULT_TENANT)
    assert (await world.services.sweeper.sweep()).due == 0
    assert suspends(engine) == 0
    world.pass_time(IDLE_S)
    assert (await world.services.sweeper.sweep()).suspended == 1


async def test_windows_and_ordinary_sweeps_are_counted(world: World, engine: FakeEngine) -> None:
    other = SessionId("other")
    await world.create(other)
    await world.turn(other, text(100, seed=2))
    await world.services.catalogue.change(DEFAULT_TENANT, other, {"idle_timeout_s": 1.0})
    world.pass_time(61)
    swept = await world.services.sweeper.sweep(EVENING)
    assert (swept.due, swept.windowed, swept.suspended) == (2, 2, 2)
    shown = world.metrics.exposition(1).decode()
    assert 'sessiond_sweep_windows_total{window="evening"} 1.0' in shown
    assert 'sessiond_sweep_sessions_total{end="suspended"} 2.0' in shown
    assert "sessiond_sweeps_paused 0.0" in shown
    assert (await world.show(other)).state is SessionState.SUSPENDED
    assert suspends(engine) == 2
