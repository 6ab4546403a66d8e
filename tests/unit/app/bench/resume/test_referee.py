from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sessiond.app.bench.arrivals import UnexpectedPathError
from sessiond.app.bench.resume.ask import Answer, WrongTokenError
from sessiond.app.bench.resume.contestant import Prepared
from sessiond.app.bench.resume.options import (
    COLD,
    FS,
    PLANAR,
    PRESSURE,
    RAM,
    RECOMPUTE,
    VRAM,
    ResumeOptions,
)
from sessiond.app.bench.resume.referee import Book, Referee
from sessiond.app.bench.resume.samples import FIRST_TURN, WARM_TURN, Found
from sessiond.app.bench.resume.sessions import Context, due_s, orders
from sessiond.app.bench.resume.track import Track

OPTIONS = ResumeOptions(Path("folder"), Path("models"), contexts=(256, 512), rounds=3)
(ORDER,) = orders(range(10_000), OPTIONS, (RECOMPUTE, PLANAR))
WARM = Answer(0.05, 1.0, (7,), ({"a": -1.0},), 0, {})


class StillTrack(Track):
    """A track without a device."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def device_bytes_s(self) -> float:
        return 1e9

    def warm_up(self) -> Context:
        return Context("warm-up", (1, 2, 3))


@dataclass
class Player:
    """A contestant that answers at once, and remembers what it was asked for."""

    name: str
    folder: Path
    keeps: bool = True
    answer: Answer = WARM
    with_ram: bool = False
    calls: list[str] = field(default_factory=list)

    def restart(self) -> None:
        self.calls.append("restart")

    def prepare(self, context: Context) -> Prepared:
        self.calls.append(f"prepare {context.name}")
        first = replace(WARM, seconds=8.0)
        return Prepared(first, WARM, WARM if self.with_ram else None, 1000, 0.3)

    def arrive(self, context: Context) -> Answer:
        self.calls.append(context.name)
        return replace(self.answer, cached_tokens=context.whole_tokens if self.keeps else 0)

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        self.calls.append("close")


def refereed(one: Player, found: Found) -> Referee:
    """Return a referee that leaves the page cache alone."""
    book = Book(StillTrack(one.folder), found, lambda _: None, lambda: False)
    return Referee(one, ORDER, due_s(3, 0.001, 0), book)


def test_sessions_are_prepared_then_the_engine_is_restarted_then_they_come_back(
    tmp_path: Path,
) -> None:
    one, found = Player(PLANAR, tmp_path, with_ram=True), Found()
    referee = refereed(one, found)
    referee.prepare()
    referee.cold()
    prepared = [f"prepare {each.name}" for each in (*ORDER.prepared, ORDER.first)]
    came = [each.name for each in (ORDER.first, *ORDER.arriving)]
    assert one.calls == ["restart", "warm-up", *prepared, "restart", "warm-up", *came]
    rows = {(series, scenario): 0 for series, scenario, _ in found.rows()}
    assert set(rows) == {(PLANAR, FIRST_TURN), (PLANAR, WARM_TURN), (RAM, COLD), (PLANAR, COLD)}
    assert ORDER.first.name not in {sample.session for sample in found.samples}
    assert found.cold_starts[0].first_arrival_s == WARM.seconds
    assert found.tokens_checked == 6 + 7  # from RAM, and after the restart
    assert found.page_cache_dropped is False
    assert set(found.stored_bytes[PLANAR]) == {each.name for each in ORDER.arriving}


def test_what_keeps_nothing_is_computed_and_then_comes_from_vram(tmp_path: Path) -> None:
    one, found = Player(RECOMPUTE, tmp_path, keeps=False), Found()
    referee = refereed(one, found)
    referee.prepare()
    referee.cold()
    assert one.calls[0] == "restart"
    assert one.calls.count("restart") == 1
    assert [one.calls.count(each.name) for each in ORDER.arriving] == [2] * 6
    assert len(found.seconds(RECOMPUTE, COLD)) == len(found.seconds(VRAM, COLD)) == 6


def test_under_pressure_time_counts_from_when_a_turn_was_due(tmp_path: Path) -> None:
    one, found = Player(FS, tmp_path), Found()
    referee = refereed(one, found)
    assert referee.fills_memory
    referee.pressure()
    (row,) = found.rows()
    assert row == (FS, PRESSURE, 512)
    assert len(found.samples) == 3


def test_another_token_than_from_vram_ends_the_run(tmp_path: Path) -> None:
    one = Player(FS, tmp_path, answer=replace(WARM, tokens=(8,)))
    referee = refereed(one, Found())
    referee.prepare()
    with pytest.raises(WrongTokenError, match=FS):
        referee.cold()


def test_a_session_that_was_computed_instead_is_no_return(tmp_path: Path) -> None:
    one = Player(FS, tmp_path)
    referee = refereed(one, Found())
    referee.prepare()

    def computed(context: Context) -> Answer:
        return replace(WARM, tokens=(8,), cached_tokens=context.whole_tokens - 128)

    one.arrive = computed  # type: ignore[method-assign]
    with pytest.raises(UnexpectedPathError, match="should have"):
        referee.cold()
