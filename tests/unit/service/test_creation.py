"""Creating an id anew, cut off between the session's row and its files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import SessionExistsError, StoreError
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.testing.holds import Hold
from sessiond.testing.world import AGENT, PATIENT, World, open_world, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


class _Killed(BaseException):
    """Stands for the end of a daemon."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world whose agent was deleted."""
    async with open_world(tmp_path, limits=PATIENT) as world:
        world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        report(await world.suspend())
        report(await world.delete())
        yield world


async def cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the agent anew, and die before its file is written."""

    def die(*_: object, **_options: object) -> None:
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "write_session", die)
        with pytest.raises(_Killed):
            await world.create(model="smol")


async def assert_stored(world: World) -> None:
    """Find that the session's turns are kept, and its choices."""
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"pinned": True})
    await world.turn(AGENT, text(50))
    assert report(await world.suspend())["snapshot"]["tokens_total"] == 58
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    assert (record.model, record.pinned) == ("smol", True)


async def test_the_next_start_finishes_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await cut_off(world, monkeypatch)
    assert await world.services.sweeper.watch_all() == 0
    await assert_stored(world)


async def test_who_repeats_it_finishes_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await cut_off(world, monkeypatch)
    with pytest.raises(SessionExistsError):
        await world.create()
    await assert_stored(world)


async def test_who_was_slow_removes_nothing_of_what_was_finished_for_him(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold(world.store, monkeypatch, "delete_session")
    slow = asyncio.create_task(world.create(model="smol"))
    await hold.arrived()
    await world.services.sweeper.watch_all()
    await assert_stored(world)
    await hold.go_on()
    assert (await slow).session.snapshot is not None
    assert world.store.generations(DEFAULT_TENANT, AGENT) == [1]
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    assert record.pinned


async def test_a_session_of_before_its_tombstone_stays_away(world: World) -> None:
    """Its row came back with a copy of the registry."""
    with world.registry._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sessions SET deleted_unix_s = NULL")
    await world.services.sweeper.watch_all()
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    assert record.is_tombstone


async def test_a_store_that_is_out_of_order_stops_no_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_off(world, monkeypatch)

    def fails(*_: object, **_options: object) -> None:
        raise StoreError

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "write_session", fails)
        assert await world.services.sweeper.watch_all() == 0
    assert await world.services.sweeper.watch_all() == 0
    await assert_stored(world)
