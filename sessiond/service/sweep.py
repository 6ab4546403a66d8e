"""The idle sweep: suspends sessions whose agents are away."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    OperationInProgressError,
    SessiondError,
    SessionNotFoundError,
    TurnInFlightError,
)
from sessiond.domain.reasons import Reason
from sessiond.domain.session import OperationStatus, SessionState
from sessiond.service.judge import is_due

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.canonical import JsonValue
    from sessiond.service.catalogue import Catalogue, View
    from sessiond.service.context import Context
    from sessiond.service.lifecycle import Lifecycle
    from sessiond.service.operations import Operations
    from sessiond.service.watch import Key

_log = logging.getLogger(__name__)

#: Somebody else is at the session: the next sweep looks again.
_BUSY = (TurnInFlightError, OperationInProgressError, SessionNotFoundError)
_IN_ENGINE = frozenset({SessionState.RUNNING, SessionState.ACTIVE})


#: A suspend that fails again and again is tried so often at least.
_LONGEST_RETRY_S = 3600.0


@dataclass(frozen=True)
class _Retry:
    """When a session whose suspend failed, or left something out, is swept again."""

    at_unix_s: float
    wait_s: float
    idle_since_unix_s: float  #: since then; another turn begins anew

    @property
    def known_unix_s(self) -> float:
        """Until when another failure counts as the same trouble."""
        return self.at_unix_s + self.wait_s


@dataclass(frozen=True)
class SweepReport:
    """What one sweep did."""

    watched: int
    due: int
    suspended: int
    failed: int


class Sweeper:
    """Looks at the watched sessions; a function of ``now`` that may run as often as it likes."""

    def __init__(
        self,
        context: Context,
        catalogue: Catalogue,
        lifecycle: Lifecycle,
        operations: Operations,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._lifecycle = lifecycle
        self._operations = operations
        self._retries: dict[Key, _Retry] = {}
        #: The last token of what was suspended: retention must not make us store it again.
        self._done_unix_s: dict[Key, float] = {}

    async def watch_all(self) -> int:
        """Watch every session of the store once, after a start; return how many."""
        keys = await self._context.blocking(self._all_keys)
        for key in keys:
            self._context.watchlist.add(key, until_unix_s=0.0)
        return len(keys)

    async def sweep(self) -> SweepReport:
        """Suspend what is idle now.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        now = self._context.now()
        views = await self._look(now)
        due = [view for view in views if self._is_due(view, now)]
        gate = asyncio.Semaphore(self._context.limits.sweep_concurrency)
        ended = await asyncio.gather(*(self._suspend(view, gate) for view in due))
        return SweepReport(
            watched=len(views),
            due=len(due),
            suspended=sum(done is True for done in ended),
            failed=sum(done is False for done in ended),
        )

    async def _look(self, now_unix_s: float) -> Sequence[View]:
        """Return the watched sessions that are in an engine, and forget the others."""
        keys = self._context.watchlist.keys()
        sessions = await self._context.blocking(self._context.registry.sessions_for_sweep, keys)
        seen = await self._catalogue.views(tuple(sessions))
        for view in seen:
            await self._catalogue.trail.note(view.session, view.presence)
        views = [view for view in seen if view.state in _IN_ENGINE]
        kept = {(view.session.tenant, view.session.session_id) for view in views}
        self._context.watchlist.drop((key for key in keys if key not in kept), now_unix_s)
        watched = set(self._context.watchlist.keys())
        self._retries = {
            key: retry
            for key, retry in self._retries.items()
            if retry.known_unix_s > now_unix_s and key in watched
        }
        self._done_unix_s = {key: at for key, at in self._done_unix_s.items() if key in watched}
        return views

    def _is_due(self, view: View, now_unix_s: float) -> bool:
        session, key = view.session, _key_of(view)
        retry = self._retries.get(key)
        if not view.presence:
            return False
        same = retry is not None and retry.idle_since_unix_s == view.presence.idle_since_unix_s
        if retry and same and retry.at_unix_s > now_unix_s:
            return False
        # Two idle sessions that do not fit a quota together would evict each other for ever.
        if session.lost_reason and self._done_unix_s.get(key) == view.presence.idle_since_unix_s:
            return False
        return is_due(session, view.presence, self._context.limits.idle_timeout_s, now_unix_s)

    async def _suspend(self, view: View, gate: asyncio.Semaphore) -> bool | None:
        """Return whether it went well; ``None`` if somebody else is at the session."""
        session = view.session
        try:
            async with gate:
                operation = await self._lifecycle.suspend(session.tenant, session.session_id)
                limits = self._context.limits
                wait_s = limits.suspend_deadline_s * limits.suspend_rounds
                operation = await self._operations.wait(operation, wait_s)
        except _BUSY:
            return None
        except SessiondError as error:
            _log.warning("the sweep could not suspend a session: %s", error.message)
            return self._failed(view)
        if operation.status is not OperationStatus.SUCCEEDED:
            return self._failed(view)
        self._retries.pop(_key_of(view), None)
        if operation.result and operation.result.get("missing_tokens"):
            # What was evicted will not come back; what had no room may have some later.
            self._postpone(view, math.inf if _is_evicted(operation.result) else 0.0)
        if view.presence:
            self._done_unix_s[_key_of(view)] = view.presence.idle_since_unix_s
        return True

    def _failed(self, view: View) -> bool:
        self._postpone(view)
        return False

    def _postpone(self, view: View, least_s: float = 0.0) -> None:
        key, earlier = _key_of(view), self._retries.get(_key_of(view))
        idle_since_unix_s = view.presence.idle_since_unix_s if view.presence else 0.0
        wait_s = max(self._context.limits.sweep_retry_s, least_s)
        if earlier and earlier.idle_since_unix_s == idle_since_unix_s:
            # Each attempt leaves an operation and an event, and may measure the store.
            wait_s = min(2 * earlier.wait_s, max(wait_s, _LONGEST_RETRY_S))
        self._retries[key] = _Retry(self._context.now() + wait_s, wait_s, idle_since_unix_s)

    def _all_keys(self) -> list[Key]:
        return [
            (record.tenant, record.session)
            for record in self._context.store.list_sessions()
            if not record.is_tombstone
        ]


def _is_evicted(result: Mapping[str, JsonValue]) -> bool:
    """Whether eviction is the only cause of what a suspend left out."""
    causes = result.get("causes")
    reasons = (
        [one.get("reason") for one in causes if isinstance(one, Mapping)]
        if isinstance(causes, list)
        else []
    )
    return bool(reasons) and set(reasons) == {Reason.KV_EVICTED}


def _key_of(view: View) -> Key:
    return view.session.tenant, view.session.session_id
