"""Sessions as their owners see them: create, show, list, change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from sessiond.domain.ids import OperationId, SessionId, TenantId, new_session_id
from sessiond.domain.session import (
    Event,
    OnEvicted,
    Presence,
    Session,
    SessionState,
    derive_state,
)
from sessiond.domain.tokens import head_digest
from sessiond.service import creation
from sessiond.service.coverage import cover
from sessiond.service.engines import Located, newest_head, presence_of
from sessiond.service.once import Once
from sessiond.service.ownership import Same
from sessiond.service.records import record_of
from sessiond.service.turntrail import TurnTrail

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.plans import PlanPolicy
    from sessiond.domain.snapshot import SnapshotSummary
    from sessiond.service.context import Context
    from sessiond.service.plans import Planner
    from sessiond.service.snapshots import Snapshots
    from sessiond.store.sessionlook import SessionLook


@dataclass(frozen=True)
class View:
    """A session with what is derived from the heads."""

    session: Session
    state: SessionState
    presence: Presence | None


@dataclass(frozen=True)
class ViewPage:
    """A part of a list of sessions, ordered by id."""

    views: tuple[View, ...]
    next_after: str | None  #: ``after`` of the next page; ``None`` on the last one


@dataclass(frozen=True)
class Wanted:
    """Which sessions to list; ``None`` means all."""

    model: str | None = None
    has_snapshot: bool | None = None
    pinned: bool | None = None


class Changes(TypedDict, total=False):
    """What the owner of a session may change."""

    idle_timeout_s: float | None
    ttl_s: float | None
    pinned: bool
    on_evicted: OnEvicted | None
    plan_policy: PlanPolicy | None
    objective_s: float | None


class Catalogue:
    """The sessions of all tenants."""

    def __init__(self, context: Context, snapshots: Snapshots, planner: Planner) -> None:
        self._context = context
        self._snapshots = snapshots
        self.trail = TurnTrail(context, planner)  #: of what heads tell

    async def create(
        self,
        tenant: TenantId,
        session_id: SessionId | None,
        model: str = "",
        *,
        key: str = "",
        **options: Unpack[Changes],
    ) -> View:
        """Add a session; its id is made here if none is given.

        A session that the store knows and the registry does not is taken over, with its
        snapshots. *key*, a client's idempotency key, makes a repeated call return the first
        one's session.

        :raises SessionExistsError: the tenant has one with this id.
        """
        session = self._new(tenant, session_id or new_session_id(), model, options)
        if not key:
            await self._context.blocking(creation.create, self._context, session)
            return await self.show(tenant, session.session_id)
        request: list[JsonValue] = ["create", session_id, model, dict_of(options)]
        once = Once(self._context, tenant, key, request)
        earlier = await once.begin(OperationId(session.session_id))
        if earlier is not None:
            return await self.show(tenant, SessionId(earlier))
        async with once.forgotten_on_error():
            await self._context.blocking(creation.create, self._context, session)
        return await self.show(tenant, session.session_id)

    async def get(self, tenant: TenantId, session_id: SessionId) -> Session:
        """Return a session, with all that was committed for it.

        :raises SessionNotFoundError: there is none, or it is deleted.
        """
        return await self._context.blocking(self.get_now, tenant, session_id)

    def get_now(self, tenant: TenantId, session_id: SessionId) -> Session:
        """Return the same as :meth:`get`, in the caller's thread."""
        session = self._context.registry.get_session(tenant, session_id)
        if self._snapshots.reconcile_now(session):
            session = self._context.registry.get_session(tenant, session_id)
        return session

    def look_now(self, tenant: TenantId, session_id: SessionId) -> tuple[Session, SessionLook]:
        """Return a session as :meth:`get` does, and what its folder held after that was read.

        :raises SessionNotFoundError: there is none, or it is deleted.
        """
        registry, store = self._context.registry, self._context.store
        session = registry.get_session(tenant, session_id)
        look = store.look(tenant, session_id)
        if self._snapshots.reconcile_now(session, look):
            session = registry.get_session(tenant, session_id)
            look = store.look(tenant, session_id)
        return session, look

    async def show(self, tenant: TenantId, session_id: SessionId) -> View:
        """Return a session with its state.

        :raises SessionNotFoundError: there is none, or it is deleted.
        """
        session = await self.get(tenant, session_id)
        (view,) = await self.views((session,))
        return view

    async def page(
        self, tenant: TenantId, wanted: Wanted, after: str | None, limit: int
    ) -> ViewPage:
        """Return up to *limit* sessions, ordered by id, after *after*.

        :raises InvalidInputError: *limit* is not between 1 and 1000.
        """
        page = await self._context.blocking(
            self._context.registry.list_sessions,
            tenant,
            model=wanted.model,
            has_snapshot=wanted.has_snapshot,
            pinned=wanted.pinned,
            after=after,
            limit=limit,
        )
        return ViewPage(await self.views(page.sessions), page.next_after)

    async def change(self, tenant: TenantId, session_id: SessionId, changes: Changes) -> View:
        """Change some fields.

        :raises SessionNotFoundError: there is none, or it is deleted.
        """
        await self._context.blocking(self._change, tenant, session_id, changes)
        # One that was pinned has been left out by the sweeps.
        self._context.watchlist.add((tenant, session_id), self._context.now())
        return await self.show(tenant, session_id)

    async def snapshots(self, tenant: TenantId, session_id: SessionId) -> list[SnapshotSummary]:
        """Return the session's snapshots, oldest first.

        :raises SessionNotFoundError: there is none, or it is deleted.
        """
        await self.get(tenant, session_id)
        return await self._context.blocking(
            self._context.registry.list_snapshots, tenant, session_id
        )

    async def events(
        self, tenant: TenantId, session_id: SessionId, after: int, limit: int
    ) -> list[Event]:
        """Return up to *limit* events numbered above *after*; a deleted session has some too.

        :raises SessionNotFoundError: there never was such a session.
        """
        registry = self._context.registry
        await self.trail.settle((tenant, session_id))
        await self._context.blocking(registry.get_session, tenant, session_id, include_deleted=True)
        return await self._context.blocking(
            registry.list_events, tenant, session_id, after=after, limit=limit
        )

    async def views(self, sessions: tuple[Session, ...]) -> tuple[View, ...]:
        """Return the sessions with their states, in the same order."""
        live = await self._context.engines.live()
        return await self._context.blocking(self._look, sessions, live)

    def _look(self, sessions: tuple[Session, ...], live: list[EngineInfo]) -> tuple[View, ...]:
        return tuple(self._view(session, live) for session in sessions)

    def _view(self, session: Session, live: list[EngineInfo]) -> View:
        heads = self._context.store.read_heads(session.tenant, session.session_id)
        located = newest_head(session, heads, live)
        presence = presence_of(session, located, live)
        if presence and located and self._may_be_stored(session, presence):
            presence = self._compared(session, presence, located)
        return View(session, derive_state(session, presence), presence)

    def _may_be_stored(self, session: Session, presence: Presence) -> bool:
        """Whether the state depends on what the newest snapshot has."""
        resumed_here = session.resumed_on == presence.engine_id
        return bool(session.snapshot) and not presence.turns_in_flight and not resumed_here

    def _compared(self, session: Session, presence: Presence, located: Located) -> Presence:
        newest = self._snapshots.newest_manifest(session)
        covered = cover(self._context.store, located.engine, located.head, newest)
        if covered is None:
            return presence
        return replace(
            presence,
            head_tokens=len(covered.branch.tokens),
            whole_chunk_tokens=covered.tokens,
            head_digest=head_digest(covered.branch.tokens),
            stored_tokens=covered.kept_tokens,
        )

    def _new(
        self, tenant: TenantId, session_id: SessionId, model: str, options: Changes
    ) -> Session:
        now = self._context.now()
        return Session(
            tenant=tenant,
            session_id=session_id,
            model=model,
            created_unix_s=now,
            updated_unix_s=now,
            idle_timeout_s=options.get("idle_timeout_s"),
            pinned=options.get("pinned", False),
            deleted=False,
            snapshot=None,
            resumed_on="",
            last_outcome="",
            last_reason="",
            ttl_s=options.get("ttl_s"),
            on_evicted=options.get("on_evicted"),
            plan_policy=options.get("plan_policy"),
            objective_s=options.get("objective_s"),
        )

    def _change(self, tenant: TenantId, session_id: SessionId, changes: Changes) -> None:
        store, registry = self._context.store, self._context.registry
        session = registry.update_session(
            tenant, session_id, updated_unix_s=self._context.now(), **changes
        )
        store.write_session(record_of(session), fence=Same(self._context, session))
        registry.add_event(tenant, session_id, "changed", session.updated_unix_s, dict_of(changes))


def dict_of(changes: Changes) -> dict[str, JsonValue]:
    """Return *changes* as JSON."""
    return cast("dict[str, JsonValue]", dict(changes))
