"""What sweeps do not write, what they learn it from, and what becomes of what was written."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from sessiond.domain.errors import RegistryUnavailableError, SuspendRefusedError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.returns import Returns
from sessiond.domain.session import SessionState
from sessiond.domain.tokens import token_ids
from sessiond.service import returns, writes
from sessiond.service.sweep import SweepReport
from sessiond.service.worth import Worth
from sessiond.testing.world import AGENT, PATIENT, World, open_world, report, suspends, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from sessiond.service.limits import Limits
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

IDLE_S, DAY_S, RETRY_S = 300.0, 86_400.0, 4000.0
KIND = (DEFAULT_TENANT, "")
#: Nothing is written only to learn from it.
STRICT = replace(PATIENT, write_explored_part=0.0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, limits=PATIENT) as world:
        yield world


async def swept(world: World, wait_s: float = IDLE_S + 1) -> SweepReport:
    world.pass_time(wait_s)
    return await world.services.sweeper.sweep()


async def refusals(world: World, session_id: SessionId = AGENT) -> list[str]:
    events = await world.services.catalogue.events(DEFAULT_TENANT, session_id, 0, 100)
    return [str(event.detail["reason"]) for event in events if event.kind == "suspend_refused"]


def known(world: World) -> tuple[float, float]:
    """Return how many sessions have come back, and how many went."""
    tally = returns.returns(world.services.context).kinds.get(KIND)
    return (round(tally.came, 3), round(tally.went, 3)) if tally else (0.0, 0.0)


def learn(world: World, went: int) -> None:
    learned, now = Returns(), world.services.context.now()
    for _ in range(went):
        learned = learned.with_outcome(KIND, now, came_back=False)
    world.registry.set_switch("returns", learned.as_json(), now)


def counted(world: World, what: str) -> int:
    shown = world.metrics.exposition(1).decode()
    found = re.search(rf"^sessiond_snapshot_bytes_{what}_total (\S+)$", shown, re.MULTILINE)
    assert found
    return int(float(found[1]))


def fates(world: World) -> tuple[int, int, int]:
    """Return how many bytes were written, and of them read, and lost without it."""
    return counted(world, "written"), counted(world, "read"), counted(world, "unread")


async def test_a_short_context_is_refused_once_until_it_grows(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(PATIENT, write_least_tokens=112)) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        expected = SweepReport(1, 1, 0, 0, refused=1, refused_for={"too_few_tokens": 1})
        assert await swept(world) == expected
        assert (await swept(world, 0.0)).due == 0  # it is not looked at again at once
        assert await swept(world, RETRY_S) == SweepReport(1, 1, 0, 0)  # and is no news
        assert await refusals(world) == ["too_few_tokens"]
        shown = world.metrics.exposition(1).decode()
        assert 'kind="suspend",outcome="refused",reason="too_few_tokens"} 1.0' in shown
        assert 'sessiond_causes_total{kind="suspend",reason="too_few_tokens"} 1.0' in shown
        assert 'sessiond_sweep_sessions_total{end="refused"} 1.0' in shown
        assert suspends(engine) == 0
        await world.turn(AGENT, text(130))
        assert (await swept(world)).suspended == 1
        assert (await refusals(world)) == ["too_few_tokens"]


async def test_another_turn_makes_a_refusal_news_again(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(PATIENT, write_least_tokens=1000)) as world:
        world.start_engine()
        await world.create()
        for length in (100, 130):
            await world.turn(AGENT, text(length))
            assert (await swept(world)).refused == 1
        assert await refusals(world) == ["too_few_tokens"] * 2
        assert known(world) == (1.0, 0.0)  # it came back, though nothing was written


@pytest.mark.parametrize(
    ("change", "went", "reason"),
    [
        ({}, 0, None),
        ({}, 19, None),  # too few to judge
        ({}, 21, "no_expected_return"),
        ({"write_explored_part": 1.0}, 21, None),
        ({"write_least_chance": 0.0}, 21, None),
        ({"write_pressure_bytes": 1 << 60}, 0, None),
        ({"write_pressure_bytes": 1 << 60, "write_least_chance": 0.0}, 21, "pressure"),
        ({"write_pressure_bytes": 1 << 60, "write_pressure_chance": 0.0}, 19, None),
    ],
)
async def test_what_hardly_comes_back_is_not_written(
    tmp_path: Path, change: dict[str, float], went: int, reason: str | None
) -> None:
    limits: Limits = replace(STRICT, **change)  # type: ignore[arg-type]
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        world.pass_time(IDLE_S + 1)
        learn(world, went)
        told = await world.services.sweeper.sweep()
        assert told.suspended == (reason is None)
        assert told.refused_for == ({reason: 1} if reason else {})
        report(await world.suspend())  # whoever asks for it knows why


async def test_a_day_has_its_bytes(tmp_path: Path) -> None:
    # One after the other: how much is written is known only afterwards.
    limits = replace(PATIENT, write_bytes_per_day=100, sweep_concurrency=1)
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        first, second = SessionId("a"), SessionId("b")
        for session_id in (first, second):
            await world.create(session_id)
            await world.turn(session_id, text(100))
        told = await swept(world)
        assert (told.suspended, told.refused_for) == (1, {"write_budget_spent": 1})
        refused = second if (await world.show(first)).state is SessionState.SUSPENDED else first
        assert await refusals(world, refused) == ["write_budget_spent"]
        assert (await swept(world, RETRY_S)).suspended == 0
        overdrawn_bytes = -writes.left_bytes(world.services.context)
        world.pass_time(DAY_S * (overdrawn_bytes + 1) / 100)
        assert (await swept(world, RETRY_S)).suspended == 1


async def test_what_the_day_s_bytes_held_back_goes_as_soon_as_they_allow_it(
    tmp_path: Path,
) -> None:
    limits = replace(PATIENT, write_bytes_per_day=100, sweep_concurrency=1)
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        for name in ("a", "b"):
            await world.create(SessionId(name))
            await world.turn(SessionId(name), text(100))
        assert (await swept(world)).refused == 1
        for wait_s in (70.0, 130.0, 250.0):  # ever longer
            assert (await swept(world, wait_s)).due == 1
        assert (await swept(world, 1.0)).due == 0
        raised = replace(limits, write_bytes_per_day=1 << 40)
        object.__setattr__(world.services.context, "limits", raised)
        assert (await swept(world, 1.0)).suspended == 1


async def test_few_bytes_are_not_offered_to_all_who_wait_for_them(tmp_path: Path) -> None:
    limits = replace(PATIENT, write_bytes_per_day=100, sweep_concurrency=1)
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        for number in range(6):
            await world.create(SessionId(f"{number}"))
            await world.turn(SessionId(f"{number}"), text(100))
        assert (await swept(world)).refused == 5
        world.pass_time(DAY_S * (1 - writes.left_bytes(world.services.context)) / 100)
        with patch.object(Worth, "check", autospec=True, side_effect=Worth.check) as asked:
            told = await swept(world, RETRY_S)
        assert (told.due, told.suspended, told.refused) == (5, 1, 0)
        assert asked.call_count == 2  # the one that is written, and the first that is not
        assert (await swept(world, 1.0)).due == 0


async def test_what_is_refused_for_other_reasons_waits_though_there_are_bytes(
    tmp_path: Path,
) -> None:
    limits = replace(PATIENT, write_bytes_per_day=1 << 40, write_least_tokens=1000)
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        assert (await swept(world)).refused == 1
        assert (await swept(world, 1.0)).due == 0


@pytest.mark.parametrize("holds", [False, True])
async def test_who_asks_is_refused_only_if_the_setting_says_so(
    tmp_path: Path, *, holds: bool
) -> None:
    limits = replace(PATIENT, write_bytes_per_day=100, write_holds_explicit=holds)
    async with open_world(tmp_path, limits=limits) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        report(await world.suspend())
        report(await world.suspend())  # there is nothing to write
        await world.turn(AGENT, text(130))
        if not holds:
            report(await world.suspend())
            return
        asked = suspends(engine)
        with pytest.raises(SuspendRefusedError, match="bytes") as refused:
            await world.suspend()
        assert not refused.value.retryable
        assert await refusals(world) == ["write_budget_spent"]
        assert suspends(engine) == asked


async def comes_with_a_turn(world: World) -> None:
    await world.turn(AGENT, text(130))
    await world.services.sweeper.sweep()


async def is_resumed(world: World) -> None:
    report(await world.resume())


async def is_deleted(world: World) -> None:
    report(await world.delete())


async def turns_and_is_deleted(world: World) -> None:
    await world.turn(AGENT, text(130))
    report(await world.delete())


async def expires(world: World) -> None:
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"ttl_s": 10.0})
    world.pass_time(20.0)
    await world.services.retention.run()


async def stays_away(world: World) -> None:
    world.pass_time(world.services.context.limits.return_horizon_s + 1)
    await world.services.retention.run()


@pytest.mark.parametrize(
    ("happens", "outcome"),
    [
        (comes_with_a_turn, (1.0, 0.0)),
        (is_resumed, (1.0, 0.0)),
        (turns_and_is_deleted, (1.0, 0.0)),
        (is_deleted, (0.0, 1.0)),
        (expires, (0.0, 1.0)),
        (stays_away, (0.0, 1.0)),
    ],
)
@pytest.mark.usefixtures("engine")
async def test_each_return_is_counted_once(
    world: World, happens: Callable[[World], Awaitable[None]], outcome: tuple[float, float]
) -> None:
    assert (await swept(world)).suspended == 1
    assert known(world) == (0.0, 0.0)
    assert (await world.show()).session.away_unix_s is not None
    await happens(world)
    assert known(world) == outcome
    await world.services.sweeper.sweep()
    await world.services.retention.run(full=True)
    assert known(world) == outcome


@pytest.mark.usefixtures("engine")
async def test_what_was_learned_and_cannot_be_read_is_learned_anew(world: World) -> None:
    for name in ("returns", "write_budget"):
        world.registry.set_switch(name, {"version": 99}, 1.0)
    report(await world.suspend())
    report(await world.resume())
    assert known(world) == (1.0, 0.0)


@pytest.mark.usefixtures("engine")
async def test_a_resume_succeeds_though_it_cannot_be_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(await world.suspend())

    def fail(*_: object) -> None:
        raise RegistryUnavailableError

    monkeypatch.setattr(world.registry, "end_away", fail)
    monkeypatch.setattr(world.registry, "read_snapshots", fail)
    report(await world.resume())
    assert known(world) == (0.0, 0.0)


async def test_a_suspend_succeeds_though_its_bytes_cannot_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(tmp_path, limits=replace(PATIENT, write_bytes_per_day=100)) as world:
        world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))

        def fail(*_: object) -> None:
            raise RegistryUnavailableError

        monkeypatch.setattr(world.registry, "revise_switch", fail)
        report(await world.suspend())
        assert await stored_bytes(world) > 0


async def stored_bytes(world: World) -> int:
    summary = (await world.show()).session.snapshot
    assert summary
    return summary.stored_bytes


async def pruned(world: World) -> None:
    """Let the older snapshot go, which a ticket may still have named."""
    world.pass_time(3600.0)
    await world.services.retention.run()
    assert len(world.store.generations(DEFAULT_TENANT, AGENT)) == 1


async def test_bytes_that_are_loaded_are_read_once(world: World, engine: FakeEngine) -> None:
    report(await world.suspend())
    size = await stored_bytes(world)
    assert fates(world) == (size, 0, 0)
    for _ in range(2):
        world.kill_engine(engine)
        engine = world.start_engine()
        await world.turn(AGENT, text(130))
        await world.services.sweeper.sweep()
        assert fates(world) == (size, size, 0)
    report(await world.delete())
    assert fates(world) == (size, size, 0)


async def test_a_resume_from_disk_reads_them_as_well(world: World, engine: FakeEngine) -> None:
    report(await world.suspend())
    report(await world.resume())  # they are in VRAM
    assert counted(world, "read") == 0
    world.kill_engine(engine)
    world.start_engine()
    report(await world.resume())
    assert counted(world, "read") == counted(world, "written") > 0


@pytest.mark.parametrize("happens", [is_deleted, expires])
@pytest.mark.usefixtures("engine")
async def test_bytes_that_go_unread_are_counted(
    world: World, happens: Callable[[World], Awaitable[None]]
) -> None:
    report(await world.suspend())
    size = await stored_bytes(world)
    await happens(world)
    assert fates(world) == (size, 0, size)


@pytest.mark.usefixtures("engine")
async def test_what_a_newer_snapshot_shares_is_not_lost_with_the_older_one(world: World) -> None:
    report(await world.suspend())
    await world.turn(AGENT, text(200))
    report(await world.suspend())
    await pruned(world)
    written, read, unread = fates(world)
    assert (written, read, unread) == (await stored_bytes(world), 0, 0)
    report(await world.delete())
    assert fates(world) == (written, 0, written)


@pytest.mark.usefixtures("engine")
async def test_what_a_newer_snapshot_does_not_have_is_lost(world: World) -> None:
    report(await world.suspend())
    first = await stored_bytes(world)
    for length in (100, 130):  # a new line has to last before it takes the old one's place
        await world.turn(AGENT, token_ids((*text(48), *text(length, seed=2))))
        world.pass_time(3600.0)
    report(await world.suspend())
    await pruned(world)
    written, read, unread = fates(world)
    assert (written - unread, read) == (await stored_bytes(world), 0)
    assert unread == first // 2  # of 96 tokens, the second 48
    report(await world.delete())
    assert fates(world) == (written, 0, written)
