"""The scrub, with a clock that the tests turn."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.service.background import Background
from sessiond.service.scrub import ScrubReport, begin, due_name
from sessiond.store.codecs import Codec
from sessiond.store.findings import VerifyOptions
from sessiond.store.scrublog import ScrubPlace
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import SnapshotPlan, write_snapshot
from sessiond.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Generator

SESSIONS = 8
WEEK_S = 7 * 86_400.0


def a_plan(number: int) -> SnapshotPlan:
    session = SessionId(f"agent-{number}")
    return SnapshotPlan(
        seed=number, chunk_bytes=600, codec=Codec.RAW, tenant=DEFAULT_TENANT, session=session
    )


@pytest.fixture
async def full(world: World) -> World:
    for number in range(SESSIONS):
        await world.create(a_plan(number).session)
        write_snapshot(world.store, a_plan(number))
    return world


def damage(world: World, number: int) -> None:
    manifest = world.store.read_manifest(DEFAULT_TENANT, a_plan(number).session, 1)
    chunk = manifest.chunks[1]
    path = world.store.root / "segments" / chunk.segment_id[:2] / f"{chunk.segment_id}.seg"
    flip_byte(path, chunk.offset_bytes + 50)


def events(world: World, session_id: SessionId) -> list[str]:
    return [event.kind for event in world.registry.list_events(DEFAULT_TENANT, session_id)]


@pytest.mark.anyio
async def test_a_round_reads_everything_once_whenever_it_is_run(full: World) -> None:
    scrub = full.services.scrubber.scrub
    assert await scrub() == ScrubReport()  # a round begins
    runs = []
    for passed_s in (0.0, WEEK_S / 4, 0.0, WEEK_S / 2, WEEK_S / 2):
        full.pass_time(passed_s)
        runs.append(await scrub())
    assert sum(run.sessions for run in runs) == SESSIONS
    assert [run.sessions for run in runs[::2]][:2] == [0, 0]
    assert all(run.sessions for run in runs if run is not runs[0] and run is not runs[2])
    assert [run.finished for run in runs] == [False, False, False, False, True]
    full.pass_time(2 * WEEK_S)  # nobody was there: all at once, and no more than once
    assert (await scrub()).sessions == SESSIONS
    assert (await scrub()).sessions == 0


@pytest.mark.anyio
async def test_damage_is_noted_told_once_and_counted(full: World) -> None:
    damage(full, 3)
    await full.services.scrubber.scrub()
    for _ in range(2):
        full.pass_time(WEEK_S)
        assert (await full.services.scrubber.scrub()).damaged == 1
    session_id = a_plan(3).session
    manifest = full.store.read_manifest(DEFAULT_TENANT, session_id, 1)
    bad = manifest.chunks[1]
    assert full.store.bad_chunks(bad.segment_id) == {bad.offset_bytes}
    assert events(full, session_id) == ["created", "snapshot_damaged"]
    detail = full.registry.list_events(DEFAULT_TENANT, session_id)[-1].detail
    assert (detail["what"], detail["generations"]) == ("chunk", [1])
    assert list((full.store.root / "quarantine").iterdir()) == []
    told = full.metrics.exposition(0).decode()
    assert "sessiond_damage_found_total 2.0" in told


@pytest.mark.anyio
async def test_two_daemons_do_not_read_twice(full: World) -> None:
    with full.store.claim_scrub() as log:
        assert log is not None
        assert (await full.services.scrubber.scrub()).claimed is False
    await full.services.scrubber.scrub()
    full.pass_time(WEEK_S)
    both = await asyncio.gather(*(full.services.scrubber.scrub() for _ in range(2)))
    assert sum(run.sessions for run in both) == SESSIONS


@pytest.mark.anyio
async def test_a_log_that_cannot_be_read_begins_a_new_round(full: World) -> None:
    await full.services.scrubber.scrub()
    (full.store.root / "scrub.json").write_bytes(b"\0" * 9000)
    full.pass_time(WEEK_S)
    assert await full.services.scrubber.scrub() == ScrubReport()
    full.pass_time(WEEK_S)
    assert (await full.services.scrubber.scrub()).sessions == SESSIONS


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_later_time_is_a_later_name(earlier: float, later: float) -> None:
    place = ScrubPlace(1000.0, "")
    low, high = sorted((earlier, later))
    assert due_name(place, 1000 + low, 1.0) <= due_name(place, 1000 + high, 1.0)
    assert due_name(place, 1001.0, 1.0) > "f" * 32


def test_a_clock_that_was_ahead_does_not_stop_the_scrub() -> None:
    place = begin(ScrubPlace(5000.0, "8"), 1000.0)
    assert place == ScrubPlace(1000.0, "8")
    assert due_name(place, 1000.0, 10.0) == "8"
    assert due_name(place, 1009.0, 10.0) > "e"


@pytest.mark.anyio
async def test_it_reads_slowly_and_gives_way() -> None:
    busy, done = [True], []

    def steps() -> Generator[int, None, None]:
        for _ in range(4):
            done.append(1)
            yield 1000

    background = Background(lambda: busy[0], 0.01)
    driving = asyncio.create_task(background.drive(steps(), bytes_per_s=20_000.0))
    await asyncio.sleep(0.1)
    assert done == []
    busy[0] = False
    began_s = time.monotonic()
    await driving
    assert len(done) == 4
    assert time.monotonic() - began_s >= 0.15


@pytest.mark.anyio
async def test_verification_on_demand_is_one_at_a_time(full: World) -> None:
    damage(full, 1)
    verifier = full.services.verifier
    options = VerifyOptions(tenant=DEFAULT_TENANT)
    run = await verifier.start(DEFAULT_TENANT, options)
    assert await verifier.start(DEFAULT_TENANT, options) is run
    await verifier.wait(run, 10.0)
    assert not run.is_running
    assert (run.report.sessions, run.report.damaged) == (SESSIONS, 1)
    assert verifier.newest(DEFAULT_TENANT) is run
    assert events(full, a_plan(1).session)[-1] == "snapshot_damaged"
