"""An id that a new session has since the one that had it was deleted: it begins with nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import NothingToSuspendError
from sessiond.domain.heads import LastTurn, pass_turn
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import SessionState
from sessiond.registry import Registry, upgrade
from sessiond.service.headchoice import of_session
from sessiond.service.rebuild import rebuild_registry
from sessiond.store import layout
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_turn_that_ends_after_the_id_was_used_again_is_no_turn_of_it(world: World) -> None:
    world.start_engine()
    await world.create()
    old = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    await world.delete()
    await world.create()
    await world.use(old, text(200, seed=9))
    assert (await world.show()).state is SessionState.COLD
    with pytest.raises(NothingToSuspendError):
        await world.suspend()
    await world.turn(AGENT, text(100))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 96


async def test_nor_if_it_ends_after_turns_of_the_new_one(world: World) -> None:
    world.start_engine()
    await world.create()
    old = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    await world.delete()
    await world.create()
    await world.turn(AGENT, text(100))
    await world.use(old, text(200, seed=9))
    (head,) = world.store.read_heads(DEFAULT_TENANT, AGENT)
    assert len(head.branches) == 1
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 96


async def test_what_could_not_be_kept_of_the_deleted_one_hinders_nothing(world: World) -> None:
    engine = world.start_engine()
    session = (await world.create()).session
    await world.turn(AGENT, text(100))
    (head,) = world.store.read_heads(DEFAULT_TENANT, AGENT)
    turn = LastTurn(world.services.context.now(), None, causes=(Cause(Reason.NOT_TEXT),))
    engine.write_head(pass_turn(head, turn))
    assert head.session_created_unix_us == session.created_unix_us
    await world.delete()
    await world.create()
    await world.turn(AGENT, text(200, seed=9))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 192


async def test_a_session_whose_record_is_lost_is_known_by_what_its_engine_has(
    world: World, tmp_path: Path
) -> None:
    world.start_engine()
    session = (await world.create()).session
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await world.turn(AGENT, text(200))
    (record,) = (tmp_path / "store").rglob(layout.SESSION_FILE)
    record.unlink()
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    upgrade(url)
    empty = Registry.open(url)
    try:
        rebuild_registry(world.store, empty)
        found = empty.get_session(DEFAULT_TENANT, AGENT)
    finally:
        empty.close()
    assert found.created_unix_us == session.created_unix_us
    heads = world.store.read_heads(DEFAULT_TENANT, AGENT)
    assert len(heads) == 1
    assert of_session(found, heads) == heads
