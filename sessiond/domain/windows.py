"""Times at which sweeps take more than at others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.domain.cron import CronLine


@dataclass(frozen=True)
class SweepWindow:
    """When it comes, every session is suspended that has been idle for so long."""

    name: str
    cron: CronLine
    timezone: str  #: name in the IANA database, such as ``Europe/Berlin``
    idle_s: float
