from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sessiond.connector.mover import protocol, server
from sessiond.connector.mover.progress import now_and_then
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, some_tokens


def test_progress_is_told_now_and_then() -> None:
    times_s = iter((100.0, 100.0, 100.4, 100.6, 100.6, 100.7, 101.2, 101.2, 101.3))
    told: list[str] = []
    call = now_and_then(lambda: told.append("on"), every_s=0.5, clock=lambda: next(times_s))
    counts = []
    for _ in range(6):
        call()
        counts.append(len(told))
    assert counts == [0, 0, 1, 1, 2, 2]


def test_the_movers_jobs_tell_of_their_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "now_and_then", partial(now_and_then, every_s=0.0))
    rig = MoverRig(tmp_path, make_hello(tmp_path), in_process=True)
    head, items = some_tokens(3 * CHUNK_TOKENS), [(chunk, chunk) for chunk in range(3)]
    plan_id = rig.open_suspend("s", head).plan_id
    for _, slot in items:
        rig.fill(slot, seed=slot)
    stored = rig.store_chunks(plan_id, items)
    told = [rig.wait_for(protocol.Progress).job_id for _ in items]
    assert told == [stored.job_id] * len(items)
    assert rig.finish_suspend(plan_id).snapshot is not None
    loaded = rig.load(rig.open_load("s", head).plan_id, items)
    assert rig.wait_for(protocol.Progress).job_id == loaded.job_id
    rig.close()
