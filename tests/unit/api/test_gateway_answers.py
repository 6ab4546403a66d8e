"""When a turn is on its way no more: its engine has begun it, or has answered."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

from sessiond.api.gateway_answers import send_answer
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.jsonbody import parse_body
from sessiond.service.calls import Call, Endpoint, Passage, Passed
from sessiond.testing.values import an_engine
from sessiond.testing.world import AGENT, World, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessiond.engine.streams import StreamAnswer
    from sessiond.service.turnresults import TurnResults

pytestmark = pytest.mark.anyio
_PATIENCE_S = 30.0
CREATED = b'event: response.created\r\ndata: {"type":"response.created"}\r\n\r\n'
IN_PROGRESS = b'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n'
#: It repeats the request's instructions and tools.
LONG = b'event: response.created\ndata: {"tools":"' + b"x" * 80_000 + b'"}\n\n'
ADDED = b'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


class Streamed:
    """An answer that comes in these parts."""

    status = 200
    headers = ((b"content-type", b"text/event-stream"),)

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    async def chunks(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


@pytest.mark.parametrize(
    ("parts", "begun_with"),
    [
        ((b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"), 0),
        ((CREATED, IN_PROGRESS, ADDED, b"data: {}\n\n"), 2),
        ((CREATED + IN_PROGRESS, ADDED), 1),
        ((CREATED + IN_PROGRESS + ADDED, b"data: {}\n\n"), 0),
        ((LONG[:9], LONG[9:40_000], LONG[40_000:], IN_PROGRESS[:12], IN_PROGRESS[12:], ADDED), 5),
        ((b'data: {"text":"event: response.created"}\n\n', b"data: [DONE]\n\n"), 0),
    ],
)
async def test_a_stream_has_begun_when_its_engine_has_the_turn(
    parts: tuple[bytes, ...], begun_with: int
) -> None:
    under_way = [True]
    on_the_way = ExitStack()
    on_the_way.callback(under_way.clear)
    answer = cast("StreamAnswer", Streamed(*parts))
    passed = Passed(Passage(an_engine()), answer, on_the_way)
    seen: list[bool] = []

    async def send(message: Any) -> None:  # noqa: ANN401 - ASGI
        if message.get("more_body"):
            seen.append(not under_way)

    await send_answer(passed, cast("TurnResults", None), send)
    assert seen == [number >= begun_with for number in range(len(parts))]


async def test_a_client_that_does_not_read_its_answer_keeps_no_turn_on_its_way(
    world: World,
) -> None:
    async with world.listening_engine() as engine:
        await world.create()
        body = parse_body(b'{"model": "smol", "prompt": [1, 2, 3, 4], "max_tokens": 8}')
        call = Call(DEFAULT_TENANT, Endpoint.COMPLETIONS, AGENT, body, [])
        passed = await world.services.gateway.pass_on(call)
        reads, asked = asyncio.Event(), asyncio.Event()

        async def send(_message: Any) -> None:  # noqa: ANN401 - ASGI
            asked.set()
            await reads.wait()

        sending = asyncio.create_task(send_answer(passed, world.services.gateway.results, send))
        async with asyncio.timeout(_PATIENCE_S):
            await asked.wait()
        assert not world.services.context.on_the_way.is_any(engine.info.engine_id)
        reads.set()
        await sending
        passed.answer.close()
