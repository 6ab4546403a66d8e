"""Inner loops: compiled by Numba, which vLLM brings, or with NumPy alone, which is slower."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def fastest(compiled: Callable[[Any], T], plain: Callable[[], T]) -> T:
    """Return the fastest kernels that this installation has.

    :param compiled: takes the module ``numba``
    """
    # A big-endian machine would have to swap inside the compiled loops; none runs vLLM.
    if sys.byteorder == "little":
        try:
            return compiled(importlib.import_module("numba"))
        except ImportError:
            pass
    return plain()
