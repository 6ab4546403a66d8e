"""What a suspend does about KV that is gone: prefix, recompute or skip."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import ConflictError
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.reasons import Reason
from sessiond.domain.session import OnEvicted, SessionState
from sessiond.service.rebuild import rebuild_registry
from sessiond.testing.world import AGENT, World, problem, reasons, report, suspends, text

if TYPE_CHECKING:
    from typing import Any

    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(world: World) -> FakeEngine:
    """An engine with a session of six chunks, of which three are gone."""
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    engine.evict(keep_tokens=50)
    return engine


def counts(told: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return what was kept, lost, found to be gone, and computed again."""
    kept = told["snapshot"]["tokens_restorable"]
    return kept, told["missing_tokens"], told["evicted_tokens"], told["recomputed_tokens"]


async def choose(world: World, choice: OnEvicted | None) -> None:
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"on_evicted": choice})


@pytest.mark.usefixtures("engine")
async def test_prefix_keeps_what_is_there_and_is_the_default(world: World) -> None:
    told = report(await world.suspend())
    assert counts(told) == (48, 48, 48, 0)
    assert reasons(told) == ["kv_evicted"]


async def test_recompute_keeps_all_and_says_what_it_cost(world: World, engine: FakeEngine) -> None:
    await choose(world, OnEvicted.RECOMPUTE)
    told = report(await world.suspend())
    assert counts(told) == (96, 0, 48, 48)
    assert told["causes"] == []
    assert suspends(engine) == 2  # only the second one may compute
    world.kill_engine(engine)
    world.start_engine()
    resumed = report(await world.resume())  # the fake engine compares every byte
    assert (resumed["outcome"], resumed["tokens_restored"]) == ("restored", 96)


@pytest.mark.parametrize("op", ["suspend", "commit"])
async def test_what_was_recomputed_is_told_although_the_answer_was_lost(
    world: World, engine: FakeEngine, op: str
) -> None:
    await choose(world, OnEvicted.RECOMPUTE)
    engine.faults.lost_recomputes.add(op)
    assert counts(report(await world.suspend())) == (96, 0, 48, 48)


async def test_what_goes_while_it_is_asked_for_counts_as_well(
    world: World, engine: FakeEngine
) -> None:
    async def more_goes() -> None:
        while suspends(engine) < 1:
            await asyncio.sleep(0)
        engine.evict(keep_tokens=32)

    evicting = asyncio.create_task(more_goes())
    gate = engine.faults.gates["commit"] = asyncio.Event()
    suspending = asyncio.create_task(world.suspend())
    await evicting
    gate.set()
    assert counts(report(await suspending)) == (32, 64, 64, 0)


async def test_without_eviction_nothing_is_computed(world: World, engine: FakeEngine) -> None:
    await choose(world, OnEvicted.RECOMPUTE)
    await world.turn(AGENT, text(100))
    assert counts(report(await world.suspend())) == (96, 0, 0, 0)
    assert suspends(engine) == 1


async def test_what_a_snapshot_has_is_loaded_and_only_the_rest_computed(
    world: World, engine: FakeEngine
) -> None:
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await world.turn(AGENT, text(100) + text(60, seed=3))
    engine.evict(keep_tokens=20)
    await choose(world, OnEvicted.RECOMPUTE)
    told = report(await world.suspend())
    assert counts(told) == (160, 0, 64, 64)
    assert told["snapshot"]["generation"] == 2
    assert [seen.op for seen in engine.seen].count("resume") == 1


async def test_an_engine_that_cannot_load_computes_that_as_well(
    world: World, engine: FakeEngine
) -> None:
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await world.turn(AGENT, text(100) + text(60, seed=3))
    engine.evict(keep_tokens=20)
    engine.faults.http_errors["resume"] = 500
    await choose(world, OnEvicted.RECOMPUTE)
    assert counts(report(await world.suspend())) == (160, 0, 64, 144)


async def test_more_than_the_ram_tier_is_recomputed_by_rounds(
    world: World, engine: FakeEngine
) -> None:
    engine.update(ram_tier_chunks=2)
    await choose(world, OnEvicted.RECOMPUTE)
    assert counts(report(await world.suspend())) == (96, 0, 48, 48)


@pytest.mark.parametrize("reason", [Reason.STORE_FAILED, Reason.TIER_OFF])
async def test_where_it_cannot_be_computed_what_is_there_is_kept(
    world: World, engine: FakeEngine, reason: Reason
) -> None:
    engine.faults.unrecomputable = reason
    await choose(world, OnEvicted.RECOMPUTE)
    told = report(await world.suspend())
    assert counts(told) == (48, 48, 48, 0)
    assert reasons(told) == ["kv_evicted", reason]


