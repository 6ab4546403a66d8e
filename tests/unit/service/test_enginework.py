"""How long an engine computes before it can begin with what comes next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.plans import PlanPolicy
from sessiond.service.catalogue import Changes
from sessiond.service.enginework import PATIENCE_S, EngineWork, Work
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.world import QUICK, World, open_world, report, text

LONG_S = 100.0
SESSIONS = [SessionId(name) for name in ("a", "b", "c")]
A, B, C = ((DEFAULT_TENANT, name) for name in SESSIONS)


def work(turn: str, seconds: float = LONG_S, at_unix_s: float = 0.0, engine: str = "e") -> Work:
    return Work(turn, engine, seconds, at_unix_s)


def test_one_is_done_after_the_other() -> None:
    known = EngineWork()
    known.expect(A, work("1", 2.0))
    known.expect(B, work("2", 3.0, 1.0))
    known.expect(C, work("3", 9.0, 1.0, engine="other"))
    assert [known.busy_s("e", at) for at in (1.0, 4.0, 5.0, 6.0)] == [4.0, 1.0, 0.0, 0.0]
    assert known.busy_s("nobody", 1.0) == 0.0


def test_a_ticket_that_is_not_used_is_soon_not_counted_on() -> None:
    known = EngineWork()
    known.expect(A, work("1"))
    known.expect(B, work("2"))
    known.came(B, 5.0)
    assert known.busy_s("e", 5.0) == 2 * LONG_S - 5.0
    assert known.busy_s("e", PATIENCE_S) == LONG_S - PATIENCE_S
    known.came(A, 20.0)  # late, and all the same
    assert known.busy_s("e", 20.0) == 2 * LONG_S - 20.0


def test_a_turn_that_has_ended_keeps_nobody_waiting() -> None:
    known = EngineWork()
    known.expect(A, work("2"))
    known.came(A, 1.0)
    known.ended(A, "1", 1.0)  # an earlier one, told late
    known.ended(B, "2", 1.0)
    assert known.busy_s("e", 1.0) > 0.0
    known.ended(A, "2", 1.0)
    assert known.busy_s("e", 1.0) == 0.0


def test_a_session_s_second_ticket_takes_the_place_of_an_unused_one() -> None:
    known = EngineWork()
    known.expect(A, work("1"))
    known.expect(A, work("2", 5.0))
    assert known.busy_s("e", 0.0) == 5.0
    known.came(A, 1.0)
    known.expect(A, work("3", 50.0, 2.0))  # the one that runs computes the same
    assert known.busy_s("e", 2.0) == 3.0
    known.expect(A, work("4", 50.0, 6.0))
    assert known.busy_s("e", 6.0) == 50.0


def test_what_waits_for_a_turn_begins_when_that_was_computed() -> None:
    known = EngineWork()
    known.expect(A, work("1", 10.0))
    known.expect(B, work("2", 10.0))
    known.expect(C, work("3", 10.0, engine="other"))
    known.came(A, 0.0)
    known.came(B, 0.0)
    known.ended(A, "1", 4.0)  # quicker than was thought
    assert (known.busy_s("e", 4.0), known.busy_s("other", 4.0)) == (10.0, 6.0)
    known.expect(C, work("4", LONG_S, 5.0))
    known.came(C, 5.0)
    known.ended(B, "2", 60.0)  # it has told a long story, and had been computed by 14.0
    assert known.busy_s("e", 60.0) == 14.0 + LONG_S - 60.0


def test_a_newer_ticket_with_nothing_to_compute_ends_the_wait_for_an_unused_one() -> None:
    known = EngineWork()
    known.expect(A, work("1"))
    known.replaced(A)
    known.came(A, 1.0)  # the newer one's turn
    assert known.busy_s("e", 1.0) == 0.0
    known.expect(A, work("2"))
    known.came(A, 1.0)
    known.replaced(A)  # that one runs
    assert known.busy_s("e", 1.0) == LONG_S - 1.0


def test_a_session_waits_for_its_own_turn_only_if_that_runs() -> None:
    known = EngineWork()
    known.expect(A, work("1"))
    assert (known.busy_s("e", 0.0, A), known.busy_s("e", 0.0, B)) == (0.0, LONG_S)
    known.came(A, 0.0)
    assert known.busy_s("e", 0.0, A) == LONG_S


def test_a_clock_that_is_put_back_makes_nobody_wait_longer() -> None:
    known = EngineWork()
    known.expect(A, work("1", 5.0, 10_000.0))
    known.expect(B, work("2", 5.0, 10_000.0))
    known.came(A, 10_000.0)
    assert known.busy_s("e", 0.0) == 5.0  # and the unused one counts no more


def test_dead_engines_work_is_forgotten() -> None:
    known = EngineWork()
    known.expect(A, work("1"))
    known.expect(B, work("2", engine="dead"))
    known.keep({"e"})
    assert (known.busy_s("e", 0.0), known.busy_s("dead", 0.0)) == (LONG_S, 0.0)


STEPS = st.tuples(
    st.sampled_from(["expect", "came", "replaced", "ended", "wait"]),
    st.sampled_from([A, B, C]),
    st.floats(0.0, 60.0),
)


@given(st.lists(STEPS, max_size=30))
def test_it_is_never_more_than_what_may_be_computed(
    steps: list[tuple[str, tuple[str, SessionId], float]],
) -> None:
    known, now, seconds = EngineWork(), 0.0, 0.0
    for kind, (_, name), number in steps:
        key = DEFAULT_TENANT, name
        if kind == "expect":
            known.expect(key, work(name, number, now))
            seconds += number
        elif kind == "came":
            known.came(key, now)
        elif kind == "replaced":
            known.replaced(key)
        elif kind == "ended":
            before = known.busy_s("e", now)
            known.ended(key, name, now)
            assert known.busy_s("e", now) <= before
        else:
            now += number
        assert 0.0 <= known.busy_s("e", now) <= seconds + 1e-6
    assert known.busy_s("e", now + seconds + PATIENCE_S) == 0.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    limits = replace(QUICK, plan_policy=PlanPolicy.NEVER_LOAD)
    async with open_world(tmp_path, limits=limits) as world:
        yield world


async def measured(world: World) -> FakeEngine:
    """Start an engine of which it is known that its turns take long."""
    engine = world.start_engine()
    await world.services.planner.calibrator.see(engine.info)
    engine.times.prefill_token_s = 0.5
    for number, session_id in enumerate(SESSIONS):
        await world.create(session_id)
        await world.turn(session_id, text(100, seed=number))
        report(await world.suspend(session_id))
    await world.services.catalogue.trail.settle()
    await world.services.planner.calibrator.settle()
    world.kill_engine(engine)
    return world.start_engine()


def busy_s(world: World, engine: FakeEngine) -> float:
    context = world.services.context
    return context.plans.work.busy_s(engine.info.engine_id, context.now())


@pytest.mark.anyio
async def test_only_tickets_that_are_used_keep_others_waiting(world: World) -> None:
    engine = await measured(world)
    for session_id in SESSIONS[:2]:
        await world.services.turns.ticket(DEFAULT_TENANT, session_id)
    both_s = busy_s(world, engine)
    engine.begin_turn(DEFAULT_TENANT, SESSIONS[0])
    await world.services.sweeper.sweep()
    world.pass_time(PATIENCE_S + 1)
    assert 0.0 < busy_s(world, engine) < both_s / 2
    plan = (await world.services.turns.ticket(DEFAULT_TENANT, SESSIONS[2])).decided
    assert plan is not None
    assert 0.0 < plan.recompute.engine_queue_s < both_s / 2


@pytest.mark.anyio
async def test_a_second_ticket_is_planned_as_the_first_one_was(world: World) -> None:
    await measured(world)
    plans = [
        (await world.services.turns.ticket(DEFAULT_TENANT, SESSIONS[0])).decided for _ in range(3)
    ]
    assert [plan and plan.recompute.engine_queue_s for plan in plans] == [0.0] * 3


@pytest.mark.anyio
async def test_a_ticket_to_load_takes_the_place_of_one_to_compute(world: World) -> None:
    engine = await measured(world)
    await world.services.turns.ticket(DEFAULT_TENANT, SESSIONS[0])
    assert busy_s(world, engine) > 0.0
    changes: Changes = {"plan_policy": PlanPolicy.ALWAYS_LOAD}
    await world.services.catalogue.change(DEFAULT_TENANT, SESSIONS[0], changes)
    await world.services.turns.ticket(DEFAULT_TENANT, SESSIONS[0])
    engine.begin_turn(DEFAULT_TENANT, SESSIONS[0])
    await world.services.sweeper.sweep()
    assert busy_s(world, engine) == 0.0


@pytest.mark.anyio
async def test_an_ended_turn_keeps_nobody_waiting(world: World) -> None:
    engine = await measured(world)
    await world.turn(SESSIONS[0], text(100, seed=0))
    assert busy_s(world, engine) > 0.0  # nobody has heard of its end
    await world.services.sweeper.sweep()
    assert busy_s(world, engine) == 0.0
