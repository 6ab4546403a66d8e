from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    DeadlineExceededError,
    EngineWithoutConnectorError,
    IdentityPendingError,
    NoEngineError,
    NothingToSuspendError,
    OperationInProgressError,
    SessionNotFoundError,
    TierOffError,
    TurnInFlightError,
)
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.reasons import Reason
from sessiond.domain.session import SessionState
from sessiond.service.engines import Where
from sessiond.testing.world import (
    AGENT,
    World,
    open_world,
    problem,
    reasons,
    report,
    suspends,
    text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.tokens import TokenIds
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


def silence(world: World, engine: FakeEngine) -> None:
    """Let the engine not tell of its turns; nobody waits for that for long."""
    engine.faults.hangs.add("heads")
    short = replace(world.services.context.limits, heads_settle_s=0.1)
    object.__setattr__(world.services.context, "limits", short)


async def test_a_second_suspend_answers_the_same_snapshot_at_once(
    world: World, engine: FakeEngine
) -> None:
    first = report(await world.suspend())
    second = report(await world.suspend())
    assert second["snapshot"]["generation"] == first["snapshot"]["generation"] == 1
    assert second["snapshot"]["new_bytes"] == 0
    assert second["rounds"] == 0
    assert suspends(engine) == 1


@pytest.mark.usefixtures("engine")
async def test_a_grown_session_stores_only_what_is_new(world: World) -> None:
    first = report(await world.suspend())["snapshot"]
    await world.turn(AGENT, text(100) + text(60, seed=3))
    second = report(await world.suspend())["snapshot"]
    assert second["generation"] == 2
    assert second["parent_generation"] == 1
    assert second["tokens_restorable"] == 160
    assert second["shared_bytes"] == first["stored_bytes"]
    assert second["new_bytes"] == second["stored_bytes"] - first["stored_bytes"]
    known = await world.services.catalogue.snapshots(DEFAULT_TENANT, AGENT)
    assert [summary.generation for summary in known] == [1, 2]


async def test_a_session_larger_than_the_ram_tier_is_stored_by_rounds(
    world: World, engine: FakeEngine
) -> None:
    engine.update(ram_tier_chunks=2)
    told = report(await world.suspend())
    assert told["rounds"] == 3
    assert told["missing_tokens"] == 0
    assert told["snapshot"]["tokens_restorable"] == 96
    assert told["snapshot"]["new_bytes"] == told["snapshot"]["stored_bytes"]
    assert told["snapshot"]["shared_bytes"] == 0


async def test_evicted_kv_is_left_out_and_the_held_request_is_cancelled(
    world: World, engine: FakeEngine
) -> None:
    engine.evict(keep_tokens=50)
    told = report(await world.suspend())
    assert told["snapshot"]["tokens_restorable"] == 48
    assert told["missing_tokens"] == 48
    assert engine.aborted == ["suspend"]


async def test_evicted_kv_never_makes_a_snapshot_smaller(world: World, engine: FakeEngine) -> None:
    report(await world.suspend())
    await world.turn(AGENT, text(100) + text(60, seed=3))
    engine.evict(keep_tokens=40)
    told = report(await world.suspend())
    assert told["snapshot"]["generation"] == 1
    assert told["snapshot"]["tokens_restorable"] == 96
    assert told["missing_tokens"] == 64
    assert reasons(told) == ["kv_evicted"]


async def test_nothing_left_in_the_engine(world: World, engine: FakeEngine) -> None:
    engine.evict()
    assert problem(await world.suspend()) == "nothing_to_suspend"
    assert (await world.show()).session.snapshot is None


async def test_a_turn_in_flight_refuses(world: World, engine: FakeEngine) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    assert (await world.show()).state is SessionState.RUNNING
    with pytest.raises(TurnInFlightError):
        await world.suspend()
    assert suspends(engine) == 0


@pytest.mark.parametrize("stored", [True, False])
async def test_a_turn_of_which_no_head_tells_yet_is_stored(
    world: World,
    engine: FakeEngine,
    stored: bool,  # noqa: FBT001 - a parameter
) -> None:
    if stored:
        report(await world.suspend())
    engine.faults.late_heads = True
    await world.turn(AGENT, text(100) + text(60, seed=3))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 160


async def test_a_first_turn_on_another_engine_of_which_no_head_tells_yet_is_stored(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    world.store.drains.mark(engine.info.engine_id, {})
    other = world.start_engine("other")
    other.faults.late_heads = True
    await world.turn(AGENT, text(100) + text(60, seed=3))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 160
    assert suspends(other) == 1


async def test_tickets_that_were_used_in_the_other_order_lose_no_turn(
    world: World, engine: FakeEngine
) -> None:
    first, second = [await world.services.turns.ticket(DEFAULT_TENANT, AGENT) for _ in range(2)]
    await world.use(second, text(100))
    engine.faults.late_heads = True
    await world.use(first, text(100) + text(60, seed=3))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 160


@pytest.mark.usefixtures("engine")
async def test_a_ticket_that_nobody_uses_is_not_waited_for(world: World) -> None:
    patient = replace(world.services.context.limits, heads_settle_s=60.0, turn_settle_s=60.0)
    object.__setattr__(world.services.context, "limits", patient)
    async with asyncio.timeout(30.0):
        report(await world.suspend())
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
        assert report(await world.suspend())["rounds"] == 0


async def test_where_the_engine_does_not_tell_the_answer_says_so(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    silence(world, engine)
    told = report(await world.suspend())
    assert (told["rounds"], reasons(told)) == (0, ["head_unconfirmed"])


async def test_that_nothing_is_there_is_not_told_on_a_guess(
    world: World, engine: FakeEngine
) -> None:
    await world.create(SessionId("new"))
    await world.services.turns.ticket(DEFAULT_TENANT, SessionId("new"))
    silence(world, engine)
    with pytest.raises(DeadlineExceededError) as raised:
        await world.suspend(SessionId("new"))
    assert [cause.reason for cause in raised.value.causes] == [Reason.HEAD_UNCONFIRMED]


async def test_of_an_engine_that_keeps_nothing_and_is_asleep_that_is_told(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    engine.update(tier_off="asleep")
    silence(world, engine)
    assert reasons(report(await world.suspend())) == ["tier_off"]


async def test_a_turn_that_is_not_kept_is_known_although_its_head_is_late(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    engine.update(tier_off="mover failed", tier_off_reason="mover_failed")
    engine.faults.late_heads = True
    await world.turn(AGENT, text(100) + text(60, seed=3))
    with pytest.raises(TierOffError):
        await world.suspend()


async def test_of_a_turn_in_an_engine_that_does_not_know_itself_yet_that_is_told(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    world.store.drains.mark(engine.info.engine_id, {})
    pending = world.start_engine("pending")
    pending.update(tier_off="16 GB", tier_off_reason="identity_pending")
    pending.faults.late_heads = True
    pending.faults.refusals["heads"] = Reason.IDENTITY_PENDING
    where = Where(only=pending.info.engine_id)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT, where=where)
    await world.use(ticket, text(100) + text(60, seed=3))
    assert reasons(report(await world.suspend())) == ["identity_pending"]


async def test_what_a_head_that_moved_on_leaves_in_doubt_is_told(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    await world.turn(AGENT, text(100) + text(60, seed=3))
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    engine.faults.stale_heads = 1
    suspending = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    async with asyncio.timeout(30.0):
        while suspends(engine) < 2:
            await asyncio.sleep(0.005)
    engine.evict(96)
    engine.faults.refusals["heads"] = Reason.STORE_FAILED
    gate.set()
    assert reasons(report(await world.ended(suspending))) == ["kv_evicted", "store_failed"]


@pytest.mark.parametrize("place", ["another engine", "another branch"])
async def test_what_was_stored_while_there_may_be_more_says_so(
    world: World, engine: FakeEngine, place: str
) -> None:
    last = engine
    if place == "another engine":
        world.store.drains.mark(engine.info.engine_id, {})
        last = world.start_engine("last")
    last.faults.late_heads = True
    await world.turn(AGENT, text(50) + text(150, seed=9))
    last.faults.refusals["heads"] = Reason.STORE_FULL
    told = report(await world.suspend())
    assert (told["rounds"], told["missing_tokens"], reasons(told)) == (1, 0, ["store_full"])


async def test_a_suspend_of_what_was_there_before_the_newest_turn_is_not_joined(
    world: World, engine: FakeEngine
) -> None:
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    world.pass_time(1)
    first = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    again = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    assert again.operation_id == first.operation_id
    world.pass_time(1)
    await world.turn(AGENT, text(100) + text(60, seed=3))
    with pytest.raises(OperationInProgressError, match="before"):
        await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    gate.set()
    await world.ended(first)
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 160


async def test_tickets_of_another_session_of_the_same_id_do_not_count(
    world: World, engine: FakeEngine
) -> None:
    await world.delete()
    world.pass_time(1)
    await world.create()
    silence(world, engine)
    with pytest.raises(NothingToSuspendError):
        await world.suspend()


async def test_a_head_that_lags_behind_the_answer_is_waited_for(
    world: World, engine: FakeEngine
) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, engine.end_turn, DEFAULT_TENANT, AGENT)
    assert report(await world.suspend())["missing_tokens"] == 0


async def test_a_turn_that_begins_meanwhile_refuses(world: World, engine: FakeEngine) -> None:
    engine.faults.refusals["commit"] = Reason.TURN_IN_FLIGHT
    assert problem(await world.suspend()) == "turn_in_flight"


async def test_a_head_that_moved_on_is_read_again(world: World, engine: FakeEngine) -> None:
    engine.faults.stale_heads = 2
    assert report(await world.suspend())["rounds"] == 3


async def test_a_head_that_always_moves_on_ends(world: World, engine: FakeEngine) -> None:
    engine.faults.stale_heads = 1000
    assert problem(await world.suspend()) == "engine_refused"
    assert suspends(engine) == 4


@pytest.mark.parametrize("op", ["commit", "suspend"])
async def test_after_a_lost_answer_the_manifest_decides(
    world: World, engine: FakeEngine, op: str
) -> None:
    engine.faults.lost_answers.add(op)
    told = report(await world.suspend())
    assert told["snapshot"]["generation"] == 1
    assert told["snapshot"]["new_bytes"] == told["snapshot"]["stored_bytes"] > 0
    assert (await world.show()).state is SessionState.SUSPENDED


async def test_an_engine_that_dies_leaves_the_session_as_it_was(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.hangs |= {"suspend", "commit"}
    operation = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    await asyncio.sleep(0.05)
    world.kill_engine(engine)
    assert problem(await world.ended(operation)) == "deadline_exceeded"
    assert sorted(engine.aborted) == ["commit", "suspend"]
    assert (await world.show()).session.snapshot is None


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.STORE_FULL, "store_full"),
        (Reason.STORE_FAILED, "store_error"),
        (Reason.SESSION_DELETED, "session_not_found"),
        (Reason.TICKET_INVALID, "engine_refused"),
    ],
)
async def test_refusals_become_errors(
    world: World, engine: FakeEngine, reason: Reason, code: str
) -> None:
    engine.faults.refusals = {"suspend": reason, "commit": reason}
    assert problem(await world.suspend()) == code
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 10)
    assert events[-1].kind == "suspend_failed"
    assert events[-1].detail["code"] == code


async def test_a_refused_suspend_does_not_wait_for_its_commit(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.refusals["suspend"] = Reason.TIER_OFF
    assert problem(await world.suspend()) == "tier_off"


@pytest.mark.parametrize("stored", [True, False])
async def test_an_engine_that_is_taking_its_fingerprint_may_have_more_than_is_stored(
    world: World,
    engine: FakeEngine,
    stored: bool,  # noqa: FBT001 - a parameter
) -> None:
    if stored:
        report(await world.suspend())
    world.kill_engine(engine)
    other = world.start_engine()
    other.update(tier_off="16 GB", tier_off_reason="identity_pending")
    with pytest.raises(IdentityPendingError):
        await world.suspend()


async def test_what_earlier_rounds_stored_is_kept(world: World, engine: FakeEngine) -> None:
    engine.update(ram_tier_chunks=2)
    operation = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    while not world.store.generations(DEFAULT_TENANT, AGENT):
        await asyncio.sleep(0.001)
    engine.faults.refusals["suspend"] = Reason.STORE_FULL
    told = report(await world.ended(operation))
    assert told["snapshot"]["tokens_restorable"] >= 32
    assert told["missing_tokens"] + told["snapshot"]["tokens_restorable"] == 96


async def test_plain_vllm_is_named_as_such(world: World, engine: FakeEngine) -> None:
    engine.faults.no_connector = True
    assert problem(await world.suspend()) == "engine_without_connector"


async def test_an_engine_error_shows_no_path(world: World, engine: FakeEngine) -> None:
    engine.faults.http_errors["suspend"] = 400
    operation = await world.suspend()
    assert problem(operation) == "engine_refused"
    assert operation.result is not None
    assert operation.result["message"] == "The engine answered with HTTP 400: No. See …."


async def test_less_than_a_chunk_is_nothing(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(3))
    with pytest.raises(NothingToSuspendError):
        await world.suspend()


async def test_a_session_without_a_turn_has_nothing(world: World) -> None:
    world.start_engine()
    await world.create()
    with pytest.raises(NothingToSuspendError):
        await world.suspend()


async def test_without_engine_and_snapshot(world: World) -> None:
    await world.create()
    with pytest.raises(NoEngineError):
        await world.suspend()


async def test_without_engine_a_suspended_session_is_suspended(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    world.kill_engine(engine)
    assert report(await world.suspend())["snapshot"]["generation"] == 1


async def test_unknown_session(world: World) -> None:
    with pytest.raises(SessionNotFoundError):
        await world.suspend(SessionId("nobody"))


async def test_a_server_that_is_not_ours_is_named(tmp_path: Path) -> None:
    async with open_world(tmp_path, engine_urls=("http://plain", "http://gone")) as world:
        world.start_stranger("plain")
        await world.create()
        with pytest.raises(EngineWithoutConnectorError, match="http://plain"):
            await world.suspend()
        assert await world.services.context.engines.strangers() == ["http://plain"]


async def test_only_the_head_of_a_live_engine_counts(world: World, engine: FakeEngine) -> None:
    world.kill_engine(engine)
    world.start_engine()
    with pytest.raises(NothingToSuspendError):
        await world.suspend()


async def test_other_weights_never_share_chunks(world: World, engine: FakeEngine) -> None:
    first = report(await world.suspend())["snapshot"]
    world.kill_engine(engine)
    world.start_engine(fields={"weights_digest": "f" * 64})
    await world.turn(AGENT, text(100))
    second = report(await world.suspend())["snapshot"]
    assert second["generation"] == 2
    assert second["new_bytes"] == second["stored_bytes"] == first["stored_bytes"]


async def test_a_compacted_history_is_stored_from_its_second_turn(
    world: World, engine: FakeEngine
) -> None:
    await world.turn(AGENT, text(192))
    report(await world.suspend())
    compacted = text(192)[:130] + text(30, seed=5)
    await world.turn(AGENT, compacted)
    assert (await world.show()).state is SessionState.SUSPENDED
    await world.turn(AGENT, compacted + text(30, seed=6))
    assert (await world.show()).state is SessionState.ACTIVE
    world.pass_time(1000.0)
    assert (await world.services.sweeper.sweep()).suspended == 1
    manifest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 2)
    assert manifest.tokens[:160] == compacted
    assert (await world.show()).state is SessionState.SUSPENDED
    assert report(await world.suspend())["rounds"] == 0
    assert suspends(engine) == 2


@pytest.mark.parametrize("tokens", [32, 100, 400])
async def test_a_side_call_does_not_take_the_place_of_the_snapshot(
    world: World, engine: FakeEngine, tokens: int
) -> None:
    await world.turn(AGENT, text(110))  # a second one: the first was no router's call
    report(await world.suspend())
    await world.turn(AGENT, text(tokens, seed=5))
    assert (await world.show()).state is SessionState.SUSPENDED
    told = report(await world.suspend())
    assert (told["rounds"], told["missing_tokens"], told["snapshot"]["generation"]) == (0, 0, 1)
    assert suspends(engine) == 1
    await world.turn(AGENT, text(130))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 128


async def test_nor_does_a_sub_agent_that_a_new_engine_meets_first(
    world: World, engine: FakeEngine
) -> None:
    report(await world.suspend())
    world.kill_engine(engine)
    engine = world.start_engine()
    for tokens in (40, 60, 80):
        await world.turn(AGENT, text(tokens, seed=5))
        assert (await world.show()).state is SessionState.SUSPENDED
    world.pass_time(1000.0)
    assert (await world.services.sweeper.sweep()).due == 0
    told = report(await world.suspend())
    assert told["snapshot"]["generation"] == 1
    assert [cause["reason"] for cause in told["causes"]] == ["side_call"]
    await world.turn(AGENT, text(130))  # it goes on from its snapshot
    assert (await world.show()).state is SessionState.ACTIVE
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 128
    assert suspends(engine) == 1


@pytest.mark.parametrize("kept", [90, 40])
async def test_nor_does_what_the_session_left_in_another_engine(
    world: World, engine: FakeEngine, kept: int
) -> None:
    """It went on elsewhere, with its last reply rendered anew, or compacted."""
    other = world.start_engine("other")
    for more in (100, 130):
        prompt = text(kept) + text(more, seed=5)
        await turn_on(world, other, prompt)
    assert report(await world.suspend())["snapshot"]["generation"] == 1
    stored = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    assert stored.tokens[: len(prompt)] == prompt
    world.kill_engine(other)
    assert (await world.show()).state is SessionState.SUSPENDED
    world.pass_time(1000.0)
    assert (await world.services.sweeper.sweep()).due == 0
    assert report(await world.suspend())["snapshot"]["generation"] == 1
    assert suspends(engine) == 0


async def turn_on(world: World, engine: FakeEngine, prompt: TokenIds[int]) -> None:
    """Take a turn on this engine, wherever the session's KV is."""
    only = Where(engine.info.engine_id)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT, where=only)
    response = await world.http.post(
        f"{ticket.engine.url}/v1/completions",
        json={
            "model": ticket.model,
            "prompt": list(prompt),
            "max_tokens": 8,
            "cache_salt": ticket.permit.cache_salt,
            "kv_transfer_params": ticket.kv_transfer_params,
        },
    )
    response.raise_for_status()


@pytest.mark.usefixtures("engine")
async def test_a_side_call_before_the_suspend_is_passed_over(world: World) -> None:
    await world.turn(AGENT, text(32, seed=5))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 96
    assert (await world.show()).state is SessionState.SUSPENDED
    assert report(await world.suspend())["rounds"] == 0


@pytest.mark.usefixtures("engine")
async def test_a_shorter_turn_within_the_snapshot_needs_no_other(world: World) -> None:
    report(await world.suspend())
    await world.turn(AGENT, text(64), max_tokens=1)
    assert (await world.show()).state is SessionState.SUSPENDED
    assert report(await world.suspend())["rounds"] == 0


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("harm", ["noted", "unlinked"])
async def test_what_is_damaged_counts_as_not_stored(world: World, harm: str) -> None:
    report(await world.suspend())
    chunk = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1).chunks[3]
    if harm == "noted":
        world.store.mark_bad(chunk.segment_id, chunk.offset_bytes, "checksum")
    else:
        (segment,) = world.store.root.rglob("*.seg")
        segment.unlink()
    assert (await world.show()).state is SessionState.ACTIVE
    told = report(await world.suspend())
    assert told["rounds"] == 1
    assert told["snapshot"]["generation"] == 2
    shared_chunks = 3 if harm == "noted" else 0
    assert told["snapshot"]["shared_bytes"] == shared_chunks * chunk.stored_bytes
    assert (await world.show()).state is SessionState.SUSPENDED


@pytest.mark.parametrize("reason", [Reason.DEADLINE, Reason.MOVER_FAILED, Reason.ABORTED])
async def test_after_a_doubtful_refusal_the_manifest_decides(
    world: World, engine: FakeEngine, reason: Reason
) -> None:
    engine.faults.refusals["commit"] = reason  # the fake engine commits all the same
    told = report(await world.suspend())
    assert told["snapshot"]["generation"] == 1
    assert told["causes"] == []
    assert (await world.show()).state is SessionState.SUSPENDED


async def test_a_deadline_without_a_manifest_is_an_error(world: World, engine: FakeEngine) -> None:
    engine.faults.refusals |= {"suspend": Reason.DEADLINE, "commit": Reason.DEADLINE}
    assert problem(await world.suspend()) == "deadline_exceeded"


async def test_another_template_stores_the_same_kv_once(world: World, engine: FakeEngine) -> None:
    report(await world.suspend())
    world.kill_engine(engine)
    other = world.start_engine(fields={"chat_template_digest": "e" * 64})
    await world.turn(AGENT, text(100))
    told = report(await world.suspend())
    assert (told["rounds"], told["snapshot"]["generation"]) == (0, 1)
    assert suspends(other) == 0