async def test_where_computing_takes_too_long_what_is_there_is_kept(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.slow_to_compute = True
    await choose(world, OnEvicted.RECOMPUTE)
    told = report(await world.suspend())
    assert counts(told) == (48, 48, 48, 0)
    assert reasons(told) == ["kv_evicted", "deadline"]


@pytest.mark.parametrize("reason", [Reason.STORE_FULL, Reason.TURN_IN_FLIGHT])
async def test_why_what_is_there_could_not_be_kept_is_told(
    world: World, engine: FakeEngine, reason: Reason
) -> None:
    async def refuse_the_second() -> None:
        while not suspends(engine):
            await asyncio.sleep(0)
        engine.faults.refusals["suspend"] = reason

    refusing = asyncio.create_task(refuse_the_second())
    ended = await world.suspend()
    await refusing
    assert problem(ended) == reason.value  # not that there is nothing to suspend
    assert ended.result is not None
    assert ended.result["reason"] == reason.value


async def test_skip_stores_nothing_and_says_so(world: World, engine: FakeEngine) -> None:
    await choose(world, OnEvicted.SKIP)
    ended = await world.suspend()
    assert problem(ended) == "suspend_skipped"
    assert ended.result is not None
    assert "48 of 96 tokens are still there" in str(ended.result["message"])
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []
    assert (await world.show()).state is SessionState.ACTIVE
    event = world.registry.list_events(DEFAULT_TENANT, AGENT)[-1]
    assert (event.kind, event.detail["code"]) == ("suspend_skipped", "suspend_skipped")
    assert engine.aborted == ["suspend"]
    metrics = world.metrics.exposition(1).decode()
    assert 'kind="suspend",outcome="skipped",reason="suspend_skipped"} 1.0' in metrics


async def test_skip_leaves_an_older_snapshot_alone(world: World, engine: FakeEngine) -> None:
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await world.turn(AGENT, text(100) + text(60, seed=3))
    engine.evict(keep_tokens=128)
    await choose(world, OnEvicted.SKIP)
    assert problem(await world.suspend()) == "suspend_skipped"
    assert world.store.generations(DEFAULT_TENANT, AGENT) == [1]


async def test_skip_minds_nothing_that_is_stored_already(world: World, engine: FakeEngine) -> None:
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    engine.evict()
    await choose(world, OnEvicted.SKIP)
    assert report(await world.suspend())["rounds"] == 0


async def test_what_a_suspend_had_stored_before_something_went_stays(
    world: World, engine: FakeEngine
) -> None:
    await world.turn(AGENT, text(100))
    engine.update(ram_tier_chunks=2)
    await choose(world, OnEvicted.SKIP)
    engine.faults.left_after_store = 64
    told = report(await world.suspend())
    assert counts(told)[:2] == (32, 64)
    assert reasons(told) == ["kv_evicted"]


async def test_a_sweep_asks_once_until_the_next_turn(world: World, engine: FakeEngine) -> None:
    await choose(world, OnEvicted.SKIP)
    world.pass_time(1000)
    swept = await world.services.sweeper.sweep()
    assert (swept.due, swept.suspended, swept.failed) == (1, 0, 0)
    world.pass_time(100 * 3600)
    assert (await world.services.sweeper.sweep()).due == 0
    assert suspends(engine) == 1
    await world.turn(AGENT, text(130))
    world.pass_time(1000)
    assert (await world.services.sweeper.sweep()).suspended == 1


async def test_a_sweep_asks_once_for_what_is_gone_altogether(
    world: World, engine: FakeEngine
) -> None:
    engine.evict()
    world.pass_time(1000)
    assert (await world.services.sweeper.sweep()).failed == 1
    world.pass_time(100 * 3600)
    assert (await world.services.sweeper.sweep()).due == 0


@pytest.mark.usefixtures("engine")
async def test_a_call_may_choose_for_itself(world: World) -> None:
    await choose(world, OnEvicted.SKIP)
    suspend = world.services.lifecycle.suspend
    begun = await suspend(DEFAULT_TENANT, AGENT, "key", OnEvicted.RECOMPUTE)
    assert counts(report(await world.ended(begun))) == (96, 0, 48, 48)
    with pytest.raises(ConflictError):  # a key is for one choice
        await suspend(DEFAULT_TENANT, AGENT, "key", OnEvicted.PREFIX)


@pytest.mark.usefixtures("engine")
async def test_the_daemon_has_a_default(world: World) -> None:
    context = world.services.context
    limits = replace(context.limits, on_evicted=OnEvicted.SKIP)
    object.__setattr__(context, "limits", limits)
    assert problem(await world.suspend()) == "suspend_skipped"
    await choose(world, OnEvicted.PREFIX)
    assert counts(report(await world.suspend()))[0] == 48


@pytest.mark.parametrize("choice", [*OnEvicted, None])
async def test_a_rebuilt_registry_knows_the_choice(world: World, choice: OnEvicted | None) -> None:
    await world.create(on_evicted=OnEvicted.RECOMPUTE)
    await choose(world, choice)
    # As an old copy of the database has it.
    world.registry.update_session(DEFAULT_TENANT, AGENT, on_evicted=None, updated_unix_s=0.0)
    rebuild_registry(world.store, world.registry)
    assert world.registry.get_session(DEFAULT_TENANT, AGENT).on_evicted is choice


async def test_a_choice_that_only_a_later_version_knows_is_the_default(world: World) -> None:
    await world.create()
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    world.store.write_session(replace(record, policy={"on_evicted": "archive"}, updated_unix_s=2e9))
    rebuild_registry(world.store, world.registry)
    assert world.registry.get_session(DEFAULT_TENANT, AGENT).on_evicted is None
