from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessiond.domain.errors import (
    InvalidInputError,
    OperationInProgressError,
    SessionExistsError,
    SessionNotFoundError,
)
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.loss import RelativeError, SnapshotLoss
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.registry import Registry
from sessiond.registry.rows import summary_json, to_summary
from sessiond.testing.values import NOW_UNIX_S, a_session, a_summary, an_operation

if TYPE_CHECKING:
    from sessiond.domain.session import Session

OTHER_TENANT = TenantId("other")


def listed(registry: Registry, **filters: Any) -> list[str]:  # noqa: ANN401 - any filter
    page = registry.list_sessions(DEFAULT_TENANT, **filters)
    return [session.session_id for session in page.sessions]


@pytest.mark.parametrize(
    "session",
    [
        a_session("plain"),
        a_session(
            "full",
            model="org/model with spaces, ü and 模型",
            idle_timeout_s=0.5,
            pinned=True,
            resumed_on="e" * 32,
            last_outcome="partial",
            last_reason="kv_evicted",
            snapshot=a_summary(7, lossy=SnapshotLoss("fp8", {"k": RelativeError(0.02, 0.04)})),
        ),
        a_session("gone", deleted=True),
    ],
    ids=lambda session: session.session_id,
)
def test_a_session_comes_back_as_it_was(registry: Registry, session: Session) -> None:
    registry.create_session(session)
    found = registry.get_session(session.tenant, session.session_id, include_deleted=True)
    assert found == session
    assert registry.list_snapshots(session.tenant, session.session_id) == (
        [session.snapshot] if session.snapshot else []
    )


def test_an_id_is_taken_once_per_tenant(registry: Registry) -> None:
    mine = a_session("s")
    theirs = replace(mine, tenant=OTHER_TENANT, model="their model")
    registry.create_session(mine)
    registry.create_session(theirs)
    with pytest.raises(SessionExistsError):
        registry.create_session(replace(mine, model="another"))
    assert registry.get_session(mine.tenant, mine.session_id) == mine
    assert registry.get_session(OTHER_TENANT, mine.session_id) == theirs


def test_an_unknown_session(registry: Registry) -> None:
    registry.create_session(a_session("s", tenant=OTHER_TENANT))
    nobody = (DEFAULT_TENANT, SessionId("s"))
    calls = (
        lambda: registry.get_session(*nobody),
        lambda: registry.get_session(*nobody, include_deleted=True),
        lambda: registry.update_session(*nobody, pinned=True),
        lambda: registry.record_snapshot(*nobody, a_summary()),
        lambda: registry.mark_deleted(*nobody, NOW_UNIX_S),
        lambda: registry.add_event(*nobody, "created", NOW_UNIX_S, {}),
        lambda: registry.begin_operation(an_operation(a_session("s"))),
    )
    for call in calls:
        with pytest.raises(SessionNotFoundError, match="'s'"):
            call()
    assert registry.list_snapshots(*nobody) == []
    assert registry.list_events(*nobody) == []
    assert registry.list_sessions(DEFAULT_TENANT).sessions == ()


def test_changes(registry: Registry) -> None:
    session = a_session()
    registry.create_session(session)
    changed = registry.update_session(
        session.tenant, session.session_id, pinned=True, idle_timeout_s=5.0
    )
    assert changed == registry.get_session(session.tenant, session.session_id)
    assert changed.updated_unix_s != session.updated_unix_s
    assert changed == replace(
        session, pinned=True, idle_timeout_s=5.0, updated_unix_s=changed.updated_unix_s
    )
    again = registry.update_session(
        session.tenant, session.session_id, idle_timeout_s=None, updated_unix_s=7.0
    )
    assert again == replace(session, pinned=True, updated_unix_s=7.0)


def test_what_is_meant_for_an_earlier_session_of_the_id_changes_nothing(registry: Registry) -> None:
    session = a_session()
    key, created_unix_s = (session.tenant, session.session_id), session.created_unix_s
    registry.create_session(session)
    with pytest.raises(SessionNotFoundError):
        registry.update_session(*key, created_unix_s - 1, resumed_on="e")
    assert registry.get_session(*key) == session
    assert registry.update_session(*key, created_unix_s, resumed_on="e").resumed_on == "e"


