"""How many sessions of the longest context fit where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Budgets:
    """Bytes that sessions may take."""

    vram: int  #: the engine's KV memory
    ram: int  #: the RAM tier
    disk: int


def capacity(
    budgets: Budgets,
    session_bytes: int,
    stored_bytes: Mapping[str, int],
    measured: Mapping[str, int],
) -> dict[str, Any]:
    """Return the sessions that each budget holds, computed, and those that were found there.

    :param session_bytes: KV of one session in memory
    :param stored_bytes: of one session on disk, by contestant
    :param measured: sessions found in memory after more had come back than it holds
    """
    return {
        "session_bytes": session_bytes,
        "vram": _held(budgets.vram, session_bytes, measured.get("vram")),
        "ram": _held(budgets.ram, session_bytes, measured.get("ram")),
        "disk": {name: _held(budgets.disk, each, None) for name, each in stored_bytes.items()},
    }


def _held(budget_bytes: int, each_bytes: int, measured: int | None) -> dict[str, Any]:
    return {
        "budget_bytes": budget_bytes,
        "bytes_each": each_bytes,
        "sessions": budget_bytes // each_bytes if each_bytes else 0,
        "sessions_measured": measured,
    }
