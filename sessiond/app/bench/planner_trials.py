"""What the trials of ``sessiond bench planner`` amount to: arithmetic alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from sessiond.domain.timing import TurnTiming


@dataclass(frozen=True)
class Trial:
    """One resume: what was planned beforehand, and what both ways then took."""

    tokens: int
    tier: str
    streams: int  #: other requests meanwhile
    load_first: bool
    choice: str  #: of the policy auto
    planned_load_s: float
    planned_recompute_s: float
    load_s: float  #: measured, lookup to ready
    recompute_s: float  #: measured, first step to ready
    load_ready_s: float  #: arrival to first token
    recompute_ready_s: float

    @property
    def load_error(self) -> float:
        """How far the estimate of the load was off, as a part of what it took."""
        return abs(self.planned_load_s - self.load_s) / self.load_s

    @property
    def recompute_error(self) -> float:
        """Likewise of the computing."""
        return abs(self.planned_recompute_s - self.recompute_s) / self.recompute_s

    @property
    def best_s(self) -> float:
        """What the better way took."""
        return min(self.load_ready_s, self.recompute_ready_s)

    @property
    def chosen_s(self) -> float:
        """What the way took that was chosen."""
        return self.recompute_ready_s if self.choice == "recompute" else self.load_ready_s


def load_seconds(timing: TurnTiming) -> float:
    """Return what a load took until its KV was ready."""
    return timing.lookup_s + timing.queue_s + timing.load_s


def summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the figures of a report; there is at least one trial.

    ``regret``: the time lost against always taking the better way, as a part of what that takes.
    """
    best_s = sum(one.best_s for one in trials)
    lost_s = sum(one.chosen_s - one.best_s for one in trials)
    return {
        "resumes": len(trials),
        "load_error_median": statistics.median(one.load_error for one in trials),
        "recompute_error_median": statistics.median(one.recompute_error for one in trials),
        "regret": lost_s / best_s,
        "by_tier": {
            tier: {
                "resumes": len(some),
                "load_error_median": statistics.median(one.load_error for one in some),
                "regret": sum(one.chosen_s - one.best_s for one in some)
                / sum(one.best_s for one in some),
            }
            for tier in sorted({one.tier for one in trials})
            for some in [[one for one in trials if one.tier == tier]]
        },
        "choices": {
            choice: sum(one.choice == choice for one in trials)
            for choice in sorted({one.choice for one in trials})
        },
        "trials": [
            {
                **asdict(one),
                "load_error": one.load_error,
                "recompute_error": one.recompute_error,
            }
            for one in trials
        ],
    }


def show_planner(report: Mapping[str, Any], console: Console) -> None:
    """Print a report."""
    console.print(
        f"{report['resumes']} resumes: the estimates of loads were off by "
        f"{report['load_error_median']:.1%}, of computing by {report['recompute_error_median']:.1%}"
        f" (medians); {report['regret']:.2%} of the time was lost by wrong choices"
    )
    for tier, one in report["by_tier"].items():
        console.print(
            f"{tier}: {one['resumes']} resumes, off by {one['load_error_median']:.1%}, "
            f"regret {one['regret']:.2%}"
        )
