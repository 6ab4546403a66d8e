"""One connection to an engine: a request at a time, and its answer as it comes."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import httptools

from sessiond.domain.errors import EngineLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.gateway import Headers

_MAX_UNREAD_BYTES: Final = 256 << 10
#: Of an answer's head, with what came with its end.
_MAX_HEAD_BYTES: Final = 1 << 20
#: An answer with none of these ends where its connection does.
_TELLS_ITS_END: Final = frozenset({b"content-length", b"transfer-encoding"})
_FIRST_FINAL_STATUS: Final = 200


class Connection(asyncio.Protocol):
    """A connection; :attr:`status` and :attr:`headers` are of its newest answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 0
        self.headers: Headers = []
        self.idle_since_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._paused = False
        self._begun = False  # its headers are here
        self._head_bytes = 0
        self._over = True
        self._ends_with_connection = False
        self._keeps_alive = True
        self._lost = False
        self._asked_s = 0.0
        self._spoken = False  # something was said since the request
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        return self._over and self._keeps_alive and not self._lost and not self._unread

    def was_closed_before(self, stale_s: float) -> bool:
        """Whether it was lost as one is that its server closed before it read the request."""
        return not self._spoken and monotonic() - self._asked_s < stale_s

    async def ask(self, data: Sequence[bytes]) -> None:
        """Send a request and wait for the head of its answer.

        :raises EngineLostError: the connection was lost before.
        """
        assert self._transport is not None
        self.headers, self._begun, self._over = [], False, False
        self._ends_with_connection, self._head_bytes = False, 0
        self._spoken, self._asked_s = False, monotonic()
        self._transport.writelines(data)
        while not self._begun:
            if self._lost:
                raise EngineLostError
            await self._wait()

    async def read(self) -> bytes:
        """Return what has come since the last call, waiting for something; empty at the end.

        :raises EngineLostError: the connection was lost before the end.
        """
        while not self._unread:
            if self._over:
                return b""
            if self._lost:
                raise EngineLostError
            await self._wait()
        parts = list(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def abort(self) -> None:
        """Close at once, whatever is on its way."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        # A host that vanished says nothing: without a total timeout, only this notices.
        found: socket.socket | None = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Take what the engine said; while nobody reads it, no more than some of it."""
        if self._over:  # nothing was asked: the server closes, or is none
            self.abort()
            return
        self._spoken = True
        self._head_bytes += 0 if self._begun else len(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort()
        if self._unread_bytes > _MAX_UNREAD_BYTES and not self._paused:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take notice of the connection's end."""
        if exc is None and not self._lost and self._begun and self._ends_with_connection:
            self._over = True
        self._lost = True
        self._wake()

    # What the parser calls

    def on_message_begin(self) -> None:
        """Begin an answer."""
        if self._over:  # it would pass for a part of this answer, or for the next one
            raise ValueError("There are two answers to one request.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after a body, in its last chunk, is none."""
        if not self._begun:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the answer's status; interim answers are passed over."""
        self.status = self._parser.get_status_code()
        self._begun = self.status >= _FIRST_FINAL_STATUS
        if not self._begun:
            self.headers = []
        self._ends_with_connection = _TELLS_ITS_END.isdisjoint(name for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unread.append(body)
        self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        """Take notice of the answer's end."""
        if self._begun:
            self._over = True
            self._keeps_alive = self._parser.should_keep_alive()
