"""Requests of clients, passed on to engines as they are, with answers as they come.

A client of its own, beside the one that moves KV: a stream may last for hours, so nothing here
has a total timeout, and however many there are, a suspend finds a connection. Bytes of an answer
are handed over as they arrive; while their reader is slow, the engine's socket is not read.

No library's client: measured, aiohttp's adds 0.4 to 0.6 ms to each request and takes 1.4 times
the CPU for each part of a stream, and a turn may take 3 ms longer than without the gateway.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sessiond.domain.errors import EngineLostError, EngineUnreachableError
from sessiond.engine.connections import Connection

if TYPE_CHECKING:
    from sessiond.domain.gateway import Headers

_CONNECT_TIMEOUT_S: Final = 5.0
#: vLLM's server closes connections that are idle for 5 s: ours are given up well before.
_IDLE_S: Final = 2.5
#: Whoever closed an idle connection did so before it read the request: it shows at once.
_STALE_S: Final = 1.0
_MAX_IDLE: Final = 64  #: connections to one engine
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class StreamRequest:
    """One request, without what belongs to its connection."""

    method: str
    target: str  #: path and query, as in the request line
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = field(default=b"", repr=False)


class StreamAnswer:
    """An engine's answer; whoever has it ends with :meth:`close`, however far it was read."""

    def __init__(self, connection: Connection, streams: EngineStreams) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self._connection = connection
        self._streams = streams
        self._closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        :raises EngineLostError: it ends before its end.
        """
        while chunk := await self._connection.read():
            yield chunk

    async def read(self) -> bytes:
        """Return the whole rest of the body.

        :raises EngineLostError: it ends before its end.
        """
        return b"".join([chunk async for chunk in self.chunks()])

    def close(self) -> None:
        """Let go of the connection; an answer that is not over is aborted by its engine."""
        if not self._closed:
            self._closed = True
            self._streams.release(self._connection)


class EngineStreams:
    """Connections to all engines."""

    def __init__(
        self, api_key: str = "", idle_s: float = _IDLE_S, stale_s: float = _STALE_S
    ) -> None:
        """Make one.

        :param api_key: what engines ask for, if they do
        :param idle_s: a connection that was idle for longer is not used again
        :param stale_s: one that is lost so soon after a request was closed before it
        """
        self._idle_s = idle_s
        self._stale_s = stale_s
        # What the client gets is what the engine sends, byte for byte.
        own = ["Accept-Encoding: identity"]
        own += [f"Authorization: Bearer {api_key}"] if api_key else []
        self._own_headers = "".join(f"{line}\r\n" for line in own).encode("latin-1")
        self._idle: defaultdict[str, deque[Connection]] = defaultdict(deque)
        self._running: Counter[str] = Counter()
        self._tls: ssl.SSLContext | None = None

    def running(self, url: str) -> int:
        """Return how many requests run at an engine now, as far as they came through here."""
        return self._running[url]

    async def send(self, url: str, request: StreamRequest) -> StreamAnswer:
        """Send a request and return its answer when that begins.

        Cancelling this call closes the connection, on which the engine aborts the request.

        :param url: the engine's base URL, without a trailing slash
        :raises EngineUnreachableError: there is no connection, so nothing was asked.
        :raises EngineLostError: the connection was lost before an answer.
        """
        self._running[url] += 1
        try:
            while (connection := self._take_idle(url)) is not None:
                try:
                    return await self._ask(connection, request)
                except EngineLostError:
                    # Else the engine may have worked on it: that must not happen twice unsaid.
                    if not connection.was_closed_before(self._stale_s):
                        raise
            return await self._ask(await self._connect(url), request)
        except BaseException:
            self._running[url] -= 1
            raise

    def release(self, connection: Connection) -> None:
        """Take a connection back whose answer nobody reads any more."""
        self._running[connection.url] -= 1
        idle, now_s = self._idle[connection.url], monotonic()
        while idle and now_s - idle[0].idle_since_s >= self._idle_s:
            idle.popleft().abort()
        if connection.is_reusable and len(idle) < _MAX_IDLE:
            connection.idle_since_s = now_s
            idle.append(connection)
        else:
            connection.abort()

    async def close(self) -> None:
        """Close the connections that are idle."""
        for idle in self._idle.values():
            while idle:
                idle.pop().abort()
        await asyncio.sleep(0)  # now their sockets are closed

    async def _ask(self, connection: Connection, request: StreamRequest) -> StreamAnswer:
        try:
            await connection.ask((_head(request, connection.url, self._own_headers), request.body))
        except BaseException:
            connection.abort()
            raise
        return StreamAnswer(connection, self)

    def _take_idle(self, url: str) -> Connection | None:
        idle = self._idle[url]
        while idle:
            connection = idle.pop()  # the one used last: the others grow old and go
            if connection.is_reusable and monotonic() - connection.idle_since_s < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, url: str) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            parts = urlsplit(url)
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(url),
                    parts.hostname or "",
                    parts.port or _DEFAULT_PORTS.get(parts.scheme, 0),
                    ssl=self._tls_of(parts.scheme),
                )
        except (OSError, TimeoutError, ValueError) as error:  # the last one: no URL, no host
            raise EngineUnreachableError from error
        return connection

    def _tls_of(self, scheme: str) -> ssl.SSLContext | None:
        if scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls if scheme == "https" else None


def _head(request: StreamRequest, url: str, own_headers: bytes) -> bytes:
    base = urlsplit(url)
    host = base.netloc.rpartition("@")[2]
    lines = b"".join(b"%b: %b\r\n" % header for header in request.headers)
    has_length = request.body or request.method != "GET"
    length = f"Content-Length: {len(request.body)}\r\n" if has_length else ""
    first = f"{request.method} {base.path}{request.target} HTTP/1.1\r\nHost: {host}\r\n"
    return b"%b%b%b%b\r\n" % (first.encode("latin-1"), own_headers, lines, length.encode())
