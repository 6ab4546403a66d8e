"""Which contexts the chunks of several KV groups restore."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.kvgroups import KvGroups, groups_of

FULL, WINDOW = 0, 2
MIXED = KvGroups((FULL, WINDOW))

windows = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


def numbers(full: range, windowed: range, groups: KvGroups = MIXED) -> set[int]:
    return {
        *(groups.number(0, position) for position in full),
        *(groups.number(1, position) for position in windowed),
    }


@pytest.mark.parametrize(
    ("full", "windowed", "limit", "reached"),
    [
        (range(5), range(3, 5), 9, 5),
        (range(5), range(3, 5), 5, 5),
        (range(5), range(3, 5), 4, 0),  # the window of a shorter context is gone
        (range(5), range(4, 5), 9, 0),  # half a window
        (range(5), range(2, 4), 9, 4),  # an older window
        (range(3), range(3, 5), 9, 0),  # full attention ends before
        (range(1, 5), range(3, 5), 9, 0),  # and has to begin at token 0
        (range(1), range(1), 9, 1),  # shorter than the window
        (range(0), range(5), 9, 0),
        (range(5), range(5), 0, 0),
    ],
)
def test_a_context_ends_where_its_whole_window_is_there(
    full: range, windowed: range, limit: int, reached: int
) -> None:
    assert MIXED.reach(numbers(full, windowed), limit) == reached


def test_without_windows_every_whole_chunk_ends_a_context() -> None:
    groups = KvGroups((FULL, FULL))
    assert groups.reach(numbers(range(5), range(3), groups), 9) == 3
    assert groups.reach(numbers(range(5), range(5), groups), 4) == 4


def test_windows_alone_need_no_beginning() -> None:
    assert KvGroups((WINDOW,)).reach({7, 8}, 20) == 9


@given(windows=windows, end=st.integers(0, 12), more=st.integers(0, 3))
def test_what_is_needed_is_enough_and_nothing_of_it_is_too_much(
    windows: tuple[int, ...], end: int, more: int
) -> None:
    groups = KvGroups(windows)
    needed = groups.needed(end)
    assert groups.reach(needed, end + more) == end
    for number in needed:
        assert groups.reach(set(needed) - {number}, end + more) != end


@given(windows=windows, begin=st.integers(0, 6), end=st.integers(0, 12))
def test_what_is_there_before_is_not_needed(windows: tuple[int, ...], begin: int, end: int) -> None:
    groups = KvGroups(windows)
    rest = groups.needed(end, begin)
    assert all(groups.position(number) >= begin for number in rest)
    assert set(groups.needed(end)) <= {*rest, *groups.all_before(begin)}


@given(windows=windows, group=st.integers(0, 2), position=st.integers(0, 1000))
def test_a_number_names_one_chunk(windows: tuple[int, ...], group: int, position: int) -> None:
    groups = KvGroups(windows)
    number = groups.number(group % groups.count, position)
    assert (groups.group(number), groups.position(number)) == (group % groups.count, position)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (None, (0,)),
        ([], (0,)),
        ([{"kind": "FullAttentionSpec", "window_tokens": 0}], (0,)),
        ([{"window_tokens": 0}, {"window_tokens": 256}], (0, 2)),
        ([{"window_tokens": 257}], (3,)),
        ([{}], (0,)),
    ],
)
def test_the_fingerprint_tells_the_windows(
    described: list[dict[str, object]] | None, expected: tuple[int, ...]
) -> None:
    fields = {} if described is None else {"kv_groups": described}
    groups = groups_of(Fingerprint(fields), chunk_tokens=128)  # type: ignore[arg-type]
    assert groups.windows_chunks == expected


def test_groups_that_nobody_described_have_full_attention() -> None:
    assert groups_of(Fingerprint({}), 128, at_least=3).windows_chunks == (0, 0, 0)
