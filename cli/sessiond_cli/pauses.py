"""A pause in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessiond_cli.formats import duration

if TYPE_CHECKING:
    from collections.abc import Mapping


def pause_words(pause: Mapping[str, Any], now_unix_s: float) -> str:
    """Return what is told of a pause: ``paused by 'default' for 2 h: a backup runs``."""
    until_unix_s = pause["until_unix_s"]
    left = f" for {duration(max(0.0, until_unix_s - now_unix_s))}" if until_unix_s else ""
    reason = f": {pause['reason']}" if pause["reason"] else ""
    return f"paused by {pause['by']!r}{left}{reason}"
