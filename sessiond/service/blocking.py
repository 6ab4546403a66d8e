"""The one way from the event loop to the synchronous store and registry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Blocking:
    """Runs plain blocking functions in a bounded number of threads."""

    def __init__(self, threads: int) -> None:
        self._limiter = anyio.CapacityLimiter(threads)

    async def __call__(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return ``function(*args, **kwargs)``; its exceptions pass through."""
        call = partial(function, *args, **kwargs)
        return await anyio.to_thread.run_sync(call, limiter=self._limiter)
