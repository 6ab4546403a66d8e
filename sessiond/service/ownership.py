"""What only its owner may change: an operation's session, and a session's id."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    OperationInProgressError,
    SessionExistsError,
    SessionNotFoundError,
    StoreCorruptError,
)
from sessiond.domain.session import OperationStatus
from sessiond.service.returns import went

if TYPE_CHECKING:
    from sessiond.domain.ids import OperationId, SessionId, TenantId
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.store.sessions import SessionRecord


@dataclass(frozen=True)
class Ownership:
    """A fence for what an operation writes: nothing once somebody else has ended it.

    Who ends it does so in the registry first, and then takes the lock under which this is asked.
    """

    context: Context
    tenant: TenantId
    operation_id: OperationId

    def __call__(self) -> None:
        """Raise if the operation is not this daemon's any more; blocks.

        :raises OperationInProgressError: its lease was lost.
        """
        held = self.context.registry.get_operation(self.tenant, self.operation_id)
        if held.status is not OperationStatus.RUNNING or held.owner != self.context.owner:
            raise OperationInProgressError("The operation's lease was lost.")


@dataclass(frozen=True)
class Same:
    """A fence for what is written of a session without an operation: nothing of an earlier one.

    Whoever stalled before he wrote would else put it over a session that has the id since.
    """

    context: Context
    session: Session

    def __call__(self) -> None:
        """Raise if the session is deleted, or is another one by now; blocks.

        :raises SessionNotFoundError: it is deleted.
        :raises SessionExistsError: its id is another one's.
        """
        meant = self.session
        found = self.context.registry.get_session(meant.tenant, meant.session_id)
        if found.created_unix_s != meant.created_unix_s:
            raise SessionExistsError


@dataclass(frozen=True)
class Unknown:
    """A fence for what is removed of a session that only the store knows."""

    context: Context
    tenant: TenantId
    session_id: SessionId

    def __call__(self) -> None:
        """Raise if the registry knows the session, deleted or not; blocks.

        :raises SessionExistsError: it does.
        """
        with contextlib.suppress(SessionNotFoundError):
            self.context.registry.get_session(self.tenant, self.session_id, include_deleted=True)
            raise SessionExistsError


def erase(context: Context, session: Session) -> None:
    """Delete this very session, and not another one that has its id since; blocks.

    :raises SessionExistsError: the store has another one.
    """
    tenant, session_id = session.tenant, session.session_id
    now, store = context.now(), context.store
    lost_bytes = context.registry.mark_deleted(tenant, session_id, now, session.created_unix_s)
    context.observer.settled(lost_bytes, read=False)
    went(context, session)

    def is_it() -> None:
        try:
            record = store.read_session(tenant, session_id)
        except StoreCorruptError:
            return  # it tells of nobody
        if record is not None and not record.is_tombstone and not _is_of(record, session):
            raise SessionExistsError

    store.delete_session(tenant, session_id, fence=is_it)


def _is_of(record: SessionRecord, session: Session) -> bool:
    return record.created_unix_s == session.created_unix_s
