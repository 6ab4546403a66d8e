"""Sessions whose model is a LoRA adapter: told apart by content, never by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.engines import ServedAdapter
from sessiond.domain.errors import (
    AdapterUnprovenError,
    IdentityPendingError,
    NoEngineError,
    NothingToSuspendError,
    SessiondError,
)
from sessiond.domain.heads import Head, LastTurn, pass_turn
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.reasons import EXPLANATIONS
from sessiond.domain.tickets import Ticket, verify
from sessiond.service.compatibility import adapter_for, check
from sessiond.testing.snapshots import SnapshotPlan, a_fingerprint, manifest_of_plan
from sessiond.testing.world import AGENT, World, problem, reasons, report, text

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.snapshot import Manifest
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

POET = ServedAdapter("poet", digest="p" * 64)
SCRIBE = ServedAdapter("scribe", digest="s" * 64)
UNPROVEN = ServedAdapter("poet", unproven="its files changed")


def start(world: World, *adapters: ServedAdapter, host: str = "engine") -> FakeEngine:
    engine = world.start_engine(host)
    engine.update(adapters=adapters)
    return engine


def restart(world: World, engine: FakeEngine, *adapters: ServedAdapter) -> FakeEngine:
    world.kill_engine(engine)
    return start(world, *adapters)


def causes(told: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(c["reason"], c.get("stored"), c.get("live")) for c in told["causes"]]


async def signed(world: World, model: str = "") -> Ticket:
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT, model=model)
    return verify(made.permit.ticket, world.store.keys.ticket_key, world.services.context.now())


async def a_suspended_poet(world: World) -> FakeEngine:
    engine = start(world, POET, SCRIBE)
    await world.create(model="poet")
    await world.turn(AGENT, text(100))
    assert report(await world.suspend())["snapshot"]["model"] == "poet"
    return engine


# Engines and tickets


async def test_the_engine_that_serves_the_adapter_is_chosen(world: World) -> None:
    poets = start(world, POET, host="poets")
    start(world, SCRIBE, host="scribes")
    await world.create(model="poet")
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (made.engine.engine_id, made.model) == (poets.info.engine_id, "poet")


async def test_an_engine_that_could_keep_it_is_preferred(world: World) -> None:
    start(world, UNPROVEN, host="one")
    proven = start(world, POET, host="two")
    start(world, UNPROVEN, host="three")
    await world.create(model="poet")
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert made.engine.engine_id == proven.info.engine_id


async def test_an_adapter_that_nobody_serves_has_no_engine(world: World) -> None:
    start(world, SCRIBE)
    await world.create(model="poet")
    with pytest.raises(NoEngineError, match="serves 'poet'; they serve: 'scribe', 'smol'"):
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)


async def test_tickets_and_salts_carry_the_content(world: World) -> None:
    start(world, POET, SCRIBE)
    await world.create(model="poet")
    tickets = [await signed(world, model) for model in ("", "poet", "scribe", "smol")]
    assert [ticket.adapter_digest for ticket in tickets] == [
        POET.digest,
        POET.digest,
        SCRIBE.digest,
        "",
    ]
    hashes = [ticket.salt_hash for ticket in tickets]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


async def test_a_session_for_any_model_may_use_each(world: World) -> None:
    engine = start(world, POET)
    await world.create()
    await world.turn(AGENT, text(100), model="poet")
    assert (await signed(world)).adapter_digest == ""
    assert report(await world.suspend())["snapshot"]["model"] == "poet"
    engine = restart(world, engine, SCRIBE, replace(POET, name="bard"))
    told = report(await world.resume())
    assert (told["outcome"], told["tokens_restored"]) == ("restored", 96)
    assert {seen.model for seen in engine.seen} == {"bard"}


async def test_an_unproven_adapters_turns_are_served_and_not_kept(world: World) -> None:
    engine = start(world, UNPROVEN)
    await world.create(model="poet")
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert [cause.reason for cause in made.causes] == ["no_snapshot", "adapter_unproven"]
    answer = await world.turn(AGENT, text(100))
    told = answer["kv_transfer_params"]["sessiond"]
    assert (told["ok"], reasons(told)) == (False, ["adapter_unproven"])
    assert engine.seen[-1].model == "poet"


# Suspend and resume


async def test_requests_name_the_adapter(world: World) -> None:
    engine = await a_suspended_poet(world)
    engine = restart(world, engine, SCRIBE, POET)
    told = report(await world.resume())
    assert (told["outcome"], told["tokens_restored"], told["causes"]) == ("restored", 96, [])
    assert {seen.model for seen in engine.seen} == {"poet"}
    manifest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    assert manifest.adapter_digest == POET.digest


async def test_a_renamed_adapter_is_still_the_same(world: World) -> None:
    engine = await a_suspended_poet(world)
    restart(world, engine, replace(POET, name="bard"))
    assert report(await world.resume())["tokens_restored"] == 96


SWAPPED = (replace(POET, name="scribe"), replace(SCRIBE, name="poet"))
OTHERS: dict[str, tuple[tuple[ServedAdapter, ...], str | None]] = {
    "swapped names": (SWAPPED, SCRIBE.digest),
    "overwritten": ((replace(POET, digest="n" * 64),), "n" * 64),
}


@pytest.mark.parametrize(("adapters", "live"), OTHERS.values(), ids=OTHERS)
async def test_other_content_under_the_name_loads_nothing(
    world: World, adapters: tuple[ServedAdapter, ...], live: str
) -> None:
    engine = await a_suspended_poet(world)
    engine = restart(world, engine, *adapters)
    told = report(await world.resume())
    assert (told["outcome"], told["tokens_restored"]) == ("recomputed", 0)
    assert causes(told) == [("adapter_mismatch", POET.digest, live)]
    assert engine.seen == []
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (made.plan, made.generation) == ("recompute", 0)


async def test_base_and_adapter_share_nothing(world: World) -> None:
    engine = start(world, POET)
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    restart(world, engine, POET)
    made = await world.services.turns.ticket(DEFAULT_TENANT, AGENT, model="poet")
    (cause,) = made.causes
    assert (cause.reason, cause.stored, cause.live) == ("adapter_mismatch", None, POET.digest)
    assert (made.plan, made.generation) == ("recompute", 0)


async def test_a_sub_agents_turn_is_not_warm(world: World) -> None:
    start(world, POET, SCRIBE)
    await world.create(model="poet")
    await world.turn(AGENT, text(100))
    ticket = world.services.turns.ticket
    assert (await ticket(DEFAULT_TENANT, AGENT)).plan == "warm"
    assert (await ticket(DEFAULT_TENANT, AGENT, model="scribe")).plan == "recompute"


async def test_a_suspend_takes_the_name_that_the_turn_gave(world: World) -> None:
    twin = replace(POET, name="bard")  # the same content twice: vLLM keeps their KV apart
    engine = start(world, twin, POET)
    await world.create(model="poet")
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    assert {seen.model for seen in engine.seen if seen.op != "heads"} == {"poet"}


@pytest.mark.parametrize(
    ("now", "error"),
    [
        (UNPROVEN, AdapterUnprovenError),
        (replace(POET, digest="n" * 64), NothingToSuspendError),
        (SCRIBE, NothingToSuspendError),
    ],
)
async def test_what_an_adapter_computed_before_it_changed_is_not_stored(
    world: World, now: ServedAdapter, error: type[SessiondError]
) -> None:
    engine = start(world, POET)
    await world.create()
    await world.turn(AGENT, text(100), model="poet")
    engine.update(adapters=(now,))
    with pytest.raises(error, match="'poet'") as refused:
        await world.suspend()
    assert refused.value.hint == EXPLANATIONS[refused.value.causes[0].reason].hint
    assert [seen.op for seen in engine.seen] == ["turn", "heads"]


async def test_while_its_files_are_read_a_suspend_may_be_tried_again(world: World) -> None:
    unread = replace(UNPROVEN, pending=True)
    engine = start(world, unread)
    await world.create(model="poet")
    cause, now = unread.cause(), world.services.context.now()
    assert cause is not None
    head = Head(DEFAULT_TENANT, AGENT, engine.info.engine_id, 1, 0, now, ())
    turn = LastTurn(now, None, causes=(cause,))
    engine.write_head(pass_turn(head, turn))  # as the connector notes it
    with pytest.raises(IdentityPendingError, match="'poet'"):
        await world.suspend()
    engine.update(adapters=(POET,))
    with pytest.raises(AdapterUnprovenError) as refused:  # of what that turn left
        await world.suspend()
    assert "another turn" in refused.value.hint
    await world.turn(AGENT, text(140))
    assert report(await world.suspend())["snapshot"]["model"] == "poet"


async def test_what_an_adapter_that_is_read_again_computed_may_be_stored_later(
    world: World,
) -> None:
    engine = start(world, POET)
    await world.create()
    await world.turn(AGENT, text(100), model="poet")
    engine.update(adapters=(replace(UNPROVEN, pending=True),))
    with pytest.raises(IdentityPendingError) as refused:
        await world.suspend()
    assert refused.value.retryable
    engine.update(adapters=(POET,))
    report(await world.suspend())


async def test_the_engine_knows_better_than_its_file(world: World) -> None:
    engine = start(world, POET)
    await world.create(model="poet")
    await world.turn(AGENT, text(100))
    engine.info = replace(engine.info, adapters=(UNPROVEN,))  # and its file not yet
    assert problem(await world.suspend()) == AdapterUnprovenError.code
    assert world.store.generations(DEFAULT_TENANT, SessionId(AGENT)) == []


# The comparison


def an_engine(world: World, *adapters: ServedAdapter) -> EngineInfo:
    return start(world, *adapters).info


def a_manifest(adapter_digest: str) -> Manifest:
    return replace(manifest_of_plan(SnapshotPlan(), []), adapter_digest=adapter_digest)


@pytest.mark.parametrize(
    ("stored", "adapter", "reason"),
    [
        ("", None, None),
        (POET.digest, POET, None),
        (POET.digest, replace(POET, name="bard"), None),
        (POET.digest, None, "adapter_mismatch"),
        ("", POET, "adapter_mismatch"),
        (SCRIBE.digest, POET, "adapter_mismatch"),
        (POET.digest, UNPROVEN, "adapter_unproven"),
        ("", UNPROVEN, "adapter_unproven"),
    ],
)
async def test_compatibility(
    world: World, stored: str, adapter: ServedAdapter | None, reason: str | None
) -> None:
    engine = replace(an_engine(world), fingerprint=a_fingerprint())
    found = check(a_manifest(stored), engine, adapter)
    assert [cause.reason for cause in found.forbidding] == ([reason] if reason else [])
    fields = ["adapter"] if reason == "adapter_mismatch" else []
    assert [mismatch.field for mismatch in found.mismatches] == fields


async def test_which_adapter_a_session_uses(world: World) -> None:
    engine = an_engine(world, POET, SCRIBE)
    of_poet = a_manifest(POET.digest)
    assert adapter_for(engine, "scribe", of_poet) == SCRIBE
    assert adapter_for(engine, "smol", of_poet) is None
    assert adapter_for(engine, "", of_poet) == POET
    assert adapter_for(engine, "") is None
    assert adapter_for(engine, "", a_manifest("x")) is None
