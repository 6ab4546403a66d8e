"""What ended with its engine is told wherever the session's newest KV is meant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import NothingToSuspendError
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.reasons import Reason
from sessiond.domain.session import SessionState
from sessiond.service.engines import Sight, Where
from sessiond.service.lostkv import LostKv, lost_kv
from sessiond.service.reports import lacks_only_gone
from sessiond.service.snapshots import Readable
from sessiond.testing.files import flip_byte
from sessiond.testing.world import AGENT, World, open_world, reasons, report, suspends, text

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.tokens import TokenIds
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

_LOST = [Reason.ENGINE_LOST_KV]
_NOBODY = Sight((), None, None)


async def turn_on(world: World, engine: FakeEngine, prompt: TokenIds[int]) -> None:
    where = Where(engine.info.engine_id)
    await world.use(await world.services.turns.ticket(DEFAULT_TENANT, AGENT, where=where), prompt)


async def losing(world: World, engine: FakeEngine) -> None:
    """Lose 208 tokens: 304 of the newest turn, whole chunks, without the snapshot's 96."""
    report(await world.suspend())
    await world.turn(AGENT, text(300))
    world.kill_engine(engine)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_suspend_tells_what_ended_with_its_engine(
    world: World, engine: FakeEngine, *, replaced: bool
) -> None:
    await losing(world, engine)
    if replaced:
        world.start_engine()
    told = report(await world.suspend())
    assert (told["missing_tokens"], reasons(told)) == (208, _LOST)
    assert told["snapshot"]["tokens_restorable"] == 96
    assert (await world.show()).state is SessionState.SUSPENDED  # that is all that is left


async def test_a_daemon_that_starts_later_tells_it_too(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        await losing(world, engine)
    async with open_world(tmp_path) as world:
        await world.services.recovery.tidy()  # with it go the files of the engine
        told = report(await world.suspend())
    assert (told["missing_tokens"], reasons(told)) == (208, _LOST)


async def test_a_resume_does_not_pass_for_all_of_it(world: World, engine: FakeEngine) -> None:
    await losing(world, engine)
    world.start_engine()
    told = report(await world.resume())
    assert (told["outcome"], reasons(told)) == ("partial", _LOST)
    assert told["tokens_restored"] == 96
    # What the resume has left is no newer turn.
    assert reasons(report(await world.suspend())) == _LOST
    assert report(await world.resume())["outcome"] == "partial"
    assert (await world.show()).session.last_reason == Reason.ENGINE_LOST_KV


async def test_what_concerns_the_snapshot_is_told_before_it(
    world: World, engine: FakeEngine
) -> None:
    await losing(world, engine)
    (segment,) = world.store.root.rglob("*.seg")
    record = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1).chunks[0]
    flip_byte(segment, record.offset_bytes)
    world.start_engine()
    told = report(await world.resume())
    assert (told["outcome"], reasons(told)) == ("recomputed", [Reason.SNAPSHOT_CORRUPT, *_LOST])


async def test_the_next_turn_makes_it_needless(world: World, engine: FakeEngine) -> None:
    await losing(world, engine)
    world.start_engine()
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert [cause.reason for cause in ticket.causes] == _LOST
    await world.use(ticket, text(320))
    told = report(await world.suspend())
    assert (told["missing_tokens"], told["causes"]) == (0, [])
    assert report(await world.resume())["outcome"] == "warm"


async def test_another_engine_that_lives_does_not_hide_it(world: World, engine: FakeEngine) -> None:
    report(await world.suspend())
    await world.turn(AGENT, text(300))
    other = world.start_engine("other")
    await turn_on(world, other, text(600))
    world.kill_engine(other)
    lost = LostKv(other.info.engine_id, 304)  # whole chunks of 607, without those of 300
    probed = await world.services.prober.probe(DEFAULT_TENANT, AGENT)
    assert (probed.engine.engine_id, probed.causes) == (engine.info.engine_id, (lost.cause,))
    told = report(await world.suspend())
    assert told["snapshot"]["tokens_total"] == 308
    assert (told["missing_tokens"], reasons(told)) == (304, _LOST)


