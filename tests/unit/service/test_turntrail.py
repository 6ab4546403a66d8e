"""The trail of a session tells of each turn once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from sessiond.domain.errors import NotTextError, RegistryUnavailableError
from sessiond.domain.heads import LastTurn, pass_turn
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import OperationStatus
from sessiond.domain.timing import TurnTiming
from sessiond.service import turntrail
from sessiond.testing.world import AGENT, World, problem, report, text

pytestmark = pytest.mark.anyio

PROMPT = text(100)
PLACES = ("prompt", "vram", "ram", "disk", "computed")


async def turns(world: World) -> list[dict[str, Any]]:
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    return [event.detail for event in events if event.kind == "turn"]


async def test_a_turn_is_told_at_the_latest_when_the_next_one_begins(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    assert await turns(world) == []
    changed = PROMPT[:40] + text(80, seed=2)
    await world.turn(AGENT, changed)
    await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    first, second = await turns(world)
    assert (first["engine_id"], first["diverged_at_token"]) == (engine.info.engine_id, None)
    assert (first["prompt_tokens"], first["computed_tokens"]) == (100, 100)
    assert second["diverged_at_token"] == 40


async def test_a_sweep_and_a_suspend_tell_of_it_once(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    await world.services.sweeper.sweep()
    await world.services.sweeper.sweep()
    report(await world.suspend())
    assert len(await turns(world)) == 1


async def test_it_tells_what_the_turn_s_stages_took(world: World) -> None:
    engine = world.start_engine()
    engine.times.waiting_s = 0.75
    await world.create()
    await world.turn(AGENT, PROMPT)
    await world.services.sweeper.sweep()
    (told,) = await turns(world)
    timing = TurnTiming.from_json(told["timing"])
    assert (timing.waiting_s, timing.prefill_from_token, timing.prefill_to_token) == (0.75, 0, 100)
    presence = (await world.show()).presence
    assert presence is not None
    assert presence.last_turn is not None
    assert presence.last_turn.timing == timing


async def test_another_daemon_does_not_tell_of_it_again(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    view = await world.show()
    for _ in range(2):
        fresh = turntrail.TurnTrail(world.services.context, world.services.planner)
        await fresh.note(view.session, view.presence)
    assert len(await turns(world)) == 1


async def test_what_several_daemons_see_is_counted_once(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    await see_an_image(world)
    view = await world.show()
    for _ in range(2):
        fresh = turntrail.TurnTrail(world.services.context, world.services.planner)
        await fresh.note(view.session, view.presence)
    assert counted(world, "turn", "not_text") == 1


async def test_a_resume_elsewhere_tells_of_the_turn_before_itself(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    report(await world.suspend())
    await world.turn(AGENT, text(140))
    world.start_engine("other")
    engine.update(tier_off="the engine's caches were reset", tier_off_reason="tier_off")
    report(await world.resume())
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    kinds = [event.kind for event in events]
    assert kinds == ["created", "turn", "suspended", "turn", "resumed"]


async def test_refused_and_failed_operations_say_why_in_the_metrics(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    engine.faults.refusals["suspend"] = Reason.STORE_FULL
    assert problem(await world.suspend()) == "store_full"
    assert counted(world, "suspend", "store_full") == 1
    await see_an_image(world)
    with pytest.raises(NotTextError):
        await world.suspend()
    assert counted(world, "suspend", "not_text") == 1
    await world.turn(AGENT, text(140))
    engine.faults.refusals.clear()
    report(await world.suspend())
    engine.update(tier_off="16 GB", tier_off_reason="identity_pending")
    assert problem(await world.resume()) == "identity_pending"
    assert counted(world, "resume", "identity_pending") == 1


async def test_a_suspend_tells_of_the_turn_before_itself(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    report(await world.suspend())
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    assert [event.kind for event in events] == ["created", "turn", "suspended"]


async def test_a_session_shows_its_newest_turn(world: World) -> None:
    world.start_engine()
    await world.create()
    assert (await world.show()).presence is None
    await world.turn(AGENT, PROMPT)
    presence = (await world.show()).presence
    assert presence is not None
    assert presence.last_turn is not None
    assert presence.last_turn.split is not None
    assert presence.last_turn.split.prompt_tokens == 100


async def test_the_causes_of_a_turn_are_counted_once(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    await see_an_image(world)
    for _ in range(2):
        await world.services.sweeper.sweep()
    assert counted(world, "turn", "not_text") == 1
    told = (await turns(world))[-1]
    assert told["causes"][0]["reason"] == "not_text"
    assert {told[f"{place}_tokens"] for place in PLACES} == {None}


async def test_a_session_whose_newest_turn_has_images_is_not_suspended(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    report(await world.suspend())
    await see_an_image(world)

    view = await world.show()
    assert (view.state, view.presence.unkept if view.presence else "") == ("active", "not_text")
    with pytest.raises(NotTextError, match="images"):
        await world.suspend()
    world.pass_time(10_000)
    assert (await world.services.sweeper.sweep()).due == 0
    world.pass_time(-10_000)

    await world.turn(AGENT, text(140))
    assert (await world.suspend()).status is OperationStatus.SUCCEEDED


async def test_what_could_not_be_written_is_written_when_it_is_seen_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, PROMPT)
    report(await world.suspend())
    engine.evict()
    await world.turn(AGENT, PROMPT)
    view, trail = await world.show(), world.services.catalogue.trail
    for error in (RegistryUnavailableError(), ValueError("a fault of ours")):
        with monkeypatch.context() as broken:
            broken.setattr(world.registry, "add_event_once", Mock(side_effect=error))
            await trail.note(view.session, view.presence)
        assert len(await turns(world)) == 1
    await trail.note(view.session, view.presence)
    told = (await turns(world))[1:]
    assert [one["plan"] is not None for one in told] == [True]


async def test_turns_that_nobody_waits_for_are_written_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turntrail, "_GATHER_S", 3600.0)
    world.start_engine()
    sessions = [SessionId(f"agent-{number}") for number in range(3)]
    ways = Mock(wraps=world.services.context.blocking)
    context = replace(world.services.context, blocking=ways)
    trail = turntrail.TurnTrail(context, world.services.planner)
    for session_id in sessions:
        await world.create(session_id)
        await world.turn(session_id, PROMPT)
        view = await world.show(session_id)
        trail.note_soon(view.session, view.presence)
    await trail.settle((DEFAULT_TENANT, sessions[0]))
    assert ways.call_count == 1
    for session_id in sessions:
        events = world.registry.list_events(DEFAULT_TENANT, session_id)
        assert [event.kind for event in events] == ["created", "turn"]


def counted(world: World, kind: str, reason: str) -> float:
    """Return how often the metrics have seen a cause."""
    line = f'sessiond_causes_total{{kind="{kind}",reason="{reason}"}} '
    told = world.metrics.exposition(1).decode()
    return float(told.partition(line)[2].partition("\n")[0])


async def see_an_image(world: World) -> None:
    """Let a turn with an image pass, as the connector notes it."""
    (head,) = world.store.read_heads(DEFAULT_TENANT, AGENT)
    now = world.services.context.now()
    turn = LastTurn(now, None, causes=(Cause(Reason.NOT_TEXT),))
    world.started[-1].write_head(pass_turn(head, turn))
