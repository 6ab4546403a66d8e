"""What a ticket asks of the registry: every turn through the gateway waits for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from sqlalchemy import Engine, event

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.registry import Registry
from sessiond.registry.lookup import Lookup
from sessiond.store.sessionfiles import SessionFiles
from sessiond.store.store import Store
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Session

pytestmark = pytest.mark.anyio


@contextmanager
def questions() -> Iterator[list[str]]:
    """Collect what a registry is asked: sessions by their keys, and statements."""
    found: list[str] = []
    find = Lookup.find

    def note(statement: str) -> None:
        if not statement.startswith("BEGIN"):
            found.append(statement)

    def record(*call: object) -> None:
        note(str(call[2]))

    def noted(self: Lookup, tenant: TenantId, session_id: SessionId) -> Session | None:
        note(session_id)
        return find(self, tenant, session_id)

    event.listen(Engine, "before_cursor_execute", record)
    with patch.object(Lookup, "find", noted):
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
    with questions() as asked:
        assert await ticket(world) == "warm"
    assert asked == [AGENT]
    world.kill_engine(engine)
    world.start_engine()
    with questions() as asked:
        assert await ticket(world) == "load"
    assert asked == [AGENT]


async def test_a_ticket_looks_at_its_session_s_folder_once(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    with (
        patch.object(Store, "look", autospec=True, side_effect=Store.look) as looks,
        patch.object(SessionFiles, "generations") as listed,
    ):
        assert await ticket(world) == "warm"
    assert (looks.call_count, listed.call_count) == (1, 0)


async def test_a_snapshot_that_nobody_recorded_is_found_by_a_ticket(world: World) -> None:
    """The registry is told of it, and asked again; then the folder is looked at again."""
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    with patch.object(Registry, "record_snapshot"):
        await world.suspend()
    assert world.registry.list_snapshots(DEFAULT_TENANT, AGENT) == []
    world.kill_engine(engine)
    world.start_engine()
    assert await ticket(world) == "load"
    assert len(world.registry.list_snapshots(DEFAULT_TENANT, AGENT)) == 1


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
