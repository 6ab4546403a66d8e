from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from sessiond.domain.errors import StoreError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.session import OperationKind, SessionState
from sessiond.service.retention import Retention
from sessiond.store.usage import DiskKind
from sessiond.testing.files import FaultyOps
from sessiond.testing.values import an_operation
from sessiond.testing.world import (
    AGENT,
    QUICK,
    World,
    open_world,
    problem,
    reasons,
    report,
    suspends,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.session import Operation
    from sessiond.service.pressure import RetentionReport
    from sessiond.store.usage import Usage

pytestmark = pytest.mark.anyio

A, B, C = SessionId("a"), SessionId("b"), SessionId("c")
SEEDS = {A: 11, B: 12, C: 13, AGENT: 14}
DAY_S = 86_400.0


async def used(
    world: World,
    session_id: SessionId,
    tokens: int = 100,
    **options: Any,  # noqa: ANN401 - see World.create
) -> None:
    """Create a session that has some KV in the engine."""
    await world.create(session_id, **options)
    await world.turn(session_id, text(tokens, SEEDS[session_id]))


async def stored(
    world: World,
    session_id: SessionId,
    **options: Any,  # noqa: ANN401 - see World.create
) -> Operation:
    await used(world, session_id, **options)
    ended = await world.suspend(session_id)
    report(ended)
    await asyncio.sleep(0.02)  # so that times tell the order
    return ended


async def run(world: World) -> RetentionReport:
    return await world.services.retention.run()


async def events(world: World, session_id: SessionId) -> list[tuple[str, dict[str, Any]]]:
    found = await world.services.catalogue.events(DEFAULT_TENANT, session_id, 0, 100)
    return [(one.kind, one.detail) for one in found]


async def has_snapshot(world: World, session_id: SessionId) -> bool:
    known = (await world.show(session_id)).session.snapshot is not None
    assert known == bool(world.store.generations(DEFAULT_TENANT, session_id))
    return known


def held_bytes(world: World) -> int:
    """Return what snapshots take."""
    usage = world.store.upkeep.usage()
    return usage.by_kind[DiskKind.SEGMENTS] + usage.by_kind[DiskKind.MANIFESTS]


def bound(world: World, **limits: Any) -> None:  # noqa: ANN401 - see Limits
    """Change limits of a running service."""
    context = world.services.context
    object.__setattr__(context, "limits", replace(context.limits, **limits))


def quota_for(world: World, snapshots: float) -> None:
    """Give the store a quota for what it holds and so many more snapshots, by their estimate."""
    total_bytes = world.store.upkeep.usage().total_bytes
    bound(world, quota_total_bytes=total_bytes + int(snapshots * 90_000))


# Quotas


async def test_a_quota_alone_limits_and_the_least_recently_used_goes(world: World) -> None:
    world.start_engine()
    for session_id in (A, B):
        await stored(world, session_id)
    await world.turn(A, text(100, SEEDS[A]))  # A is used again, so B is the older one
    quota_for(world, 0.6)
    await stored(world, C)
    assert [await has_snapshot(world, one) for one in (A, B, C)] == [True, False, True]
    kind, detail = (await events(world, B))[-1]
    assert (kind, detail["cause"], detail["generations"]) == (
        "snapshot_evicted",
        "quota_total",
        [1],
    )
    assert detail["bytes"] > 24_000
    assert detail["unread"] is True
    limits = world.services.context.limits
    assert world.store.upkeep.usage().total_bytes <= limits.quota_total_bytes
    text_shown = world.metrics.exposition(0).decode()
    assert 'sessiond_snapshot_removals_total{cause="quota_total"} 1.0' in text_shown
    assert 'sessiond_snapshot_unread_removals_total{cause="quota_total"} 1.0' in text_shown
    assert 'sessiond_store_bytes{kind="segments"}' in text_shown


async def test_an_evicted_session_stays_and_says_why_it_is_cold(world: World) -> None:
    engine = world.start_engine()
    await stored(world, A)
    quota_for(world, 0.6)
    await stored(world, C)
    world.kill_engine(engine)
    world.start_engine()
    assert (await world.show(A)).state is SessionState.COLD
    told = report(await world.resume(A))
    assert (told["outcome"], told["reason"]) == ("recomputed", "snapshot_evicted")
    await world.turn(A, text(100, SEEDS[A]))
    again = report(await world.suspend(A))["snapshot"]
    assert again["generation"] == 2  # no number is used twice
    assert (await world.show(A)).session.lost_reason == ""


async def test_a_tenants_quota_is_its_own_matter(tmp_path: Path) -> None:
    limits = replace(QUICK, quota_tenant_bytes=110_000)
    other = TenantId("other")
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        await world.services.catalogue.create(other, A)
        await world.turn(A, text(100, 5), tenant=other)
        report(await world.ended(await world.services.lifecycle.suspend(other, A)))
        for session_id in (A, B):
            await stored(world, session_id)
        assert not await has_snapshot(world, A)
        assert world.store.generations(other, A) == [1]
        by_tenant = world.store.upkeep.usage().by_tenant
        assert by_tenant[world.store.keys.tenant_name(DEFAULT_TENANT)] <= 110_000


async def test_a_tenant_over_its_quota_keeps_nobody_else_from_suspending(world: World) -> None:
    world.start_engine()
    other = TenantId("other")
    for session_id in (A, B):
        await stored(world, session_id, pinned=True)
    await world.services.catalogue.create(other, A)
    await world.turn(A, text(100, 5), tenant=other)
    bound(world, quota_tenant_bytes=90_000)
    report(await world.ended(await world.services.lifecycle.suspend(other, A)))


async def test_many_tenants_over_their_quotas_are_all_heard(world: World) -> None:
    world.start_engine()
    tenants = [TenantId(f"t{number}") for number in range(6)]
    for tenant in tenants:
        await world.services.catalogue.create(tenant, A)
        await world.turn(A, text(100, 5), tenant=tenant)
        report(await world.ended(await world.services.lifecycle.suspend(tenant, A)))
    bound(world, quota_tenant_bytes=30_000)
    assert (await run(world)).evicted == len(tenants)


async def test_what_others_have_pinned_is_told_to_nobody(world: World) -> None:
    world.start_engine()
    other = TenantId("other")
    await stored(world, A, pinned=True)
    await world.services.catalogue.create(other, A)
    await world.turn(A, text(100, 5), tenant=other)
    quota_for(world, 0.1)
    ended = await world.ended(await world.services.lifecycle.suspend(other, A))
    assert problem(ended) == "quota_exceeded"
    message = str((ended.result or {})["message"])
    assert message.endswith("and only pinned sessions and ones at work are left.")


async def test_where_only_pinned_ones_are_left_a_suspend_is_refused(world: World) -> None:
    engine = world.start_engine()
    await stored(world, A)
    await world.services.catalogue.change(DEFAULT_TENANT, A, {"pinned": True})
    await used(world, B)
    quota_for(world, 0.1)
    before = suspends(engine)
    ended = await world.suspend(B)
    assert problem(ended) == "quota_exceeded"
    assert "only pinned sessions" in str((ended.result or {})["message"])
    assert suspends(engine) == before  # nothing was written
    assert await has_snapshot(world, A)
    assert (await world.show(B)).state is SessionState.ACTIVE


async def test_a_snapshot_larger_than_the_quota_is_never_written(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, quota_total_bytes=150_000)) as world:
        engine = world.start_engine()
        await stored(world, A)
        await used(world, AGENT, tokens=1000)
        for _ in range(2):
            ended = await world.suspend()
            assert problem(ended) == "quota_exceeded"
            assert "more than the store's quota of 150000 bytes" in str(
                (ended.result or {})["message"]
            )
        assert suspends(engine) == 1
        assert await has_snapshot(world, A)  # nobody lost anything for it


