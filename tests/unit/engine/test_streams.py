"""The client that passes calls on, against servers that speak HTTP by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import EngineLostError, EngineUnreachableError
from sessiond.engine.streams import EngineStreams, StreamRequest
from sessiond.testing.listening import bound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.anyio

REQUEST = StreamRequest("POST", "/v1/completions?x=1", [(b"content-type", b"a/b")], b"hello")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-One: 1\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_PATIENCE_S = 60.0


class Peer:
    """The engine's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """Return one request; its body has five bytes."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return head + await self.reader.readexactly(5)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Return when the other end has closed."""
        try:
            while await self.reader.read(1024):
                pass
        except ConnectionError:
            pass


class Engine:
    """Talks as it is told on each connection."""

    def __init__(self, talks: list[Callable[[Peer], Awaitable[None]]]) -> None:
        self.talks = talks
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = self.talks[self.connections]
        self.connections += 1
        try:
            await talk(Peer(reader, writer))
        finally:
            writer.close()


@asynccontextmanager
async def engine(*talks: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[Engine]:
    made = Engine(list(talks))
    at, made.url = bound()
    server = await asyncio.start_server(made.serve, sock=at)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield made
    finally:
        server.close()


@pytest.fixture
async def streams() -> AsyncIterator[EngineStreams]:
    made = EngineStreams("engine-key", idle_s=_PATIENCE_S)
    yield made
    await made.close()


async def read_all(streams: EngineStreams, url: str) -> bytes:
    answer = await streams.send(url, REQUEST)
    try:
        return await answer.read()
    finally:
        answer.close()


async def good(peer: Peer) -> None:
    while True:
        try:
            await peer.request()
        except asyncio.IncompleteReadError:
            return
        await peer.say(OK)


async def test_a_request_arrives_as_it_is_with_the_engines_own_key(streams: EngineStreams) -> None:
    seen: list[bytes] = []

    async def talk(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.say(OK)

    async with engine(talk) as there:
        answer = await streams.send(there.url, REQUEST)
        assert (answer.status, await answer.read()) == (200, b"ok")
        assert answer.headers == [(b"content-length", b"2"), (b"x-one", b"1")]
        answer.close()
    host = there.url.removeprefix("http://")
    assert seen == [
        f"POST /v1/completions?x=1 HTTP/1.1\r\nHost: {host}\r\n"
        "Accept-Encoding: identity\r\nAuthorization: Bearer engine-key\r\n"
        "content-type: a/b\r\nContent-Length: 5\r\n\r\nhello".encode()
    ]


async def test_a_connection_is_used_again_and_not_by_two_at_once(streams: EngineStreams) -> None:
    going_on = asyncio.Event()

    async def slow(peer: Peer) -> None:
        for _ in range(3):
            await peer.request()
            await peer.say(OK)
        await peer.request()
        await peer.say(CHUNKED + b"3\r\none\r\n")
        await going_on.wait()
        await peer.say(b"0\r\n\r\n")

    async with engine(slow, good) as there:
        for _ in range(3):
            assert await read_all(streams, there.url) == b"ok"
        assert there.connections == 1
        one, other = [await streams.send(there.url, REQUEST) for _ in range(2)]
        assert (there.connections, streams.running(there.url)) == (2, 2)
        going_on.set()
        for answer, said in ((one, b"one"), (other, b"ok")):
            assert await answer.read() == said
            answer.close()
            answer.close()  # twice is as good as once
        assert streams.running(there.url) == 0


async def test_parts_come_as_they_are_sent(streams: EngineStreams) -> None:
    going_on = asyncio.Event()

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + b"3\r\none\r\n")
        await going_on.wait()
        await peer.say(b"3\r\ntwo\r\n0\r\n\r\n")

    async with engine(talk) as there:
        answer = await streams.send(there.url, REQUEST)
        parts = answer.chunks()
        assert await anext(parts) == b"one"  # the second is not even written
        going_on.set()
        assert [part async for part in parts] == [b"two"]
        answer.close()


@pytest.mark.parametrize(
    "broken",
    [
        CHUNKED + b"3\r\none\r\n",
        CHUNKED + b"3\r\none\r\n5\r\ntw",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\none",
        CHUNKED + b"3\r\none\r\nno chunk\r\n",
    ],
)
async def test_an_answer_without_its_end_is_lost(streams: EngineStreams, broken: bytes) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(broken)

    async with engine(talk) as there:
        with pytest.raises(EngineLostError):
            await read_all(streams, there.url)
        assert streams.running(there.url) == 0


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-x\r\n\r\n"])
async def test_no_answer_is_lost(streams: EngineStreams, said: bytes) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(said)

    async with engine(talk) as there:
        with pytest.raises(EngineLostError):
            await streams.send(there.url, REQUEST)
        assert streams.running(there.url) == 0


async def test_a_head_has_a_limit(streams: EngineStreams) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        with suppress(ConnectionError):
            await peer.say(b"HTTP/1.1 200 OK\r\n" + 40 * (b"x: %b\r\n" % bytes([120] * 60_000)))
            await peer.say(b"\r\n")
        await peer.gone()

    async with engine(talk) as there:
        with pytest.raises(EngineLostError):
            await streams.send(there.url, REQUEST)


async def test_what_comes_after_a_body_is_no_header(streams: EngineStreams) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED + b"3\r\none\r\n0\r\nx-late: 1\r\n\r\n")
        await peer.gone()

    async with engine(talk) as there:
        answer = await streams.send(there.url, REQUEST)
        assert await answer.read() == b"one"
        assert answer.headers == [(b"transfer-encoding", b"chunked")]
        answer.close()


