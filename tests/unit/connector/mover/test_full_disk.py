"""Suspends into a real file system that is really full."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sessiond.connector.mover import protocol
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.service import storing
from sessiond.testing import small_disk
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, TENANT, bf16_bytes, some_tokens
from sessiond.testing.world import QUICK, open_world, report, text

DISK_BYTES = 24 << 20  # the smallest that mkfs.ext4 gives a journal
CHUNKS = 20
HEAD = some_tokens(CHUNKS * CHUNK_TOKENS + 3)


@pytest.mark.parametrize("kind", small_disk.KINDS)
def test_a_full_disk(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    why_not = small_disk.refusal(kind, folder)
    if why_not:
        pytest.skip(why_not)
    small_disk.run(kind, DISK_BYTES, folder, Path(__file__), use_a_full_disk.__name__)
    assert list(folder.iterdir()) == []  # the disk is gone


# What follows runs in a process of its own, where the folder is a small disk.


def use_a_full_disk(folder: Path) -> None:
    """Run both programs; they need a second to start."""
    for program in (suspend_through_a_mover, suspend_through_the_service):
        part = folder / program.__name__
        part.mkdir()
        program(part)
        shutil.rmtree(part)


def suspend_through_a_mover(folder: Path) -> None:
    """The system itself says that there is no room, in the middle of a segment."""
    rig = MoverRig(folder, replace(make_hello(folder), floor_bytes=0), in_process=False)
    try:
        assert rig.suspend("first", HEAD).snapshot
        small_disk.fill(folder, leave_bytes=100_000)
        ended = rig.suspend("second", HEAD)
        stored = ended.snapshot["chunks"] if ended.snapshot else 0
        assert [cause["reason"] for cause in ended.causes] == ["store_full"]
        assert stored < CHUNKS
        assert rig.store.generations(TENANT, SessionId("second")) == ([1] if stored else [])
        # A segment that was whole when its manifest found no room is nobody's, and goes.
        rig.store.upkeep.usage()
        rig.store.upkeep.collect_changed()
        assert len(segments(rig)) == 1 + bool(stored)
        assert list((rig.store.root / "tmp").iterdir()) == []
        check_first(rig)
        evict(rig, "first")
        again = rig.suspend("second", HEAD, generation=2)
        assert (again.snapshot or {})["chunks"] == CHUNKS
        assert again.causes == []
        assert list((rig.store.root / "tmp").iterdir()) == []
    finally:
        rig.close()


def segments(rig: MoverRig) -> list[Path]:
    return list((rig.store.root / "segments").rglob("*.seg"))


def check_first(rig: MoverRig) -> None:
    """What was there before is whole."""
    opened = rig.open_load("first", HEAD)
    done = rig.load(opened.plan_id, [(chunk, chunk) for chunk in range(CHUNKS)])
    assert (done.failed, done.causes) == ([], [])
    assert [rig.slot(chunk) for chunk in range(CHUNKS)] == [bf16_bytes(n) for n in range(CHUNKS)]
    rig.send(protocol.ClosePlan(opened.plan_id))
    rig.open_load("no session", HEAD)  # answered in turn: by then the plan is closed


def evict(rig: MoverRig, session: str) -> None:
    upkeep, key = rig.store.upkeep, (TENANT, SessionId(session))
    released = upkeep.release(*key, upkeep.session(*key).manifests)
    assert upkeep.collect(released.segments).segments_removed == 1


def suspend_through_the_service(folder: Path) -> None:
    """The daemon finds the disk full, evicts the oldest session and repeats."""
    # An estimate that is far too low, or room would be made before the disk is full.
    with patch.multiple(storing, _ratio=lambda _plan: 0.0, _CHUNK_EXTRA_BYTES=0):
        asyncio.run(_suspend_through_the_service(folder))


async def _suspend_through_the_service(folder: Path) -> None:
    limits = replace(QUICK, free_space_floor_bytes=0)
    async with open_world(folder, limits=limits) as world:
        engine = world.start_engine()
        sessions = [SessionId(name) for name in ("old", "newer", "third")]
        for number, session in enumerate(sessions):
            await world.create(session)
            await world.turn(session, text(1600, seed=number))
        for session in sessions[:2]:
            report(await world.suspend(session))
            await asyncio.sleep(0.02)
        # Too little for a snapshot (400 KiB), enough for the registry's own pages.
        small_disk.fill(folder, leave_bytes=256 << 10)
        told = report(await world.suspend(sessions[2]))
        assert told["missing_tokens"] == 0, told
        assert sum(seen.op == "suspend" for seen in engine.seen) == 4
        kept = [world.store.generations(DEFAULT_TENANT, session) for session in sessions]
        assert kept == [[], [1], [1]], kept
        assert list((world.store.root / "tmp").iterdir()) == []
        found = await world.services.catalogue.events(DEFAULT_TENANT, sessions[0], 0, 50)
        last: dict[str, Any] = found[-1].detail
        assert (found[-1].kind, last["cause"]) == ("snapshot_evicted", "store_full")
