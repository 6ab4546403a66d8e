"""The fake is held to what the service's tests rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT, TenantId
from sessiond.testing.fake_kv import FakeKv, KeepError, Wish
from sessiond.testing.world import AGENT, World, open_world, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


async def test_a_request_without_a_ticket_is_plain(world: World) -> None:
    engine = world.start_engine()
    body = {"prompt": list(text(100)), "max_tokens": 1}
    answer = await world.http.post("http://engine/v1/completions", json=body)
    assert "kv_transfer_params" not in answer.json()
    assert engine.seen[0].op == ""


async def test_reuse_is_counted_in_whole_chunks_and_by_salt(world: World) -> None:
    world.start_engine()
    other = TenantId("other")
    await world.create()
    await world.services.catalogue.create(other, AGENT)
    cold = await world.turn(AGENT, text(100))
    warm = await world.turn(AGENT, text(100))
    foreign = await world.turn(AGENT, text(100), tenant=other)
    cached = [
        one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (cold, warm, foreign)
    ]
    assert cached == [0, 96, 0]


async def test_the_same_prompt_has_the_same_reply(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    first = await world.turn(AGENT, text(100))
    engine.evict()
    second = await world.turn(AGENT, text(100))
    assert first["choices"] == second["choices"]


async def test_a_turn_is_in_the_heads(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    answer = await world.turn(AGENT, text(100))
    (head,) = world.store.read_heads(DEFAULT_TENANT, AGENT)
    assert head.engine_id == engine.info.engine_id
    assert head.turns_in_flight == 0
    assert head.main is not None
    assert list(head.main.tokens) == [*text(100), *answer["choices"][0]["token_ids"]]


async def test_a_dead_engine_is_not_live_and_refuses_connections(world: World) -> None:
    engine = world.start_engine()
    assert [one.engine_id for one in world.store.live_engines()] == [engine.info.engine_id]
    world.kill_engine(engine)
    assert world.store.live_engines() == []
    with pytest.raises(httpx.ConnectError):
        await world.http.get("http://engine/health")


async def test_kv_is_checked_when_it_is_loaded(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    kv = FakeKv(world.store, engine.info)
    wish = Wish(DEFAULT_TENANT, AGENT, 1, text(100), chunks=6)
    kept = kv.keep(wish, max_new_chunks=4)
    assert kept.manifest.restorable_tokens == 64
    assert kv.load(kept.manifest, text(100)).tokens == 64
    diverging = text(20) + text(80, seed=2)
    assert kv.load(kept.manifest, diverging).tokens == 16
    with pytest.raises(KeepError, match="generation_exists"):
        kv.keep(wish, max_new_chunks=4)