async def test_one_that_turns_out_too_large_is_removed_and_not_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.start_engine()
    await stored(world, A)
    await used(world, AGENT, tokens=1000)
    bound(world, quota_tenant_bytes=200_000)
    with monkeypatch.context() as patched:
        patched.setattr("sessiond.service.storing._ratio", lambda _plan: 0.0)
        patched.setattr("sessiond.service.storing._CHUNK_EXTRA_BYTES", 0)
        assert problem(await world.suspend()) == "quota_exceeded"
        assert problem(await world.suspend()) == "quota_exceeded"
    assert suspends(engine) == 2
    assert not await has_snapshot(world, AGENT)
    assert await has_snapshot(world, A)
    assert (await events(world, AGENT))[-3][0] == "snapshot_evicted"


async def test_suspends_at_once_do_not_share_the_same_room(world: World) -> None:
    world.start_engine()
    for session_id in (A, B, C):
        await used(world, session_id)
    quota_for(world, 1.3)
    ended = await asyncio.gather(*(world.suspend(one) for one in (A, B, C)))
    limits = world.services.context.limits
    assert world.store.upkeep.usage().total_bytes <= limits.quota_total_bytes
    assert any(one.status.value == "succeeded" for one in ended)


# Expiry


async def test_snapshots_expire_and_say_so(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, ttl_s=DAY_S)) as world:
        engine = world.start_engine()
        await stored(world, A)
        await stored(world, B, ttl_s=0.0)  # never
        await stored(world, C, pinned=True)
        await stored(world, AGENT, ttl_s=3 * DAY_S)
        world.kill_engine(engine)
        world.pass_time(DAY_S - 60)
        assert (await run(world)).expired == 0
        world.pass_time(120)
        told = await run(world)
        assert (told.expired, told.segments_removed) == (1, 1)
        assert [await has_snapshot(world, one) for one in (A, B, C, AGENT)] == [False, *[True] * 3]
        assert (await world.show(A)).state is SessionState.COLD
        assert (await events(world, A))[-1][0] == "snapshot_expired"
        world.start_engine()
        answer = report(await world.resume(A))
        assert (answer["outcome"], reasons(answer)) == ("recomputed", ["snapshot_expired"])


