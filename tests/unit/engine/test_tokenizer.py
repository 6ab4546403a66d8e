from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sessiond.domain.continuation import Chat
from sessiond.domain.errors import EngineRefusedError
from sessiond.engine.client import EngineClient
from sessiond.engine.tokenizer import EngineTokenizer

if TYPE_CHECKING:
    from starlette.requests import Request

pytestmark = pytest.mark.anyio

CHAT = Chat([{"role": "user", "content": "hi"}], tools=[{"type": "function"}])


class Engine:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Any] = []
        paths = [Route(path, self._answer, methods=["POST"]) for path in answers]
        transport = httpx.ASGITransport(Starlette(routes=paths))
        client = EngineClient(httpx.AsyncClient(transport=transport))
        self.tokenizer = EngineTokenizer(client, "http://e", "m")

    async def _answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        return JSONResponse(self.answers[request.url.path])


async def test_a_chat_is_rendered_as_its_completion_would_be() -> None:
    engine = Engine({"/tokenize": {"tokens": [1, 2, 3], "count": 3}})
    assert list(await engine.tokenizer.render(CHAT)) == [1, 2, 3]
    assert engine.asked == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function"}],
            "add_generation_prompt": True,
        }
    ]


@pytest.mark.parametrize("answer", [[], {}, {"tokens": "abc"}, {"tokens": [-1]}, {"tokens": None}])
async def test_nonsense_for_tokens_is_refused(answer: object) -> None:
    with pytest.raises(EngineRefusedError):
        await Engine({"/tokenize": answer}).tokenizer.render(CHAT)


@pytest.mark.parametrize("answer", ["text", {}, {"prompt": 7}])
async def test_nonsense_for_a_text_is_refused(answer: object) -> None:
    with pytest.raises(EngineRefusedError):
        await Engine({"/detokenize": answer}).tokenizer.text([1, 2])


@pytest.mark.parametrize(("text", "keeps"), [("a , b . c 's", True), ("a, b. c's", False)])
async def test_whether_spaces_are_kept(text: str, *, keeps: bool) -> None:
    engine = Engine({"/tokenize": {"tokens": [1]}, "/detokenize": {"prompt": text}})
    assert await engine.tokenizer.keeps_spaces() is keeps
