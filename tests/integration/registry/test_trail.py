from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import StatementError

from sessiond.domain.cursors import START, cursor_of
from sessiond.domain.errors import (
    InvalidInputError,
    KeyReusedError,
    OperationNotFoundError,
    RegistryUnavailableError,
    SessionNotFoundError,
)
from sessiond.domain.ids import DEFAULT_TENANT, OperationId, SessionId, TenantId
from sessiond.domain.session import Event, OperationStatus
from sessiond.registry import Registry, dialects, trail
from sessiond.testing.values import NOW_UNIX_S, a_session, an_operation

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue

TEXT = st.text(st.characters(), max_size=20)  # with NUL and lone surrogates
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def test_events_are_listed_in_pages(registry: Registry) -> None:
    for name in ("s", "t"):
        registry.create_session(a_session(name))
    s, t = a_session("s"), a_session("t")
    for number in range(5):
        for session in (s, t):
            detail: dict[str, JsonValue] = {"number": number, "of": session.session_id}
            registry.add_event(session.tenant, session.session_id, "turn", number + 0.5, detail)
    first = registry.list_events(s.tenant, s.session_id, limit=3)
    rest = registry.list_events(s.tenant, s.session_id, after=first[-1].event_id)
    assert [len(first), len(rest)] == [3, 2]
    events = first + rest
    assert events == sorted(events, key=lambda event: event.event_id)
    assert events == [
        Event(
            event_id=event.event_id,
            tenant=s.tenant,
            session_id=s.session_id,
            kind="turn",
            at_unix_s=number + 0.5,
            detail={"number": number, "of": "s"},
        )
        for number, event in enumerate(events)
    ]
    assert registry.list_events(TenantId("other"), s.session_id) == []


def test_an_event_that_is_there_is_not_added_again(registry: Registry) -> None:
    for name in ("s", "t"):
        registry.create_session(a_session(name))
    s, t = a_session("s"), a_session("t")
    wanted = [(s, "turn", 1.5), (s, "turn", 2.5), (s, "resumed", 1.5), (t, "turn", 1.5)]
    added = [
        registry.add_event_once(Event(0, session.tenant, session.session_id, kind, at, {}))
        for session, kind, at in (*wanted, *wanted)
    ]
    assert added == [True] * 4 + [False] * 4
    found = [
        (event.kind, event.at_unix_s) for event in registry.list_events(s.tenant, s.session_id)
    ]
    assert found == [("turn", 1.5), ("turn", 2.5), ("resumed", 1.5)]
    assert len(registry.list_events(t.tenant, t.session_id)) == 1


def test_events_outlive_the_session(registry: Registry) -> None:
    session = a_session()
    key = (session.tenant, session.session_id)
    registry.create_session(session)
    registry.add_event(*key, "created", NOW_UNIX_S, {})
    registry.mark_deleted(*key, NOW_UNIX_S)
    registry.add_event(*key, "deleted", NOW_UNIX_S, {})
    registry.create_session(session)
    assert [event.kind for event in registry.list_events(*key)] == ["created", "deleted"]


def test_a_reader_who_follows_misses_no_event(registry: Registry) -> None:
    session = a_session()
    key = (session.tenant, session.session_id)
    registry.create_session(session)
    written = threading.Event()

    def write(_number: int) -> None:
        for _ in range(40):
            registry.add_event(*key, "turn", NOW_UNIX_S, {})

    def follow() -> list[int]:
        seen = [0]
        while True:
            last_round = written.is_set()
            seen += [event.event_id for event in registry.list_events(*key, after=seen[-1])]
            if last_round:
                return seen[1:]

    with ThreadPoolExecutor(4) as threads:
        reader = threads.submit(follow)
        list(threads.map(write, range(3)))
        written.set()
        assert len(reader.result()) == 120


def test_events_of_a_tenant_come_in_the_order_of_their_numbers(registry: Registry) -> None:
    """One that follows all sessions misses none, whoever commits first."""
    sessions = [a_session(f"s{number}") for number in range(3)]
    for session in sessions:
        registry.create_session(session)
    written = threading.Event()

    def write(session_id: SessionId) -> None:
        for _ in range(40):
            registry.add_event(DEFAULT_TENANT, session_id, "turn", NOW_UNIX_S, {})

    def follow() -> list[int]:
        seen: list[int] = []
        place = START
        while True:
            last_round = written.is_set()
            events = registry.tenant_events(DEFAULT_TENANT, after=place, limit=7)
            seen += [event.event_id for event in events]
            if last_round and not events:
                return seen
            place = cursor_of(events[-1]) if events else place

    with ThreadPoolExecutor(4) as threads:
        reader = threads.submit(follow)
        list(threads.map(write, [session.session_id for session in sessions]))
        written.set()
        assert len(reader.result()) == 120
    newest = registry.newest_event(DEFAULT_TENANT)
    assert newest is not None
    assert newest.event_id == reader.result()[-1]
    assert registry.find_event(DEFAULT_TENANT, newest.event_id) == newest
    assert registry.find_event(TenantId("other"), newest.event_id) is None
    assert registry.find_event(DEFAULT_TENANT, newest.event_id + 1) is None
    assert registry.newest_event(TenantId("other")) is None


