from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.testing.values import NOW_UNIX_S, a_session, a_summary

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.registry import Registry

A, B, NOBODY = SessionId("a"), SessionId("b"), SessionId("nobody")
T = DEFAULT_TENANT


def away_since(registry: Registry, session_id: SessionId = A) -> float | None:
    return registry.get_session(T, session_id, include_deleted=True).away_unix_s


def test_a_session_is_away_until_it_is_back(registry: Registry) -> None:
    registry.create_session(a_session(A))
    assert away_since(registry) is None
    registry.mark_away(T, A, 100.0)
    registry.mark_away(T, A, 200.0)  # it is still the same absence
    assert away_since(registry) == 100.0
    assert not registry.end_away(T, A, 100.0)  # a turn from before it
    assert registry.end_away(T, A, 100.5)
    assert not registry.end_away(T, A)
    registry.mark_away(T, NOBODY, 1.0)
    assert not registry.end_away(T, NOBODY)


def test_a_deleted_one_is_away_until_that_is_counted_and_its_id_begins_anew(
    registry: Registry,
) -> None:
    for session_id in (A, B):
        registry.create_session(a_session(session_id))
        registry.mark_away(T, session_id, 100.0)
        registry.mark_deleted(T, session_id, NOW_UNIX_S)
    assert registry.end_away(T, A)
    registry.create_session(a_session(B))
    assert away_since(registry, B) is None


def test_each_that_stays_away_is_given_up_once(registry: Registry) -> None:
    for number in range(510):
        session_id = SessionId(f"s{number}")
        registry.create_session(a_session(session_id, model=f"m{number % 2}"))
        registry.mark_away(T, session_id, float(number))
    with ThreadPoolExecutor(2) as pool:
        given_up = [row for rows in pool.map(registry.give_up_away, [505.0] * 4) for row in rows]
    given_up += registry.give_up_away(505.0)  # what the others had locked
    assert sorted(given_up) == sorted((T, f"m{number % 2}") for number in range(505))
    assert registry.give_up_away(505.0) == []
    assert away_since(registry, SessionId("s505")) == 505.0


def test_bytes_are_unread_until_a_snapshot_is_loaded(registry: Registry) -> None:
    registry.create_session(a_session(A))
    assert registry.record_snapshot(T, A, a_summary(1, new_bytes=100))
    assert not registry.record_snapshot(T, A, a_summary(1, new_bytes=100))
    assert registry.record_snapshot(T, A, a_summary(2, new_bytes=10))
    assert registry.read_snapshots(TenantId("other"), A) == 0
    assert registry.read_snapshots(T, A) == 110
    assert registry.read_snapshots(T, A) == 0
    registry.record_snapshot(T, A, a_summary(3, new_bytes=7))
    assert registry.mark_deleted(T, A, NOW_UNIX_S) == 7
    assert registry.mark_deleted(T, A, NOW_UNIX_S) == 0


def test_what_a_newer_snapshot_shares_stays_unread_with_it(registry: Registry) -> None:
    registry.create_session(a_session(A))
    for generation, new_bytes in ((1, 100), (2, 10)):
        registry.record_snapshot(T, A, a_summary(generation, new_bytes=new_bytes))
    assert registry.forget_snapshots(T, A, [1], "snapshot_evicted", freed_bytes=30) == 30
    assert registry.forget_snapshots(T, A, [1], "snapshot_evicted", freed_bytes=30) == 0
    assert registry.forget_snapshots(T, A, [2], "snapshot_evicted", freed_bytes=1) == 80  # the last


def test_a_pinned_session_loses_nothing(registry: Registry) -> None:
    registry.create_session(a_session(A, pinned=True))
    registry.record_snapshot(T, A, a_summary(1, new_bytes=100))
    assert registry.forget_snapshots(T, A, [1], "snapshot_evicted", spare_pinned=True) is None
    assert registry.read_snapshots(T, A) == 100


def test_no_revision_is_lost(registry: Registry) -> None:
    def plus_one(value: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
        count = value["count"] if value else 0
        assert isinstance(count, int)
        return {"count": count + 1}

    registry.revise_switch("count", plus_one, NOW_UNIX_S)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(registry.revise_switch, "count", plus_one, 2.0) for _ in range(20)]
    assert [one.exception() for one in done] == [None] * 20
    assert registry.read_switch("count") == {"count": 21}
