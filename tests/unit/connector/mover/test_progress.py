from __future__ import annotations

from sessiond.connector.mover.progress import now_and_then


def test_progress_is_told_now_and_then() -> None:
    times_s = iter((100.0, 100.0, 100.4, 100.6, 100.6, 100.7, 101.2, 101.2, 101.3))
    told: list[str] = []
    call = now_and_then(lambda: told.append("on"), every_s=0.5, clock=lambda: next(times_s))
    counts = []
    for _ in range(6):
        call()
        counts.append(len(told))
    assert counts == [0, 0, 1, 1, 2, 2]
