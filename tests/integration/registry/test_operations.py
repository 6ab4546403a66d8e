from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    ConflictError,
    OperationInProgressError,
    OperationNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
)
from sessiond.domain.ids import DEFAULT_TENANT, OperationId, SessionId, TenantId
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.testing.values import LEASE_S, NOW_UNIX_S, a_session, a_summary, an_operation

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.session import Operation, Session
    from sessiond.registry import Registry

EXPIRED_UNIX_S = NOW_UNIX_S + LEASE_S
SUCCEEDED, FAILED = OperationStatus.SUCCEEDED, OperationStatus.FAILED


@pytest.fixture
def session(registry: Registry) -> Session:
    session = a_session()
    registry.create_session(session)
    return session


def running_id(registry: Registry, session: Session, now_unix_s: float) -> str | None:
    found = registry.running_operation(session.tenant, session.session_id, now_unix_s)
    return None if found is None else found.operation_id


def test_an_operation_from_begin_to_end(registry: Registry, session: Session) -> None:
    operation = an_operation(session, kind=OperationKind.RESUME)
    registry.begin_operation(operation)
    assert registry.get_operation(session.tenant, operation.operation_id) == operation
    assert running_id(registry, session, NOW_UNIX_S) == operation.operation_id
    result: dict[str, JsonValue] = {
        "outcome": "restored",
        "causes": [{"reason": "diverged", "detail": "ü\0\ud800"}],
    }
    assert registry.finish_operation(operation.operation_id, "a", SUCCEEDED, result, 5.5)
    finished = replace(operation, status=SUCCEEDED, finished_unix_s=5.5, result=result)
    assert registry.get_operation(session.tenant, operation.operation_id) == finished
    assert running_id(registry, session, NOW_UNIX_S) is None
    registry.begin_operation(an_operation(session))


def test_one_operation_at_a_time(registry: Registry, session: Session) -> None:
    first, second = an_operation(session), an_operation(session, owner="b")
    registry.begin_operation(first)
    with pytest.raises(OperationInProgressError):
        registry.begin_operation(second)
    with pytest.raises(OperationNotFoundError):
        registry.get_operation(session.tenant, second.operation_id)
    assert registry.get_operation(session.tenant, first.operation_id) == first
    other = a_session()
    registry.create_session(other)
    registry.begin_operation(an_operation(other))  # another session is free


def test_an_operation_id_is_used_once(registry: Registry, session: Session) -> None:
    operation = an_operation(session)
    registry.begin_operation(operation)
    registry.finish_operation(operation.operation_id, "a", FAILED, None, NOW_UNIX_S)
    with pytest.raises(ConflictError) as raised:
        registry.begin_operation(operation)
    assert type(raised.value) is ConflictError


def test_operations_belong_to_their_tenant(registry: Registry, session: Session) -> None:
    operation = an_operation(session)
    registry.begin_operation(operation)
    with pytest.raises(OperationNotFoundError, match=operation.operation_id):
        registry.get_operation(TenantId("other"), operation.operation_id)


def test_an_expired_operation_is_failed_by_the_next(registry: Registry, session: Session) -> None:
    old = an_operation(session)
    registry.begin_operation(old)
    new = an_operation(session, owner="b", created_unix_s=EXPIRED_UNIX_S, lease_until_unix_s=1e10)
    early = replace(new, created_unix_s=EXPIRED_UNIX_S - 0.25)
    with pytest.raises(OperationInProgressError):
        registry.begin_operation(early)
    registry.begin_operation(new)
    failed = registry.get_operation(session.tenant, old.operation_id)
    assert failed.status is FAILED
    assert failed.finished_unix_s == EXPIRED_UNIX_S
    assert failed.result is not None
    assert failed.result["code"] == "lease_expired"
    assert running_id(registry, session, EXPIRED_UNIX_S) == new.operation_id
    # The first daemon wakes up: it has lost.
    assert not registry.renew_lease(old.operation_id, "a", 2e10, EXPIRED_UNIX_S)
    assert not registry.finish_operation(old.operation_id, "a", SUCCEEDED, {}, EXPIRED_UNIX_S)
    assert registry.get_operation(session.tenant, old.operation_id) == failed
    assert registry.get_operation(session.tenant, new.operation_id) == new


def test_an_expired_fork_is_left_to_who_settles_it(registry: Registry, session: Session) -> None:
    old = an_operation(session, kind=OperationKind.FORK)
    registry.begin_operation(old)
    late = {"created_unix_s": EXPIRED_UNIX_S, "lease_until_unix_s": 1e10}
    with pytest.raises(OperationInProgressError):
        registry.begin_operation(an_operation(session, kind=OperationKind.RESUME, **late))
    assert registry.get_operation(session.tenant, old.operation_id) == old
    registry.begin_operation(an_operation(session, kind=OperationKind.DELETE, **late))
    assert registry.get_operation(session.tenant, old.operation_id).status is FAILED


