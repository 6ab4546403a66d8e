"""Numbers and times as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KIB = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86_400


def plain(text: str) -> str:
    """Return *text* without characters that could steer a terminal; line ends stay."""
    return "".join(
        one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text
    )


def count(number: int) -> str:
    """Return a number with its thousands apart: ``6,144``."""
    return f"{number:,}"


def size(size_bytes: int) -> str:
    """Return a size in bytes: ``91.1 MiB``."""
    if size_bytes < _KIB:
        return f"{size_bytes} B"
    value = float(size_bytes)
    unit = ""
    for unit in _UNITS:  # noqa: B007 - the last one stays
        value /= _KIB
        if value < _KIB:
            break
    return f"{value:.1f} {unit}"


def loss(lossy: Mapping[str, Any]) -> str:
    """Return how KV is stored with loss, with the errors: ``fp8, of K 2.6 % (largest 4.5 %)``."""
    errors = (
        f"of {name.upper()} {error['rms']:.2%} (largest {error['largest']:.2%})"
        for name, error in lossy["errors"].items()
    )
    return ", ".join((lossy["way"], *errors))


def duration(seconds: float) -> str:
    """Return a length of time: ``0.42 s``, ``3 min``, ``5 h``, ``2 d``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / _HOUR_S:.0f} h"
    return f"{seconds / _DAY_S:.0f} d"


def age(at_unix_s: float, now_unix_s: float) -> str:
    """Return how long ago it was: ``3 min ago``. Another machine's clock may be ahead."""
    passed_s = now_unix_s - at_unix_s
    if passed_s < 1:
        return "now"
    return f"{passed_s:.0f} s ago" if passed_s < 10 else f"{duration(passed_s)} ago"
