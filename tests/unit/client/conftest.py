"""A client of either kind, and a service behind real HTTP."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator as Asynchronous
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from sessiond.client import AsyncClient, Client, repeating
from sessiond.domain.ids import DEFAULT_TENANT, TenantId
from sessiond.testing.served import ServedWorld, served_world
from sessiond.testing.world import AGENT, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.testing.fake_engine import FakeEngine


@dataclass
class Road:
    """What happens to requests on their way; each entry is for one request.

    A fault keeps the request from the daemon; a lost answer comes after it has been served.
    """

    faults: list[Exception] = field(default_factory=list)
    lost_answers: list[Exception] = field(default_factory=list)
    cut_after_bytes: list[int] = field(default_factory=list)
    seen: list[httpx.Request] = field(default_factory=list)

    def before(self, request: httpx.Request) -> None:
        """Note a request, or raise what it meets."""
        self.seen.append(request)
        if self.faults:
            raise self.faults.pop(0)

    def after(self, response: httpx.Response) -> httpx.Response:
        """Return an answer, or raise what it meets."""
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        if self.cut_after_bytes:
            response.stream = _Cut(response.stream, self.cut_after_bytes.pop(0))
        return response

    def keys(self) -> list[str | None]:
        """Return the idempotency key of each request."""
        return [request.headers.get("Idempotency-Key") for request in self.seen]


class _Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The beginning of a body."""

    def __init__(self, stream: Any, left: int) -> None:  # noqa: ANN401 - of either kind
        self._stream, self._left = stream, left

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            yield self._taken(part)
            if not self._left:
                raise httpx.ReadError("The connection was lost.")

    async def __aiter__(self) -> Asynchronous[bytes]:
        async for part in self._stream:
            yield self._taken(part)
            if not self._left:
                raise httpx.ReadError("The connection was lost.")

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _taken(self, part: bytes) -> bytes:
        taken = part[: self._left]
        self._left -= len(taken)
        return taken


class _Transport(httpx.HTTPTransport):
    def __init__(self, road: Road) -> None:
        super().__init__()
        self._road = road

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._road.before(request)
        return self._road.after(super().handle_request(request))


class _AsyncTransport(httpx.AsyncHTTPTransport):
    def __init__(self, road: Road) -> None:
        super().__init__()
        self._road = road

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._road.before(request)
        return self._road.after(await super().handle_async_request(request))


class Away(httpx.ASGITransport):
    """An engine that is lost, until its daemon has been asked so many times."""

    def __init__(self, engine: FakeEngine, road: Road, asked: int, status: int) -> None:
        super().__init__(engine)
        self._road, self._asked, self._status = road, len(road.seen) + asked, status

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if len(self._road.seen) >= self._asked:
            return await super().handle_async_request(request)
        if self._status:
            return httpx.Response(self._status)
        raise httpx.ConnectError("refused")


@dataclass
class Either:
    """A client of either kind, called in the same way."""

    client: Client | AsyncClient
    served: ServedWorld
    road: Road
    tenant: TenantId

    def turn(self, length: int = 100) -> None:
        """Take a turn of the session that most tests have."""

        async def take() -> None:
            await self.served.world.turn(AGENT, text(length), tenant=self.tenant)

        self.served.run(take)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the client's method; it waits, and makes lists of iterators."""

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the method's
            return self._result(getattr(self.client, name)(*arguments, **options))

        return call

    def lose(self, engine: FakeEngine, asked: int, status: int = 0) -> None:
        """Let an engine be lost until the client has asked so many times.

        :param status: what it answers meanwhile; 0: nothing
        """
        self.served.world.switch.engines["engine"] = Away(engine, self.road, asked, status)

    def first(self, count: int, name: str, **options: Any) -> list[Any]:  # noqa: ANN401 - the method's
        """Return the first items that an iterator of the client yields, and close it."""
        found = getattr(self.client, name)(**options)
        if isinstance(found, Iterator):
            items = [next(found) for _ in range(count)]
            found.close()  # type: ignore[attr-defined]
            return items

        async def collect() -> list[Any]:
            items = [await anext(found) for _ in range(count)]
            await found.aclose()
            return items

        return self.served.run(collect)

    def work(self, body: Callable[[Any], Any], session_id: str, **options: Any) -> Any:  # noqa: ANN401 - the body's
        """Run *body* in a session's scope, which it is given; return the scope."""
        scope: Any = self.client.session(session_id, **options)
        if isinstance(self.client, Client):
            with scope:
                body(scope)
            return scope

        async def inside() -> Any:  # noqa: ANN401 - the same
            async with scope:
                body(scope)
            return scope

        return self.served.run(inside)

    def _result(self, value: Any) -> Any:  # noqa: ANN401 - whatever a method returns
        if isinstance(value, Iterator):
            return list(value)
        if isinstance(value, Asynchronous):

            async def collect() -> list[Any]:
                return [one async for one in value]

            return self.served.run(collect)
        if inspect.isawaitable(value):

            async def wait() -> Any:  # noqa: ANN401 - the same
                return await value

            return self.served.run(wait)
        return value


OPERATOR = {"Authorization": "Bearer operator-token-0123456789"}
_TOKENS = {"operator-token-0123456789": DEFAULT_TENANT} | {
    f"client-token-{number:04}": TenantId(f"tenant-{number}") for number in range(100)
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    """A service for all tests of a module; each has a tenant of its own."""
    with served_world(tmp_path_factory.mktemp("served"), _TOKENS) as served:
        yield served


@pytest.fixture(scope="module")
def tokens() -> Iterator[str]:
    return (token for token in _TOKENS if token.startswith("client"))


@pytest.fixture(params=["blocking", "asynchronous"])
def api(
    request: pytest.FixtureRequest,
    served: ServedWorld,
    tokens: Iterator[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Either]:
    monkeypatch.setattr(repeating, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(repeating, "RECONNECT_PAUSE_S", 0.001)
    road, token = Road(), next(tokens)
    tenant = _TOKENS[token]
    if request.param == "blocking":
        with (
            httpx.Client(transport=_Transport(road)) as http,
            Client(served.url, token, http=http) as client,
        ):
            yield Either(client, served, road, tenant)
        return

    async def end(http: httpx.AsyncClient) -> None:
        await http.aclose()

    connections = httpx.AsyncClient(transport=_AsyncTransport(road))
    yield Either(AsyncClient(served.url, token, http=connections), served, road, tenant)
    served.run(end, connections)


@pytest.fixture
def engine(api: Either) -> Iterator[FakeEngine]:
    engine = api.served.world.start_engine()
    yield engine
    for each in api.served.world.started:
        api.served.world.kill_engine(each)
