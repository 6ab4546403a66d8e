"""Load or recompute, by what was measured, on a fake engine with times of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sessiond.domain.breaker import BreakerState
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.lines import BEFORE_ALL
from sessiond.domain.outcomes import Outcome
from sessiond.domain.planner import plan
from sessiond.domain.plans import Plan, PlanChoice, PlanInputs, PlanPolicy
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.samples import Tier
from sessiond.domain.turnoutcome import outcome_of_turn
from sessiond.engine.streams import EngineStreams
from sessiond.service.plans import Wish
from sessiond.service.resume import Prospect, Resumer
from sessiond.service.snapshots import Snapshots
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.world import AGENT, QUICK, World, open_world, reasons, report, text

pytestmark = pytest.mark.anyio

AUTO = replace(QUICK, plan_policy=PlanPolicy.AUTO)
TOKENS = 1000
LOADABLE = 992
#: A disk that is slower than computing by far, and one that is faster.
SLOW, FAST = 1e4, 1e9


@pytest.fixture
async def auto(tmp_path: Path) -> AsyncIterator[World]:
    """A service that decides by what was measured."""
    async with open_world(tmp_path, limits=AUTO) as world:
        yield world


async def settled(world: World) -> None:
    """Wait until everything that was measured is in the curves."""
    await world.services.catalogue.trail.settle()
    await world.services.planner.calibrator.settle()


async def suspended(world: World, engine: FakeEngine, session: SessionId, seed: int) -> None:
    """Make a session whose KV is on disk alone, and whose turn was measured."""
    await world.create(session)
    await world.turn(session, text(TOKENS, seed))
    report(await world.suspend(session))
    forget(engine, session)


def forget(engine: FakeEngine, session: SessionId) -> None:
    """Let an engine forget a session, as if it had been started anew."""
    engine.evict()
    head = engine._head(DEFAULT_TENANT, session)
    engine.write_head(replace(head, branches=(), sequence=head.sequence + 1))


async def resume(world: World, session: SessionId, wish: Wish | None = None) -> dict[str, Any]:
    operation = await world.services.lifecycle.resume(DEFAULT_TENANT, session, wish=wish)
    return report(await world.ended(operation))


async def taught(world: World, load_bytes_s: float) -> FakeEngine:
    """Start an engine and let it be known what its turns and loads take."""
    engine = world.start_engine()
    engine.times.load_bytes_s = load_bytes_s
    for number in range(2):
        name = SessionId(f"teacher-{number}")
        await suspended(world, engine, name, seed=100 + number)
        report(
            await world.ended(
                await world.services.lifecycle.resume(
                    DEFAULT_TENANT, name, wish=Wish(PlanPolicy.ALWAYS_LOAD)
                )
            )
        )
    await settled(world)
    return engine


async def test_without_measurements_everything_is_loaded(auto: World) -> None:
    engine = auto.start_engine()
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    auto.services.context.plans.kinds.clear()
    auto.services.context.plans.engines.clear()

    told = await resume(auto, AGENT)

    assert told["outcome"] == "restored"
    assert told["plan"]["choice"] == "load"
    assert told["plan"]["policy"] == "auto"


async def test_a_load_that_is_faster_is_made(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)

    told = await resume(auto, AGENT)

    assert (told["outcome"], told["tokens_restored"]) == ("restored", LOADABLE)
    made, timing = told["plan"], told["timing"]
    assert made["choice"] == "load"
    assert made["load_tokens"] == LOADABLE
    assert made["margin_s"] > 0
    # The fake engine's times are exact, so the estimates are nearly so.
    measured_s = timing["lookup_s"] + timing["load_s"]
    assert made["load"]["ready"]["likely_s"] == pytest.approx(measured_s, rel=0.2)
    computing_s = engine.times.prefill_s(0, LOADABLE)
    assert made["recompute"]["ready"]["likely_s"] == pytest.approx(computing_s, rel=0.2)


async def test_a_load_that_is_slower_is_not_made(auto: World) -> None:
    engine = await taught(auto, SLOW)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    asked = len(engine.seen)

    told = await resume(auto, AGENT)

    assert (told["outcome"], told["reason"]) == ("recomputed", "recompute_is_faster")
    assert told["tokens_restored"] == 0
    assert told["plan"]["choice"] == "recompute"
    assert told["plan"]["margin_s"] < 0
    assert " s against " in told["causes"][0]["detail"]
    assert len(engine.seen) == asked  # nothing was prefetched
    (event,) = [one for one in await events(auto, AGENT) if one.kind == "resumed"]
    assert event.detail["plan"] == told["plan"]


async def events(world: World, session: SessionId) -> list[Any]:
    return await world.services.catalogue.events(DEFAULT_TENANT, session, 0, 1000)


async def test_a_turn_s_ticket_follows_the_plan(auto: World) -> None:
    engine = await taught(auto, SLOW)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)

    ticket = await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)

    assert (ticket.plan, ticket.generation) == ("recompute", 0)
    assert reasons({"causes": [cause.as_json() for cause in ticket.causes]}) == [
        "recompute_is_faster"
    ]
    await auto.turn(AGENT, text(TOKENS, 1) + text(40, 2))
    await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)
    turns = [one.detail for one in await events(auto, AGENT) if one.kind == "turn"]
    assert turns[-1]["disk_tokens"] == 0
    assert turns[-1]["plan"]["choice"] == "recompute"


async def test_a_turn_that_computes_a_context_does_not_pass_for_a_warm_one(auto: World) -> None:
    engine = await taught(auto, SLOW)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    neighbour = SessionId("neighbour")
    await auto.create(neighbour)
    await auto.turn(neighbour, text(100, 1))  # both begin alike, as prompts do

    await auto.turn(AGENT, text(TOKENS, 1) + text(40, 2))
    await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)

    head = engine._head(DEFAULT_TENANT, AGENT)
    assert head.last_turn is not None
    told = outcome_of_turn(head.last_turn, engine.info.chunk_tokens)
    assert (told.outcome, told.disk_tokens) == (Outcome.PARTIAL, 0)
    assert told.tokens_total > TOKENS
    assert head.main is not None
    assert head.main.began_unix_s == BEFORE_ALL  # it goes on with what was stored


@pytest.mark.parametrize(
    ("policy", "outcome", "choice"),
    [
        (PlanPolicy.ALWAYS_LOAD, "restored", "load"),
        (PlanPolicy.NEVER_LOAD, "recomputed", "recompute"),
        (PlanPolicy.AUTO, "recomputed", "recompute"),
    ],
)
async def test_a_session_has_a_policy_of_its_own(
    auto: World, policy: PlanPolicy, outcome: str, choice: str
) -> None:
    engine = await taught(auto, SLOW)
    await suspended(auto, engine, AGENT, seed=1)
    await auto.services.catalogue.change(DEFAULT_TENANT, AGENT, {"plan_policy": policy})
    await settled(auto)

    told = await resume(auto, AGENT)

    assert (told["outcome"], told["plan"]["choice"]) == (outcome, choice)
    assert told["plan"]["policy"] == policy
    never = policy is PlanPolicy.NEVER_LOAD
    assert told["reason"] == ("policy_never_load" if never else told["reason"])


async def test_a_call_s_wish_goes_before_the_session_s(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await auto.services.catalogue.change(
        DEFAULT_TENANT, AGENT, {"plan_policy": PlanPolicy.ALWAYS_LOAD}
    )
    told = await resume(auto, AGENT, Wish(PlanPolicy.NEVER_LOAD))
    assert told["reason"] == "policy_never_load"
    objective = await resume(auto, AGENT, Wish(PlanPolicy.OBJECTIVE, 0.02))
    assert objective["plan"]["policy"] == "objective"
    assert objective["plan"]["objective_s"] == 0.02


async def test_kv_that_is_still_there_is_warm_whatever_is_planned(auto: World) -> None:
    engine = await taught(auto, SLOW)
    await auto.create()
    await auto.turn(AGENT, text(TOKENS, 1))
    report(await auto.suspend())
    await settled(auto)

    told = await resume(auto, AGENT)

    assert (told["outcome"], told["causes"]) == ("warm", [])
    assert told["plan"]["choice"] == "recompute"  # were it not there any more
    engine.evict()
    gone = await resume(auto, AGENT)
    assert (gone["outcome"], gone["reason"]) == ("recomputed", "recompute_is_faster")
    assert gone["disk_tokens"] == 0


async def test_a_plan_that_fails_loads_as_before(
    auto: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await taught(auto, SLOW)
    await suspended(auto, engine, AGENT, seed=1)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sessiond.service.plans.planned", broken)
    told = await resume(auto, AGENT)

    assert (told["outcome"], told["plan"]) == ("restored", None)
    assert "a plan could not be made" in caplog.text


async def test_loads_that_do_not_pay_pause_themselves(auto: World) -> None:
    engine = await taught(auto, FAST)
    engine.times.load_bytes_s = SLOW
    always = Wish(PlanPolicy.ALWAYS_LOAD)
    for number in range(5):
        await suspended(auto, engine, SessionId(f"slow-{number}"), seed=200 + number)
    for number in range(5):
        await resume(auto, SessionId(f"slow-{number}"), always)
    breaker = auto.services.context.plans.breakers[engine.info.engine_id, Tier.NVME]
    assert breaker.state is BreakerState.OPEN
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)

    told = await resume(auto, AGENT)

    assert told["outcome"] == "recomputed"
    assert "load_paused" in reasons(told)
    shown = auto.metrics.exposition(1).decode()
    assert "sessiond_engines_loads_paused 1.0" in shown
    assert 'sessiond_plans_total{choice="load",reason=""} ' in shown
    assert 'sessiond_restore_bytes_per_second{tier="nvme"} ' in shown
    assert 'sessiond_plan_error_ratio_count{way="load"} ' in shown

    auto.kill_engine(engine)  # with it goes what was paused
    await auto.services.first_look.run()
    assert "sessiond_engines_loads_paused 0.0" in auto.metrics.exposition(0).decode()


async def test_in_a_storm_computing_may_be_ready_first(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    queue = auto.services.context.resume_queue
    other = DEFAULT_TENANT, SessionId("other")

    async with queue.place(other, engine.info, 1, stored_bytes=10 * int(FAST)):
        told = await resume(auto, AGENT)
    alone = await resume(auto, AGENT)

    assert (told["outcome"], told["reason"]) == ("recomputed", "recompute_is_faster")
    assert told["plan"]["load"]["load_queue_s"] > 1
    assert alone["outcome"] == "restored"


async def test_loads_that_go_before_are_as_slow_beside_others(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    kind = auto.services.context.plans.engines[engine.info.engine_id].kind
    slow = replace(kind.curves.loads[Tier.NVME], wait_s=100.0)
    kind.curves = replace(kind.curves, loads={**kind.curves.loads, Tier.NVME: slow})
    other, planner = (DEFAULT_TENANT, SessionId("other")), auto.services.planner

    async with auto.services.context.resume_queue.place(other, engine.info, 1, stored_bytes=1):
        alone = await planner.plan(await look(auto))
        with patch.object(EngineStreams, "running", return_value=1):
            beside = await planner.plan(await look(auto))

    alone_s, beside_s = (one.load.load_queue_s for one in (alone, beside) if one and one.load)
    assert beside_s == pytest.approx(alone_s + 100.0)


async def test_it_is_planned_again_when_its_turn_has_come(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    queue, other = auto.services.context.resume_queue, (DEFAULT_TENANT, SessionId("other"))

    async with queue.place(other, engine.info, engine.info.ram_tier_chunks):
        operation = await auto.services.lifecycle.resume(DEFAULT_TENANT, AGENT)
        while queue.position((DEFAULT_TENANT, AGENT)) is None:
            await asyncio.sleep(0.001)
        known = auto.services.context.plans.engines[engine.info.engine_id].kind
        slow = replace(known.curves.loads[Tier.NVME], fixed_s=100.0)
        known.curves = replace(known.curves, loads={**known.curves.loads, Tier.NVME: slow})
    told = report(await auto.ended(operation))

    assert (told["outcome"], told["reason"]) == ("recomputed", "recompute_is_faster")
    assert told["plan"]["load"]["lookup_s"] == pytest.approx(100.0)


async def test_the_probe_has_the_plan_and_changes_nothing(auto: World) -> None:
    engine = await taught(auto, SLOW)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    asked = len(engine.seen)

    found = await auto.services.prober.probe(DEFAULT_TENANT, AGENT)

    assert found.decided is not None
    assert (found.decided.choice, found.plan, found.would_resume) == (
        "recompute",
        "recompute",
        False,
    )
    assert len(engine.seen) == asked


async def test_a_turn_loads_no_more_than_the_ram_tier_takes(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    engine.update(ram_tier_chunks=10)
    await auto.services.catalogue.change(
        DEFAULT_TENANT, AGENT, {"plan_policy": PlanPolicy.ALWAYS_LOAD}
    )
    await settled(auto)

    ticket = await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)

    assert ticket.decided is not None
    assert (ticket.decided.choice, ticket.decided.load_tokens) == ("partial", 160)
    assert [cause.reason for cause in ticket.causes] == ["ram_tier_too_small"]
    await auto.turn(AGENT, text(TOKENS, 1) + text(40, 2))
    await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)
    turns = [one.detail for one in await events(auto, AGENT) if one.kind == "turn"]
    assert turns[-1]["disk_tokens"] == 160


async def test_a_slow_load_may_take_no_more_than_a_bound(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    prospect = await look(auto)
    planner = auto.services.planner

    made = await planner.plan(prospect)
    bound_s = planner.decide(prospect, made).limit_s

    assert made is not None
    assert bound_s == pytest.approx(3 * made.recompute.ready.high_s + 1.0)
    assert 1.0 < bound_s <= auto.services.context.limits.resume_deadline_s
    always = await planner.plan(prospect, Wish(PlanPolicy.ALWAYS_LOAD))
    assert planner.decide(prospect, always).limit_s == 0.0


async def look(world: World) -> Prospect:
    session = await world.services.catalogue.get(DEFAULT_TENANT, AGENT)
    return await Resumer(world.services.context, Snapshots(world.services.context)).look(session)


async def test_a_load_that_has_grown_slow_is_cut_off(auto: World) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    engine.times.load_bytes_s = 1e5  # it would take 2.5 s, against 0.1 s of computing

    told = await resume(auto, AGENT)

    assert (told["outcome"], told["plan"]["choice"]) == ("partial", "load")
    assert "deadline" in reasons(told)
    assert 0 < told["tokens_restored"] < LOADABLE


async def test_a_part_is_loaded_where_that_is_best(
    auto: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await taught(auto, FAST)
    await suspended(auto, engine, AGENT, seed=1)
    await settled(auto)
    cause = Cause(Reason.RECOMPUTE_IS_FASTER, "from token 480")

    def partly(inputs: PlanInputs) -> Plan:
        whole = plan(inputs)
        return replace(whole, choice=PlanChoice.PARTIAL, load_tokens=480, causes=(cause,))

    monkeypatch.setattr("sessiond.service.plans.planned", partly)
    told = await resume(auto, AGENT)
    ticket = await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)

    assert (told["outcome"], told["tokens_restored"]) == ("partial", 480)
    assert told["causes"][0]["detail"] == "from token 480"
    assert {seen.prompt_tokens for seen in engine.seen if seen.op == "resume"} >= {481}
    assert ticket.generation == 1
