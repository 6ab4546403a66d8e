"""What a ticket asks of the registry: every turn through the gateway waits for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, event

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect what is sent to databases, without the control of transactions."""
    found: list[str] = []

    def record(*call: object) -> None:
        statement = str(call[2])
        if not statement.startswith("BEGIN"):
            found.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    yield found
    event.remove(Engine, "before_cursor_execute", record)


async def ticket(world: World) -> str:
    return (await world.services.turns.ticket(DEFAULT_TENANT, AGENT)).plan


async def test_a_ticket_asks_one_question(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await ticket(world)
    await world.services.catalogue.trail.settle()
    with statements() as asked:
        assert await ticket(world) == "warm"
    assert len(asked) == 1
    world.kill_engine(engine)
    world.start_engine()
    with statements() as asked:
        assert await ticket(world) == "load"
    assert len(asked) == 1


async def test_a_ticket_does_not_wait_for_the_trail(world: World, tmp_path: Path) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    with closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert await ticket(world) == "warm"
        assert await ticket(world) == "warm"
        writer.execute("ROLLBACK")
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    assert [event.kind for event in events] == ["created", "turn"]


async def test_a_ticket_sees_at_once_that_an_engine_is_gone(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    assert await ticket(world) == "warm"
    world.kill_engine(engine)
    world.start_engine()
    assert await ticket(world) == "recompute"
