"""When a sweep may begin its next suspend: a pause, a byte rate and resumes come first."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.service.context import Context
    from sessiond.service.pauses import Pauses


class Hold(StrEnum):
    """Why a sweep leaves what is due for later."""

    PAUSED = "paused"
    YIELDED = "yielded"  #: to resumes
    THROTTLED = "throttled"  #: enough bytes were written lately


class ByteBudget:
    """A rate that holds on average: what was written has to be paid off before more is.

    How much a suspend writes is known only afterwards, so nothing is set aside for it before.
    """

    def __init__(self, bytes_per_s: float) -> None:
        """Allow so many bytes a second; 0: any number."""
        self._bytes_per_s = bytes_per_s
        self._paid_off_s = 0.0

    def is_spent(self, now_s: float) -> bool:
        """Whether nothing more may be written now."""
        return now_s < self._paid_off_s

    def spend(self, size_bytes: int, began_s: float) -> None:
        """Count what was written since *began_s*."""
        if self._bytes_per_s:
            since_s = max(self._paid_off_s, began_s)
            self._paid_off_s = since_s + size_bytes / self._bytes_per_s


class Courtesy:
    """Lets resumes go first, but not for ever: now and then one suspend begins beside them."""

    def __init__(self, longest_s: float) -> None:
        """Wait for resumes for so long at most."""
        self._longest_s = longest_s
        self._since_s: float | None = None

    def must_wait(self, now_s: float, *, resumes_run: bool) -> bool:
        """Whether the next suspend waits; one that does not is taken as begun."""
        if not resumes_run:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < self._longest_s:
            return True
        self._since_s = now_s
        return False


class Admission:
    """What all sweeps of this daemon pass, one suspend after the other."""

    def __init__(self, context: Context, pauses: Pauses) -> None:
        limits = context.limits
        self._context = context
        self._pauses = pauses
        self._budget = ByteBudget(limits.sweep_bytes_per_s)
        self._courtesy = Courtesy(limits.sweep_yield_s)
        #: Held by each suspend that a sweep of this daemon runs.
        self.places = asyncio.Semaphore(limits.sweep_concurrency)

    async def hold(self) -> Hold | None:
        """Wait a little for the next suspend's turn; return what holds it, if it has to wait on.

        :raises RegistryUnavailableError: the registry does not answer.
        :raises StoreError: the store cannot be read.
        """
        deadline_s = monotonic() + self._context.limits.sweep_patience_s
        while True:
            held = await self._held(monotonic())
            if held is None:
                return Hold.PAUSED if await self._pauses.current() else None
            if monotonic() >= deadline_s:
                return held
            await asyncio.sleep(self._context.limits.poll_s)

    def wrote(self, size_bytes: int, began_s: float) -> None:
        """Count the bytes that a suspend has written since *began_s*."""
        self._budget.spend(size_bytes, began_s)

    async def _held(self, now_s: float) -> Hold | None:
        if self._budget.is_spent(now_s):
            return Hold.THROTTLED
        resumes_run = self._context.restores.are_running or await self._direct_run()
        if self._courtesy.must_wait(now_s, resumes_run=resumes_run):
            return Hold.YIELDED
        return None

    async def _direct_run(self) -> bool:
        context = self._context
        look = partial(context.restores.direct_run, context.store, context.now())
        return await context.blocking(look)
