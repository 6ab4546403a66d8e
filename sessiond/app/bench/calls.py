"""Calls of a gateway and of its engine, with little work of the client's own in what is timed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, cast
from urllib.parse import urlsplit

PATH = "/v1/chat/completions"
_TIMEOUT_S = 300.0
_EVENT, _DONE = b"data: ", b"data: [DONE]"
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(frozen=True)
class Target:
    """A server to call, and what every call carries."""

    url: str  #: without a trailing slash
    headers: Mapping[str, str]

    def with_headers(self, **more: str) -> Target:
        """Return the same with further headers; ``_`` in their names stands for ``-``."""
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return Target(self.url, {**self.headers, **named})


@dataclass(frozen=True)
class Timed:
    """One call, from the moment of its sending."""

    plan: str  #: of the gateway; empty for a direct call
    first_s: float  #: until the first event of a stream, else until the whole answer
    last_s: float  #: until the end of vLLM's part of it


class Caller:
    """One client with one connection, kept alive."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        assert parts.hostname
        self._headers = {"content-type": "application/json", **target.headers}
        self._connection = HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, body: Mapping[str, Any]) -> Timed:
        """Make one call and read all of its answer.

        :raises RuntimeError: it is no success.
        """
        data = json.dumps(body).encode()
        try:
            return self._call(data, stream=bool(body.get("stream")))
        except (HTTPException, ConnectionError):
            self._connection.close()  # a server gives connections up that were idle for a while
            return self._call(data, stream=bool(body.get("stream")))

    def _call(self, data: bytes, *, stream: bool) -> Timed:
        begin_s = time.perf_counter()
        self._connection.request("POST", PATH, data, self._headers)
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"A call was answered {answer.status}: {answer.read()!r}")
        if stream:
            first_s, last_s = _read_stream(answer)
        else:
            answer.read()
            first_s = last_s = time.perf_counter()
        plan = answer.headers.get("x-sessiond-plan", "")
        return Timed(plan, first_s - begin_s, last_s - begin_s)


def _read_stream(answer: HTTPResponse) -> tuple[float, float]:
    first_s = last_s = 0.0
    for line in answer:
        if line.startswith(_EVENT):
            last_s = last_s or (time.perf_counter() if line.startswith(_DONE) else 0.0)
            first_s = first_s or time.perf_counter()
    if not last_s:
        raise RuntimeError("A stream ended before its end.")
    return first_s, last_s


Call = tuple[Mapping[str, str], Mapping[str, Any]]  #: headers and body


async def stream_at_once(url: str, calls: Sequence[Call]) -> int:
    """Have all streams at once, each on a connection of its own; return how many tokens came.

    :raises RuntimeError: one was no success.
    """
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    loop = asyncio.get_running_loop()
    made = [
        _Stream(loop.create_future(), _request(headers, parts.netloc, body))
        for headers, body in calls
    ]
    for stream in made:
        await loop.create_connection(partial(_the, stream), parts.hostname, parts.port)
    async with asyncio.timeout(_TIMEOUT_S):
        return sum([completion_tokens(await stream.ended) for stream in made])


def completion_tokens(answer: bytes) -> int:
    """Return what the usage at the end of a streamed answer counts.

    :raises RuntimeError: it is no success, or has no end.
    """
    status, _, rest = answer.partition(b"\r\n")
    counted: list[bytes] = _USAGE.findall(rest)
    if b" 200 " not in status or _DONE not in rest or not counted:
        raise RuntimeError(f"A stream was answered {answer[:1000]!r} … {answer[-1000:]!r}")
    return int(counted[-1])


def _request(headers: Mapping[str, str], host: str, body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    told = {
        "host": host,
        "content-type": "application/json",
        "content-length": str(len(data)),
        "connection": "close",
        **headers,
    }
    lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _the(stream: _Stream) -> _Stream:
    return stream


class _Stream(asyncio.Protocol):
    """Sends one request and collects all that comes until the server closes."""

    def __init__(self, ended: asyncio.Future[bytes], request: bytes) -> None:
        self.ended = ended
        self._request = request
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.ended.set_exception(RuntimeError("A stream broke."))
        else:
            self.ended.set_result(b"".join(self._parts))
