from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    OperationInProgressError,
    SessionExistsError,
    SessionNotFoundError,
)
from sessiond.domain.ids import SessionId
from sessiond.domain.session import OperationKind
from sessiond.domain.snapshot import Origin
from sessiond.testing.values import NOW_UNIX_S, a_session, an_operation

if TYPE_CHECKING:
    from sessiond.domain.session import Operation, Session
    from sessiond.registry import Registry


@pytest.fixture
def fork() -> Session:
    origin = Origin(SessionId("source"), 7)
    return replace(a_session(), session_id=SessionId("fork"), forked_from=origin)


def filling(session: Session) -> Operation:
    return an_operation(session, kind=OperationKind.FORK)


def test_a_session_comes_with_the_operation_that_fills_it(
    registry: Registry, fork: Session
) -> None:
    operation = filling(fork)
    registry.begin_operation(operation, fork)
    assert registry.get_session(fork.tenant, fork.session_id) == fork
    running = registry.running_operation(fork.tenant, fork.session_id, NOW_UNIX_S)
    assert running == operation
    with pytest.raises(OperationInProgressError):
        registry.begin_operation(an_operation(fork))


def test_an_id_that_is_taken_begins_nothing(registry: Registry, fork: Session) -> None:
    there = replace(fork, forked_from=None)
    registry.create_session(there)
    operation = filling(fork)
    with pytest.raises(SessionExistsError):
        registry.begin_operation(operation, fork)
    assert registry.get_session(fork.tenant, fork.session_id) == there
    assert registry.running_operation(fork.tenant, fork.session_id, NOW_UNIX_S) is None


def test_while_the_old_one_is_being_deleted_nothing_begins(
    registry: Registry, fork: Session
) -> None:
    old = replace(fork, forked_from=None)
    registry.create_session(old)
    registry.begin_operation(an_operation(old, kind=OperationKind.DELETE))
    registry.mark_deleted(old.tenant, old.session_id, NOW_UNIX_S)
    with pytest.raises(OperationInProgressError):
        registry.begin_operation(filling(fork), fork)
    with pytest.raises(SessionNotFoundError):
        registry.get_session(fork.tenant, fork.session_id)


def test_a_new_session_of_the_id_is_no_fork(registry: Registry, fork: Session) -> None:
    registry.create_session(fork)
    registry.mark_deleted(fork.tenant, fork.session_id, NOW_UNIX_S)
    registry.create_session(replace(fork, forked_from=None))
    assert registry.get_session(fork.tenant, fork.session_id).forked_from is None
