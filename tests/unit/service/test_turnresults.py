"""What an answer that is not streamed tells of its turn."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.service.bodies import AT_ONCE_BYTES
from sessiond.service.calls import Passage
from sessiond.service.turnresults import TurnResults
from sessiond.testing.world import AGENT, text

if TYPE_CHECKING:
    from sessiond.testing.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

_LARGE = "x" * AT_ONCE_BYTES


async def an_answer(world: World, **fields: object) -> tuple[Passage, bytes]:
    """Return the way of a turn, and what a client would get for it."""
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    told = await world.turn(AGENT, text(120))
    return Passage(ticket.engine, ticket), json.dumps({**told, **fields}).encode()


@pytest.mark.parametrize(("said", "ways"), [("short", 0), (_LARGE, 1)])
async def test_a_large_answer_is_read_beside_other_calls(
    world: World, said: str, ways: int
) -> None:
    passage, data = await an_answer(world, said=said)
    blocking = Mock(wraps=world.services.context.blocking)
    context = replace(world.services.context, blocking=blocking)
    left, outcome = await TurnResults(context, world.services.catalogue).answered(passage, data)
    assert blocking.call_count == ways
    assert outcome is not None
    assert (outcome.outcome, outcome.tokens_restored) == ("warm", 96)
    kept = json.loads(left)
    assert (kept["said"], kept["kv_transfer_params"]) == (said, None)


@pytest.mark.parametrize(
    "data",
    [b"no JSON", b"[1]", b'{"kv_transfer_params": null}', b'{"kv_transfer_params": {"a":1}}'],
)
async def test_what_tells_nothing_passes_as_it_is(world: World, data: bytes) -> None:
    passage, _ = await an_answer(world)
    results = TurnResults(world.services.context, world.services.catalogue)
    assert await results.answered(passage, data) == (data, None)
