"""JSON bodies are read and written where they keep nobody waiting: large ones in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.service.blocking import Blocking

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: A larger body takes more than 3 ms to read and write.
AT_ONCE_BYTES: Final = 256 << 10


async def by_size(
    blocking: Blocking,
    size_bytes: int,
    function: Callable[_P, _T],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _T:
    """Return ``function(*args, **kwargs)``, which reads or writes a body of that size."""
    if size_bytes <= AT_ONCE_BYTES:
        return function(*args, **kwargs)
    return await blocking(function, *args, **kwargs)