async def test_without_a_default_only_a_ttl_of_its_own_counts(world: World) -> None:
    world.start_engine()
    await stored(world, A, ttl_s=DAY_S)
    await stored(world, B)
    world.pass_time(10 * DAY_S)
    assert (await run(world)).expired == 1
    assert [await has_snapshot(world, one) for one in (A, B)] == [False, True]


async def test_a_turn_renews_a_session(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, ttl_s=0.2)) as world:
        world.start_engine()
        await stored(world, A)
        await asyncio.sleep(0.25)
        await world.turn(A, text(100, SEEDS[A]))  # no call that the registry sees
        assert (await run(world)).expired == 0
        world.pass_time(1)
        assert (await run(world)).expired == 1


async def test_whoever_has_just_asked_for_a_ticket_keeps_what_it_names(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, ttl_s=DAY_S)) as world:
        engine = world.start_engine()
        for session_id in (A, B):
            await stored(world, session_id)
        world.kill_engine(engine)
        world.start_engine()
        world.pass_time(DAY_S - 10)
        ticket = await world.services.turns.ticket(DEFAULT_TENANT, A)
        world.pass_time(20)
        assert ((await run(world)).expired, ticket.generation) == (1, 1)
        assert [await has_snapshot(world, one) for one in (A, B)] == [True, False]


# Generations


async def begin_anew(world: World) -> None:
    """Let a session have another conversation, of which its snapshot has nothing."""
    for tokens in (120, 150):
        await world.turn(A, text(tokens, seed=77))


async def grown(world: World) -> None:
    """Give a session two generations that have nothing in common, and no valid ticket."""
    await stored(world, A)
    await begin_anew(world)
    world.pass_time(QUICK.turn_ticket_s + 100)
    report(await world.suspend(A))


async def test_an_old_generation_goes_with_the_commit_of_a_new_one(world: World) -> None:
    world.start_engine()
    await grown(world)
    assert world.store.generations(DEFAULT_TENANT, A) == [2]
    known = await world.services.catalogue.snapshots(DEFAULT_TENANT, A)
    assert [one.generation for one in known] == [2]
    before = held_bytes(world)
    assert (await run(world)).segments_removed == 1
    assert held_bytes(world) < before
    kinds = [kind for kind, _ in await events(world, A)]
    assert kinds[-2:] == ["snapshot_pruned", "suspended"]
    told = report(await world.resume(A))
    assert (told["outcome"], told["generation"]) == ("warm", 2)


async def test_a_generation_that_a_ticket_may_name_stays_until_that_is_over(world: World) -> None:
    world.start_engine()
    await stored(world, A)
    await begin_anew(world)
    report(await world.suspend(A))
    assert (await run(world)).pruned == 0
    assert world.store.generations(DEFAULT_TENANT, A) == [1, 2]
    world.pass_time(QUICK.turn_ticket_s + 100)
    assert (await run(world)).pruned == 1
    assert world.store.generations(DEFAULT_TENANT, A) == [2]


async def test_more_generations_may_be_kept(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, keep_generations=2)) as world:
        world.start_engine()
        await grown(world)
        assert world.store.generations(DEFAULT_TENANT, A) == [1, 2]


