from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.testing.world import AGENT, World, open_world, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessiond.testing.fake_engine import FakeEngine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


@pytest.fixture
async def engine(world: World) -> FakeEngine:
    """An engine with a session that has taken one turn."""
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    return engine
