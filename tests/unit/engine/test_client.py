from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.errors import (
    AttestationRefusedError,
    DeadlineExceededError,
    EngineRefusedError,
    EngineUnreachableError,
    EngineWithoutConnectorError,
)
from sessiond.engine.client import EngineClient, TicketedRequest, open_http
from sessiond.engine.pairs import Pair, resume_round

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[dict[str, Any]], Awaitable[bytes | None]]

pytestmark = pytest.mark.anyio


class Server:
    """A real HTTP server on loopback, in a few lines: it shows what happens to connections."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.url = ""
        self.headers: list[str] = []
        self._arrived = 0
        self._closed_early: list[str] = []
        self._changed = asyncio.Condition()

    async def arrived(self, count: int) -> None:
        """Wait until so many requests have been read."""
        await self._until(lambda: self._arrived >= count)

    async def closed_early(self, *tickets: str) -> None:
        """Wait until the clients of just these have hung up before they had an answer."""
        await self._until(lambda: len(self._closed_early) >= len(tickets))
        assert sorted(self._closed_early) == sorted(tickets)

    async def _until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(happened)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.headers.append(head)
            length = int(head.lower().partition("content-length: ")[2].partition("\r")[0] or 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            self._arrived += 1
            await self._tell()
            answering = asyncio.ensure_future(self._handler(body))
            hanging_up = asyncio.ensure_future(reader.read())
            await asyncio.wait((answering, hanging_up), return_when="FIRST_COMPLETED")
            if not answering.done():
                answering.cancel()
                ticketed = body.get("kv_transfer_params", {"sessiond_ticket": "none"})
                self._closed_early.append(ticketed["sessiond_ticket"])
                await self._tell()
            elif (answer := answering.result()) is not None:
                writer.write(answer)
                await writer.drain()
            hanging_up.cancel()
            await asyncio.gather(answering, hanging_up, return_exceptions=True)
        finally:
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), 5)


def http(status: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
    return head.encode() + content


def ok(ours: dict[str, Any] | None, cached: int = 0) -> bytes:
    usage = {"prompt_tokens_details": {"cached_tokens": cached}}
    params = None if ours is None else {"sessiond": {"ok": True, **ours}}
    return http("200 OK", {"usage": usage, "kv_transfer_params": params})


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server(handler)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server
        await asyncio.sleep(0.02)  # let closed connections be noticed


def request(server: Server, ticket: str = "t", tokens: int = 1) -> TicketedRequest:
    return TicketedRequest(server.url, "smol", range(tokens), "salt", ticket)


async def test_what_is_sent() -> None:
    bodies = []

    async def handler(body: dict[str, Any]) -> bytes:
        bodies.append(body)
        return ok({})

    async with serving(handler) as server, open_http("the-key") as http_client:
        await EngineClient(http_client).send(request(server, tokens=3), 5)
    assert bodies == [
        {
            "model": "smol",
            "prompt": [0, 1, 2],
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": "salt",
            "kv_transfer_params": {"sessiond_ticket": "t"},
        }
    ]
    assert "authorization: bearer the-key" in server.headers[0].lower()


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    async def handler(_: dict[str, Any]) -> bytes:
        return ok({})

    async with serving(handler) as server, open_http() as http_client:
        assert (await EngineClient(http_client).send(request(server), 5)).ok
        assert await EngineClient(http_client).answers_http(server.url)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http("400 Bad Request", {"error": {"message": "too long"}}), EngineRefusedError),
        (http("500 Internal Server Error", "oops"), EngineRefusedError),
        (http("200 OK", []), EngineRefusedError),
        (ok(None), EngineWithoutConnectorError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{x}", EngineRefusedError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", EngineUnreachableError),
        (b"SSH-2.0-OpenSSH\r\n", EngineUnreachableError),
        (None, EngineUnreachableError),
    ],
)
async def test_what_can_come_back(answer: bytes | None, error: type[Exception]) -> None:
    async def handler(_: dict[str, Any]) -> bytes | None:
        return answer

    async with serving(handler) as server, open_http() as http_client:
        with pytest.raises(error):
            await EngineClient(http_client).send(request(server), 5)


async def test_nobody_listens() -> None:
    async def handler(_: dict[str, Any]) -> None:
        return None

    async with serving(handler) as server:
        url = server.url
    async with open_http() as http_client:
        client = EngineClient(http_client)
        assert not await client.answers_http(url)
        assert not await client.answers_http("http://no such host")
        with pytest.raises(EngineUnreachableError):
            await client.send(TicketedRequest(url, "smol", [1], "salt", "t"), 5)


async def test_a_deadline_closes_the_connection() -> None:
    async def handler(_: dict[str, Any]) -> None:
        await asyncio.sleep(30)

    async with serving(handler) as server, open_http() as http_client:
        with pytest.raises(DeadlineExceededError):
            await EngineClient(http_client).send(request(server), 0.5)
        await server.closed_early("t")


async def test_a_held_request_is_cancelled_by_closing_its_connection() -> None:
    async def handler(body: dict[str, Any]) -> bytes | None:
        if body["kv_transfer_params"]["sessiond_ticket"] == "outcome":
            return ok({"loadable_tokens": 32})
        await asyncio.sleep(30)
        return None

    async with serving(handler) as server, open_http() as http_client:
        pair = Pair(request(server, "resume", 97), request(server, "outcome"), 5)
        result = await resume_round(EngineClient(http_client), pair)
        assert (result.loadable_tokens, result.moved) == (32, None)
        await server.closed_early("resume")


async def test_a_resume_that_went_well_cancels_its_companion() -> None:
    async def handler(body: dict[str, Any]) -> bytes | None:
        if body["kv_transfer_params"]["sessiond_ticket"] == "resume":
            return ok({})
        await asyncio.sleep(30)
        return None

    async with serving(handler) as server, open_http() as http_client:
        pair = Pair(request(server, "resume", 97), request(server, "outcome"), 5)
        result = await resume_round(EngineClient(http_client), pair)
        assert result.loadable_tokens == 96
        assert result.moved is not None
        await server.closed_early("outcome")


async def test_cancelling_a_round_closes_both_connections() -> None:
    async def handler(_: dict[str, Any]) -> None:
        await asyncio.sleep(30)

    async with serving(handler) as server, open_http() as http_client:
        pair = Pair(request(server, "resume", 97), request(server, "outcome"), 5)
        running = asyncio.ensure_future(resume_round(EngineClient(http_client), pair))
        await server.arrived(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.closed_early("outcome", "resume")


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        (http("200 OK", {"success": True}), True),
        (http("200 OK", {"success": False}), False),
        (http("200 OK", {"success": "yes"}), False),
        (http("200 OK", []), False),
        # vLLM raises while requests wait for KV that is on its way.
        (http("500 Internal Server Error", {"error": {}}), False),
    ],
)
async def test_a_reset_of_caches(answer: bytes, done: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async def handler(_: dict[str, Any]) -> bytes:
        return answer

    async with serving(handler) as server, open_http() as http_client:
        assert await EngineClient(http_client).reset_caches(server.url, 5) is done
    path = "POST /reset_prefix_cache?reset_running_requests=true&reset_external=true "
    assert server.headers[0].startswith(path)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http("404 Not Found", {"detail": "Not Found"}), AttestationRefusedError),
        (http("401 Unauthorized", {}), EngineRefusedError),
        (http("200 OK", "no JSON")[:-1], EngineUnreachableError),
        (None, EngineUnreachableError),
    ],
)
async def test_what_can_go_wrong_with_it(answer: bytes | None, error: type[Exception]) -> None:
    async def handler(_: dict[str, Any]) -> bytes | None:
        return answer

    async with serving(handler) as server, open_http() as http_client:
        with pytest.raises(error):
            await EngineClient(http_client).reset_caches(server.url, 5)


async def test_a_reset_that_lasts_too_long() -> None:
    async def handler(_: dict[str, Any]) -> None:
        await asyncio.sleep(30)

    async with serving(handler) as server, open_http() as http_client:
        with pytest.raises(DeadlineExceededError):
            await EngineClient(http_client).reset_caches(server.url, 0.5)
        await server.closed_early("none")
