"""What meets a session at the same moment, and what dies in the middle.

Each story stops one side at a gate of the engine, lets the other one pass, and opens the gate.
Whatever happened, the session's state is the true one afterwards, nothing runs, and nothing of
what was given up is left. More of these are in ``test_operations``, ``test_recovery``, in the
tests of the store and the mover (``test_races``), and in ``tests/acceptance``.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    NoEngineError,
    OperationInProgressError,
    SessionNotFoundError,
    TurnInFlightError,
)
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.session import OperationKind, OperationStatus, SessionState
from sessiond.service.services import build
from sessiond.store import layout, sessionlook, tree
from sessiond.store.verify import VerifyOptions
from sessiond.testing.values import an_operation
from sessiond.testing.world import AGENT, PATIENT, World, open_world, problem, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Operation
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
LATER_S = 1000.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A service whose deadlines and leases do not run out while a gate is closed."""
    async with open_world(tmp_path, limits=PATIENT) as world:
        yield world
        await require_settled(world)


async def require_settled(world: World) -> None:
    """Nothing runs, waits or lies around."""
    context, store = world.services.context, world.store
    held = world.registry.running_operation(DEFAULT_TENANT, AGENT, context.now())
    assert held is None
    assert not world.services.operations.is_busy
    assert not context.restores.are_running
    assert context.resume_queue.waiting == 0
    store.collect()
    referenced = {
        segment_id
        for generation in store.generations(DEFAULT_TENANT, AGENT)
        for segment_id in store.read_manifest(DEFAULT_TENANT, AGENT, generation).segment_ids
    }
    assert {path.stem for path in (store.root / "segments").rglob("*.seg")} == referenced
    assert list((store.root / "tmp").iterdir()) == []
    assert store.verify(VerifyOptions()).is_clean


def count(engine: FakeEngine, op: str) -> int:
    return sum(seen.op == op for seen in engine.seen)


@asynccontextmanager
async def stopped_at(engine: FakeEngine, op: str) -> AsyncIterator[None]:
    """Let the body run while requests of *op* that have arrived are stopped."""
    gate = engine.faults.gates[op] = asyncio.Event()
    try:
        yield
    finally:
        gate.set()


async def arrival(engine: FakeEngine, op: str, many: int = 1) -> None:
    """Wait until so many requests of *op* have arrived."""
    async with asyncio.timeout(PATIENCE_S):
        while count(engine, op) < many:
            await asyncio.sleep(0.001)


async def begin(world: World, kind: OperationKind, key: str = "") -> Operation:
    """Begin a long call."""
    lifecycle = world.services.lifecycle
    calls: dict[OperationKind, Callable[[TenantId, SessionId, str], Awaitable[Operation]]] = {
        OperationKind.SUSPEND: lifecycle.suspend,
        OperationKind.RESUME: lifecycle.resume,
        OperationKind.DELETE: lifecycle.delete,
    }
    return await calls[kind](DEFAULT_TENANT, AGENT, key)


async def restarted(world: World, engine: FakeEngine) -> FakeEngine:
    """Suspend the session and kill its engine; return a new one."""
    report(await world.suspend())
    world.kill_engine(engine)
    return world.start_engine()


async def state(world: World) -> SessionState:
    return (await world.show()).state


# A turn and a sweep


async def test_a_turn_during_the_suspend_of_a_sweep_is_served_and_stored_with_it(
    world: World, engine: FakeEngine
) -> None:
    world.pass_time(LATER_S)
    async with stopped_at(engine, "suspend"):
        sweeping = asyncio.create_task(world.services.sweeper.sweep())
        await arrival(engine, "suspend")
        answer = await world.turn(AGENT, text(100) + text(60, seed=3))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert (await sweeping).suspended == 1
    view = await world.show()
    assert view.state is SessionState.SUSPENDED
    assert view.session.snapshot is not None
    assert view.session.snapshot.tokens_restorable == 160