async def test_a_snapshot_stands_where_an_old_one_cannot_be_removed(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, ops=ops) as world:
        world.start_engine()
        ops.fail("unlink", errno.EIO, name_part=".manifest")
        await grown(world)  # a suspend that succeeds
        assert world.store.generations(DEFAULT_TENANT, A) == [1, 2]
        assert (await run(world)).pruned == 1
        assert world.store.generations(DEFAULT_TENANT, A) == [2]


async def test_a_reader_of_an_old_generation_is_not_disturbed(world: World) -> None:
    engine = world.start_engine()
    await stored(world, A)
    manifest = world.store.read_manifest(DEFAULT_TENANT, A, 1)
    (segment_id,) = manifest.segment_ids
    with world.store.open_segment(segment_id):  # as a running resume has it
        await begin_anew(world)
        world.pass_time(QUICK.turn_ticket_s + 100)
        report(await world.suspend(A))
        assert world.store.generations(DEFAULT_TENANT, A) == [2]
        assert (await run(world)).segments_busy == 1
        assert engine._kv.load(manifest, manifest.tokens).tokens == manifest.restorable_tokens
    assert (await run(world)).segments_removed == 1


# Who is at work


async def test_a_session_at_work_is_not_evicted(world: World) -> None:
    world.start_engine()
    for session_id in (A, B):
        await stored(world, session_id)
    session = (await world.show(A)).session
    now = world.services.context.now()
    operation = an_operation(
        session, kind=OperationKind.RESUME, created_unix_s=now, lease_until_unix_s=now + 60
    )
    world.registry.begin_operation(operation)
    quota_for(world, 0.6)
    await stored(world, C)
    assert [await has_snapshot(world, one) for one in (A, B, C)] == [True, False, True]


async def test_a_session_that_is_being_read_is_not_evicted(world: World) -> None:
    world.start_engine()
    for session_id in (A, B):
        await stored(world, session_id)
    (segment_id,) = world.store.read_manifest(DEFAULT_TENANT, A, 1).segment_ids
    with world.store.open_segment(segment_id):
        quota_for(world, 0.6)
        await stored(world, C)
        assert [await has_snapshot(world, one) for one in (A, B, C)] == [True, False, True]


async def test_a_pin_in_the_last_moment_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start_engine()
    await stored(world, A)
    await used(world, C)
    quota_for(world, 0.6)
    is_locked = world.store.upkeep.is_locked

    def pinned_meanwhile(segments: Collection[SegmentId]) -> bool:
        now = world.services.context.now()
        world.registry.update_session(DEFAULT_TENANT, A, pinned=True, updated_unix_s=now)
        return is_locked(segments)

    monkeypatch.setattr(world.store.upkeep, "is_locked", pinned_meanwhile)
    assert problem(await world.suspend(C)) == "quota_exceeded"
    assert await has_snapshot(world, A)
    assert (await events(world, A))[-1][0] == "suspended"


async def test_two_daemons_at_once_do_each_thing_once(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, ttl_s=DAY_S)) as world:
        world.start_engine()
        for session_id in (A, B, C):
            await stored(world, session_id)
        world.pass_time(DAY_S + 60)
        second = Retention(world.services.context)
        told = await asyncio.gather(run(world), second.run())
        assert sum(one.expired for one in told) == 3
        for session_id in (A, B, C):
            kinds = [kind for kind, _ in await events(world, session_id)]
            assert kinds.count("snapshot_expired") == 1


