"""The fake engine's side of OpenAI's interface: chats, completions, responses, streams."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sessiond.domain.tickets import PROMPT_PARAM
from sessiond.domain.tokens import TokenIds, token_ids
from sessiond.testing import fake_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from sessiond.testing.fake_engine import FakeEngine


@dataclass
class StreamFaults:
    """What goes wrong with streams from now on."""

    breaks_after: int | None = None  #: events; then the connection is lost
    hold: asyncio.Event | None = None  #: nothing after the first event is sent before
    held: asyncio.Event = field(default_factory=asyncio.Event)  #: set when something is held


@dataclass(frozen=True)
class Arrived:
    """One call as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class FakeOpenAi:
    """Routes that translate chats and responses to completions, and answers back."""

    def __init__(self, engine: FakeEngine) -> None:
        self.arrived: list[Arrived] = []
        self.faults = StreamFaults()
        self.stores = False  #: whether responses are remembered
        self.silent = False  #: whether answers say nothing of KV, as after a stop string
        self.cut: Callable[[], None] = lambda: None  #: the connections, as the engine's death would
        self.hung_up = 0  #: streams that were not read to their end
        self._engine = engine
        self._stored: dict[str, dict[str, Any]] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/responses", self._responses, methods=["POST"]),
            Route("/v1/responses/{response_id}", self._response, methods=["GET"]),
            Route("/v1/responses/{response_id}/cancel", self._response, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
        ]

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request)
        if isinstance(body, Response):
            return body
        if not isinstance(body.get("messages"), list):
            return _error(400, "messages: Field required", "BadRequestError")
        given = (body.get("kv_transfer_params") or {}).get(PROMPT_PARAM)
        prompt = token_ids(given) if given else fake_tokenizer.render(body["messages"])
        return await self._answered(request, body, prompt, _as_chat, _chat_events)

    async def _completions(self, request: Request) -> Response:
        body = await self._body(request)
        if isinstance(body, Response):
            return body
        prompt = _prompt(body["prompt"])
        return await self._answered(request, body, prompt, dict, _completion_events)

    async def _responses(self, request: Request) -> Response:
        body = await self._body(request)
        if isinstance(body, Response):
            return body
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self._stored:
            message = f"Response with id '{previous}' not found."
            return _error(404, message, "invalid_request_error", "previous_response_id")

        def shaped(told: Mapping[str, Any]) -> dict[str, Any]:
            made = _as_response(told, str(body.get("request_id") or "resp_unnamed"))
            if self.stores:
                self._stored[made["id"]] = made
            return made

        prompt = _prompt(body["input"])
        return await self._answered(request, body, prompt, shaped, _response_events)

    async def _response(self, request: Request) -> Response:
        self.arrived.append(_arrived(request, b""))
        named = request.path_params["response_id"]
        if named not in self._stored:
            message = f"Response with id '{named}' not found."
            return _error(404, message, "invalid_request_error", "response_id")
        return JSONResponse(self._stored[named])

    async def _models(self, _request: Request) -> Response:
        info = self._engine.info
        names = (info.model, *(adapter.name for adapter in info.adapters))
        data = [{"id": name, "object": "model", "owned_by": "vllm"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def _body(self, request: Request) -> dict[str, Any] | Response:
        data = await request.body()
        self.arrived.append(_arrived(request, data))
        try:
            body = json.loads(data)
        except ValueError:
            return _error(400, "JSON decode error", "Bad Request")
        if not isinstance(body, dict):
            return _error(400, "Input should be a valid dictionary", "Bad Request")
        return body

    async def _answered(
        self,
        request: Request,
        body: Mapping[str, Any],
        prompt: TokenIds[int],
        shape: Callable[[Mapping[str, Any]], dict[str, Any]],
        events: Callable[[dict[str, Any]], Iterator[str]],
    ) -> Response:
        response = await self._engine.complete(request, body, prompt)
        if response.status_code != 200 or not hasattr(response, "body"):
            return response
        made = shape(json.loads(bytes(response.body)))
        if self.silent or body.get("stream"):
            # As with vLLM, a stream says nothing of KV, and neither does what a stop string ended.
            made["kv_transfer_params"] = None
        if not body.get("stream"):
            return JSONResponse(made)
        return StreamingResponse(self._streamed(events(made)), media_type="text/event-stream")

    async def _streamed(self, events: Iterator[str]) -> AsyncIterator[str]:
        over = False
        try:
            for number, event in enumerate(events):
                if self.faults.breaks_after == number:
                    raise ConnectionError("The engine died.")
                if number and self.faults.hold is not None:
                    self.faults.held.set()
                    await self.faults.hold.wait()
                yield event
            over = True
        finally:
            self.hung_up += not over


def _arrived(request: Request, data: bytes) -> Arrived:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return Arrived(target, dict(request.headers), data)


def _error(status: int, message: str, kind: str, param: str | None = None) -> Response:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return JSONResponse({"error": error}, status)


def _prompt(given: str | Sequence[int]) -> TokenIds[int]:
    return fake_tokenizer.encode(given) if isinstance(given, str) else token_ids(given)


def _text(completion: Mapping[str, Any]) -> list[str]:
    tokens = completion["choices"][0].get("token_ids") or []
    return [fake_tokenizer.decode([token]) for token in tokens]


def _as_chat(completion: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(_text(completion))}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return {
        **completion,
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "choices": [choice],
        "parts": _text(completion),
    }


def _as_response(completion: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        **completion,
        "id": name,
        "object": "response",
        "status": "completed",
        "parts": _text(completion),
    }


def _chat_events(chat: dict[str, Any]) -> Iterator[str]:
    for part in chat["parts"]:
        chunk = {
            "id": chat["id"],
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}],
        }
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def _completion_events(completion: dict[str, Any]) -> Iterator[str]:
    for part in _text(completion):
        yield f"data: {json.dumps({'choices': [{'index': 0, 'text': part}]})}\n\n"
    yield "data: [DONE]\n\n"


def _response_events(response: dict[str, Any]) -> Iterator[str]:
    yield _event("response.created", {"response": {"id": response["id"]}})
    for part in response["parts"]:
        yield _event("response.output_text.delta", {"delta": part})
    yield _event("response.completed", {"response": response})


def _event(kind: str, fields: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
