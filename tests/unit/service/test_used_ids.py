"""An id that a new session has since the one that had it was deleted: it begins with nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import NothingToSuspendError
from sessiond.domain.heads import Head, LastTurn, pass_turn
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import SessionState
from sessiond.registry import Registry, upgrade
from sessiond.service.fork import ForkWish
from sessiond.service.headchoice import of_session
from sessiond.service.rebuild import rebuild_registry
from sessiond.service.turntrail import Told
from sessiond.store import layout
from sessiond.testing.snapshots import SnapshotPlan, write_snapshot
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def empty_registry(folder: Path) -> Registry:
    url = f"sqlite:///{folder / 'empty.db'}"
    upgrade(url)
    return Registry.open(url)


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
    with closing(empty_registry(tmp_path)) as empty:
        rebuild_registry(world.store, empty)
        found = empty.get_session(DEFAULT_TENANT, AGENT)
    assert found.created_unix_us == session.created_unix_us
    heads = world.store.read_heads(DEFAULT_TENANT, AGENT)
    assert len(heads) == 1
    assert of_session(found, heads) == heads


async def test_of_two_heads_a_record_is_guessed_from_neither_that_came_later(
    world: World, tmp_path: Path
) -> None:
    plan = SnapshotPlan()
    write_snapshot(world.store, plan)
    manifest = world.store.read_manifest(plan.tenant, plan.session, 1)
    later = Head(plan.tenant, plan.session, "e", 1, 0, manifest.created_unix_s + 9.0, ())
    made_unix_us = round(1_000_000 * manifest.created_unix_s)
    for engine_id, since_us in (("e", 5), ("f", -5_000_000), ("g", -9_000_000)):
        created_unix_us = made_unix_us + since_us
        world.store.write_head(
            replace(later, engine_id=engine_id, session_created_unix_us=created_unix_us)
        )
    with closing(empty_registry(tmp_path)) as empty:
        rebuild_registry(world.store, empty)
        found = empty.get_session(plan.tenant, plan.session)
    assert found.created_unix_us == made_unix_us - 5_000_000


@pytest.mark.parametrize("forked", [False, True])
async def test_a_clock_that_went_back_makes_no_session_older_than_the_one_before(
    world: World, *, forked: bool
) -> None:
    world.start_engine()
    other = (await world.create(SessionId("other"))).session
    await world.turn(other.session_id, text(100, seed=5))
    report(await world.suspend(other.session_id))
    old = (await world.create()).session
    await world.turn(AGENT, text(200, seed=9))
    await world.delete()
    world.pass_time(-3600.0)
    if forked:
        wish = ForkWish(AGENT)
        report(
            await world.ended(
                await world.services.forker.fork(DEFAULT_TENANT, other.session_id, wish)
            )
        )
    else:
        await world.create()
    assert (await world.show()).session.created_unix_s > old.created_unix_s
    await world.turn(AGENT, text(300, seed=5))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 304


async def test_all_that_moves_kv_says_for_which_session(world: World) -> None:
    engine = world.start_engine()
    session = (await world.create()).session
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    report(await world.resume())
    told = {seen.op: seen.session_created_unix_us for seen in engine.seen}
    moving = ("turn", "suspend", "commit", "resume", "outcome")
    assert {op: told[op] for op in moving} == dict.fromkeys(moving, session.created_unix_us)


async def test_a_turn_of_the_deleted_one_is_not_in_the_trail_of_the_new_one(world: World) -> None:
    world.start_engine()
    await world.create()
    old = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    await world.delete()
    await world.create()
    turn = LastTurn(world.services.context.now(), None, turn_id=old.permit.operation_id)
    trail = world.services.catalogue.trail
    trail.note_soon(old.session, Told(old.engine.engine_id, turn))
    await trail.settle((DEFAULT_TENANT, AGENT))
    kinds = [event.kind for event in world.registry.list_events(DEFAULT_TENANT, AGENT)]
    assert kinds == ["created", "deleted", "created"]
