from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.cron import parse_cron
from sessiond.domain.errors import RegistryUnavailableError
from sessiond.domain.session import SessionState
from sessiond.domain.windows import SweepWindow
from sessiond.scheduler.jobs import WINDOW_GRACE_S, Jobs
from sessiond.testing.world import AGENT, QUICK, World, open_world, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


async def idle_session(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    world.pass_time(301)


async def becomes(world: World, state: SessionState) -> None:
    async with asyncio.timeout(10):
        while (await world.show()).state is not state:
            await asyncio.sleep(0.02)


async def test_the_idle_sweep_runs_by_itself(world: World) -> None:
    await idle_session(world)
    jobs = Jobs(world.services, sweep_interval_s=0.05, lease_s=1.0)
    jobs.start()
    try:
        await becomes(world, SessionState.SUSPENDED)
    finally:
        jobs.stop()


async def test_what_has_expired_goes_by_itself(tmp_path: Path) -> None:
    limits = replace(QUICK, retention_interval_s=0.05, ttl_s=200.0)
    async with open_world(tmp_path, limits=limits) as world:
        await idle_session(world)
        await world.suspend()
        world.kill_engine(world.started[0])
        world.pass_time(600)
        jobs = Jobs(world.services, sweep_interval_s=60.0, lease_s=60.0)
        jobs.start()
        try:
            await becomes(world, SessionState.COLD)
        finally:
            jobs.stop()


async def test_a_registry_that_is_away_for_a_while_ends_no_job(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await idle_session(world)

    def away(_ids: object) -> None:
        raise RegistryUnavailableError

    jobs = Jobs(world.services, sweep_interval_s=0.05, lease_s=1.0)
    with caplog.at_level(logging.WARNING, "sessiond"), monkeypatch.context() as patched:
        patched.setattr(world.registry, "sessions_for_sweep", away)
        jobs.start()
        async with asyncio.timeout(10):
            while "sweep: The registry's database does not answer." not in caplog.messages:
                await asyncio.sleep(0.02)
    try:
        await becomes(world, SessionState.SUSPENDED)
    finally:
        jobs.stop()


def window_before(seconds: float) -> SweepWindow:
    """Return a window that came so long ago, and comes again tomorrow."""
    came = datetime.now(UTC) - timedelta(seconds=seconds)
    cron = parse_cron(f"{came.minute} {came.hour} * * *")
    return SweepWindow("evening", cron, "UTC", idle_s=60.0)


async def test_a_window_that_was_just_missed_is_made_up_for(tmp_path: Path) -> None:
    limits = replace(QUICK, sweep_windows=(window_before(WINDOW_GRACE_S / 3),))
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        await world.create(idle_timeout_s=86_400.0)
        await world.turn(AGENT, text(100))
        world.pass_time(61)
        jobs = Jobs(world.services, sweep_interval_s=3600.0, lease_s=60.0)
        jobs.start()
        try:
            await becomes(world, SessionState.SUSPENDED)
        finally:
            jobs.stop()


async def test_a_window_that_came_long_ago_is_left_out(tmp_path: Path) -> None:
    # A minute more, which a cron line cannot divide.
    limits = replace(QUICK, sweep_windows=(window_before(WINDOW_GRACE_S + 60),))
    async with open_world(tmp_path, limits=limits) as world:
        jobs = Jobs(world.services, sweep_interval_s=3600.0, lease_s=60.0)
        jobs.start()
        try:
            job = jobs._scheduler.get_job("window evening")
            assert job.next_run_time > datetime.now(UTC) + timedelta(hours=23)
        finally:
            jobs.stop()


async def test_a_window_waits_for_a_registry_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(QUICK, sweep_windows=(window_before(60),))
    async with open_world(tmp_path, limits=limits) as world:
        world.start_engine()
        await world.create(idle_timeout_s=86_400.0)
        await world.turn(AGENT, text(100))
        world.pass_time(61)
        failed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def away(_ids: object) -> None:
            loop.call_soon_threadsafe(failed.set)
            raise RegistryUnavailableError

        jobs = Jobs(world.services, sweep_interval_s=0.05, lease_s=60.0)
        with monkeypatch.context() as patched:
            patched.setattr(world.registry, "sessions_for_sweep", away)
            jobs.start()
            async with asyncio.timeout(10):
                await failed.wait()
        try:
            await becomes(world, SessionState.SUSPENDED)
        finally:
            jobs.stop()