async def test_a_turn_that_runs_when_the_suspend_arrives_is_left_alone(
    world: World, engine: FakeEngine
) -> None:
    world.pass_time(LATER_S)
    async with stopped_at(engine, "suspend"):
        sweeping = asyncio.create_task(world.services.sweeper.sweep())
        await arrival(engine, "suspend")
        engine.begin_turn(DEFAULT_TENANT, AGENT)
    assert (await sweeping).suspended == 0
    assert await state(world) is SessionState.RUNNING
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []
    engine.end_turn(DEFAULT_TENANT, AGENT)
    assert (await world.services.sweeper.sweep()).due == 0  # the last token is that of the turn
    world.pass_time(LATER_S)
    assert (await world.services.sweeper.sweep()).suspended == 1


@pytest.mark.usefixtures("engine")
async def test_a_ticket_that_is_made_while_a_snapshot_takes_another_s_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its look has listed is gone when it is read, and there is a newer one."""
    report(await world.suspend())
    await world.turn(AGENT, text(200))
    listed, goes_on = threading.Event(), threading.Event()

    def listing(folder_fd: int) -> list[str]:
        names = tree.list_names(folder_fd)
        if not listed.is_set():
            listed.set()
            assert goes_on.wait(PATIENCE_S)
        return names

    monkeypatch.setattr(sessionlook, "list_names", listing)
    asking = asyncio.create_task(world.services.turns.ticket(DEFAULT_TENANT, AGENT))
    await asyncio.to_thread(listed.wait, PATIENCE_S)
    try:
        report(await world.suspend())
        (old,) = world.store.root.rglob(layout.manifest_file(1))
        old.unlink()  # as retention does
    finally:
        goes_on.set()
    ticket = await asking
    assert (ticket.generation, ticket.causes) == (2, ())


async def test_a_turn_whose_ticket_is_older_than_the_suspend(
    world: World, engine: FakeEngine
) -> None:
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    report(await world.suspend())
    answer = await world.http.post(
        f"{ticket.engine.url}/v1/completions",
        json={
            "model": ticket.model,
            "prompt": list(text(130)),
            "max_tokens": 8,
            "cache_salt": ticket.permit.cache_salt,
            "kv_transfer_params": ticket.kv_transfer_params,
        },
    )
    assert answer.json()["kv_transfer_params"]["sessiond"]["ok"]
    assert await state(world) is SessionState.ACTIVE
    assert report(await world.suspend())["snapshot"]["generation"] == 2
    assert count(engine, "turn") == 2


@pytest.mark.parametrize("other_daemon", [False, True])
async def test_a_sweep_beside_another_suspends_nothing_twice(
    world: World,
    engine: FakeEngine,
    other_daemon: bool,  # noqa: FBT001 - a parameter
) -> None:
    services = world.services
    if other_daemon:
        services = build(replace(services.context, owner="another"))
    world.pass_time(LATER_S)
    async with stopped_at(engine, "suspend"):
        first = asyncio.create_task(world.services.sweeper.sweep())
        await arrival(engine, "suspend")
        second = asyncio.create_task(services.sweeper.sweep())
        # It has nothing to do, or waits for the first one's suspend.
        await asyncio.wait((second,), timeout=0.1)
    reports = await first, await second
    assert sum(one.failed for one in reports) == 0
    assert count(engine, "suspend") == 1
    assert await state(world) is SessionState.SUSPENDED


# Two calls at once


@pytest.mark.parametrize("kind", [OperationKind.SUSPEND, OperationKind.RESUME])
async def test_the_same_call_twice_is_one_operation_with_one_result(
    world: World, engine: FakeEngine, kind: OperationKind
) -> None:
    if kind is OperationKind.RESUME:
        engine = await restarted(world, engine)
    async with stopped_at(engine, kind.value):
        first, second = await begin(world, kind), await begin(world, kind)
        await arrival(engine, kind.value)
    ends = await world.ended(first), await world.ended(second)
    assert ends[0] == ends[1]
    assert count(engine, kind.value) == 1


@pytest.mark.parametrize("keys", [("a", "a"), ("a", "b")])
async def test_two_resumes_with_keys_restore_once(
    world: World, engine: FakeEngine, keys: tuple[str, str]
) -> None:
    engine = await restarted(world, engine)
    async with stopped_at(engine, "resume"):
        begun = await asyncio.gather(*(begin(world, OperationKind.RESUME, key) for key in keys))
        await arrival(engine, "resume")
    assert begun[0].operation_id == begun[1].operation_id
    ends = [report(await world.ended(one)) for one in begun]
    assert [one["outcome"] for one in ends] == ["restored"] * 2
    assert count(engine, "resume") == 1
    # Later the keys still stand for that resume, and another one is a new one.
    again = await begin(world, OperationKind.RESUME, keys[1])
    assert again.operation_id == begun[1].operation_id
    assert report(await world.resume())["outcome"] == "warm"


async def test_a_call_waits_for_the_first_one_with_its_key(
    world: World, engine: FakeEngine
) -> None:
    limits = replace(
        world.services.context.limits, turn_settle_s=PATIENCE_S, key_settle_s=PATIENCE_S
    )
    object.__setattr__(world.services.context, "limits", limits)
    engine.begin_turn(DEFAULT_TENANT, AGENT)  # while it runs, no operation begins
    calls = [asyncio.create_task(begin(world, OperationKind.SUSPEND, "k")) for _ in range(2)]
    asyncio.get_running_loop().call_later(0.03, engine.end_turn, DEFAULT_TENANT, AGENT)
    first, second = await asyncio.gather(*calls)
    assert first.operation_id == second.operation_id
    report(await world.ended(first))
    assert count(engine, "suspend") == 1


OTHERS = [
    (running, coming)
    for running in (OperationKind.SUSPEND, OperationKind.RESUME)
    for coming in (OperationKind.SUSPEND, OperationKind.RESUME, OperationKind.DELETE)
    if running is not coming
]


@pytest.mark.parametrize(("running", "coming"), OTHERS)
async def test_another_call_is_refused_and_works_afterwards(
    world: World, engine: FakeEngine, running: OperationKind, coming: OperationKind
) -> None:
    engine = await restarted(world, engine)
    if running is OperationKind.SUSPEND:
        await world.turn(AGENT, text(150))
    async with stopped_at(engine, running.value):
        first = await begin(world, running)
        await arrival(engine, running.value)
        with pytest.raises(OperationInProgressError):
            await begin(world, coming)
    report(await world.ended(first))
    report(await world.ended(await begin(world, coming)))
    if coming is OperationKind.DELETE:
        with pytest.raises(SessionNotFoundError):
            await world.show()
        assert world.store.generations(DEFAULT_TENANT, AGENT) == []


@pytest.mark.parametrize("kind", [OperationKind.SUSPEND, OperationKind.RESUME])
async def test_a_delete_after_a_lost_lease_beats_what_still_runs(
    world: World, engine: FakeEngine, kind: OperationKind
) -> None:
    engine = await restarted(world, engine)
    if kind is OperationKind.SUSPEND:
        await world.turn(AGENT, text(150))
    async with stopped_at(engine, kind.value):
        first = await begin(world, kind)
        await arrival(engine, kind.value)
        # The daemon is so slow that another one takes it for dead.
        world.registry.expire_operations(world.services.context.now() + 1000)
        report(await world.delete())
    assert problem(await world.ended(first)) == "lease_expired"
    await world.services.operations.drain(PATIENCE_S)
    with pytest.raises(SessionNotFoundError):
        await world.show()
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    assert record.is_tombstone


# The engine dies


async def test_without_its_engine_a_session_gets_no_ticket(
    world: World, engine: FakeEngine
) -> None:
    world.kill_engine(engine)
    assert await state(world) is SessionState.COLD
    with pytest.raises(NoEngineError):
        await world.services.turns.ticket(DEFAULT_TENANT, AGENT)


async def test_an_engine_that_dies_during_a_suspend(world: World, engine: FakeEngine) -> None:
    async with stopped_at(engine, "suspend"):
        begun = await begin(world, OperationKind.SUSPEND)
        await arrival(engine, "suspend")
        world.kill_engine(engine)
        engine.faults.deaths |= {"suspend", "commit"}
    assert problem(await world.ended(begun)) == "engine_unreachable"
    assert await state(world) is SessionState.COLD
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []
    world.start_engine()
    await world.turn(AGENT, text(100))
    assert report(await world.suspend())["snapshot"]["generation"] == 1


async def test_an_engine_that_dies_after_the_commit_and_before_its_answer(
    world: World, engine: FakeEngine
) -> None:
    engine.faults.lost_answers |= {"suspend", "commit"}
    async with stopped_at(engine, "suspend"):
        begun = await begin(world, OperationKind.SUSPEND)
        await arrival(engine, "suspend")
        world.kill_engine(engine)
    assert report(await world.ended(begun))["snapshot"]["generation"] == 1
    assert await state(world) is SessionState.SUSPENDED
    world.start_engine()
    assert report(await world.resume())["outcome"] == "restored"


async def test_an_engine_that_dies_during_a_resume(world: World, engine: FakeEngine) -> None:
    engine = await restarted(world, engine)
    async with stopped_at(engine, "resume"):
        begun = await begin(world, OperationKind.RESUME)
        await arrival(engine, "resume")
        world.kill_engine(engine)
        engine.faults.deaths.add("resume")
    assert problem(await world.ended(begun)) == "engine_unreachable"
    view = await world.show()
    assert (view.state, view.session.last_outcome) == (SessionState.SUSPENDED, "failed")
    world.start_engine()
    assert report(await world.resume())["outcome"] == "restored"


@pytest.mark.parametrize("suspended", [True, False])
async def test_an_engine_that_dies_during_a_turn(
    world: World,
    engine: FakeEngine,
    suspended: bool,  # noqa: FBT001 - a parameter
) -> None:
    if suspended:
        report(await world.suspend())
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    assert await state(world) is SessionState.RUNNING
    world.kill_engine(engine)
    assert await state(world) is (SessionState.SUSPENDED if suspended else SessionState.COLD)
    engine = world.start_engine()
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert ticket.generation == (1 if suspended else 0)
    await world.turn(AGENT, text(130))
    report(await world.suspend())
    assert await state(world) is SessionState.SUSPENDED


async def test_a_client_that_hangs_up_mid_turn_leaves_a_session_that_can_be_suspended(
    world: World, engine: FakeEngine
) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    with pytest.raises(TurnInFlightError):
        await begin(world, OperationKind.SUSPEND)
    engine.end_turn(DEFAULT_TENANT, AGENT)  # vLLM has aborted its request
    assert await state(world) is SessionState.ACTIVE
    assert report(await world.suspend())["missing_tokens"] == 0


# The daemon dies: at every one of its steps in tests/acceptance; here, in every state


@pytest.mark.parametrize("kind", [OperationKind.SUSPEND, OperationKind.RESUME])
@pytest.mark.parametrize("committed", [True, False])
async def test_what_a_dead_daemon_held_is_free_and_true_again(
    world: World,
    engine: FakeEngine,
    kind: OperationKind,
    committed: bool,  # noqa: FBT001 - a parameter
) -> None:
    engine = await restarted(world, engine)
    await world.turn(AGENT, text(150))
    session = world.registry.get_session(DEFAULT_TENANT, AGENT)
    now = world.services.context.now()
    dead = an_operation(session, kind=kind, created_unix_s=now, lease_until_unix_s=now + 1)
    world.registry.begin_operation(dead)
    if committed and kind is OperationKind.SUSPEND:
        manifest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
        world.store.commit_manifest(replace(manifest, generation=2, parent_generation=1))
    with pytest.raises(OperationInProgressError):
        await begin(world, OperationKind.DELETE)
    world.pass_time(2)
    assert await world.services.recovery.recover() == 1
    found = world.registry.get_operation(DEFAULT_TENANT, dead.operation_id)
    assert found.status is OperationStatus.FAILED
    known = [one.generation for one in world.registry.list_snapshots(DEFAULT_TENANT, AGENT)]
    assert known == world.store.generations(DEFAULT_TENANT, AGENT)
    assert await state(world) is SessionState.ACTIVE
    assert report(await world.suspend())["missing_tokens"] == 0
    assert count(engine, "suspend") == 1
