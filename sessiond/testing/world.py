"""A whole service in one process: real store, real registry, fake engines, a clock to turn."""

from __future__ import annotations

import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import event

from sessiond.api.app import Policy, create_app
from sessiond.api.gateway import GatewayPolicy
from sessiond.api.metrics import Metrics
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.keys import KeyRing
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import OperationStatus
from sessiond.domain.tokens import TokenIds, token_ids
from sessiond.engine.client import EngineClient
from sessiond.engine.streams import EngineStreams
from sessiond.registry import Registry, upgrade
from sessiond.registry.dialects import open_engine
from sessiond.service.blocking import Blocking
from sessiond.service.context import Context
from sessiond.service.engines import Engines
from sessiond.service.limits import Limits
from sessiond.service.permits import Signer
from sessiond.service.services import Services, build
from sessiond.service.watch import Watchlist
from sessiond.store.fileio import FileOps
from sessiond.store.store import Store
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.files import UnsyncedOps
from sessiond.testing.listening import bound, listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fastapi import FastAPI

    from sessiond.domain.session import Operation
    from sessiond.service.catalogue import View
    from sessiond.service.turns import TurnTicket

#: Short waits, so that tests of deadlines are quick.
QUICK = Limits(
    plan_policy=PlanPolicy.ALWAYS_LOAD,  # what a fake engine's times say decides nothing
    suspend_deadline_s=2.0,
    resume_deadline_s=2.0,
    turn_settle_s=0.2,
    heads_settle_s=10.0,
    key_settle_s=2.0,
    commit_settle_s=0.3,
    poll_s=0.01,
    event_poll_s=0.01,
    sweep_patience_s=0.05,
    lease_s=30.0,
)
#: For tests that hold a call: it is not given up meanwhile, however slow the machine.
PATIENT = replace(QUICK, suspend_deadline_s=60.0, resume_deadline_s=60.0, lease_s=60.0)
#: The session that most tests have.
AGENT = SessionId("agent-7")
_KEY = bytes(range(32))
_OPERATION_WAIT_S = 20.0


