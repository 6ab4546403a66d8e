"""Work that nobody waits for: one thread of low priority, slow on purpose, in small steps."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.store.priority import lower_this_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

#: However busy the service is, a step is done so often.
_LONGEST_PAUSE_S = 30.0


class Background:
    """Drives generators whose steps yield how many bytes they read."""

    def __init__(self, is_busy: Callable[[], bool], poll_s: float) -> None:
        """Give way while *is_busy*, asked every *poll_s*."""
        self._is_busy, self._poll_s = is_busy, poll_s

    async def drive(
        self, steps: Generator[int, None, None], bytes_per_s: float | None = None
    ) -> None:
        """Do all steps, reading at most *bytes_per_s* on average; ``None``: as fast as it goes.

        What a step raises ends the work. Cancelled, it ends after the step that is running.
        """
        loop = asyncio.get_running_loop()
        # A pool of its own: a thread's priority cannot be raised again.
        pool = ThreadPoolExecutor(1, "sessiond-background", initializer=lower_this_thread)
        try:
            while True:
                await self._give_way()
                began_s = monotonic()
                read_bytes = await loop.run_in_executor(pool, next, steps, None)
                if read_bytes is None:
                    return
                if bytes_per_s:
                    spent_s = monotonic() - began_s
                    await asyncio.sleep(max(0.0, read_bytes / bytes_per_s - spent_s))
        finally:
            pool.submit(steps.close)  # after the step that may be running
            pool.shutdown(wait=False)

    async def _give_way(self) -> None:
        began_s = monotonic()
        while self._is_busy() and monotonic() - began_s < _LONGEST_PAUSE_S:
            await asyncio.sleep(self._poll_s)
