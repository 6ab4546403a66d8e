from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.domain.errors import NoEngineError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.tickets import TicketOp, verify
from sessiond.testing.world import AGENT, World, report, text

pytestmark = pytest.mark.anyio


async def test_a_ticket_is_for_one_turn_of_one_session_on_one_engine(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    now = world.services.context.now()
    ticket = verify(made.permit.ticket, world.store.keys.ticket_key, now)
    assert ticket.op is TicketOp.TURN
    assert (ticket.tenant, ticket.session) == (DEFAULT_TENANT, AGENT)
    assert ticket.engine_id == engine.info.engine_id
    assert ticket.generation == made.generation == 0
    assert 0 < made.permit.expires_unix_s - now <= 300
    assert made.kv_transfer_params == {"sessiond_ticket": made.permit.ticket}


async def test_tenants_have_different_salts(world: World) -> None:
    world.start_engine()
    other = TenantId("other")
    await world.create()
    await world.services.catalogue.create(other, AGENT)
    mine = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    theirs = await world.services.turns.ticket(other, AGENT)
    again = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert mine.permit.cache_salt == again.permit.cache_salt != theirs.permit.cache_salt


async def test_plans(world: World) -> None:
    ticket = world.services.turns.ticket
    engine = world.start_engine()
    await world.create()
    first = await ticket(DEFAULT_TENANT, AGENT)
    assert (first.plan, [c.reason for c in first.causes]) == ("recompute", ["no_snapshot"])
    await world.turn(AGENT, text(100))
    second = await ticket(DEFAULT_TENANT, AGENT)
    assert (second.plan, second.causes) == ("warm", ())
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine()
    third = await ticket(DEFAULT_TENANT, AGENT)
    assert (third.plan, third.generation, third.causes) == ("load", 1, ())
    probe = await world.services.prober.probe(DEFAULT_TENANT, AGENT)
    assert (probe.plan, probe.tokens_loadable, probe.mismatches) == ("load", 96, ())


async def test_a_turn_may_load_by_its_ticket_alone(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine()
    answer = await world.turn(AGENT, text(100))
    split = answer["kv_transfer_params"]["sessiond"]["split"]
    assert split["disk_tokens"] == 96


async def test_what_differs_is_named_and_forbids_loading(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine(fields={"weights_digest": "f" * 64, "torch_version": "3"})
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.plan, ticket.generation) == ("recompute", 0)
    assert [cause.reason for cause in ticket.causes] == ["weights_mismatch"]
    probe = await world.services.prober.probe(DEFAULT_TENANT, AGENT)
    assert [m.field for m in probe.mismatches] == ["weights_digest", "torch_version"]
    assert (probe.tokens_restorable, probe.tokens_loadable) == (96, 0)


async def test_no_engine_no_ticket(world: World) -> None:
    await world.create()
    with pytest.raises(NoEngineError):
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)


async def test_the_engine_that_has_the_kv_is_chosen(world: World) -> None:
    world.start_engine("one")
    await world.create()
    await world.turn(AGENT, text(100))
    chosen = (await world.services.turns.ticket(DEFAULT_TENANT, AGENT)).engine
    world.start_engine("two")
    assert (await world.services.turns.ticket(DEFAULT_TENANT, AGENT)).engine == chosen


async def test_the_engine_that_was_resumed_on_is_chosen_while_it_lives(world: World) -> None:
    first = world.start_engine("one")
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(first)
    second = world.start_engine("two")
    report(await world.resume())
    third = world.start_engine("three")
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.engine.engine_id, ticket.plan) == (second.info.engine_id, "warm")
    world.kill_engine(second)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.engine.engine_id, ticket.plan) == (third.info.engine_id, "load")


async def suspended_by_a_renamed_engine(world: World) -> None:
    """A session for the model "smol" whose next engine calls its model something else."""
    engine = world.start_engine()
    await world.create(model="smol")
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine().update(model="other")


async def test_a_name_is_no_identity_what_computed_the_snapshot_is(world: World) -> None:
    await suspended_by_a_renamed_engine(world)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.plan, ticket.generation, ticket.causes) == ("load", 1, ())
    assert ticket.engine.model == "other"


async def test_without_its_content_the_name_decides(world: World) -> None:
    await suspended_by_a_renamed_engine(world)
    await world.create(SessionId("new"), model="smol")
    with pytest.raises(NoEngineError, match="serves 'smol'; they serve: 'other'"):
        await world.services.turns.ticket(DEFAULT_TENANT, SessionId("new"))


async def test_another_model_under_another_name_is_none_of_the_sessions(world: World) -> None:
    engine = world.start_engine()
    await world.create(model="smol")
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine(fields={"weights_digest": "f" * 64}).update(model="other")
    with pytest.raises(NoEngineError):
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)


async def test_the_next_turn_follows_one_of_which_no_head_tells_yet(world: World) -> None:
    first = world.start_engine()
    await world.create()
    first.faults.late_heads = True
    await world.turn(AGENT, text(100))
    second = world.start_engine("second")  # the newest has the least to do
    assert (
        await world.services.turns.ticket(DEFAULT_TENANT, SessionId(AGENT))
    ).engine == first.info
    await world.create(SessionId("other"))
    other = await world.services.turns.ticket(DEFAULT_TENANT, SessionId("other"))
    assert other.engine == second.info


async def test_a_turn_that_is_known_counts_for_more_than_an_older_ticket(world: World) -> None:
    first = world.start_engine()
    await world.create()
    unused = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert unused.engine == first.info
    world.pass_time(1)
    world.store.drains.mark(first.info.engine_id, {})
    second = world.start_engine("second")
    await world.turn(AGENT, text(100))
    world.store.drains.unmark(first.info.engine_id)
    world.pass_time(1)
    assert (await world.services.turns.ticket(DEFAULT_TENANT, AGENT)).engine == second.info


async def test_a_ticket_that_nobody_used_does_not_lead_away_from_the_kv(world: World) -> None:
    first = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    world.store.drains.mark(first.info.engine_id, {})
    second = world.start_engine("second")
    unused = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert unused.engine == second.info
    world.store.drains.unmark(first.info.engine_id)
    found = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (found.engine.engine_id, found.plan) == (first.info.engine_id, "warm")
    world.kill_engine(second)
    found = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (found.engine.engine_id, found.plan) == (first.info.engine_id, "warm")


async def test_a_warm_session_costs_no_question_to_its_engine(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    for _ in range(2):  # the second follows one that nobody has used yet
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert [seen.op for seen in engine.seen] == ["turn"]


async def test_an_engine_that_does_not_tell_is_not_asked_for_each_ticket(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    engine.faults.hangs.add("heads")
    short = replace(world.services.context.limits, heads_settle_s=0.1)
    object.__setattr__(world.services.context, "limits", short)
    for _ in range(4):
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert [seen.op for seen in engine.seen] == ["heads"]
