"""Restore paths that lose against computing are told of: events, engines, metrics, the log."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT, new_hex_id
from sessiond.domain.samples import Tier
from sessiond.domain.timing import TurnTiming
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.world import AGENT, World, report, text

pytestmark = pytest.mark.anyio
KEY = DEFAULT_TENANT, AGENT
#: What the fake engine would compute in a tenth of a second.
LOADED = TurnTiming(
    load_s=0.01, read_s=0.01, read_bytes=1 << 20, disk_tokens=1000, prefill_from_token=1000
)
SLOW = replace(LOADED, load_s=2.0, read_s=0.5, decode_s=3.5)


@pytest.fixture
async def engine(world: World) -> FakeEngine:
    """Return an engine with a session, whose prefills were measured."""
    started = world.start_engine()
    await world.create()
    planner = world.services.planner
    await planner.calibrator.see(started.info)
    for number in range(4):
        ends = 500 * (number + 1)
        seconds = started.times.prefill_s(0, ends)
        computed = TurnTiming(prefill_s=seconds, ready_s=seconds, prefill_to_token=ends)
        planner.ended(started.info.engine_id, KEY, f"turn-{number}", computed)
    await planner.calibrator.settle()
    return started


async def load(world: World, engine: FakeEngine, timing: TurnTiming, times: int) -> None:
    planner = world.services.planner
    for _ in range(times):
        planner.ended(engine.info.engine_id, KEY, new_hex_id(), timing)
    await planner.slow_paths.close()


async def slow_events(world: World) -> list[Any]:
    told = await world.services.catalogue.events(*KEY, 0, 1000)
    return [one for one in told if one.kind.startswith("restore_slow")]


async def metric(api: httpx.AsyncClient) -> dict[str, str]:
    lines = (await api.get("/metrics")).text.splitlines()
    ours = [line.split() for line in lines if line.startswith("sessiond_slow_restore_paths{")]
    return {name.removeprefix("sessiond_slow_restore_paths"): value for name, value in ours}


async def test_a_slow_path_is_told_of_once_until_it_is_over(
    world: World, api: httpx.AsyncClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await load(world, engine, SLOW, 8)

    (event,) = await slow_events(world)
    assert event.kind == "restore_slow"
    assert (event.detail["cause"], event.detail["tier"]) == ("decode", "nvme")
    (told,) = (await api.get("/v1/engines")).json()["engines"]
    (slow,) = told["slow_paths"]
    assert (slow["tier"], slow["cause"], slow["restores"]) == ("nvme", "decode", 8)
    shown = (await api.get(f"/v1/engines/{engine.info.engine_id}")).json()
    assert shown["slow_paths"] == told["slow_paths"]
    found = await metric(api)
    assert found['{cause="decode",tier="nvme"}'] == "1.0"
    assert sum(map(float, found.values())) == 1.0
    assert caplog.text.count(event.detail["sentence"]) == 1

    await load(world, engine, LOADED, 16)

    first, over = await slow_events(world)
    assert (first.kind, over.kind) == ("restore_slow", "restore_slow_over")
    assert over.detail["tier"] == "nvme"
    (told,) = (await api.get("/v1/engines")).json()["engines"]
    assert told["slow_paths"] == []
    assert set((await metric(api)).values()) == {"0.0"}


async def test_loads_that_pay_are_nothing_to_tell_of(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await load(world, engine, LOADED, 16)

    assert await slow_events(world) == []
    (told,) = (await api.get("/v1/engines")).json()["engines"]
    assert told["slow_paths"] == []


async def test_a_session_that_is_gone_keeps_nobody_from_telling(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await world.services.lifecycle.delete(*KEY)
    await load(world, engine, SLOW, 8)

    (told,) = (await api.get("/v1/engines")).json()["engines"]
    assert [one["cause"] for one in told["slow_paths"]] == ["decode"]


async def test_an_engine_that_is_gone_is_forgotten(world: World, engine: FakeEngine) -> None:
    await load(world, engine, SLOW, 8)
    plans = world.services.context.plans
    assert plans.slow_paths_of(engine.info.engine_id)

    plans.keep(())

    assert not plans.slow_paths
    assert not plans.restores


async def test_a_resume_and_a_turn_count_for_their_tier(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    engine = world.start_engine()
    report(await world.resume())
    await world.turn(AGENT, text(100))
    await world.show()
    await world.services.catalogue.trail.settle()

    restores = world.services.context.plans.restores

    disk = restores[engine.info.engine_id, Tier.NVME]
    assert [one.timing.disk_tokens for one in disk] == [96]