def test_an_expired_operation_may_have_succeeded(registry: Registry, session: Session) -> None:
    old = an_operation(session)
    registry.begin_operation(old)
    registry.correct_operation(old.operation_id, {"early": True}, EXPIRED_UNIX_S)
    assert registry.get_operation(session.tenant, old.operation_id) == old  # it runs
    registry.expire_operations(EXPIRED_UNIX_S)
    registry.correct_operation(old.operation_id, {"fork": "f"}, EXPIRED_UNIX_S + 1)
    corrected = registry.get_operation(session.tenant, old.operation_id)
    assert (corrected.status, corrected.result) == (SUCCEEDED, {"fork": "f"})
    registry.correct_operation(old.operation_id, {}, EXPIRED_UNIX_S + 2)
    assert registry.get_operation(session.tenant, old.operation_id) == corrected


def test_only_the_session_that_is_meant_is_deleted(registry: Registry, session: Session) -> None:
    tenant, session_id, created_unix_s = session.tenant, session.session_id, session.created_unix_s
    registry.mark_deleted(tenant, session_id, 1e9, created_unix_s - 1)
    assert not registry.get_session(tenant, session_id).deleted
    registry.mark_deleted(tenant, session_id, 1e9, created_unix_s)
    assert registry.get_session(tenant, session_id, include_deleted=True).deleted


def test_a_refused_begin_changes_nothing(registry: Registry, session: Session) -> None:
    """The failing of the expired one and the begin of the next are one transaction."""
    old = an_operation(session)
    registry.begin_operation(old)
    with pytest.raises(ConflictError):  # the id is taken, so the begin fails after the expiry
        registry.begin_operation(replace(old, created_unix_s=EXPIRED_UNIX_S))
    assert registry.get_operation(session.tenant, old.operation_id) == old


def test_a_lease_is_renewed_by_its_owner_in_time(registry: Registry, session: Session) -> None:
    operation = an_operation(session)
    registry.begin_operation(operation)

    def renew(owner: str, now_unix_s: float) -> bool:
        until_unix_s = now_unix_s + LEASE_S
        return registry.renew_lease(operation.operation_id, owner, until_unix_s, now_unix_s)

    assert not renew("b", NOW_UNIX_S)
    assert renew("a", NOW_UNIX_S + 20)
    assert running_id(registry, session, EXPIRED_UNIX_S) == operation.operation_id
    assert not renew("a", NOW_UNIX_S + 50)  # expired exactly now
    assert running_id(registry, session, NOW_UNIX_S + 50) is None
    assert not registry.renew_lease(OperationId("op-none"), "a", 2e10, NOW_UNIX_S)


def test_an_unnoticed_expiry_does_not_spoil_the_end(registry: Registry, session: Session) -> None:
    operation = an_operation(session)
    registry.begin_operation(operation)
    late_unix_s = EXPIRED_UNIX_S + 100
    assert not registry.finish_operation(operation.operation_id, "b", FAILED, None, late_unix_s)
    assert registry.finish_operation(operation.operation_id, "a", SUCCEEDED, None, late_unix_s)
    assert not registry.finish_operation(operation.operation_id, "a", FAILED, None, late_unix_s)
    found = registry.get_operation(session.tenant, operation.operation_id)
    assert (found.status, found.result) == (SUCCEEDED, None)


def test_expiry(registry: Registry) -> None:
    sessions = [a_session() for _ in range(3)]
    operations = [
        an_operation(session, lease_until_unix_s=NOW_UNIX_S + number)
        for number, session in enumerate(sessions, start=1)
    ]
    for session, operation in zip(sessions, operations, strict=True):
        registry.create_session(session)
        registry.begin_operation(operation)
    assert registry.expire_operations(NOW_UNIX_S) == []
    expired = registry.expire_operations(NOW_UNIX_S + 2)
    assert {o.operation_id for o in expired} == {o.operation_id for o in operations[:2]}
    for operation in expired:
        assert operation.status is FAILED
        assert operation == registry.get_operation(operation.tenant, operation.operation_id)
    assert registry.expire_operations(NOW_UNIX_S + 2) == []
    assert running_id(registry, sessions[2], NOW_UNIX_S + 2) == operations[2].operation_id


def test_only_a_delete_begins_on_a_deleted_session(registry: Registry, session: Session) -> None:
    registry.mark_deleted(session.tenant, session.session_id, NOW_UNIX_S)
    for kind in (OperationKind.SUSPEND, OperationKind.RESUME):
        with pytest.raises(SessionNotFoundError):
            registry.begin_operation(an_operation(session, kind=kind))
    registry.begin_operation(an_operation(session, kind=OperationKind.DELETE))


def test_an_operation_begins_for_the_session_that_it_was_planned_for(
    registry: Registry, session: Session
) -> None:
    registry.mark_deleted(session.tenant, session.session_id, NOW_UNIX_S)
    registry.create_session(replace(session, created_unix_s=NOW_UNIX_S + 0.5))
    late = an_operation(session)
    with pytest.raises(SessionNotFoundError):
        registry.begin_operation(late, planned_unix_s=session.created_unix_s)
    assert running_id(registry, session, NOW_UNIX_S) is None
    registry.begin_operation(late, planned_unix_s=NOW_UNIX_S + 0.5)
    assert running_id(registry, session, NOW_UNIX_S) == late.operation_id