async def test_without_a_snapshot(world: World, engine: FakeEngine) -> None:
    world.kill_engine(engine)
    world.start_engine()
    with pytest.raises(NothingToSuspendError) as raised:
        await world.suspend()
    assert [cause.reason for cause in raised.value.causes] == _LOST
    told = report(await world.resume())
    assert (told["outcome"], reasons(told)) == ("recomputed", [Reason.NO_SNAPSHOT, *_LOST])


async def test_what_became_the_conversation_while_it_was_stored(world: World) -> None:
    """The commit is later than the turns, and does not have them."""
    engine = world.start_engine()
    await world.create()
    for tokens in (600, 800):
        await world.turn(AGENT, text(tokens))
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    begun = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    while not suspends(engine):
        await asyncio.sleep(0.001)
    for tokens in (60, 160):
        await world.turn(AGENT, text(200) + text(tokens, seed=3))
    gate.set()
    assert report(await world.ended(begun))["snapshot"]["tokens_total"] == 808
    world.kill_engine(engine)
    told = report(await world.suspend())
    assert (told["missing_tokens"], reasons(told)) == (160, _LOST)


async def test_a_later_turn_is_known_by_its_prompt(world: World, engine: FakeEngine) -> None:
    """It goes on with the stored line, so the head does not have that any more."""
    await losing(world, engine)
    readable = Readable(world.store.read_manifest(DEFAULT_TENANT, AGENT, 1), ())
    session, (head,) = (await world.show()).session, world.store.read_heads(DEFAULT_TENANT, AGENT)
    assert head.main is not None
    earlier = replace(head.main, updated_unix_s=session.created_unix_s)
    found = lost_kv(session, [replace(head, branches=(earlier,))], _NOBODY, readable)
    assert found == LostKv(head.engine_id, 208)
    # As where a turn's reply was not stored with its prompt.
    same = replace(earlier, split=replace(earlier.split, prompt_tokens=100))
    assert lost_kv(session, [replace(head, branches=(same,))], _NOBODY, readable) is None


async def test_of_a_line_that_was_given_up_nothing_is_missed(
    world: World, engine: FakeEngine
) -> None:
    """It went on elsewhere, and was stored there."""
    await turn_on(world, engine, text(300))
    other = world.start_engine("other")
    for tokens in (30, 60):
        await turn_on(world, other, text(130) + text(tokens, seed=5))
    report(await world.suspend())
    world.kill_engine(engine)
    world.kill_engine(other)
    world.start_engine()
    assert report(await world.suspend())["causes"] == []
    told = report(await world.resume())
    assert (told["outcome"], told["causes"]) == ("restored", [])


async def test_nor_where_it_goes_on_in_another_engine(world: World, engine: FakeEngine) -> None:
    await losing(world, engine)
    world.start_engine()
    for tokens in (30, 60):
        await world.turn(AGENT, text(130) + text(tokens, seed=5))
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.plan, ticket.causes) == ("warm", ())


async def test_a_side_call_that_ends_with_its_engine_is_not_missed(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    other = world.start_engine("other")
    await turn_on(world, other, text(64, seed=5))
    world.kill_engine(other)
    assert report(await world.suspend())["causes"] == []
    world.kill_engine(engine)
    assert report(await world.suspend())["causes"] == []


def test_a_sweep_does_not_wait_for_what_no_engine_has() -> None:
    gone = [{"reason": reason} for reason in (Reason.KV_EVICTED, Reason.ENGINE_LOST_KV)]
    assert lacks_only_gone({"causes": gone})
    assert not lacks_only_gone({"causes": [*gone, {"reason": Reason.RAM_TIER_BUSY}]})
    assert not lacks_only_gone({"causes": []})


async def test_of_engines_that_have_ended_only_what_tells_most_is_kept(world: World) -> None:
    await world.create()
    ended = []
    for length in (100, 300, 200):
        ended.append(world.start_engine())
        await turn_on(world, ended[-1], text(length))
        world.kill_engine(ended[-1])
    living = world.start_engine()
    await turn_on(world, living, text(100))
    told = report(await world.suspend())
    assert reasons(told) == _LOST
    assert report(await world.suspend())["causes"] == told["causes"]
    left = {head.engine_id for head in world.store.read_heads(DEFAULT_TENANT, AGENT)}
    assert left == {ended[1].info.engine_id, living.info.engine_id}