@pytest.mark.usefixtures("patient_database")
def test_a_later_number_waits_for_an_earlier_one(postgres_url: str) -> None:
    registry = Registry.open(postgres_url)
    for tenant in (DEFAULT_TENANT, TenantId("other")):
        for name in "st":
            registry.create_session(a_session(name, tenant=tenant))
    s, t = SessionId("s"), SessionId("t")
    with ThreadPoolExecutor(1) as threads:
        with registry._writing() as db:
            early = Event(0, DEFAULT_TENANT, s, "early", NOW_UNIX_S, {})
            trail.add_event(db.connection(), early)
            # Another tenant's does not wait.
            registry.add_event(TenantId("other"), t, "x", NOW_UNIX_S, {})
            late = threads.submit(registry.add_event, DEFAULT_TENANT, t, "late", NOW_UNIX_S, {})
            while not waiting_locks(registry):
                assert not late.done()
            assert registry.tenant_events(DEFAULT_TENANT) == []
        late.result(20)
    found = registry.tenant_events(DEFAULT_TENANT)
    registry.close()
    assert [event.kind for event in found] == ["early", "late"]


def test_one_that_freezes_inside_a_write_holds_nobody_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "IDLE_IN_TRANSACTION_TIMEOUT_S", 1)
    s, t = SessionId("s"), SessionId("t")

    def freeze() -> None:
        with frozen._writing() as db:
            trail.add_event(db.connection(), Event(0, DEFAULT_TENANT, s, "lost", NOW_UNIX_S, {}))
            other.add_event(DEFAULT_TENANT, t, "kept", NOW_UNIX_S, {})  # waits, and is not refused

    with (
        closing(Registry.open(postgres_url)) as frozen,
        closing(Registry.open(postgres_url)) as other,
    ):
        for name in "st":
            other.create_session(a_session(name))
        with pytest.raises(RegistryUnavailableError, match="idle-in-transaction"):
            freeze()
        frozen.add_event(DEFAULT_TENANT, s, "thawed", NOW_UNIX_S, {})
        found = [event.kind for event in other.tenant_events(DEFAULT_TENANT)]
    assert found == ["kept", "thawed"]


def test_what_is_told_of_an_earlier_session_of_the_id_is_not_noted(registry: Registry) -> None:
    session = a_session("s")
    key, created_unix_s = (session.tenant, session.session_id), session.created_unix_s
    registry.create_session(session)
    event = Event(0, *key, "turn", NOW_UNIX_S, {})
    assert not registry.add_event_once(event, created_unix_s - 1)
    registry.add_event(*key, "resumed", NOW_UNIX_S, {}, created_unix_s - 1)
    assert registry.list_events(*key) == []
    assert registry.add_event_once(event, created_unix_s)
    registry.add_event(*key, "resumed", NOW_UNIX_S, {}, created_unix_s)
    assert [event.kind for event in registry.list_events(*key)] == ["turn", "resumed"]


def test_what_may_be_lost_in_a_power_cut_leaves_everything_else_durable(sqlite_url: str) -> None:
    registry = Registry.open(sqlite_url)
    registry.create_session(a_session("s"))
    event = Event(0, DEFAULT_TENANT, SessionId("s"), "turn", NOW_UNIX_S, {})
    assert registry.add_event_once(event)
    assert not registry.add_event_once(event)
    with pytest.raises(SessionNotFoundError):
        registry.add_event_once(Event(0, DEFAULT_TENANT, SessionId("t"), "turn", NOW_UNIX_S, {}))
    with registry._reading() as db:
        (synchronous,) = db.execute(text("PRAGMA synchronous")).one()
    registry.close()
    assert synchronous == 2  # FULL


def waiting_locks(registry: Registry) -> int:
    with registry._reading() as db:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return int(db.scalar(text(query)) or 0)


@settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(detail=st.dictionaries(TEXT, JSON, max_size=4))
def test_any_json_comes_back(registry: Registry, detail: dict[str, JsonValue]) -> None:
    session = a_session()
    registry.create_session(session)
    registry.add_event(session.tenant, session.session_id, "x", NOW_UNIX_S, detail)
    (event,) = registry.list_events(session.tenant, session.session_id)
    assert event.detail == detail


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused(registry: Registry, number: float) -> None:
    session = a_session()
    registry.create_session(session)
    with pytest.raises((ValueError, StatementError), match="not JSON compliant"):
        registry.add_event(session.tenant, session.session_id, "x", NOW_UNIX_S, {"n": number})
    assert registry.list_events(session.tenant, session.session_id) == []


def remember(registry: Registry, key: str, digest: bytes, operation: str) -> str | None:
    return registry.remember(DEFAULT_TENANT, key, digest, OperationId(operation), NOW_UNIX_S)


