"""Reads vLLM's own command line options, as far as sessiond must know them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MULTIPLIERS = {"": 1, "k": 10**3, "K": 1 << 10, "m": 10**6, "M": 1 << 20}


def option(options: Sequence[str], *names: str) -> str | None:
    """Return the value of a vLLM option in any of vLLM's spellings; the last one counts.

    :param names: of the option, such as ``--tensor-parallel-size`` and ``-tp``
    """
    value = None
    for at, text in enumerate(options):
        spelled, equals, given = text.partition("=")
        if spelled.replace("_", "-") not in names:
            continue
        if equals:
            value = given
        elif at + 1 < len(options):
            value = options[at + 1]
    return value


def tokens(text: str | None) -> int:
    """Read a length as vLLM does (``8192``, ``8k`` = 8000, ``8K`` = 8192); 0 if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text or "")
    return int(float(match[1]) * _MULTIPLIERS[match[2]]) if match else 0
