"""A daemon that is killed at step N of what it does; for :mod:`sessiond.testing.zygote`.

Steps are the calls that change the store and the commits to the registry. The daemon's engine
is a fake one in the same process: it dies with it, and what it had committed stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import Engine, event

from sessiond.domain.errors import SessionNotFoundError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.service.rebuild import Rebuilder
from sessiond.store.store import Store
from sessiond.store.verify import VerifyOptions
from sessiond.testing.killing import Killer, arm_stores
from sessiond.testing.world import (
    AGENT,
    QUICK,
    World,
    empty_database,
    open_world,
    reasons,
    report,
    text,
)

Action: TypeAlias = Callable[[World], Awaitable[object]]

#: The context at the first, and at the second suspend.
FIRST, SECOND = text(70), text(150)
#: Sessions with a dead segment, and with dead frames in a live one.
DEAD, DYING = SessionId("dead"), SessionId("dying")
SESSIONS = (AGENT, DEAD, DYING)

empty_database()  # migrated before anything is forked


async def _suspend(world: World) -> None:
    await world.suspend()


async def _resume(world: World) -> None:
    await world.resume()


async def _delete(world: World) -> None:
    await world.delete()


async def _collect(world: World) -> None:
    await world.services.context.blocking(world.store.collect)


async def _rebuild(world: World) -> None:
    rebuilder = Rebuilder(world.store, world.registry)
    await world.services.context.blocking(rebuilder.run)


ACTIONS: dict[str, Action] = {
    "suspend": _suspend,
    "resume": _resume,
    "delete": _delete,
    "collect": _collect,
    "rebuild": _rebuild,
}


def prepare(folder: str) -> dict[str, Any]:
    """Make what all kills begin from: a suspended session, and garbage for a collection."""
    return asyncio.run(_prepare(Path(folder)))


async def _prepare(folder: Path) -> dict[str, Any]:
    async with open_world(folder) as world:
        world.start_engine()
        for seed, session_id in enumerate(SESSIONS, start=1):
            await world.create(session_id)
            await world.turn(session_id, text(70, seed))
            report(await world.suspend(session_id))
        _litter(world.store)
        return _facts(world)


def _litter(store: Store) -> None:
    """Leave a segment that is dead, and one that is dead in part, as crashes do."""
    store.delete_snapshot(DEFAULT_TENANT, DEAD, 1)
    manifest = store.read_manifest(DEFAULT_TENANT, DYING, 1)
    store.commit_manifest(
        replace(manifest, generation=2, parent_generation=1, chunks=manifest.chunks[:1])
    )
    store.delete_snapshot(DEFAULT_TENANT, DYING, 1)


def act_with_kill(folder: str, action: str, step: int) -> dict[str, Any]:
    """Do something, and be killed at a step of it."""
    killer = Killer(step)
    killer.armed = False
    arm_stores(killer)
    event.listen(Engine, "commit", lambda _connection: killer.step())
    asyncio.run(_act(Path(folder), ACTIONS[action], killer))
    return {"steps": killer.steps}


async def _act(folder: Path, action: Action, killer: Killer) -> None:
    async with open_world(folder) as world:
        world.start_engine()
        if action is _suspend:
            await world.turn(AGENT, SECOND)
        killer.armed = True
        await action(world)
        await world.services.operations.drain(5.0)
        killer.armed = False


def recover(folder: str) -> dict[str, Any]:
    """Start again; tell what is there, and whether it is whole and can be used."""
    return asyncio.run(_recover(Path(folder)))


async def _recover(folder: Path) -> dict[str, Any]:
    async with open_world(folder) as world:
        world.pass_time(QUICK.lease_s * 2)
        await world.services.recovery.tidy()
        await world.services.recovery.recover()
        world.start_engine()
        found = _facts(world)
        used = await _used(world)
        world.store.collect()
        return {**found, "used": used, **_tidiness(world)}


async def _used(world: World) -> dict[str, Any]:
    """Resume, take a turn and suspend, if the session is there."""
    try:
        await world.show()
    except SessionNotFoundError:
        return {}
    resumed = report(await world.resume())  # the fake engine compares every byte
    await world.turn(AGENT, SECOND)
    suspended = report(await world.suspend())
    return {
        "outcome": resumed["outcome"],
        "reasons": reasons(resumed),
        "missing_tokens": suspended["missing_tokens"],
        "generation": suspended["snapshot"]["generation"],
    }


def _facts(world: World) -> dict[str, Any]:
    try:
        session = world.registry.get_session(DEFAULT_TENANT, AGENT)
        rows = [s.generation for s in world.registry.list_snapshots(DEFAULT_TENANT, AGENT)]
    except SessionNotFoundError:
        session, rows = None, []
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    return {
        "exists": session is not None,
        "rows": rows,
        "tombstone": bool(record and record.is_tombstone),
        "generations": world.store.generations(DEFAULT_TENANT, AGENT),
    }


def _tidiness(world: World) -> dict[str, Any]:
    """What nobody would ever remove."""
    store = world.store
    referenced = {
        segment_id
        for session in SESSIONS
        for generation in store.generations(DEFAULT_TENANT, session)
        for segment_id in store.read_manifest(DEFAULT_TENANT, session, generation).segment_ids
    }
    segments = {path.stem for path in (store.root / "segments").rglob("*.seg")}
    return {
        "leaked": sorted(segments - referenced),
        "temporary": [path.name for path in (store.root / "tmp").iterdir()],
        "clean": store.verify(VerifyOptions()).is_clean,
    }


def forget_registry(folder: str) -> dict[str, Any]:
    """Lose the database."""
    for path in Path(folder).glob("registry.db*"):
        path.unlink()
    return {}


def rebuild(folder: str) -> dict[str, Any]:
    """Run a rebuild from the beginning once more."""

    async def run() -> None:
        async with open_world(Path(folder)) as world:
            await _rebuild(world)

    asyncio.run(run())
    return {}


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare,
    "act": act_with_kill,
    "recover": recover,
    "rebuild": rebuild,
    "forget_registry": forget_registry,
}
