"""What was measured: each sample once, kept over restarts, and begun by a look at idle engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from sessiond.domain.calibration import Calibration, read_calibration
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.samples import PrefillSample, Tier
from sessiond.domain.timing import TurnTiming
from sessiond.service.calibration import kind_digest
from sessiond.service.firstlook import FirstLook
from sessiond.service.measured import load_sample, prefill_sample
from sessiond.service.planstate import Kind
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.world import AGENT, QUICK, World, open_world, report, text

pytestmark = pytest.mark.anyio
PREFILL = PrefillSample(1.0, 0, 64, 0.1)
LIMITS = replace(QUICK, plan_policy=PlanPolicy.AUTO)


@pytest.fixture
async def auto(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path / "first", limits=LIMITS) as world:
        yield world


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    (tmp_path / "first").mkdir()
    return tmp_path


def kind_of(world: World, engine: FakeEngine) -> Kind:
    return world.services.context.plans.engines[engine.info.engine_id].kind


async def settled(world: World) -> None:
    await world.services.catalogue.trail.settle()
    await world.services.planner.calibrator.settle()


async def come_and_go(world: World, engine: FakeEngine) -> None:
    """Let a session take a turn, be suspended, and come back from disk."""
    await world.create()
    await world.turn(AGENT, text(200))
    report(await world.suspend())
    engine.evict()
    report(await world.resume())
    await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    await settled(world)


async def test_the_end_does_not_wait_for_a_fit_that_rests(auto: World) -> None:
    engine = auto.start_engine()
    await come_and_go(auto, engine)
    kind = kind_of(auto, engine)
    kind.rest_until_s = monotonic() + 3600.0
    auto.services.planner.calibrator.add_prefill(kind, PrefillSample(1.0, 0, 64, 0.1))
    async with asyncio.timeout(60.0):
        await auto.services.planner.calibrator.close()
    assert not kind.is_unsaved


async def test_each_request_is_measured_once(auto: World) -> None:
    engine = auto.start_engine()
    await come_and_go(auto, engine)
    known = kind_of(auto, engine).calibration
    (load,) = known.loads
    assert (load.tier, load.tokens) == (Tier.NVME, 192)
    assert load.seconds == pytest.approx(
        engine.times.lookup_s + engine.times.load_fixed_s + load.stored_bytes / 2e9
    )
    assert [one.to_token for one in known.prefills] == [193]
    for _ in range(2):  # the head tells of it again
        await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)
    auto.services.catalogue.trail._noted_unix_s.clear()
    await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)
    await settled(auto)
    # The turn was taken before anybody had planned for this engine; since then it is known.
    assert [one.to_token for one in kind_of(auto, engine).calibration.prefills] == [193, 200]
    assert len(kind_of(auto, engine).calibration.loads) == 1


async def test_it_is_kept_over_a_restart(auto: World, tmp_path: Path) -> None:
    engine = auto.start_engine()
    await come_and_go(auto, engine)
    before = kind_of(auto, engine)
    await auto.services.planner.calibrator.save()

    async with open_world(tmp_path / "first", limits=LIMITS) as again:
        kind = await again.services.planner.calibrator.see(engine.info)
        assert kind.digest == before.digest == kind_digest(engine.info)
        assert kind.calibration == before.calibration
        assert kind.is_measured  # the first plan waits for the curves
        assert not kind.is_unsaved
        (path,) = (again.store.root / "calibration").iterdir()
        assert path.stem == kind.digest


async def test_daemons_of_one_store_add_to_each_other_s_measurements(
    auto: World, tmp_path: Path
) -> None:
    engine = auto.start_engine()
    await come_and_go(auto, engine)
    async with open_world(tmp_path / "first", limits=LIMITS) as other:
        mine, theirs = (one.services.planner.calibrator for one in (auto, other))
        kinds = [kind_of(auto, engine), await theirs.see(engine.info)]
        measured = [replace(PREFILL, at_unix_s=float(at)) for at in (1, 2)]
        for calibrator, kind, sample in zip((mine, theirs), kinds, measured, strict=True):
            calibrator.add_prefill(kind, sample)
        for calibrator in (mine, theirs):
            await calibrator.save()
        value = auto.store.calibrations.read(kinds[0].digest)
        assert value is not None
        kept = read_calibration(value).calibration
        assert set(kept.prefills) >= set(measured)
        assert kept.loads == kinds[0].calibration.loads != ()
        assert kinds[1].calibration == kept  # whoever saves last knows all
        await theirs.settle()
        assert kinds[1].curves.loads[Tier.NVME].trust.samples == 1


async def test_what_was_forgotten_is_not_brought_back_by_another_daemon(
    auto: World, tmp_path: Path
) -> None:
    engine = auto.start_engine()
    await come_and_go(auto, engine)
    mine, kind = auto.services.planner.calibrator, kind_of(auto, engine)
    await mine.save()
    async with open_world(tmp_path / "first", limits=LIMITS) as other:
        theirs = other.services.planner.calibrator
        same = await theirs.see(engine.info)
        assert same.calibration.loads != ()
        mine.forget_loads(kind, Tier.NVME, auto.services.context.now() + 1.0)
        await mine.save()
        theirs.add_prefill(same, PREFILL)
        await theirs.save()
        assert same.calibration.loads == ()
        value = auto.store.calibrations.read(kind.digest)
        assert value is not None
        assert value["loads"] == []


async def test_a_clock_that_was_ahead_spoils_nothing_that_comes_later(
    auto: World, tmp_path: Path
) -> None:
    """Neither in the daemon that believed it, nor in those that read what it had saved."""
    engine = auto.start_engine()
    await come_and_go(auto, engine)
    mine, kind = auto.services.planner.calibrator, kind_of(auto, engine)
    (load,), now = kind.calibration.loads, auto.services.context.now
    mine.forget_loads(kind, Tier.NVME, now() + 1e6)
    await mine.save()
    async with open_world(tmp_path / "first", limits=LIMITS) as other:
        theirs = await other.services.planner.calibrator.see(engine.info)
        for one in (kind, theirs):
            mine._add(one, replace(load, at_unix_s=now()), None)
            assert len(one.calibration.loads) == 1
        await mine.save()
        value = auto.store.calibrations.read(kind.digest)
    assert value is not None
    assert len(read_calibration(value).calibration.loads) == 1


@pytest.mark.parametrize("data", ["{", '{"version": 2, "loads": [], "prefills": []}'])
async def test_a_damaged_file_is_begun_anew(
    auto: World, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = auto.start_engine()
    folder = auto.store.root / "calibration"
    folder.mkdir(mode=0o700)
    (folder / f"{kind_digest(engine.info)}.json").write_text(data)

    kind = await auto.services.planner.calibrator.see(engine.info)

    assert kind.calibration == Calibration()
    assert "begun anew" in caplog.text
    await come_and_go(auto, engine)
    await auto.services.planner.calibrator.save()
    value = auto.store.calibrations.read(kind.digest)
    assert value is not None
    assert read_calibration(value).calibration == kind_of(auto, engine).calibration


async def test_kinds_of_engines_are_kept_apart(auto: World) -> None:
    one, same = auto.start_engine("one"), auto.start_engine("same")
    other = auto.start_engine("other", fields={"weights_digest": "f" * 64})
    elsewhere = auto.start_engine("elsewhere", fields={"platform": "GPU"})
    kinds = [kind_digest(engine.info) for engine in (one, same, other, elsewhere)]
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 3


async def test_an_idle_engine_is_looked_at_once(auto: World) -> None:
    engine = auto.start_engine()
    look = auto.services.first_look

    await look.run()
    await settled(auto)

    kind = kind_of(auto, engine)
    assert [one.to_token for one in kind.calibration.prefills] == [64, 1024]
    assert [seen.op for seen in engine.seen] == ["", "", ""]  # without a ticket, nothing is kept
    assert len({seen.cache_salt for seen in engine.seen}) == 3
    assert all(seen.cache_salt.startswith("sessiond-look-") for seen in engine.seen)
    nvme = kind.curves.loads[Tier.NVME]
    assert nvme.trust.samples == 0
    assert nvme.bytes_per_s != pytest.approx(1000 * (1 << 20))  # but the device's own rate
    assert kind.is_measured
    assert (auto.store.root / "calibration" / f"{kind.digest}.json").exists()
    await look.run()
    assert len(engine.seen) == 3


async def test_a_busy_engine_is_left_alone(auto: World) -> None:
    engine = auto.start_engine()
    queue, key = auto.services.context.resume_queue, (DEFAULT_TENANT, SessionId("other"))
    async with queue.place(key, engine.info, 1):
        await auto.services.first_look.run()
    assert engine.seen == []
    await auto.services.first_look.run()
    assert len(engine.seen) == 3


async def test_a_turn_ends_the_look(auto: World) -> None:
    engine = auto.start_engine()
    await auto.create()
    gate = engine.faults.gates[""] = asyncio.Event()
    looking = asyncio.create_task(auto.services.first_look.run())
    while not engine.seen:
        await asyncio.sleep(0.001)

    await auto.services.turns.ticket(DEFAULT_TENANT, AGENT)
    await looking

    kind = kind_of(auto, engine)
    assert kind.calibration.prefills == ()
    assert not kind.is_looked_at
    gate.set()
    await auto.services.first_look.run()  # another time
    assert kind.is_looked_at


async def test_a_setting_turns_it_off(auto: World) -> None:
    engine = auto.start_engine()
    planner = auto.services.planner
    await FirstLook(auto.services.context, planner.calibrator, enabled=False).run()
    assert engine.seen == []


async def test_an_engine_that_refuses_is_left_alone(auto: World) -> None:
    engine = auto.start_engine()
    engine.faults.http_errors[""] = 400
    await auto.services.first_look.run()
    assert kind_of(auto, engine).is_looked_at
    assert kind_of(auto, engine).calibration.prefills == ()


async def test_what_is_known_of_dead_engines_is_forgotten(auto: World) -> None:
    engine = auto.start_engine()
    await auto.services.first_look.run()
    auto.kill_engine(engine)
    await auto.services.first_look.run()
    assert auto.services.context.plans.engines == {}


TIMING = TurnTiming(
    lookup_s=0.004,
    queue_s=1.0,
    load_s=0.1,
    prefill_s=0.03,
    read_bytes=9000,
    ram_tokens=16,
    disk_tokens=32,
    prefill_from_token=64,
    prefill_to_token=80,
    others_running=1.5,
)


@pytest.mark.parametrize(
    ("changes", "tier", "stored_bytes"),
    [
        ({}, Tier.NVME, 9000),
        ({"disk_tokens": 0, "read_bytes": 0}, Tier.RAM, 4096),
        ({"load_s": 0.0, "disk_tokens": 0, "ram_tokens": 0}, None, 0),
        ({"read_bytes": 0}, None, 0),
    ],
)
async def test_what_a_timing_says_of_loads(
    auto: World, changes: dict[str, Any], tier: Tier | None, stored_bytes: int
) -> None:
    engine = auto.start_engine()
    found = load_sample(replace(TIMING, **changes), engine.info, 5.0)
    if tier is None:
        assert found is None
        return
    assert found is not None
    assert (found.tier, found.stored_bytes, found.queue_s) == (tier, stored_bytes, 1.0)
    assert found.seconds == pytest.approx(0.104)
    assert found.others == 1.5


async def test_what_a_timing_says_of_prefills() -> None:
    found = prefill_sample(TIMING, 5.0)
    assert found is not None
    assert (found.from_token, found.to_token, found.seconds) == (64, 80, 0.03)
    assert prefill_sample(replace(TIMING, prefill_to_token=64), 5.0) is None
    assert prefill_sample(replace(TIMING, prefill_s=0.0), 5.0) is None