@pytest.mark.parametrize("field", ["tenant", "session_id", "deleted", "snapshot", "nonsense"])
def test_other_fields_cannot_be_changed(registry: Registry, field: str) -> None:
    session = a_session()
    registry.create_session(session)
    changes: dict[str, Any] = {field: "x"}
    with pytest.raises(TypeError, match=field):
        registry.update_session(session.tenant, session.session_id, **changes)
    assert registry.get_session(session.tenant, session.session_id) == session


def test_a_deleted_session(registry: Registry) -> None:
    session = a_session(snapshot=a_summary(), resumed_on="e")
    key = (session.tenant, session.session_id)
    registry.create_session(session)
    registry.mark_deleted(*key, NOW_UNIX_S + 1)
    registry.mark_deleted(*key, NOW_UNIX_S + 2)  # again: nothing changes
    gone = replace(
        session, deleted=True, snapshot=None, resumed_on="", updated_unix_s=NOW_UNIX_S + 1
    )
    assert registry.get_session(*key, include_deleted=True) == gone
    assert registry.list_snapshots(*key) == []
    assert listed(registry) == []
    assert registry.sessions_for_sweep([key]) == []
    for call in (
        lambda: registry.get_session(*key),
        lambda: registry.update_session(*key, pinned=True),
        lambda: registry.record_snapshot(*key, a_summary(2)),
    ):
        with pytest.raises(SessionNotFoundError):
            call()


def test_a_deleted_id_is_used_again(registry: Registry) -> None:
    old = a_session("s", pinned=True, snapshot=a_summary(3))
    registry.create_session(old)
    registry.mark_deleted(old.tenant, old.session_id, NOW_UNIX_S + 1)
    new = a_session("s", model="new", created_unix_s=NOW_UNIX_S + 2)
    registry.create_session(new)
    assert registry.get_session(new.tenant, new.session_id) == new
    assert registry.list_snapshots(new.tenant, new.session_id) == []
    with pytest.raises(SessionExistsError):
        registry.create_session(new)


def test_an_id_is_not_used_again_while_it_is_being_deleted(registry: Registry) -> None:
    session = a_session()
    key = (session.tenant, session.session_id)
    registry.create_session(session)
    deletion = an_operation(session, kind=OperationKind.DELETE)
    registry.begin_operation(deletion)
    registry.mark_deleted(*key, NOW_UNIX_S)
    with pytest.raises(OperationInProgressError):
        registry.create_session(session)
    assert registry.get_session(*key, include_deleted=True).deleted
    registry.finish_operation(deletion.operation_id, "a", OperationStatus.SUCCEEDED, {}, NOW_UNIX_S)
    registry.create_session(session)
    assert registry.get_session(*key) == session


def test_snapshots(registry: Registry) -> None:
    session = a_session(resumed_on="e")
    key = (session.tenant, session.session_id)
    registry.create_session(session)
    registry.record_snapshot(*key, a_summary(2))
    found = registry.get_session(*key)
    assert found.snapshot == a_summary(2)
    assert found.resumed_on == ""
    registry.update_session(*key, resumed_on="f")
    registry.record_snapshot(*key, a_summary(2, seconds=9.0))  # known: stays as it is
    registry.record_snapshot(*key, a_summary(1))  # late: not the newest
    found = registry.get_session(*key)
    assert found.snapshot == a_summary(2)
    assert found.resumed_on == "f"
    registry.record_snapshot(*key, a_summary(10))
    assert registry.get_session(*key).snapshot == a_summary(10)
    assert registry.list_snapshots(*key) == [a_summary(1), a_summary(2), a_summary(10)]


def test_a_late_snapshot_of_what_is_gone_changes_nothing(registry: Registry) -> None:
    session = a_session()
    key, created_unix_s = (session.tenant, session.session_id), session.created_unix_s
    registry.create_session(session)

    def record(created_unix_s: float, *, there: bool) -> bool:
        return registry.record_snapshot(*key, a_summary(1), created_unix_s, lambda: there)

    assert not record(created_unix_s - 1, there=True)  # of an earlier session of the id
    assert not record(created_unix_s, there=False)  # removed since it was read
    assert registry.get_session(*key) == session
    assert registry.list_snapshots(*key) == []
    assert record(created_unix_s, there=True)
    assert registry.get_session(*key).snapshot == a_summary(1)


