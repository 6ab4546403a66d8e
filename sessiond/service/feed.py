"""Events of all sessions of a tenant, as they come."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from sessiond.domain.cursors import START, Cursor, cursor_of
from sessiond.domain.errors import (
    EventsResetError,
    RegistryUnavailableError,
    TooManyListenersError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Event
    from sessiond.service.context import Context

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PAGE = 100
#: Listeners that read at once: the daemon has few threads, and they are for everything else too.
_READS = 2


@dataclass(frozen=True)
class Interest:
    """Which events to tell of."""

    tenant: TenantId
    session_id: SessionId | None = None  #: ``None``: all of the tenant
    kinds: frozenset[str] = frozenset()  #: empty: all

    def includes(self, event: Event) -> bool:
        """Whether an event of the tenant's and session's is of a kind that is asked for."""
        return not self.kinds or event.kind in self.kinds


@dataclass(frozen=True)
class Batch:
    """Events, oldest first; without any it only tells that nothing happened."""

    events: tuple[Event, ...]
    reached: Cursor  #: everything up to here has been told
    lost: Cursor | None = None  #: where the listener was; all events are told from the start

    @property
    def is_news(self) -> bool:
        """Whether it tells of anything."""
        return bool(self.events) or self.lost is not None


class Feed:
    """Lets listeners follow the registry's events, whichever daemon wrote them.

    Each listener reads for itself, and only when it has taken what it read before, so a slow
    one costs no memory.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: Counter[TenantId] = Counter()
        self._ended = asyncio.Event()
        self._reads = asyncio.Semaphore(_READS)

    def close(self) -> None:
        """Let all listeners come to their end, now and later."""
        self._ended.set()

    async def listen(self, interest: Interest, after: Cursor | None) -> Listener:
        """Return a new listener, to be closed.

        :param after: the last event that was seen; ``None``: only what happens from now on
        :raises TooManyListenersError: the tenant has as many as it may have.
        """
        limits = self._context.limits
        if self._open[interest.tenant] >= limits.event_listeners:
            raise TooManyListenersError
        self._open[interest.tenant] += 1
        try:
            newest = await self.read(self._context.registry.newest_event, interest.tenant)
        except BaseException:
            self.leave(interest)
            raise
        return Listener(
            self._context, self, interest, cursor_of(newest) if after is None else after
        )

    async def number_of(self, tenant: TenantId, place: Cursor) -> int:
        """Return the number to go on after.

        :raises EventsResetError: the registry does not know the event that was seen.
        """
        find = self._context.registry.find_event
        if not place.is_of(await self._context.blocking(find, tenant, place.number)):
            raise EventsResetError
        return place.number

    def leave(self, interest: Interest) -> None:
        """Give a listener's place to others."""
        self._open[interest.tenant] -= 1

    async def read(self, query: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what a query of the registry returns, when it is its turn."""
        async with self._reads:
            return await self._context.blocking(query, *args, **kwargs)

    @property
    def has_ended(self) -> bool:
        """Whether listeners should stop."""
        return self._ended.is_set()

    async def pause(self) -> None:
        """Wait until it is time to look again, or to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), self._context.limits.event_poll_s)


class Listener:
    """One that follows the events of a tenant."""

    def __init__(self, context: Context, feed: Feed, interest: Interest, reached: Cursor) -> None:
        self._context, self._feed, self._interest = context, feed, interest
        self.reached = reached  #: everything up to here is known to the caller
        self._is_open = True

    def close(self) -> None:
        """Give the place free; repeating it does nothing."""
        if self._is_open:
            self._is_open = False
            self._feed.leave(self._interest)

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield events as they come, and now and then nothing, until the feed is closed."""
        told_s = monotonic()
        while not self._feed.has_ended:
            batch, is_all = await self._next()
            if batch.is_news or monotonic() - told_s >= self._context.limits.event_heartbeat_s:
                yield batch
                told_s = monotonic()
            if is_all:
                await self._feed.pause()

    async def _next(self) -> tuple[Batch, bool]:
        """Return what comes next, and whether that is all for now."""
        try:
            page = await self._read()
        except RegistryUnavailableError:
            return Batch((), self.reached), True  # what happens meanwhile is told when it is back
        except EventsResetError:
            lost, self.reached = self.reached, START
            return Batch((), START, lost), False
        if page:
            self.reached = cursor_of(page[-1])
        events = tuple(event for event in page if self._interest.includes(event))
        return Batch(events, self.reached), len(page) < _PAGE

    async def _read(self) -> list[Event]:
        return await self._feed.read(
            self._context.registry.tenant_events,
            self._interest.tenant,
            session_id=self._interest.session_id,
            after=self.reached,
            limit=_PAGE,
        )
