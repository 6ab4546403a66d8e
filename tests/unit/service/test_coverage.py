"""What became the conversation while a suspend ran, or after it, is not taken for stored."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.session import SessionState
from sessiond.service.coverage import cover
from sessiond.testing.world import AGENT, World, open_world, report, suspends, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessiond.domain.session import Operation
    from sessiond.domain.tokens import TokenIds
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

COMPACTED = [text(200) + text(60, seed=3), text(200) + text(160, seed=3)]
STORIES = {
    # name: (turns before the suspend, turns while it runs)
    "compacted": ([text(600), text(800)], COMPACTED),
    "a first call that is none of it": ([text(60, seed=5)], [text(1000, seed=9)]),
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        await world.create()
        yield world


@pytest.fixture
def engine(world: World) -> FakeEngine:
    return world.start_engine()


async def stored_during(world: World, engine: FakeEngine, turns: list[TokenIds[int]]) -> Operation:
    """Suspend; take these turns before anything is committed."""
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    operation = await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    async with asyncio.timeout(20.0):
        while not suspends(engine):
            await asyncio.sleep(0.005)
    for prompt in turns:
        await world.turn(AGENT, prompt)
    gate.set()
    return await world.ended(operation)


async def is_stored(world: World, prompt: TokenIds[int]) -> bool:
    """Whether a suspend stores this turn, and everybody knows that it has to."""
    assert (await world.show()).state is SessionState.ACTIVE
    told = report(await world.suspend())["snapshot"]
    assert (await world.show()).state is SessionState.SUSPENDED
    stored = world.store.read_manifest(DEFAULT_TENANT, AGENT, told["generation"])
    return stored.tokens[: len(prompt)] == prompt and stored.restorable_tokens >= len(prompt) - 16


@pytest.mark.parametrize("name", STORIES)
async def test_what_leads_since_before_the_commit_is_stored(
    world: World, engine: FakeEngine, name: str
) -> None:
    before, meanwhile = STORIES[name]
    for prompt in before:
        await world.turn(AGENT, prompt)
    report(await stored_during(world, engine, meanwhile))
    assert await is_stored(world, meanwhile[-1])


async def test_a_line_that_went_on_before_the_commit_does_not_hide_what_came_then(
    world: World, engine: FakeEngine
) -> None:
    await world.turn(AGENT, text(800))
    report(await world.suspend())
    for prompt in (text(900), *COMPACTED):
        await world.turn(AGENT, prompt)
    (head,) = world.store.read_heads(DEFAULT_TENANT, AGENT)
    committed = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    late = replace(committed, created_unix_s=head.updated_unix_s + 1.0)
    covered = cover(world.store, engine.info, head, late)
    assert covered is not None
    assert covered.branch is head.main
    assert covered.branch.tokens[: len(COMPACTED[-1])] == COMPACTED[-1]
    assert covered.kept_tokens < covered.tokens
    # Of another engine's snapshot it is not known what this one had of it.
    elsewhere = cover(world.store, engine.info, head, replace(late, engine_id="other"))
    assert elsewhere is not None
    assert elsewhere.branch is not head.main


@pytest.mark.usefixtures("engine")
async def test_a_conversation_after_a_first_call_that_was_stored_is_stored(world: World) -> None:
    await world.turn(AGENT, text(60, seed=5))
    report(await world.suspend())
    await world.turn(AGENT, text(1000, seed=9))
    assert await is_stored(world, text(1000, seed=9))
