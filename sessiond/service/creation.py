"""Creating a session: its row first, then its files; and what to do about one that was cut off.

All of it blocks.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import (
    SessiondError,
    SessionExistsError,
    SessionNotFoundError,
    StoreCorruptError,
    StoreError,
)
from sessiond.service.ownership import Same
from sessiond.service.records import record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Session
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)

#: Told apart in microseconds; a float of today's times has steps of a quarter of one.
_LATER_S: Final = 2e-6


class _BegunError(Exception):
    """A session's files are begun already."""


@dataclass(frozen=True)
class _ToBegin:
    """A fence for who begins a session's files: nothing once somebody else has begun them.

    Who was slow would else remove what was stored since.
    """

    context: Context
    session: Session

    def __call__(self) -> None:
        """Raise if there is nothing to begin any more; blocks.

        :raises _BegunError: it is done.
        :raises SessionNotFoundError: the session is deleted.
        :raises SessionExistsError: its id is another one's.
        """
        meant = self.session
        Same(self.context, meant)()
        try:
            record = self.context.store.read_session(meant.tenant, meant.session_id)
        except StoreCorruptError:
            return  # it tells of nobody
        if record and not record.is_tombstone and record.created_unix_s == meant.created_unix_s:
            raise _BegunError


def create(context: Context, session: Session) -> None:
    """Add a session; one that only the store knows is taken over with its snapshots.

    :raises SessionExistsError: there is one with this id.
    :raises StoreError: its files cannot be begun; then it is not there.
    """
    store, registry = context.store, context.registry
    key = session.tenant, session.session_id
    session, reused = after_deleted(context, session)
    try:
        registry.create_session(session)
    except SessionExistsError:
        with contextlib.suppress(SessionNotFoundError):  # deleted in this moment
            _finish(context, registry.get_session(*key))
        raise
    fence = _ToBegin(context, session)
    try:
        if reused:
            # Its delete may have been interrupted before there was a tombstone.
            store.delete_session(*key, fence=fence)
        store.write_session(record_of(session), create=True, fence=fence)
    except _BegunError:
        pass  # by somebody who took this for a creation that was cut off
    except StoreError:
        registry.mark_deleted(*key, context.now(), session.created_unix_s)
        raise
    registry.add_event(*key, "created", session.created_unix_s, {})


def after_deleted(context: Context, session: Session) -> tuple[Session, bool]:
    """Return a session as one created after any that had its id, and whether there was one.

    Whatever the clock says: by when they were created, tickets and heads tell them apart.
    """
    get = context.registry.get_session
    try:
        earlier = get(session.tenant, session.session_id, include_deleted=True)
    except SessionNotFoundError:
        return session, False
    created_unix_s = max(session.created_unix_s, earlier.created_unix_s + _LATER_S)
    return replace(session, created_unix_s=created_unix_s), earlier.deleted


def finish(context: Context, keys: Sequence[tuple[TenantId, SessionId]]) -> None:
    """Begin the files of those sessions that live, of *keys* which the store calls deleted.

    Whoever created one anew was cut off after its row: since then the store has refused all that
    was to be kept of it.

    :raises RegistryUnavailableError: the registry does not answer.
    """
    for session in context.registry.sessions_by_key(keys):
        _finish(context, session)


def _finish(context: Context, session: Session) -> None:
    store = context.store
    try:
        record = store.read_session(session.tenant, session.session_id)
        deleted_unix_s = record.deleted_unix_s if record else None
        # A later one is of this very session, whose row has come back with a copy of the registry.
        if deleted_unix_s is None or deleted_unix_s > session.created_unix_s:
            return
        store.write_session(record_of(session), create=True, fence=_ToBegin(context, session))
    except _BegunError:
        return
    except SessiondError:
        _log.exception("the files of session %s could not be begun", session.session_id)
        return
    _log.warning("the creation of session %s was cut off and is finished", session.session_id)