async def test_a_session_that_only_the_store_knows_can_be_evicted(world: World) -> None:
    engine = world.start_engine()
    await stored(world, A)
    with world.registry._engine.begin() as connection:  # a registry that lost a session
        for table in ("events", "operations", "snapshots", "sessions"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE session_id = 'a'")
    quota_for(world, 0.6)
    await stored(world, C)
    assert world.store.generations(DEFAULT_TENANT, A) == []
    assert suspends(engine) == 2


async def test_nothing_to_do_costs_little_and_changes_nothing(world: World) -> None:
    world.start_engine()
    await stored(world, A)
    await run(world)
    first, again = await run(world), await run(world)
    assert replace(first, free_bytes=0) == replace(again, free_bytes=0)  # others use the disk, too
    assert (first.expired, first.pruned, first.evicted, first.bytes_freed) == (0, 0, 0, 0)


async def test_gc_over_http(world: World) -> None:
    world.start_engine()
    await stored(world, A)
    report(await world.delete(A))
    world.pass_time(2 * DAY_S)
    transport = httpx.ASGITransport(world.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        told = (await client.post("/v1/admin/gc")).raise_for_status().json()
    assert told["tombstones_removed"] == 1
    assert told["store_bytes"] == world.store.upkeep.usage().total_bytes


async def test_files_that_cannot_be_removed_still_count(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, limits=replace(QUICK, ttl_s=DAY_S), ops=ops) as world:
        world.start_engine()
        await stored(world, A)
        world.pass_time(DAY_S + 60)
        ops.fail("unlink", errno.EIO, name_part=".manifest")
        with pytest.raises(StoreError):
            await run(world)
        assert world.store.generations(DEFAULT_TENANT, A) == [1]
        world.pass_time(QUICK.lease_s + 1)
        assert await world.services.recovery.recover() == 1
        assert await has_snapshot(world, A)
        world.pass_time(DAY_S + 60)
        assert (await run(world)).expired == 1
        assert not await has_snapshot(world, A)


async def test_one_bad_session_keeps_no_other_from_expiring(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, limits=replace(QUICK, ttl_s=DAY_S), ops=ops) as world:
        world.start_engine()
        for session_id in (A, B, C):
            await stored(world, session_id)
        world.pass_time(DAY_S + 60)
        ops.fail("unlink", errno.EIO, name_part=".manifest")  # once: of the first one
        with pytest.raises(StoreError):
            await run(world)
        left = [world.store.generations(DEFAULT_TENANT, one) for one in (A, B, C)]
        assert sorted(left) == [[], [], [1]]


async def test_a_session_of_which_nobody_can_tell_whether_it_is_pinned_stays(world: World) -> None:
    world.start_engine()
    for session_id in (A, B):
        await stored(world, session_id)
    with world.registry._engine.begin() as connection:  # a registry that lost a session
        for table in ("events", "operations", "snapshots", "sessions"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE session_id = 'a'")
    name = world.store.keys.session_name(DEFAULT_TENANT, A)
    (record,) = (world.store.root / "sessions").glob(f"*/{name}/session.json")
    record.write_bytes(b"no JSON")
    quota_for(world, 0.6)
    await stored(world, C)
    left = [world.store.generations(DEFAULT_TENANT, one) for one in (A, B, C)]
    assert left == [[1], [], [1]]


async def test_a_suspend_waits_for_no_run_of_retention(world: World) -> None:
    world.start_engine()
    await used(world, A)
    async with world.services.retention._one_at_a_time:  # as a collection that takes its time
        report(await asyncio.wait_for(world.suspend(A), 5))


# A full disk


async def test_a_full_disk_evicts_and_repeats_once(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, ops=ops) as world:
        engine = world.start_engine()
        await stored(world, A)
        await used(world, B)
        ops.fail("pwrite", errno.ENOSPC)
        assert report(await world.suspend(B))["missing_tokens"] == 0
        assert suspends(engine) == 3
        assert not await has_snapshot(world, A)
        (_, detail) = (await events(world, A))[-1]
        assert detail["cause"] == "store_full"


async def test_a_disk_that_stays_full_is_tried_twice_and_no_more(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, ops=ops) as world:
        engine = world.start_engine()
        for session_id in (A, B):
            await stored(world, session_id)
        await used(world, C)
        ops.fail("pwrite", errno.EDQUOT, times=99)
        before = suspends(engine)
        assert problem(await world.suspend(C)) == "store_full"
        assert suspends(engine) == before + 2


async def test_a_full_disk_with_nothing_to_evict_says_so_with_figures(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, ops=ops) as world:
        world.start_engine()
        await stored(world, A, pinned=True)
        await used(world, B)
        ops.fail("pwrite", errno.ENOSPC, times=99)
        ended = await world.suspend(B)
        assert problem(ended) == "store_full"
        message = str((ended.result or {})["message"])
        assert "bytes" in message
        assert "only pinned sessions" in message
        assert await has_snapshot(world, A)


async def test_far_from_its_quota_a_suspend_does_without_a_look_at_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start_engine()
    bound(world, quota_total_bytes=1 << 30, quota_tenant_bytes=1 << 30)
    await stored(world, A)  # the first one looks
    looks: list[None] = []
    usage = world.store.upkeep.usage

    def counted() -> Usage:
        looks.append(None)
        return usage()

    monkeypatch.setattr(world.store.upkeep, "usage", counted)
    await stored(world, B)
    assert not looks
    bound(world, quota_total_bytes=world.store.upkeep.usage().total_bytes + 70_000)
    del looks[:]
    await stored(world, C)  # near it, figures are needed
    assert looks
