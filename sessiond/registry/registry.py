from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import sessionmaker

from sessiond.domain.cursors import START
from sessiond.domain.session import Event, OperationStatus
from sessiond.registry import away, operations, restore, retention, sessions, switches, trail
from sessiond.registry.dialects import READ_ONLY, begin_unhurried, open_engine
from sessiond.registry.failures import domain_errors
from sessiond.registry.lookup import Lookup
from sessiond.registry.models import IdempotencyKeyRow, SessionRow
from sessiond.registry.sessions import Page, SessionChanges, SessionFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Unpack

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session as Database

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.cursors import Cursor
    from sessiond.domain.ids import OperationId, SessionId, TenantId
    from sessiond.domain.session import Operation, Session
    from sessiond.domain.snapshot import SnapshotSummary
    from sessiond.registry.restore import Restored, Witness


class Registry:
    """The database of sessions. Synchronous; safe to use from several threads.

    Each method is one transaction. Each raises ``RegistryUnavailableError`` when the database
    does not answer, or holds the tables of another version.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = sessionmaker(engine)
        self._reader = sessionmaker(engine.execution_options(**READ_ONLY))
        self._lookup = Lookup(engine)  # for what every turn asks

    @classmethod
    def open(cls, url: str) -> Registry:
        """Return the registry at *url*, ``sqlite:////path`` or ``postgresql://…``.

        :raises ConfigurationError: *url* is not valid.
        :raises RegistryUnavailableError: the database cannot be reached.
        """
        registry = cls(open_engine(url))
        try:
            with registry._reading() as db:
                db.execute(select(1))
        except BaseException:
            registry.close()
            raise
        return registry

    def close(self) -> None:
        """Close all connections."""
        self._lookup.close()
        self._engine.dispose()

    def check(self) -> None:
        """Make one look-up.

        :raises RegistryUnavailableError: the database or its tables are not there.
        """
        with self._reading() as db:
            db.get(SessionRow, ("", ""))

    # -- sessions ----------------------------------------------------------------------------

    def create_session(self, session: Session) -> None:
        """Add *session*; the id of a deleted one may be used again.

        :raises SessionExistsError: there is a session with this id.
        :raises OperationInProgressError: the deleted one is still being deleted.
        """
        with self._writing() as db:
            _create(db, session)

    def get_session(
        self, tenant: TenantId, session_id: SessionId, *, include_deleted: bool = False
    ) -> Session:
        """Return one session.

        :raises SessionNotFoundError: there is none, or it is deleted and these are not asked for.
        """
        session = self._lookup.find(tenant, session_id)
        if session is None or (session.deleted and not include_deleted):
            raise sessions.not_found(session_id)
        return session

    def list_sessions(  # noqa: PLR0913 - one keyword per filter
        self,
        tenant: TenantId,
        *,
        model: str | None = None,
        has_snapshot: bool | None = None,
        pinned: bool | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page:
        """Return up to *limit* sessions that are not deleted, ordered by id, after *after*.

        :raises InvalidInputError: *limit* is not between 1 and 1000.
        """
        wanted = SessionFilter(model, has_snapshot, pinned)
        with self._reading() as db:
            return sessions.list_page(db, tenant, wanted, after, limit)

    def update_session(
        self,
        tenant: TenantId,
        session_id: SessionId,
        created_unix_s: float | None = None,
        **changes: Unpack[SessionChanges],
    ) -> Session:
        """Change some fields and return the session; ``updated_unix_s`` is now if not given.

        :param created_unix_s: only of the one created then: its id may be another one's since
        :raises SessionNotFoundError: there is no such session, or it is deleted.
        """
        unknown = changes.keys() - SessionChanges.__annotations__.keys()
        if unknown:
            raise TypeError(f"A session's {', '.join(sorted(unknown))} cannot be changed.")
        with self._writing() as db:
            values = {"updated_unix_s": time.time(), **changes}
            return sessions.change(db, tenant, session_id, values, created_unix_s)

    def record_snapshot(
        self,
        tenant: TenantId,
        session_id: SessionId,
        summary: SnapshotSummary,
        created_unix_s: float | None = None,
        is_there: Callable[[], bool] | None = None,
    ) -> bool:
        """Add one snapshot to the session, as its newest unless a newer one is known.

        Repeating it for a known generation changes nothing of the snapshot. A new newest one
        empties the session's ``resumed_on``. Returns whether it was new.

        :param created_unix_s: only to the one created then: its id may be another one's since
        :param is_there: asked in between: only if the store has not lost it since it was read
        :raises SessionNotFoundError: there is no such session, or it is deleted.
        """
        with self._writing() as db:
            now = time.time()
            return sessions.record_snapshot(
                db, tenant, session_id, summary, now, created_unix_s, is_there
            )

    def list_snapshots(self, tenant: TenantId, session_id: SessionId) -> list[SnapshotSummary]:
        """Return the session's snapshots, oldest first; none for an unknown session."""
        with self._reading() as db:
            return sessions.list_snapshots(db, tenant, session_id)

    def mark_deleted(
        self,
        tenant: TenantId,
        session_id: SessionId,
        now_unix_s: float,
        created_unix_s: float | None = None,
    ) -> int:
        """Mark the session as deleted and forget its snapshots; repeating it changes nothing.

        Returns how many bytes of these were never read.

        :param created_unix_s: only the one created then: its id may be another one's since
        :raises SessionNotFoundError: there never was such a session.
        """
        with self._writing() as db:
            return sessions.mark_deleted(db, tenant, session_id, now_unix_s, created_unix_s)

    def sessions_for_sweep(self, ids: Sequence[tuple[TenantId, SessionId]]) -> list[Session]:
        """Return those of *ids* that exist, are not deleted and not pinned, in any order."""
        with self._reading() as db:
            return sessions.for_sweep(db, ids)

    def forget_snapshots(  # noqa: PLR0913 - names, what goes, and why
        self,
        tenant: TenantId,
        session_id: SessionId,
        generations: Collection[int],
        lost_reason: str,
        *,
        spare_pinned: bool = False,
        freed_bytes: int | None = None,
        created_unix_s: float | None = None,
    ) -> int | None:
        """Remove snapshots that the store is about to lose; a session without one knows why.

        :param spare_pinned: do nothing if the session is pinned now.
        :param freed_bytes: that are in no other snapshot of the session; ``None``: not known
        :param created_unix_s: only of the one created then: its id may be another one's since
        :returns: how many bytes are lost that were never read; ``None``: nothing was done.
        :raises SessionNotFoundError: there is no such session, or it is deleted.
        """
        with self._writing() as db:
            return retention.forget_snapshots(
                db,
                tenant,
                session_id,
                generations,
                lost_reason,
                spare_pinned=spare_pinned,
                freed_bytes=freed_bytes,
                created_unix_s=created_unix_s,
            )

    def sessions_by_key(self, ids: Sequence[tuple[TenantId, SessionId]]) -> list[Session]:
        """Return those of *ids* that exist and are not deleted, in any order."""
        with self._reading() as db:
            return retention.by_keys(db, ids)

    def unused_sessions(
        self, now_unix_s: float, default_ttl_s: float
    ) -> list[tuple[TenantId, SessionId]]:
        """Return the sessions, not pinned, whose snapshots have outlived their TTL.

        The registry does not see turns: their heads tell whether a session was used since.

        :param default_ttl_s: of sessions without a TTL of their own; 0: never.
        """
        with self._reading() as db:
            return retention.unused(db, now_unix_s, default_ttl_s)

    def restore_session(
        self, witness: Witness, now_unix_s: float, *, dry_run: bool = False
    ) -> Restored:
        """Bring a session into line with what the store's files tell of it.

        :raises SessionExistsError: it was created in this moment; try again.
        """
        with self._writing() as db:
            restored = restore.restore(db, witness, now_unix_s)
            if dry_run:
                db.rollback()
            return restored

    def restore_deleted(
        self,
        tenant: TenantId,
        session_id: SessionId,
        deleted_unix_s: float,
        now_unix_s: float,
        *,
        dry_run: bool = False,
    ) -> Restored:
        """Mark a session as deleted that has a tombstone, unless its name was used again since."""
        with self._writing() as db:
            restored = restore.restore_deleted(db, tenant, session_id, deleted_unix_s, now_unix_s)
            if dry_run:
                db.rollback()
            return restored

    # -- what a snapshot is worth -------------------------------------------------------------

    def mark_away(self, tenant: TenantId, session_id: SessionId, now_unix_s: float) -> None:
        """Note that the session is away since now, unless it is known to be away already."""
        with self._writing() as db:
            away.mark(db, tenant, session_id, now_unix_s)

    def end_away(
        self, tenant: TenantId, session_id: SessionId, before_unix_s: float | None = None
    ) -> bool:
        """Note that the session is back, or gone; return whether it was away until now.

        :param before_unix_s: only if it has been away since before then
        """
        with self._writing() as db:
            return away.end(db, tenant, session_id, before_unix_s)

    def give_up_away(self, before_unix_s: float) -> list[tuple[TenantId, str]]:
        """Wait no longer for sessions that are away since before then, up to 500 at a time.

        Returns the tenant and the model of each, to one caller only, however many call at once.
        """
        with self._writing() as db:
            return away.give_up(db, before_unix_s)

    def read_snapshots(self, tenant: TenantId, session_id: SessionId) -> int:
        """Note that the session's snapshots were loaded; return how many bytes never were before.

        It is none for an unknown session.
        """
        with self._writing() as db:
            return away.read(db, tenant, session_id)

    # -- operations --------------------------------------------------------------------------

    def begin_operation(
        self,
        operation: Operation,
        creates: Session | None = None,
        planned_unix_s: float | None = None,
    ) -> None:
        """Add a running operation, atomically; its creation time is taken as now.

        A running one whose lease is expired is failed with code ``lease_expired``; but a fork is
        left to :meth:`expire_operations`, unless this is a delete. A deleted session takes only a
        delete, so that an interrupted one can be repeated.

        :param creates: the session that it fills, added with it as :meth:`create_session` does
        :param planned_unix_s: when the session was created that it was planned for; the id may be
            another one's since
        :raises OperationInProgressError: another operation holds the session.
        :raises SessionNotFoundError: there is no such session, or it is deleted.
        :raises SessionExistsError: there is a session with the id of the one to add.
        """
        assert operation.status is OperationStatus.RUNNING
        with self._writing() as db:
            if creates is not None:
                _create(db, creates)
            operations.begin(db, operation, planned_unix_s)

    def renew_lease(
        self, operation_id: OperationId, owner: str, until_unix_s: float, now_unix_s: float
    ) -> bool:
        """Extend the lease of a running operation; ``False`` if it is expired or lost."""
        with self._writing() as db:
            return operations.renew(db, operation_id, owner, until_unix_s, now_unix_s)

    def finish_operation(
        self,
        operation_id: OperationId,
        owner: str,
        status: OperationStatus,
        result: dict[str, JsonValue] | None,
        now_unix_s: float,
    ) -> bool:
        """End a running operation; ``False`` if it was ended by somebody else meanwhile."""
        assert status is not OperationStatus.RUNNING
        with self._writing() as db:
            ending = operations.ending(status, result, now_unix_s)
            return operations.finish(db, operation_id, owner, ending)

    def correct_operation(
        self, operation_id: OperationId, result: dict[str, JsonValue], now_unix_s: float
    ) -> None:
        """Let an operation that :meth:`expire_operations` has failed have succeeded after all."""
        with self._writing() as db:
            ending = operations.ending(OperationStatus.SUCCEEDED, result, now_unix_s)
            operations.correct(db, operation_id, ending)

    def get_operation(self, tenant: TenantId, operation_id: OperationId) -> Operation:
        """Return one operation.

        :raises OperationNotFoundError: the tenant has none with this id.
        """
        with self._reading() as db:
            return operations.get(db, tenant, operation_id)

    def running_operation(
        self, tenant: TenantId, session_id: SessionId, now_unix_s: float
    ) -> Operation | None:
        """Return the operation that holds the session: running, with an unexpired lease."""
        with self._reading() as db:
            return operations.running(db, tenant, session_id, now_unix_s)

    def expire_operations(self, now_unix_s: float) -> list[Operation]:
        """Fail operations whose lease is expired, up to 500 at a time, and return them.

        Each is returned to one caller only, however many call at once.
        """
        with self._writing() as db:
            return operations.expire(db, now_unix_s)

    # -- events and idempotency keys ---------------------------------------------------------

    def add_event(  # noqa: PLR0913, PLR0917 - names, what it tells, and of which one
        self,
        tenant: TenantId,
        session_id: SessionId,
        kind: str,
        at_unix_s: float,
        detail: dict[str, JsonValue],
        created_unix_s: float | None = None,
    ) -> None:
        """Add one line to the audit trail of a session, which may be deleted.

        :param created_unix_s: only of the one created then: its id may be another one's since
        :raises SessionNotFoundError: there never was such a session.
        """
        with domain_errors(), self._engine.begin() as connection:
            # The database gives the number.
            event = Event(0, tenant, session_id, kind, at_unix_s, detail)
            trail.add_event(connection, event, created_unix_s=created_unix_s)

    def add_event_once(self, event: Event, created_unix_s: float | None = None) -> bool:
        """As :meth:`add_event`, but not if the trail has one of this kind and time.

        Returns whether it was added. After a power cut it may be gone again.

        :raises SessionNotFoundError: there never was such a session.
        """
        with domain_errors(), begin_unhurried(self._engine) as connection:
            return trail.add_event(connection, event, once=True, created_unix_s=created_unix_s)

    def list_events(
        self, tenant: TenantId, session_id: SessionId, *, after: int = 0, limit: int = 100
    ) -> list[Event]:
        """Return up to *limit* events with numbers above *after*, oldest first."""
        with self._reading() as db:
            return trail.list_events(db, tenant, session_id, after, limit)

    def tenant_events(
        self,
        tenant: TenantId,
        *,
        session_id: SessionId | None = None,
        after: Cursor = START,
        limit: int = 100,
    ) -> list[Event]:
        """Return up to *limit* events of all the tenant's sessions, or of one, oldest first.

        Their numbers are above *after*'s. None ever appears with a number below one that was seen.

        :raises EventsResetError: the event of *after*, as it was seen, is not in this database.
        """
        with self._reading() as db:
            return trail.tenant_events(db, tenant, session_id, after, limit)

    def find_event(self, tenant: TenantId, number: int) -> Event | None:
        """Return the tenant's event that has this number; ``None`` if none has."""
        with self._reading() as db:
            return trail.find_event(db, tenant, number)

    def newest_event(self, tenant: TenantId) -> Event | None:
        """Return the tenant's newest event; ``None`` without one."""
        with self._reading() as db:
            return trail.newest_event(db, tenant)

    def remember(  # noqa: PLR0913, PLR0917 - one for each column, and an age
        self,
        tenant: TenantId,
        key: str,
        request_digest: bytes,
        operation_id: OperationId,
        now_unix_s: float,
        lost_before_unix_s: float = 0.0,
    ) -> str | None:
        """Bind an idempotency key to an operation; return the earlier one's id if it is bound.

        :param lost_before_unix_s: what a key was bound to before then, and is not there, will not
            come: its daemon died before it began
        :raises KeyReusedError: the key was used for another request.
        :raises InvalidInputError: the key is not 1 to 255 printable characters.
        """
        with self._writing() as db:
            return trail.remember(
                db,
                IdempotencyKeyRow(
                    tenant=tenant,
                    key=key,
                    request_digest=request_digest,
                    operation_id=operation_id,
                    created_unix_s=now_unix_s,
                ),
                lost_before_unix_s,
            )

    def remove_operations(self, before_unix_s: float) -> int:
        """Remove operations that had ended before then, and older keys; return how many ended."""
        with self._writing() as db:
            trail.remove_keys(db, before_unix_s)
            return operations.remove(db, before_unix_s)

    def forget(self, tenant: TenantId, key: str) -> None:
        """Free an idempotency key, for a request that was refused before its operation began."""
        with self._writing() as db:
            trail.forget(db, tenant, key)

    # -- switches ----------------------------------------------------------------------------

    def read_switch(self, name: str) -> dict[str, JsonValue] | None:
        """Return what a switch is set to, for all daemons; ``None`` if it is not set."""
        with self._reading() as db:
            return switches.read(db, name)

    def set_switch(self, name: str, value: dict[str, JsonValue], now_unix_s: float) -> None:
        """Set a switch, for all daemons, until it is set anew or cleared."""
        with self._writing() as db:
            switches.put(db, name, value, now_unix_s)

    def revise_switch(
        self,
        name: str,
        change: Callable[[dict[str, JsonValue] | None], dict[str, JsonValue]],
        now_unix_s: float,
    ) -> None:
        """Set a switch to what *change* makes of its value; nobody else sets it in between."""
        with self._writing() as db:
            switches.put(db, name, change(switches.read(db, name, lock=True)), now_unix_s)

    def clear_switch(self, name: str) -> bool:
        """Take a switch back, for all daemons; return whether it was set."""
        with self._writing() as db:
            return switches.clear(db, name)

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        with domain_errors(), self._reader.begin() as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[Database]:
        with domain_errors(), self._writer.begin() as db:
            yield db


def _create(db: Database, session: Session) -> None:
    if sessions.create(db, session):
        # Otherwise the end of the old session's delete would hit the new session.
        operations.end_earlier(db, session.tenant, session.session_id, session.created_unix_s)
