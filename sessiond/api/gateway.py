"""The OpenAI-compatible routes: plain ASGI, since nothing of a call is validated here but ours.

What an engine answers is sent on as it comes. A stream that ended well gets one more comment,
which tells what became of the turn; one that broke is not ended at all, so that it looks broken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.api.gates import MAX_GATEWAY_BODY_BYTES, TENANT_STATE
from sessiond.api.gateway_answers import send_answer
from sessiond.api.openai_errors import openai_error
from sessiond.domain.errors import (
    InvalidInputError,
    InvalidSessionIdError,
    SessiondError,
)
from sessiond.domain.gateway import Headers, session_of_call
from sessiond.domain.ids import TenantId
from sessiond.engine.streams import StreamRequest
from sessiond.service.calls import Call, Endpoint
from sessiond.service.gateway import Gateway

_log = logging.getLogger(__name__)

_SESSION_HEADER: Final = b"x-session-id"
_CONTINUE_HEADER: Final = b"x-sessiond-continue"
_FLAGS: Final = {b"1": True, b"true": True, b"0": False, b"false": False, b"": False}


@dataclass(frozen=True)
class GatewayPolicy:
    """What callers of the gateway may do."""

    by_cache_key: bool = False  #: whether prompt_cache_key names a session
    max_body_bytes: int = MAX_GATEWAY_BODY_BYTES


def gateway_turns(gateway: Gateway, policy: GatewayPolicy) -> dict[str, ASGIApp]:
    """Return what answers the turns of OpenAI's interface, by address."""
    return {one.value: _Turns(gateway, policy, one) for one in Endpoint}


def gateway_routes(gateway: Gateway, policy: GatewayPolicy) -> list[BaseRoute]:
    """Return the routes of OpenAI's interface."""
    turns = gateway_turns(gateway, policy)
    return [
        *(Route(address, turn) for address, turn in turns.items()),
        Route("/v1/models", _Models(gateway)),
        Route("/v1/responses/{response_id}", _Responses(gateway, "GET", "")),
        Route("/v1/responses/{response_id}/cancel", _Responses(gateway, "POST", "/cancel")),
    ]


class _Edge:
    """One route: answers errors in OpenAI's form, and lets go when the caller does."""

    method = "POST"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Any) -> None:  # noqa: ANN401 - ASGI's
            nonlocal begun
            begun = True
            await send(message)

        if scope["method"] != self.method:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": self.method})
        try:
            await self.serve(scope, receive, watched)
        except SessiondError as error:
            response = openai_error(error)
        except Exception:  # noqa: BLE001 - whatever it is, the caller gets our form of it
            _log.exception("the gateway failed")
            response = openai_error(SessiondError())
        else:
            return
        if not begun:  # else it stays without its end, and the server cuts the connection
            await response(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        raise NotImplementedError


class _Turns(_Edge):
    """Calls that a model answers."""

    def __init__(self, gateway: Gateway, policy: GatewayPolicy, endpoint: Endpoint) -> None:
        self._gateway = gateway
        self._policy = policy
        self._endpoint = endpoint

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._call(scope, await _body(receive))
        await _unless_hung_up(self._relay(call, send), receive)

    async def _relay(self, call: Call, send: Send) -> None:
        passed = await self._gateway.pass_on(call)
        try:
            await send_answer(passed, self._gateway.results, send)
        finally:
            passed.restoring.close()
            passed.answer.close()

    async def _call(self, scope: Scope, data: bytes) -> Call:
        headers: Headers = scope["headers"]
        for encoding in _values(headers, b"content-encoding"):
            if encoding.lower() not in (b"", b"identity"):
                raise InvalidInputError("The body is compressed, which vLLM does not read.")
        body = await self._gateway.parsed(data)
        named = [_text(value) for value in _values(headers, _SESSION_HEADER)]
        if len(named) > 1:
            raise InvalidSessionIdError("The call has more than one X-Session-Id.")
        return Call(
            tenant=_tenant(scope),
            endpoint=self._endpoint,
            session_id=session_of_call(named, body, by_cache_key=self._policy.by_cache_key),
            body=body,
            headers=headers,
            continues=self._endpoint is Endpoint.CHAT and _continues(headers),
        )


class _Responses(_Edge):
    """Calls about a response that an engine remembers."""

    def __init__(self, gateway: Gateway, method: str, suffix: str) -> None:
        self.method = method
        self._gateway = gateway
        self._suffix = suffix

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        response_id: str = scope["path_params"]["response_id"]
        query = scope["query_string"].decode("latin-1")
        target = f"/v1/responses/{response_id}{self._suffix}{'?' if query else ''}{query}"
        await _body(receive)
        request = StreamRequest(self.method, target, scope["headers"])

        async def relay() -> None:
            passed = await self._gateway.ask_of(_tenant(scope), response_id, request)
            try:
                await send_answer(passed, self._gateway.results, send)
            finally:
                passed.answer.close()

        await _unless_hung_up(relay(), receive)


class _Models(_Edge):
    """What the engines serve."""

    method = "GET"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        listed = {"object": "list", "data": await self._gateway.models()}
        await JSONResponse(listed)(scope, receive, send)


async def _unless_hung_up(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do *work*; if the caller hangs up, it is cancelled."""
    limit = asyncio.timeout(None)
    try:
        async with limit:
            leaving = asyncio.create_task(_end_when_hung_up(limit, receive))
            try:
                await work
            finally:
                leaving.cancel()
    except TimeoutError:
        if not limit.expired():
            raise


async def _end_when_hung_up(limit: asyncio.Timeout, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(0.0)  # now: it cancels what is under it


async def _body(receive: Receive) -> bytes:
    """Return the body, which the gate has read as a whole."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise InvalidInputError("The caller hung up.")
    data: bytes = message.get("body", b"")
    return data


def _tenant(scope: Scope) -> TenantId:
    tenant: TenantId = scope["state"][TENANT_STATE]
    return tenant


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _continues(headers: Headers) -> bool:
    values = [value.strip().lower() for value in _values(headers, _CONTINUE_HEADER)]
    unknown = [value for value in values if value not in _FLAGS]
    if unknown:
        raise InvalidInputError("X-Sessiond-Continue is 1 or 0.")
    return any(_FLAGS[value] for value in values)
