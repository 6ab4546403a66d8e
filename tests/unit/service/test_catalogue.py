from __future__ import annotations

import asyncio

import pytest

from sessiond.domain.errors import SessionExistsError, SessionNotFoundError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.session import SessionState
from sessiond.service.catalogue import Wanted
from sessiond.service.purge import PurgeReport
from sessiond.testing.world import AGENT, World, report, text

pytestmark = pytest.mark.anyio


async def test_the_store_learns_what_a_rebuild_needs(world: World) -> None:
    view = await world.create(model="smol", idle_timeout_s=7.5)
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"pinned": True})
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    assert (record.model, record.idle_timeout_s, record.pinned) == ("smol", 7.5, True)
    assert record.created_unix_s == view.session.created_unix_s


async def test_null_is_a_value_of_the_timeout(world: World) -> None:
    await world.create(idle_timeout_s=7.5)
    view = await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"idle_timeout_s": None})
    assert view.session.idle_timeout_s is None


async def test_an_id_is_made_if_none_is_given(world: World) -> None:
    one = await world.services.catalogue.create(DEFAULT_TENANT, None)
    two = await world.services.catalogue.create(DEFAULT_TENANT, None)
    assert one.session.session_id != two.session.session_id


async def test_an_id_is_taken_once(world: World) -> None:
    results = await asyncio.gather(*(world.create() for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(result, SessionExistsError) for result in results) == 3


async def test_tenants_do_not_see_each_other(world: World) -> None:
    other = TenantId("other")
    await world.create()
    with pytest.raises(SessionNotFoundError):
        await world.services.catalogue.show(other, AGENT)
    await world.services.catalogue.create(other, AGENT)
    page = await world.services.catalogue.page(other, Wanted(), None, 10)
    assert [view.session.tenant for view in page.views] == [other]


async def test_a_deleted_session_is_gone_with_its_bytes(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    told = report(await world.delete())
    assert told["manifests"] == 1
    with pytest.raises(SessionNotFoundError):
        await world.show()
    assert list(world.store.root.rglob("*.manifest")) == []
    assert list(world.store.root.rglob("*.seg")) == []
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 10)
    assert events[-1].kind == "deleted"
    report(await world.delete())  # may be repeated


async def test_deleting_what_never_was(world: World) -> None:
    with pytest.raises(SessionNotFoundError):
        await world.delete()


async def test_deleting_one_session_leaves_the_others_bytes_alone(world: World) -> None:
    other = SessionId("other")
    world.start_engine()
    for session_id in (AGENT, other):
        await world.create(session_id)
        await world.turn(session_id, text(100))
        report(await world.suspend(session_id))
    before = {path: path.read_bytes() for path in world.store.root.rglob("*.seg")}
    report(await world.delete())
    left = {path: path.read_bytes() for path in world.store.root.rglob("*.seg")}
    assert left.items() <= before.items()
    assert len(left) == 1


async def test_an_id_can_be_used_again_and_is_empty(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    report(await world.delete())
    view = await world.create()
    assert view.state is SessionState.COLD
    assert view.session.snapshot is None
    await world.turn(AGENT, text(50))
    assert report(await world.suspend())["snapshot"]["tokens_total"] == 58
    assert engine.seen[-1].op == "commit"


async def test_a_delete_that_only_reached_the_registry_hides_the_old_snapshots(
    world: World,
) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.registry.mark_deleted(DEFAULT_TENANT, AGENT, world.services.context.now())
    view = await world.create()
    assert view.session.snapshot is None
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []


async def test_a_key_makes_a_create_repeatable(world: World) -> None:
    create = world.services.catalogue.create
    first = await create(DEFAULT_TENANT, None, "smol", key="k1")
    second = await create(DEFAULT_TENANT, None, "smol", key="k1")
    assert first == second
    with pytest.raises(SessionExistsError):
        await create(DEFAULT_TENANT, first.session.session_id, key="k2")
    report(await world.delete(first.session.session_id))
    again = await create(DEFAULT_TENANT, first.session.session_id, key="k2")
    assert again.session.session_id == first.session.session_id


async def test_pages(world: World) -> None:
    ids = [SessionId(f"s{at}") for at in range(5)]
    for session_id in ids:
        await world.create(session_id)
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await world.services.catalogue.page(DEFAULT_TENANT, Wanted(), after, 2)
        seen += [view.session.session_id for view in page.views]
        after = page.next_after
        if after is None:
            break
    assert seen == ids


async def test_purge_takes_filters_and_spares_the_pinned(world: World) -> None:
    for name, pinned, model in (("a", False, "m"), ("b", True, "m"), ("c", False, "n")):
        await world.create(SessionId(name), model=model, pinned=pinned)
    purge = world.services.purger.purge
    tried = await purge(DEFAULT_TENANT, Wanted(model="m"), dry_run=True)
    assert tried == PurgeReport(1, 0, 0, (SessionId("a"),))
    done = await purge(DEFAULT_TENANT, Wanted(), dry_run=False)
    assert (done.matched, done.deleted, done.failed) == (2, 2, 0)
    assert (await world.show(SessionId("b"))).session.pinned
    done = await purge(DEFAULT_TENANT, Wanted(pinned=True), dry_run=False)
    assert done.session_ids == ("b",)
