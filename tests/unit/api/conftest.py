from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT, TenantId
from sessiond.testing.world import World, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKENS = {
    "alpha-token-0123456789": TenantId("alpha"),
    "beta-token-0123456789": TenantId("beta"),
    "operator-token-0123456789": DEFAULT_TENANT,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, engine_urls=("http://plain",)) as world:
        yield world


@pytest.fixture
async def api(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a daemon without tokens."""
    transport = httpx.ASGITransport(world.app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://sessiond") as client:
        yield client


@pytest.fixture
async def guarded(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a daemon with tokens; it sends none by itself."""
    transport = httpx.ASGITransport(world.app(TOKENS), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://sessiond") as client:
        yield client
