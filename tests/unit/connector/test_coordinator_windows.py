"""Two KV groups, one of full attention and one with a window of two chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.connector.mover import protocol
from sessiond.domain.kvgroups import KvGroups
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.testing.fake_mover import FakeClock, FakeMovers
from sessiond.testing.fake_scheduler import CHUNK_TOKENS, LIMITS, FakeScheduler, tokens_of

GROUPS = KvGroups((0, 2))


@pytest.fixture
def mixed(clock: FakeClock, movers: FakeMovers) -> FakeScheduler:
    return FakeScheduler(clock, movers, limits=replace(LIMITS, groups=GROUPS))


def chunks(full: range, windowed: range) -> list[int]:
    return sorted(
        [*(GROUPS.number(0, at) for at in full), *(GROUPS.number(1, at) for at in windowed)]
    )


def arrive(mixed: FakeScheduler, positions: int) -> str:
    return mixed.arrive(mixed.ticket(generation=1), tokens_of(positions))


ALL = range(2 * 9)


def test_only_the_newest_window_is_offered(mixed: FakeScheduler) -> None:
    request = arrive(mixed, 4)
    mixed.mover.open_load(chunks(range(4), range(4)))
    assert mixed.may_match(request)
    assert mixed.offered(request, ALL) == chunks(range(4), range(2, 4))


def test_a_prompt_that_ends_between_windows_is_restored_up_to_the_one_before(
    mixed: FakeScheduler,
) -> None:
    request = arrive(mixed, 4)
    mixed.mover.open_load(chunks(range(4), range(1, 3)))
    assert mixed.may_match(request)
    assert mixed.offered(request, ALL) == chunks(range(3), range(1, 3))


def test_without_a_whole_window_nothing_is_offered(mixed: FakeScheduler) -> None:
    request = arrive(mixed, 4)
    mixed.mover.open_load(chunks(range(4), range(3, 4)))
    assert mixed.may_match(request)
    assert mixed.offered(request, ALL) == []


def test_what_vram_has_is_not_loaded(mixed: FakeScheduler) -> None:
    request = arrive(mixed, 4)
    mixed.mover.open_load(chunks(range(4), range(2, 4)))
    assert mixed.may_match(request, vram_tokens=3 * CHUNK_TOKENS)
    assert mixed.offered(request, ALL) == chunks(range(3, 4), range(3, 4))


def test_half_of_a_context_is_of_no_use(mixed: FakeScheduler) -> None:
    request = arrive(mixed, 7)  # 7 + 2 chunks, and the RAM tier holds 8
    mixed.mover.open_load(chunks(range(7), range(5, 7)))
    assert mixed.may_match(request)
    assert mixed.offered(request, ALL) == []
    mixed.match(request)
    (cause,) = mixed.finish(request)["causes"]
    assert cause["reason"] == Reason.RAM_TIER_TOO_SMALL


def test_a_bad_chunk_leaves_the_window_before(mixed: FakeScheduler) -> None:
    request = arrive(mixed, 4)
    mixed.mover.open_load(chunks(range(4), range(4)))
    assert mixed.may_match(request)
    mixed.load(1, request, chunks(range(4), range(2, 4)))
    bad = GROUPS.number(1, 3)
    mixed.mover.end_load(Cause(Reason.SNAPSHOT_CORRUPT), failed=frozenset({bad}))
    assert bad not in mixed.done()[-1].good_chunks
    assert mixed.may_match(request)
    assert mixed.offered(request, ALL) == chunks(range(3), range(1, 3))


def test_what_is_read_instead_gets_no_time_of_its_own(
    mixed: FakeScheduler, clock: FakeClock
) -> None:
    request = mixed.arrive(mixed.ticket(generation=1, load_limit_ms=1500), tokens_of(4))
    mixed.mover.open_load(chunks(range(4), range(4)))
    assert mixed.may_match(request)
    mixed.load(1, request, chunks(range(4), range(2, 4)))
    clock.sleep(1.6)
    mixed.mover.end_load(Cause(Reason.DEADLINE), failed=frozenset({GROUPS.number(1, 3)}))
    mixed.done()
    assert mixed.may_match(request)
    assert mixed.offered(request, ALL) == []


def test_tokens_from_disk_are_counted_once(mixed: FakeScheduler) -> None:
    request = arrive(mixed, 4)
    mixed.mover.open_load(chunks(range(4), range(2, 4)))
    assert mixed.may_match(request)
    mixed.load(1, request, chunks(range(4), range(2, 4)))
    mixed.mover.end_load()
    assert mixed.done()[-1].all_good
    assert mixed.match(request, 0, 4 * CHUNK_TOKENS)
    assert mixed.finish(request)["split"]["disk_tokens"] == 4 * CHUNK_TOKENS


def begun(mixed: FakeScheduler, positions: int, durable: list[int]) -> str:
    head = tokens_of(positions, extra=2)
    mixed.take_turn(head)
    request = mixed.begin_suspend(head, positions)
    mixed.mover.open_suspend(durable)
    assert mixed.may_match(request)
    assert mixed.match(request, positions * CHUNK_TOKENS, 0)
    return request


def test_a_suspend_hands_over_what_vllm_still_has(mixed: FakeScheduler) -> None:
    request = begun(mixed, 3, durable=chunks(range(1), range(0)))
    offered = chunks(range(4), range(1, 4))
    assert mixed.storable(request, offered) == chunks(range(1, 3), range(1, 3))
    mixed.store(1, request, offered)
    (told,) = mixed.mover.told(protocol.Store)
    assert [number for number, _ in told.items] == chunks(range(3), range(1, 3))


def test_what_does_not_fit_waits_for_the_next_round(mixed: FakeScheduler) -> None:
    request = begun(mixed, 8, durable=[])
    assert mixed.storable(request, chunks(range(8), range(6, 8))) == chunks(range(7), range(6, 7))


def test_a_resume_that_lacks_its_window_is_held(mixed: FakeScheduler) -> None:
    ticket = mixed.ticket(TicketOp.RESUME, generation=1)
    request = mixed.arrive(ticket, tokens_of(4))
    mixed.mover.open_load(chunks(range(4), range(3, 4)))
    assert mixed.may_match(request)
    assert not mixed.match(request)
    outcome = mixed.outcome()
    assert mixed.may_match(outcome)
    assert mixed.finish(outcome)["loadable_tokens"] == 0
