"""Turns that find their KV in the engine are not planned one by one, and still follow a policy."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from sessiond.domain.breaker import Breaker, BreakerState
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.planner import plan
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.samples import Tier
from sessiond.domain.tickets import verify
from sessiond.service import warmplans
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from unittest.mock import Mock

    from sessiond.domain.tickets import Ticket
    from sessiond.service.turns import TurnTicket
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

_LASTS_S = 3600.0


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no decision grow old by itself."""
    monkeypatch.setattr(warmplans, "_LASTS_S", _LASTS_S)


@pytest.fixture
async def stored(world: World, engine: FakeEngine) -> FakeEngine:
    """An engine whose session is stored, too, and has had another turn since."""
    report(await world.suspend())
    await world.turn(AGENT, text(100))
    return engine


@contextmanager
def plans_made() -> Iterator[Mock]:
    with patch("sessiond.service.plans.planned", wraps=plan) as made:
        yield made


async def ticket(world: World) -> TurnTicket:
    return await world.services.turns.ticket(DEFAULT_TENANT, AGENT)


async def permitted(world: World) -> Ticket:
    """Return what a ticket for a turn lets the engine do."""
    key, now = world.store.keys.ticket_key, world.services.context.now()
    return verify((await ticket(world)).permit.ticket, key, now)


@pytest.mark.usefixtures("stored")
async def test_turns_that_follow_each_other_share_one_plan(world: World) -> None:
    world.pass_time(2 * _LASTS_S)
    with plans_made() as made:
        tickets = [await ticket(world) for _ in range(5)]
        assert made.call_count == 1
        world.pass_time(1.01 * _LASTS_S)
        await ticket(world)
        assert made.call_count == 2
        world.pass_time(-3 * _LASTS_S)  # the clock is put back
        await ticket(world)
        assert made.call_count == 3
    assert {one.plan for one in tickets} == {"warm"}
    assert all(one.decided == tickets[0].decided is not None for one in tickets)
    assert len({one.permit.operation_id for one in tickets}) == 5


@pytest.mark.usefixtures("engine")
async def test_without_a_snapshot_there_is_nothing_to_decide(world: World) -> None:
    with plans_made() as made:
        found = await ticket(world)
    assert (found.plan, found.decided, made.call_count) == ("warm", None, 0)


async def test_a_policy_that_forbids_loading_holds_from_the_next_ticket(
    world: World, stored: FakeEngine
) -> None:
    """The engine may have lost the KV, and nobody here has heard of it."""
    assert (await permitted(world)).may_load
    change = world.services.catalogue.change
    await change(DEFAULT_TENANT, AGENT, {"plan_policy": PlanPolicy.NEVER_LOAD})
    assert not (await permitted(world)).may_load
    stored.evict()
    answer = await world.turn(AGENT, text(100))
    assert answer["kv_transfer_params"]["sessiond"]["split"]["disk_tokens"] == 0


async def test_what_a_plan_depends_on_makes_it_anew(world: World, stored: FakeEngine) -> None:
    await ticket(world)
    with plans_made() as made:
        stored.update(ram_tier_chunks=1)
        await ticket(world)
        assert made.call_count == 1
        broken = Breaker(state=BreakerState.OPEN, since_unix_s=world.services.context.now())
        world.services.context.plans.breakers[stored.info.engine_id, Tier.NVME] = broken
        await ticket(world)
        assert made.call_count == 2
        await world.turn(AGENT, text(300))  # its ticket is of the same plan
        assert made.call_count == 2
        report(await world.suspend())  # which is planned as well
        before = made.call_count
        await ticket(world)
        assert made.call_count == before + 1


async def test_a_session_that_is_elsewhere_is_planned_each_time(
    world: World, stored: FakeEngine
) -> None:
    await ticket(world)
    world.kill_engine(stored)
    world.start_engine()
    with plans_made() as made:
        assert [(await ticket(world)).plan for _ in range(3)] == ["load"] * 3
    assert made.call_count == 3
