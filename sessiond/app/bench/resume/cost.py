"""What a served request costs: the engine's time for it, and what its KV cost meanwhile.

A session comes back after ``away_hours``. Until then its KV lies somewhere, which has a price;
its return takes the engine for as long as the first token takes. Only requests that were
served within the latency bound count, and those that were not are paid by those that were.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HOURS_PER_MONTH = 730.0
_GIB = 1 << 30
_TIB = 1 << 40
#: Option, field and meaning of each price.
_PRICES = {
    "gpu_hour": "of the engine's device, for an hour; VRAM that KV takes is a share of it",
    "gib_ram_hour": "of a GiB of memory for an hour",
    "gib_nvme_month": "of a GiB on the local disk for a month",
    "tib_written": "of the wear of a TiB written",
}


@dataclass(frozen=True)
class Prices:
    """In any one currency; what is not given costs nothing."""

    gpu_hour: float = 0.0
    gib_ram_hour: float = 0.0
    gib_nvme_month: float = 0.0
    tib_written: float = 0.0
    away_hours: float = 12.0

    @property
    def given(self) -> bool:
        """Whether anything has a price."""
        return any(getattr(self, name) for name in _PRICES)


@dataclass(frozen=True)
class Held:
    """Where the KV of one session lies while it is away."""

    vram_share: float = 0.0  #: of the engine's KV memory
    ram_bytes: int = 0
    disk_bytes: int = 0
    written_bytes: int = 0


def cost_per_served(
    prices: Prices, seconds: Sequence[float], bound_s: float, held: Held
) -> Mapping[str, Any]:
    """Return what one request that is served within *bound_s* costs, and its parts.

    :param seconds: the engine's, of each request, served in time or not; at least one
    """
    served = sum(each <= bound_s for each in seconds) / len(seconds)
    parts = {
        "engine": sum(seconds) / len(seconds) / 3600 * prices.gpu_hour,
        "vram": held.vram_share * prices.away_hours * prices.gpu_hour,
        "ram": held.ram_bytes / _GIB * prices.away_hours * prices.gib_ram_hour,
        "disk": held.disk_bytes
        / _GIB
        * prices.away_hours
        / _HOURS_PER_MONTH
        * prices.gib_nvme_month,
        "wear": held.written_bytes / _TIB * prices.tib_written,
    }
    told: dict[str, Any] = {"served_within_bound": served, "parts": parts, "cost": None}
    if not prices.given:
        return told | {"reason": "no prices were given"}
    if not served:
        return told | {"reason": "no request was served within the latency bound"}
    return told | {"cost": sum(parts.values()) / served}


def price_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for prices."""
    for name, meaning in _PRICES.items():
        parser.add_argument(
            f"--price-{name.replace('_', '-')}", type=_price, default=0.0, help=f"price {meaning}"
        )
    parser.add_argument(
        "--away-hours",
        type=_price,
        default=Prices.away_hours,
        help="how long a session is away, for the cost of keeping it (default: 12)",
    )


def prices_given(options: argparse.Namespace) -> Prices:
    """Return the prices of the command line."""
    found = {name: getattr(options, f"price_{name}") for name in _PRICES}
    return Prices(**found, away_hours=options.away_hours)


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from zero on")
    return value