class _Switch(httpx.AsyncBaseTransport):
    """Brings each request to the engine of its host."""

    def __init__(self) -> None:
        self.engines: dict[str, httpx.ASGITransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass the request on; an unknown host refuses the connection."""
        url = request.url
        transport = self.engines.get(url.host) or self.engines.get(f"{url.host}:{url.port}")
        if transport is None:
            raise httpx.ConnectError("Connection refused.", request=request)
        return await transport.handle_async_request(request)


@dataclass
class World:
    """The parts, for tests that look inside."""

    store: Store
    registry: Registry
    services: Services
    metrics: Metrics
    http: httpx.AsyncClient
    switch: _Switch
    clock_offset_s: list[float]
    started: list[FakeEngine] = field(default_factory=list)

    def start_engine(self, host: str = "engine", **options: Any) -> FakeEngine:  # noqa: ANN401 - see FakeEngine
        """Start a fake engine at ``http://HOST``; one that was there is gone."""
        now = self.services.context.now
        engine = FakeEngine(self.store, f"http://{host}", now=now, **options)
        self.started.append(engine)
        self.switch.engines[host] = httpx.ASGITransport(engine)
        return engine

    @asynccontextmanager
    async def listening_engine(self, **options: Any) -> AsyncIterator[FakeEngine]:  # noqa: ANN401 - see FakeEngine
        """Start a fake engine behind a real socket, for whoever streams from it."""
        at, url = bound()
        engine = FakeEngine(self.store, url, now=self.services.context.now, **options)
        self.started.append(engine)
        self.switch.engines[url.removeprefix("http://")] = httpx.ASGITransport(engine)
        async with listening(engine, at) as engine.openai.cut:
            yield engine

    def start_stranger(self, host: str) -> None:
        """Start a server that answers HTTP and is no engine of ours."""

        async def plain(_scope: object, _receive: object, send: Any) -> None:  # noqa: ANN401 - ASGI
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

        self.switch.engines[host] = httpx.ASGITransport(plain)

    def kill_engine(self, engine: FakeEngine) -> None:
        """End an engine as SIGKILL would: its lock goes, its answers stop."""
        engine.close()
        for host, transport in list(self.switch.engines.items()):
            if transport.app is engine:
                del self.switch.engines[host]

    def pass_time(self, seconds: float) -> None:
        """Let the service's clock jump."""
        self.clock_offset_s[0] += seconds

    async def turn(
        self,
        session_id: SessionId,
        prompt: TokenIds[int],
        max_tokens: int = 8,
        tenant: TenantId = DEFAULT_TENANT,
        model: str = "",
    ) -> dict[str, Any]:
        """Take one turn, as an agent that calls vLLM directly does."""
        ticket = await self.services.turns.ticket(tenant, session_id, model=model)
        return await self.use(ticket, prompt, max_tokens)

    async def use(
        self, ticket: TurnTicket, prompt: TokenIds[int], max_tokens: int = 8
    ) -> dict[str, Any]:
        """Take the turn that a ticket is for."""
        response = await self.http.post(
            f"{ticket.engine.url}/v1/completions",
            json={
                "model": ticket.model,
                "prompt": list(prompt),
                "max_tokens": max_tokens,
                "cache_salt": ticket.permit.cache_salt,
                "kv_transfer_params": ticket.kv_transfer_params,
            },
        )
        body: dict[str, Any] = response.raise_for_status().json()
        return body

    async def create(self, session_id: SessionId = AGENT, **options: Any) -> View:  # noqa: ANN401 - see Catalogue
        """Create a session of the default tenant."""
        return await self.services.catalogue.create(DEFAULT_TENANT, session_id, **options)

    async def show(self, session_id: SessionId = AGENT) -> View:
        """Show a session of the default tenant."""
        return await self.services.catalogue.show(DEFAULT_TENANT, session_id)

    async def suspend(self, session_id: SessionId = AGENT) -> Operation:
        """Suspend and wait for the end."""
        return await self.ended(await self.services.lifecycle.suspend(DEFAULT_TENANT, session_id))

    async def resume(self, session_id: SessionId = AGENT) -> Operation:
        """Resume and wait for the end."""
        return await self.ended(await self.services.lifecycle.resume(DEFAULT_TENANT, session_id))

    async def delete(self, session_id: SessionId = AGENT) -> Operation:
        """Delete and wait for the end."""
        return await self.ended(await self.services.lifecycle.delete(DEFAULT_TENANT, session_id))

    async def ended(self, operation: Operation) -> Operation:
        """Wait for an operation's end."""
        return await self.services.operations.wait(operation, _OPERATION_WAIT_S)

    def app(
        self, tokens: Mapping[str, TenantId] | None = None, gateway: GatewayPolicy | None = None
    ) -> FastAPI:
        """Return the HTTP application over the same service."""
        policy = Policy(tokens or {}, 30.0, gateway=gateway or GatewayPolicy())
        return create_app(self.services, policy, self.metrics)


@asynccontextmanager
async def open_world(
    folder: Path,
    *,
    limits: Limits = QUICK,
    engine_urls: tuple[str, ...] = (),
    ops: FileOps | None = None,
) -> AsyncIterator[World]:
    """Yield a service over *folder* and what lies in it, without engines.

    It waits for no disk: no power is cut here, and that takes longer than most tests.
    """
    database = folder / "registry.db"
    if not database.exists():
        database.write_bytes(empty_database())
    registry, ops = _open_unsynced(f"sqlite:///{database}"), ops or UnsyncedOps()
    keys, floor_bytes = KeyRing.from_server_key(_KEY), limits.free_space_floor_bytes
    store = Store.open(folder / "store", keys, ops=ops, floor_bytes=floor_bytes)
    switch, metrics, offset_s = _Switch(), Metrics(), [0.0]
    try:
        async with httpx.AsyncClient(transport=switch, timeout=30.0) as http:
            client, streams = EngineClient(http), EngineStreams()
            blocking = Blocking(4)
            context = Context(
                store=store,
                registry=registry,
                client=client,
                engines=Engines(store, client, blocking, engine_urls, streams.running),
                blocking=blocking,
                signer=Signer(store.keys, limits.operation_ticket_s, limits.turn_ticket_s),
                limits=limits,
                observer=metrics,
                watchlist=Watchlist(),
                owner="test",
                now=lambda: time.time() + offset_s[0],
                streams=streams,
            )
            world = World(store, registry, build(context), metrics, http, switch, offset_s)
            yield world
            await world.services.drainer.stop()
            await world.services.operations.drain(5.0)
            await world.services.catalogue.trail.settle()
            await world.services.planner.calibrator.close()
            await world.services.verifier.stop()
            await streams.close()
            for engine in world.started:
                engine.close()
    finally:
        registry.close()


def _open_unsynced(url: str) -> Registry:
    engine = open_engine(url)
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    return Registry(engine)


@cache
def empty_database() -> bytes:
    """Return a database with tables and no rows: migrations take longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "registry.db"
        upgrade(f"sqlite:///{database}")
        return database.read_bytes()


def report(operation: Operation) -> dict[str, Any]:
    """Return the report of an operation that has succeeded."""
    assert operation.status is OperationStatus.SUCCEEDED, operation.result
    return operation.result or {}


def problem(operation: Operation) -> str:
    """Return the code of an operation that has failed."""
    assert operation.status is OperationStatus.FAILED, operation.result
    return str((operation.result or {})["code"])


def reasons(told: dict[str, Any]) -> list[str]:
    """Return the codes of a report's causes."""
    return [cause["reason"] for cause in told["causes"]]


def suspends(engine: FakeEngine) -> int:
    """Return how many suspend requests an engine has seen."""
    return sum(seen.op == "suspend" for seen in engine.seen)


def text(length: int, seed: int = 1) -> TokenIds[int]:
    """Return tokens that look like nothing else's."""
    return token_ids((seed * 7919 + at * 31) % 50_000 for at in range(length))
