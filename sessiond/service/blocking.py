"""The one way from the event loop to the synchronous store and registry."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: What is done at once takes a tenth of this, unless its disk or its processor is busy.
_BRIEF_S: Final = 0.01
#: Slow so often in a row, it is the disk: a processor that others use is free again soon.
_PATIENCE: Final = 3
#: So slow even once: everybody waited for that long.
_FAR_TOO_LONG_S: Final = 0.25
#: For so long, threads do what was slow.
_DETOUR_S: Final = 5.0


class Blocking:
    """Runs plain blocking functions in a bounded number of threads.

    The way to a thread and back takes longer than a look at a few small files that the system
    has in memory: where processors are busy, by milliseconds. The price: a disk of this machine
    that hangs for good may stop the whole event loop, and with it the daemon.
    """

    def __init__(self, threads: int, *, brief: bool = False) -> None:
        """Make one.

        :param brief: whether anything is done at once at all: no file may lie behind a network
        """
        self._limiter = anyio.CapacityLimiter(threads)
        self._brief = brief
        self._slow_looks = 0  # in a row
        self._detour_until_s = 0.0

    async def __call__(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return ``function(*args, **kwargs)``; its exceptions pass through."""
        call = partial(function, *args, **kwargs)
        return await anyio.to_thread.run_sync(call, limiter=self._limiter)

    async def briefly(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the same of a look that waits for nobody's lock: at once, while it is brief."""
        begun_s = monotonic()
        if not self._brief or begun_s < self._detour_until_s:
            return await self(function, *args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            self._note(monotonic(), begun_s)

    def _note(self, ended_s: float, begun_s: float) -> None:
        took_s = ended_s - begun_s
        self._slow_looks = self._slow_looks + 1 if took_s > _BRIEF_S else 0
        if self._slow_looks >= _PATIENCE or took_s > _FAR_TOO_LONG_S:
            self._detour_until_s = ended_s + _DETOUR_S