def test_a_key_stands_for_its_first_operation(registry: Registry) -> None:
    assert remember(registry, "k", b"one", "op-1") is None
    assert remember(registry, "k", b"one", "op-2") == "op-1"
    with pytest.raises(KeyReusedError, match="another request"):
        remember(registry, "k", b"two", "op-3")
    assert remember(registry, "K", b"two", "op-4") is None
    other = TenantId("other")
    assert registry.remember(other, "k", b"two", OperationId("op-5"), NOW_UNIX_S) is None
    assert remember(registry, "k", b"one", "op-6") == "op-1"


def test_a_key_whose_operation_never_began_is_anothers_after_a_while(registry: Registry) -> None:
    session = a_session()
    registry.create_session(session)
    made = an_operation(session, created_unix_s=NOW_UNIX_S)
    registry.begin_operation(made)

    def later(key: str, operation: str, lost_before_unix_s: float) -> str | None:
        given = DEFAULT_TENANT, key, b"one", OperationId(operation)
        return registry.remember(*given, NOW_UNIX_S + 100, lost_before_unix_s)

    for key, stands_for in (("lost", "op-9"), ("op", made.operation_id), ("s", session.session_id)):
        assert (
            registry.remember(DEFAULT_TENANT, key, b"one", OperationId(stands_for), NOW_UNIX_S)
            is None
        )
        assert later(key, "op-2", NOW_UNIX_S) == stands_for
    assert later("op", "op-2", NOW_UNIX_S + 1) == made.operation_id
    assert later("s", "op-2", NOW_UNIX_S + 1) == session.session_id
    assert later("lost", "op-2", NOW_UNIX_S + 1) is None
    assert later("lost", "op-3", NOW_UNIX_S + 1) == "op-2"
    with pytest.raises(KeyReusedError):
        registry.remember(
            DEFAULT_TENANT, "lost", b"two", OperationId("op-4"), NOW_UNIX_S + 500, 1e12
        )


def test_a_lost_key_used_by_many_at_once_becomes_one_operations(registry: Registry) -> None:
    barrier = threading.Barrier(3)

    def use(key: str, operation: str) -> str:
        barrier.wait()
        given = DEFAULT_TENANT, key, b"same", OperationId(operation)
        return registry.remember(*given, NOW_UNIX_S + 100, NOW_UNIX_S + 1) or operation

    with ThreadPoolExecutor(3) as threads:
        for number in range(40):
            assert remember(registry, f"k{number}", b"same", "lost") is None
            names = [f"op-{number}-{rival}" for rival in "abc"]
            (winner,) = set(threads.map(use, [f"k{number}"] * 3, names))
            assert winner in names


def test_old_operations_and_keys_are_removed(registry: Registry) -> None:
    session = a_session()
    registry.create_session(session)
    for number, ended_unix_s in enumerate((NOW_UNIX_S, NOW_UNIX_S + 10, None)):
        made = an_operation(session, created_unix_s=NOW_UNIX_S, lease_until_unix_s=NOW_UNIX_S + 99)
        made = replace(made, operation_id=OperationId(f"op-{number}"))
        registry.begin_operation(made)
        if ended_unix_s is not None:
            ended = OperationStatus.SUCCEEDED
            registry.finish_operation(made.operation_id, made.owner, ended, {}, ended_unix_s)
        remember(registry, f"k{number}", b"one", made.operation_id)
    assert registry.remove_operations(NOW_UNIX_S + 5) == 1
    assert remember(registry, "k0", b"other", "op-5") is None
    with pytest.raises(OperationNotFoundError):
        registry.get_operation(session.tenant, OperationId("op-0"))
    for number in (1, 2):
        assert registry.get_operation(session.tenant, OperationId(f"op-{number}")).session_id
    assert registry.remove_operations(NOW_UNIX_S + 10_000) == 1  # what runs stays


def test_a_forgotten_key_is_free(registry: Registry) -> None:
    assert remember(registry, "k", b"one", "op-1") is None
    registry.forget(TenantId("other"), "k")
    assert remember(registry, "k", b"one", "op-2") == "op-1"
    registry.forget(DEFAULT_TENANT, "k")
    assert remember(registry, "k", b"two", "op-3") is None


@pytest.mark.parametrize("key", ["", "x" * 256, "nul\0", "line\n"])
def test_a_bad_key(registry: Registry, key: str) -> None:
    with pytest.raises(InvalidInputError, match="255"):
        remember(registry, key, b"", "op-1")


def test_a_key_used_by_many_at_once_stands_for_one_operation(registry: Registry) -> None:
    barrier = threading.Barrier(3)

    def use(key: str, operation: str) -> str:
        barrier.wait()
        return remember(registry, key, b"same", operation) or operation

    with ThreadPoolExecutor(3) as threads:
        for number in range(40):
            names = [f"op-{number}-{rival}" for rival in "abc"]
            assert len(set(threads.map(use, [f"k{number}"] * 3, names))) == 1