# -- at once ---------------------------------------------------------------------------------


def begun(registry: Registry, operation: Operation) -> str | None:
    """Return the operation's id if it could begin."""
    try:
        registry.begin_operation(operation)
    except OperationInProgressError:
        return None
    return operation.operation_id


def test_of_two_threads_one_begins(registry: Registry) -> None:
    barrier = threading.Barrier(2)

    def begin(operation: Operation) -> str | None:
        barrier.wait()
        return begun(registry, operation)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            session = a_session()
            registry.create_session(session)
            rivals = [an_operation(session, owner=owner) for owner in "ab"]
            winners = [won for won in threads.map(begin, rivals) if won]
            assert [running_id(registry, session, NOW_UNIX_S)] == winners


def test_of_two_threads_one_takes_an_expired_lease_over(registry: Registry) -> None:
    barrier = threading.Barrier(3)
    late = {"created_unix_s": EXPIRED_UNIX_S, "lease_until_unix_s": EXPIRED_UNIX_S + 1}

    def begin(operation: Operation) -> str | None:
        barrier.wait()
        return begun(registry, operation)

    def finish(operation: Operation) -> str | None:
        barrier.wait()
        won = registry.finish_operation(operation.operation_id, "a", SUCCEEDED, {}, EXPIRED_UNIX_S)
        return operation.operation_id if won else None

    with ThreadPoolExecutor(3) as threads:
        for _ in range(60):
            session = a_session()
            registry.create_session(session)
            old = an_operation(session)
            registry.begin_operation(old)
            rivals = [an_operation(session, owner=owner, **late) for owner in "bc"]
            finished = threads.submit(finish, old)
            winners = [won for won in threads.map(begin, rivals) if won]
            assert [running_id(registry, session, EXPIRED_UNIX_S)] == winners
            ended = registry.get_operation(session.tenant, old.operation_id)
            assert ended.status is (SUCCEEDED if finished.result() else FAILED)


def test_an_expired_operation_is_reported_to_one(registry: Registry) -> None:
    for _ in range(40):
        session = a_session()
        registry.create_session(session)
        registry.begin_operation(an_operation(session))
    barrier = threading.Barrier(3)

    def expire(_number: int) -> list[Operation]:
        barrier.wait()
        return registry.expire_operations(EXPIRED_UNIX_S)

    with ThreadPoolExecutor(3) as threads:
        found = [o.operation_id for batch in threads.map(expire, range(3)) for o in batch]
    found += [o.operation_id for o in registry.expire_operations(EXPIRED_UNIX_S)]
    assert len(found) == len(set(found)) == 40


def test_of_two_creations_one_succeeds(registry: Registry) -> None:
    barrier = threading.Barrier(2)

    def create(session: Session) -> bool:
        barrier.wait()
        try:
            registry.create_session(session)
        except SessionExistsError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        for _ in range(30):  # a fresh id, then the same id after its deletion
            session = a_session(snapshot=a_summary())
            assert sorted(threads.map(create, [session, session])) == [False, True]
            registry.mark_deleted(session.tenant, session.session_id, NOW_UNIX_S)
            assert sorted(threads.map(create, [session, session])) == [False, True]
            assert registry.get_session(session.tenant, session.session_id) == session


def test_one_snapshot_is_recorded_by_two(registry: Registry, session: Session) -> None:
    barrier = threading.Barrier(2)

    def record(generation: int) -> None:
        barrier.wait()
        registry.record_snapshot(session.tenant, session.session_id, a_summary(generation))

    with ThreadPoolExecutor(2) as threads:
        for generation in range(1, 31):
            list(threads.map(record, [generation, generation]))
    history = registry.list_snapshots(session.tenant, session.session_id)
    assert history == [a_summary(generation) for generation in range(1, 31)]


BEGIN_ON_EACH = """
import sys
from sessiond.domain.errors import OperationInProgressError
from sessiond.registry import Registry
from sessiond.testing.values import a_session, an_operation

url, owner, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
registry = Registry.open(url)
print("ready", flush=True)
input()
for number in range(count):
    try:
        registry.begin_operation(an_operation(a_session(f"s{number}"), owner=owner))
    except OperationInProgressError:
        continue
    print(f"s{number}")
registry.close()
"""


def test_of_two_processes_one_begins(registry: Registry, url: str) -> None:
    count = 150
    for number in range(count):
        registry.create_session(a_session(f"s{number}"))
    with ExitStack() as ends:
        daemons = {owner: ends.enter_context(daemon(url, owner, count)) for owner in "ab"}
        for process in daemons.values():
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in daemons.values():
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        won = {owner: process.communicate()[0].split() for owner, process in daemons.items()}
    assert sorted(won["a"] + won["b"]) == sorted(f"s{number}" for number in range(count))
    for owner, session_ids in won.items():
        for session_id in map(SessionId, session_ids):
            held = registry.running_operation(DEFAULT_TENANT, session_id, NOW_UNIX_S)
            assert held is not None
            assert held.owner == owner


def daemon(url: str, owner: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN_ON_EACH, url, owner, str(count)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
