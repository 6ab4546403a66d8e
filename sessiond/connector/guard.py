"""Nothing of ours may raise into vLLM: an exception in an override ends the engine.

Every method that vLLM calls is wrapped; what it raises is logged, counted and answered with a
value that means "as if we were not installed".
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

logger = logging.getLogger("vllm.sessiond.guard")

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")

#: How often each guarded function raised in this process.
failures: Counter[str] = Counter()

_injected: set[str] = set()


class InjectedFaultError(RuntimeError):
    """Raised on purpose, to prove that the guard holds."""


def inject(names: Iterable[str]) -> None:
    """Make the guarded functions of these names raise, from now on. For fault tests.

    ``@PATH`` stands for the names that the file holds at the moment of each call.
    """
    _injected.update(names)


def _must_raise(name: str) -> bool:
    if not _injected:
        return False
    files = (Path(entry[1:]) for entry in _injected if entry.startswith("@"))
    return name in _injected or any(name in file.read_text().split() for file in files)


def guarded(fallback: F) -> Callable[[Callable[P, T]], Callable[P, T | F]]:
    """Wrap a function so that it returns *fallback* instead of raising."""

    def decorate(function: Callable[P, T]) -> Callable[P, T | F]:
        name = function.__qualname__

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | F:
            try:
                if _must_raise(name):
                    raise InjectedFaultError(name)
                return function(*args, **kwargs)
            except Exception:
                failures[name] += 1
                logger.exception("sessiond: %s failed (%d times)", name, failures[name])
                return fallback

        return wrapper

    return decorate
