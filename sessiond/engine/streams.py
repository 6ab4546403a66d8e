"""Requests of clients, passed on to engines as they are, with answers as they come.

A client of its own, beside the one that moves KV: a stream may last for hours, so nothing here
has a total timeout, and however many there are, a suspend finds a connection. Bytes of an answer
are handed over as they arrive; while their reader is slow, the engine's socket is not read.

aiohttp tells what came as it came; measured, a client of our own would take 0.7 of its CPU for
each chunk of a stream.
"""

from __future__ import annotations

import io
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

from sessiond.domain.errors import EngineLostError, EngineUnreachableError

if TYPE_CHECKING:
    from sessiond.domain.gateway import Headers

_CONNECT_TIMEOUT_S: Final = 5.0
#: vLLM's server closes connections that are idle for 5 s: ours are given up well before.
_IDLE_S: Final = 2.5
#: Whoever closed an idle connection did so before it read the request: it shows at once.
_STALE_S: Final = 1.0
_NEVER_ASKED: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)
_TOLD_BY_CLIENTS: Final = ("Accept", "Content-Type", "User-Agent")


@dataclass(frozen=True)
class StreamRequest:
    """One request, without what belongs to its connection."""

    method: str
    target: str  #: path and query, as in the request line
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = field(default=b"", repr=False)


class StreamAnswer:
    """An engine's answer; whoever has it ends with :meth:`close`, however far it was read."""

    def __init__(self, url: str, response: aiohttp.ClientResponse, running: Counter[str]) -> None:
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.raw_headers]
        self._url = url
        self._response = response
        self._running = running
        self._closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        :raises EngineLostError: it ends before its end.
        """
        read = self._response.content.readany
        try:
            while chunk := await read():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLostError from error

    async def read(self) -> bytes:
        """Return the whole rest of the body.

        :raises EngineLostError: it ends before its end.
        """
        return b"".join([chunk async for chunk in self.chunks()])

    def close(self) -> None:
        """Let go of the connection; an answer that is not over is aborted by its engine."""
        if not self._closed:
            self._closed = True
            self._running[self._url] -= 1
            self._response.close()  # keeps the connection if the answer is over


@dataclass
class _Attempt:
    """What is known of one request on its way."""

    begun_s: float = field(default_factory=monotonic)
    reuses: bool = False  #: an earlier request's connection


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
        self._own_headers = [("Accept-Encoding", "identity")]
        if api_key:
            self._own_headers.append(("Authorization", f"Bearer {api_key}"))
        self._session: aiohttp.ClientSession | None = None
        self._running: Counter[str] = Counter()

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
            return StreamAnswer(url, await self._ask(url, request), self._running)
        except BaseException:
            self._running[url] -= 1
            raise

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, url: str, request: StreamRequest) -> aiohttp.ClientResponse:
        while True:
            attempt = _Attempt()
            try:
                return await self._ask_once(url, request, attempt)
            except _NEVER_ASKED as error:
                raise EngineUnreachableError from error
            except (aiohttp.ClientError, OSError) as error:
                # Else the engine may have worked on it: that must not happen twice unsaid.
                if not attempt.reuses or monotonic() - attempt.begun_s >= self._stale_s:
                    raise EngineLostError from error

    async def _ask_once(
        self, url: str, request: StreamRequest, attempt: _Attempt
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = self._new_session()
        given = ((_text(name), _text(value)) for name, value in request.headers)
        return await self._session.request(
            request.method,
            URL(url + request.target, encoded=True),
            # As a file: aiohttp sends large bytes at one go, and nobody else is served meanwhile.
            data=io.BytesIO(request.body) if request.body else None,
            headers=[*self._own_headers, *given],
            allow_redirects=False,
            trace_request_ctx=attempt,
        )

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=self._idle_s, socket_factory=_new_socket
        )
        reuse = aiohttp.TraceConfig()
        reuse.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_TOLD_BY_CLIENTS,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            trace_configs=[reuse],
        )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


async def _note_reuse(_session: object, context: object, _params: object) -> None:
    attempt = getattr(context, "trace_request_ctx", None)
    assert isinstance(attempt, _Attempt)
    attempt.reuses = True


def _new_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    made = socket.socket(*address[:3])
    # A host that vanished says nothing: without a total timeout, only this notices.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made