async def test_an_engine_may_lie_below_a_path(streams: EngineStreams) -> None:
    seen: list[bytes] = []

    async def talk(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.say(OK)

    async with engine(talk) as there:
        host = there.url.removeprefix("http://")
        assert await read_all(streams, f"http://name:secret@{host}/below") == b"ok"
    assert seen[0].startswith(
        f"POST /below/v1/completions?x=1 HTTP/1.1\r\nHost: {host}\r\n".encode()
    )


@pytest.mark.parametrize("url", ["", "ftp://x", "http://[::1", "http://x:99999", "http://a..b"])
async def test_what_is_no_url_is_unreachable(streams: EngineStreams, url: str) -> None:
    with pytest.raises(EngineUnreachableError):
        await streams.send(url, REQUEST)
    assert streams.running(url) == 0


async def test_nobody_there_is_unreachable_and_not_lost(streams: EngineStreams) -> None:
    at, url = bound()
    at.close()
    with pytest.raises(EngineUnreachableError) as raised:
        await streams.send(url, REQUEST)
    assert not isinstance(raised.value, EngineLostError)


async def test_a_connection_that_was_closed_while_idle_is_replaced(streams: EngineStreams) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)

    async def rude(peer: Peer) -> None:
        await once(peer)
        await peer.request()  # and hangs up instead of answering

    for first in (once, rude):
        async with engine(first, good) as there:
            for _ in range(2):
                answer = await streams.send(there.url, REQUEST)
                assert await answer.read() == b"ok"
                answer.close()
            assert there.connections == 2


async def test_what_an_engine_may_have_worked_on_is_not_sent_again() -> None:
    async def loses(peer: Peer) -> None:
        for said in (OK, b""):
            await peer.request()
            await peer.say(said)

    streams = EngineStreams(idle_s=_PATIENCE_S, stale_s=0.0)
    async with engine(loses, good) as there:
        assert await read_all(streams, there.url) == b"ok"
        with pytest.raises(EngineLostError):
            await read_all(streams, there.url)
        assert there.connections == 1
    await streams.close()


async def test_a_second_answer_to_one_request_is_nobodys(streams: EngineStreams) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK + OK.replace(b"ok", b"no"))
        await peer.gone()

    async with engine(talk, good) as there:
        for _ in range(2):
            answer = await streams.send(there.url, REQUEST)
            assert await answer.read() == b"ok"
            assert answer.headers == [(b"content-length", b"2"), (b"x-one", b"1")]
            answer.close()
        assert there.connections == 2


async def test_a_server_that_wants_no_second_request_gets_none(streams: EngineStreams) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        await peer.gone()

    async with engine(talk, talk) as there:
        for _ in range(2):
            answer = await streams.send(there.url, REQUEST)
            assert await answer.read() == b""
            answer.close()
        assert there.connections == 2


@pytest.mark.parametrize("when", ["waiting", "reading", "unread"])
async def test_whoever_lets_go_hangs_up(streams: EngineStreams, when: str) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def talk(peer: Peer) -> None:
        await peer.request()
        asked.set()
        if when != "waiting":
            await peer.say(CHUNKED + b"3\r\none\r\n")
        await peer.gone()
        gone.set()

    async def read() -> None:
        answer = await streams.send(there.url, REQUEST)
        try:
            if when == "reading":
                await answer.read()
        finally:
            answer.close()

    async with engine(talk) as there:
        reading = asyncio.create_task(read())
        await asked.wait()
        if when == "unread":
            await reading
        else:
            await asyncio.sleep(0.05)
            reading.cancel()
        await gone.wait()
        assert streams.running(there.url) == 0


async def test_a_slow_reader_makes_the_engine_wait(streams: EngineStreams) -> None:
    size = 64 << 20
    sent = 0

    async def talk(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.say(f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n".encode())
        for _ in range(64):
            await peer.say(bytes(1 << 20))
            sent += 1 << 20

    async with engine(talk) as there:
        answer = await streams.send(there.url, REQUEST)
        before = -1
        while before != sent:  # until the buffers of both ends are full
            before = sent
            await asyncio.sleep(0.05)
        assert sent < size // 2
        assert len(await answer.read()) == size
        answer.close()


async def test_an_interim_answer_is_passed_over(streams: EngineStreams) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK)

    async with engine(talk) as there:
        answer = await streams.send(there.url, REQUEST)
        assert (answer.status, await answer.read()) == (200, b"ok")
        assert (b"link", b"x") not in answer.headers
        answer.close()


async def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    streams = EngineStreams(idle_s=0.0)
    async with engine(good, good) as there:
        for _ in range(2):
            answer = await streams.send(there.url, REQUEST)
            assert await answer.read() == b"ok"
            answer.close()
        assert there.connections == 2
    await streams.close()


async def test_a_connection_that_nobody_needs_any_more_is_closed() -> None:
    gone = asyncio.Event()

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await peer.gone()
        gone.set()

    streams = EngineStreams(idle_s=0.0)
    async with engine(talk, good) as there:
        answers = [await streams.send(there.url, REQUEST) for _ in range(2)]
        for answer in answers:
            assert await answer.read() == b"ok"
            answer.close()
        await gone.wait()
        assert len(streams._idle[there.url]) == 1
    await streams.close()


async def test_an_answer_may_end_with_its_connection(streams: EngineStreams) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with engine(talk, good) as there:
        assert await read_all(streams, there.url) == b"all of it"
        assert await read_all(streams, there.url) == b"ok"
        assert there.connections == 2
