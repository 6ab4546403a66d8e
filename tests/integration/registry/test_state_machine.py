"""Operations and leases, compared with a model that is a dictionary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sessiond.domain.errors import (
    OperationInProgressError,
    SessiondError,
    SessionExistsError,
    SessionNotFoundError,
)
from sessiond.domain.ids import TenantId, new_hex_id
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.testing.values import NOW_UNIX_S, a_session, an_operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.domain.ids import OperationId
    from sessiond.domain.session import Operation, Session
    from sessiond.registry import Registry

OWNERS = st.sampled_from("ab")
SESSIONS = st.integers(0, 1)
LEASES_S = st.sampled_from([0.0, 5.0, 10.0, 30.0])
ENDS = st.sampled_from([OperationStatus.SUCCEEDED, OperationStatus.FAILED])
RUNNING = OperationStatus.RUNNING


class Leases(RuleBasedStateMachine):
    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.registry = registry
        self.now_unix_s = NOW_UNIX_S
        # Each run has a tenant of its own, so that runs share a database without meeting.
        tenant = TenantId(new_hex_id())
        self.sessions = [a_session(f"s{number}", tenant=tenant) for number in range(2)]
        self.deleted = [False, False]
        self.operations: dict[OperationId, Operation] = {}
        for session in self.sessions:
            registry.create_session(session)

    # -- the model ---------------------------------------------------------------------------

    def holder(self, session: Session) -> Operation | None:
        """Return the session's running operation, if its lease is not expired."""
        found = self.unfinished(session)
        return found if found and found.lease_until_unix_s > self.now_unix_s else None

    def unfinished(self, session: Session) -> Operation | None:
        mine = [o for o in self.operations.values() if o.session_id == session.session_id]
        running = [o for o in mine if o.status is RUNNING]
        assert len(running) <= 1
        return running[0] if running else None

    def fail(self, operation: Operation) -> None:
        self.operations[operation.operation_id] = replace(
            operation,
            status=OperationStatus.FAILED,
            finished_unix_s=self.now_unix_s,
            result={
                "code": "lease_expired",
                "message": "The operation's daemon stopped before the operation was finished.",
                "retryable": True,
            },
        )

    def expected(self, session: int, kind: OperationKind) -> type[SessiondError] | None:
        if self.deleted[session] and kind is not OperationKind.DELETE:
            return SessionNotFoundError
        held, left = self.holder(self.sessions[session]), self.unfinished(self.sessions[session])
        # An abandoned fork is settled first: there may be no snapshot in its session.
        unsettled = left is not None and left.kind is OperationKind.FORK
        if held or (unsettled and kind is not OperationKind.DELETE):
            return OperationInProgressError
        return None

    # -- what can happen ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_unix_s += seconds

    @rule(number=SESSIONS, owner=OWNERS, kind=st.sampled_from([*OperationKind]), lease_s=LEASES_S)
    def begin(self, number: int, owner: str, kind: OperationKind, lease_s: float) -> None:
        session = self.sessions[number]
        operation = an_operation(
            session,
            owner=owner,
            kind=kind,
            created_unix_s=self.now_unix_s,
            lease_until_unix_s=self.now_unix_s + lease_s,
        )
        error = self.expected(number, kind)
        self.check(error, lambda: self.registry.begin_operation(operation))
        if error is None:
            expired = self.unfinished(session)
            if expired:
                self.fail(expired)
            self.operations[operation.operation_id] = operation

    @precondition(lambda self: self.operations)
    @rule(data=st.data(), owner=OWNERS, lease_s=LEASES_S)
    def renew(self, data: st.DataObject, owner: str, lease_s: float) -> None:
        operation = self.pick(data)
        until_unix_s = self.now_unix_s + lease_s
        live = operation.lease_until_unix_s > self.now_unix_s
        held = operation.status is RUNNING and operation.owner == owner and live
        renewed = self.registry.renew_lease(
            operation.operation_id, owner, until_unix_s, self.now_unix_s
        )
        assert renewed == held
        if held:
            extended = replace(operation, lease_until_unix_s=until_unix_s)
            self.operations[operation.operation_id] = extended

    @precondition(lambda self: self.operations)
    @rule(data=st.data(), owner=OWNERS, status=ENDS)
    def finish(self, data: st.DataObject, owner: str, status: OperationStatus) -> None:
        operation = self.pick(data)
        held = operation.status is RUNNING and operation.owner == owner
        finished = self.registry.finish_operation(
            operation.operation_id, owner, status, {"by": owner}, self.now_unix_s
        )
        assert finished == held
        if held:
            self.operations[operation.operation_id] = replace(
                operation, status=status, finished_unix_s=self.now_unix_s, result={"by": owner}
            )

    @rule()
    def expire(self) -> None:
        due = [o for o in map(self.unfinished, self.sessions) if o]
        due = [o for o in due if o.lease_until_unix_s <= self.now_unix_s]
        for operation in due:
            self.fail(operation)
        found = self.registry.expire_operations(self.now_unix_s)
        mine = {o.operation_id: o for o in found if o.tenant == self.sessions[0].tenant}
        assert mine == {o.operation_id: self.operations[o.operation_id] for o in due}

    @rule(number=SESSIONS)
    def delete_session(self, number: int) -> None:
        session = self.sessions[number]
        self.registry.mark_deleted(session.tenant, session.session_id, self.now_unix_s)
        self.deleted[number] = True

    @rule(number=SESSIONS)
    def create_session(self, number: int) -> None:
        session = replace(self.sessions[number], created_unix_s=self.now_unix_s)
        error: type[SessiondError] | None = None
        if not self.deleted[number]:
            error = SessionExistsError
        elif self.holder(session):
            error = OperationInProgressError
        left = self.unfinished(session)
        self.check(error, lambda: self.registry.create_session(session))
        if error is None and left:
            self.fail(left)
        self.deleted[number] = self.deleted[number] and error is not None

    # -- what must hold ----------------------------------------------------------------------

    @invariant()
    def both_agree(self) -> None:
        for operation in self.operations.values():
            found = self.registry.get_operation(operation.tenant, operation.operation_id)
            assert found == operation
        for session in self.sessions:
            key = (session.tenant, session.session_id)
            running = self.registry.running_operation(*key, self.now_unix_s)
            assert running == self.holder(session)

    def pick(self, data: st.DataObject) -> Operation:
        # By number: the ids are random, and Hypothesis must be able to repeat what it did.
        number = data.draw(st.integers(0, len(self.operations) - 1))
        return list(self.operations.values())[number]

    @staticmethod
    def check(error: type[SessiondError] | None, call: Callable[[], None]) -> None:
        if error is None:
            call()
            return
        with pytest.raises(error) as raised:
            call()
        assert type(raised.value) is error


def test_operations_behave_like_the_model(registry: Registry) -> None:
    class OnThisRegistry(Leases):
        def __init__(self) -> None:
            super().__init__(registry)

    run_state_machine_as_test(
        OnThisRegistry,
        settings=settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
