from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.retention import (
    Bounds,
    Candidate,
    Demand,
    Load,
    RemovalCause,
    SessionKey,
    Share,
    choose,
    demands,
    exclusive_bytes,
    floor_bytes,
    superseded,
)

KEYS: list[SessionKey] = [(TenantId("t"), SessionId(f"s{number}")) for number in range(6)]
KEY = st.sampled_from(KEYS)
CANDIDATES = st.builds(Candidate, KEY, st.floats(0, 100), st.booleans())
FLEETS = st.lists(CANDIDATES, unique_by=lambda one: one.key)
SHARES = st.lists(
    st.builds(Share, st.frozensets(KEY, min_size=1, max_size=3), st.integers(0, 50)), max_size=12
)


def freed_by(keys: set[SessionKey], shares: list[Share]) -> int:
    return sum(share.size_bytes for share in shares if share.owners <= keys)


@given(fleet=FLEETS, shares=SHARES, need=st.integers(-5, 300))
def test_a_choice_frees_what_is_asked_if_that_is_possible(
    fleet: list[Candidate], shares: list[Share], need: int
) -> None:
    choice = choose(fleet, shares, need)
    possible = freed_by({one.key for one in fleet if not one.spared}, shares)
    assert choice.freed_bytes == freed_by(set(choice.keys), shares)
    assert choice.freed_bytes >= min(need, possible)
    assert choice.short_bytes == max(0, need - choice.freed_bytes)


@given(fleet=FLEETS, shares=SHARES, need=st.integers(-5, 300))
def test_the_least_recently_used_go_first_and_the_spared_never(
    fleet: list[Candidate], shares: list[Share], need: int
) -> None:
    choice = choose(fleet, shares, need)
    by_key = {one.key: one for one in fleet}
    chosen = [by_key[key] for key in choice.keys]
    assert not any(one.spared for one in chosen)
    assert all(a.used_unix_s <= b.used_unix_s for a, b in pairwise(chosen))
    # Whoever was used earlier than one that goes, and stays, would free nothing.
    latest = max((one.used_unix_s for one in chosen), default=-1.0)
    passed = {one.key for one in fleet if not one.spared and one.used_unix_s < latest}
    gone = set(choice.keys)
    assert freed_by(gone | passed, shares) == choice.freed_bytes


@given(fleet=FLEETS, shares=SHARES, need=st.integers(1, 300))
def test_no_session_goes_for_nothing(
    fleet: list[Candidate], shares: list[Share], need: int
) -> None:
    choice = choose(fleet, shares, need)
    gone = set(choice.keys)
    for key in choice.keys:
        assert freed_by(gone - {key}, shares) < choice.freed_bytes
    if choice.keys:  # the last one was needed
        assert freed_by(gone - {choice.keys[-1]}, shares) < need


def test_shared_bytes_are_free_when_the_last_owner_goes() -> None:
    a, b, _, *_ = KEYS
    shares = [Share(frozenset({a, b}), 100), Share(frozenset({b}), 1)]
    assert exclusive_bytes(shares) == {b: 1}
    fleet = [Candidate(a, 1.0), Candidate(b, 2.0)]
    assert choose(fleet, shares, 50).keys == (a, b)
    # Alone, the older one would free nothing: it is passed over.
    assert choose([fleet[0], Candidate(b, 2.0, spared=True)], shares, 50).keys == ()


@pytest.mark.parametrize(
    ("generations", "unreadable", "keep", "gone"),
    [
        ([1, 2, 3], (), 1, [1, 2]),
        ([1, 2, 3], (), 2, [1]),
        ([1, 2, 3], (), 9, []),
        ([1, 2, 3], (3,), 1, [1]),
        ([1, 2, 3], (2,), 2, []),
        ([1, 2], (1, 2), 1, []),
        ([], (), 1, []),
    ],
)
def test_the_newest_readable_generations_stay(
    generations: list[int], unreadable: tuple[int, ...], keep: int, gone: list[int]
) -> None:
    readable = set(generations) - set(unreadable)
    assert superseded(generations, readable, keep) == gone


def test_the_floor_is_small_on_small_disks() -> None:
    assert floor_bytes(None, 16 << 20) == (16 << 20) // 50
    assert floor_bytes(None, 10 << 40) == 1 << 30
    assert floor_bytes(0, 10 << 40) == 0


def test_what_is_written_already_is_not_asked_for_again() -> None:
    bounds = Bounds(floor_bytes=10)
    assert demands(Load({}, 0, free_bytes=60, writing_bytes=50), bounds, {"t": 100}) == []
    (demand,) = demands(Load({}, 0, free_bytes=60), bounds, {"t": 100})
    assert demand == Demand(RemovalCause.FREE_SPACE, 50)
