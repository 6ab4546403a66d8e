"""Puts the daemon together: the only place that knows all parts."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from sessiond.api.app import Policy, create_app
from sessiond.api.gateway import GatewayPolicy
from sessiond.api.metrics import Metrics
from sessiond.domain.ids import new_hex_id
from sessiond.domain.keys import KeyRing
from sessiond.engine.client import EngineClient, open_http
from sessiond.engine.streams import EngineStreams
from sessiond.registry import Registry, upgrade
from sessiond.scheduler.jobs import Jobs
from sessiond.service.blocking import Blocking
from sessiond.service.context import Context
from sessiond.service.engines import Engines
from sessiond.service.permits import Signer
from sessiond.service.services import Services, build
from sessiond.service.watch import Watchlist
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx
    from fastapi import FastAPI

    from sessiond.app.config import Settings


@contextmanager
def open_daemon(settings: Settings) -> Iterator[FastAPI]:
    """Open store and registry and yield the application over them.

    :raises ConfigurationError: the registry's URL or tables, or the key, are not valid.
    :raises StoreError: the store cannot be used.
    :raises RegistryUnavailableError: the database cannot be reached.
    """
    key = load_server_key(settings.resolved_key_file, create=True)
    store = Store.open(
        settings.store_root,
        KeyRing.from_server_key(key),
        floor_bytes=settings.free_space_floor_bytes,
    )
    upgrade(settings.resolved_registry_url)
    registry = Registry.open(settings.resolved_registry_url)
    try:
        http = open_http(settings.engine_api_key)
        yield _application(settings, store, registry, http)
    finally:
        registry.close()


def _application(
    settings: Settings, store: Store, registry: Registry, http: httpx.AsyncClient
) -> FastAPI:
    metrics = Metrics()
    services = build(_context(settings, store, registry, http, metrics))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with http:
            await services.recovery.tidy()
            await services.recovery.recover()
            await services.sweeper.watch_all()
            jobs = Jobs(services, settings.sweep_interval_s, settings.lease_s)
            jobs.start()
            try:
                yield
            finally:
                jobs.stop()
                await services.verifier.stop()
                await services.drainer.stop()
                await services.operations.drain(settings.shutdown_grace_s)
                await services.catalogue.trail.settle()
                await services.planner.slow_paths.close()
                await services.planner.calibrator.close()
                await services.context.streams.close()

    policy = Policy(
        tokens=settings.tokens,
        operation_wait_s=settings.operation_wait_s,
        operators=settings.operator_tenants,
        gateway=GatewayPolicy(
            by_cache_key=settings.gateway_prompt_cache_key,
            max_body_bytes=settings.gateway_body_bytes,
        ),
    )
    app = create_app(services, policy, metrics, lifespan)
    app.state.end_streams = services.feed.close
    return app


def _context(
    settings: Settings,
    store: Store,
    registry: Registry,
    http: httpx.AsyncClient,
    metrics: Metrics,
) -> Context:
    client = EngineClient(http)
    streams = EngineStreams(settings.engine_api_key)
    blocking = Blocking(settings.threads)
    limits = settings.limits
    return Context(
        store=store,
        registry=registry,
        client=client,
        engines=Engines(store, client, blocking, settings.engines, streams.running),
        blocking=blocking,
        signer=Signer(store.keys, limits.operation_ticket_s, limits.turn_ticket_s),
        limits=limits,
        observer=metrics,
        watchlist=Watchlist(),
        streams=streams,
        owner=f"{socket.gethostname()[:64]}-{os.getpid()}-{new_hex_id()[:8]}",
    )


__all__ = ["Services", "open_daemon"]