def test_filters(registry: Registry) -> None:
    registry.create_session(a_session("a"))
    registry.create_session(a_session("b", pinned=True))
    registry.create_session(a_session("c", snapshot=a_summary(), model="big"))
    registry.create_session(a_session("d", snapshot=a_summary(), pinned=True))
    registry.create_session(a_session("e", deleted=True))
    registry.create_session(a_session("f", tenant=OTHER_TENANT))
    assert listed(registry) == ["a", "b", "c", "d"]
    assert listed(registry, pinned=True) == ["b", "d"]
    assert listed(registry, pinned=False) == ["a", "c"]
    assert listed(registry, has_snapshot=True) == ["c", "d"]
    assert listed(registry, has_snapshot=False) == ["a", "b"]
    assert listed(registry, model="big") == ["c"]
    assert listed(registry, model="smol", has_snapshot=True, pinned=True) == ["d"]
    assert listed(registry, model="unknown") == []
    assert listed(registry, after="b", pinned=True) == ["d"]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7])
def test_pages_hold_each_session_once(registry: Registry, count: int) -> None:
    # Code point order, the same in both databases.
    ids = sorted(["B", "a", "Z9", "x", "a-1", "a_1", "10"][:count])
    for session_id in ids:
        registry.create_session(a_session(session_id))
    seen: list[str] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = registry.list_sessions(DEFAULT_TENANT, after=after, limit=3)
        assert len(page.sessions) <= 3
        seen += [session.session_id for session in page.sessions]
        after, pages = page.next_after, pages + 1
    assert seen == ids
    assert pages == max(1, -(-count // 3))


@pytest.mark.parametrize("limit", [-1, 0, 1001])
def test_a_limit_has_limits(registry: Registry, limit: int) -> None:
    with pytest.raises(InvalidInputError, match="1000"):
        registry.list_sessions(DEFAULT_TENANT, limit=limit)


def test_candidates_of_a_sweep(registry: Registry) -> None:
    sessions = [a_session(f"s{number}") for number in range(450)]  # more than one batch
    for session in sessions[:3]:
        registry.create_session(session)
    registry.create_session(sessions[449])
    registry.create_session(a_session("pinned", pinned=True))
    registry.create_session(a_session("deleted", deleted=True))
    registry.create_session(a_session("unasked"))
    registry.create_session(a_session("s9", tenant=OTHER_TENANT))
    asked = [(session.tenant, session.session_id) for session in sessions]
    asked += [(DEFAULT_TENANT, SessionId("pinned")), (DEFAULT_TENANT, SessionId("deleted"))]
    found = registry.sessions_for_sweep(asked)
    assert sorted(s.session_id for s in found) == ["s0", "s1", "s2", "s449"]
    assert registry.sessions_for_sweep([]) == []


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
TIME_S = st.floats(0, 1e11)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=TEXT, times=st.tuples(TIME_S, TIME_S), idle_s=st.none() | TIME_S, text=TEXT)
def test_any_value_comes_back_exactly(
    registry: Registry, model: str, times: tuple[float, float], idle_s: float | None, text: str
) -> None:
    session = a_session(
        model=model,
        created_unix_s=times[0],
        updated_unix_s=times[1],
        idle_timeout_s=idle_s,
        last_reason=text,
    )
    registry.create_session(session)
    assert registry.get_session(session.tenant, session.session_id) == session


def test_a_value_that_postgresql_cannot_hold(postgres_url: str) -> None:
    registry = Registry.open(postgres_url)
    for model in ("nul \0", "x" * 513):
        with pytest.raises(InvalidInputError):
            registry.create_session(a_session(model=model))
    registry.close()


def test_a_snapshot_of_an_earlier_version_is_not_lossy() -> None:
    old = summary_json(a_summary())
    del old["lossy"]
    assert to_summary(old) == a_summary()
