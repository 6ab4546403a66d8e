"""Waits for what engines tell of turns that have just ended: one thread looks for all of them."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.domain.heads import Head
    from sessiond.domain.session import Presence
    from sessiond.service.context import Context
    from sessiond.service.watch import Key

#: Between the first two looks at a head; each pause is twice the one before.
_FIRST_PAUSE_S: Final = 0.001
#: Most heads are there after this. A thread stays for it: to come back costs more than to wait.
_STAY_S: Final = 0.008


@dataclass(eq=False)
class _Awaited:
    """A head that somebody waits for."""

    key: Key
    engine_id: str
    enough: Callable[[Head | None], bool]
    future: asyncio.Future[Head | None]
    pause_s: float = _FIRST_PAUSE_S
    due_s: float = 0.0  # monotonic, of the next look
    is_over: bool = False  # the future has its result, or will at once


class HeadWatch:
    """Looks at heads until they tell enough; used from one event loop.

    The heads of many turns that end at once are looked at by one thread, with one way to it. A
    store that hangs keeps that thread: so who waits sets a limit of its own.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._awaited: list[_Awaited] = []  # changed in the event loop alone
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def wait(
        self, key: Key, engine_id: str, enough: Callable[[Head | None], bool]
    ) -> Head | None:
        """Return what an engine tells of a session, once that is *enough*; ``None``: nothing.

        :param enough: called in a thread
        """
        future: asyncio.Future[Head | None] = asyncio.get_running_loop().create_future()
        awaited = _Awaited(key, engine_id, enough, future)
        self._awaited.append(awaited)
        self._news.set()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        try:
            return await future
        finally:
            awaited.is_over = True
            self._awaited.remove(awaited)

    async def _look_on(self) -> None:
        try:
            while self._waiting():
                self._news.clear()
                pause_s = await self._context.blocking(self._look_a_while)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()
        finally:
            self._looking = None

    def _look_a_while(self) -> float:
        """Look at what is due, and at what will be soon; return the seconds until the next look.

        Done by a thread; it only reads what the event loop changes.
        """
        until_s = monotonic() + _STAY_S
        while True:
            for one in self._waiting():
                if one.due_s <= monotonic():
                    self._look(one)
            due_s = min((one.due_s for one in self._waiting()), default=math.inf)
            if due_s > until_s:
                return 0.0 if due_s == math.inf else max(0.0, due_s - monotonic())
            time.sleep(max(0.0, due_s - monotonic()))

    def _waiting(self) -> list[_Awaited]:
        return [one for one in tuple(self._awaited) if not one.is_over]

    def _look(self, one: _Awaited) -> None:
        try:
            head = self._context.store.read_head(*one.key, one.engine_id)
        except StoreError:
            head = None  # it may be read later
        if one.enough(head):
            one.is_over = True
            loop = one.future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_tell, one.future, head)
            return
        one.due_s = monotonic() + one.pause_s
        one.pause_s = min(2 * one.pause_s, self._context.limits.poll_s)


def has_turn(head: Head | None) -> bool:
    """Whether it tells of a turn in flight."""
    return head is not None and head.turns_in_flight > 0


def tells_of(told: Head | Presence | None, turn_id: str) -> bool:
    """Whether this turn is the newest that has ended by what is told."""
    return told is not None and told.last_turn is not None and told.last_turn.turn_id == turn_id


def _tell(future: asyncio.Future[Head | None], head: Head | None) -> None:
    if not future.done():
        future.set_result(head)
