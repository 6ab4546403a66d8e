"""What operations did, for Prometheus."""

from collections import Counter as Counted
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.retention import RemovalCause
from sessiond.domain.samples import Tier
from sessiond.domain.session import OperationKind
from sessiond.domain.slowpath import SlowPath, Stage
from sessiond.service.sweep import SweepReport

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_SWEEP_ENDS: Final = ("suspended", "failed", "yielded", "throttled", "refused")
_BUCKETS_RATIO: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0)


class Metrics:
    """Counters and histograms of one daemon; the service's observer."""

    def __init__(self) -> None:
        # One more line for each counter, which tells nothing.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._operations = Counter(
            "sessiond_operations",
            "Operations that ended, by kind, outcome and first reason.",
            ("kind", "outcome", "reason"),
            registry=self._registry,
        )
        self._causes = Counter(
            "sessiond_causes",
            "Why KV was not kept or not used again: every cause of suspends, resumes and turns.",
            ("kind", "reason"),
            registry=self._registry,
        )
        for kind in (OperationKind.SUSPEND, OperationKind.RESUME, "turn"):
            for reason in Reason:  # an alert needs a line that can rise from zero
                self._causes.labels(str(kind), reason.value)
        self._seconds = Histogram(
            "sessiond_operation_seconds",
            "How long operations took that did not fail.",
            ("kind",),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._engines = Gauge(
            "sessiond_live_engines",
            "Engines with sessiond's connector that are running.",
            registry=self._registry,
        )
        self._tiers_off = Gauge(
            "sessiond_engines_tier_off",
            "Of them, those whose snapshot tier is off: they keep and restore nothing.",
            registry=self._registry,
        )

        self._resumes_waiting = Gauge(
            "sessiond_resumes_waiting",
            "Resumes that wait for room in the RAM tier of their engine.",
            registry=self._registry,
        )
        self._removed = Counter(
            "sessiond_snapshot_removals",
            "Sessions that lost snapshots to retention, by cause.",
            ("cause",),
            registry=self._registry,
        )
        self._removed_bytes = Counter(
            "sessiond_snapshot_removed_bytes",
            "Bytes on disk that these removals freed, by cause.",
            ("cause",),
            registry=self._registry,
        )
        self._unread = Counter(
            "sessiond_snapshot_unread_removals",
            "Of these removals, those of snapshots that were never seen to be loaded.",
            ("cause",),
            registry=self._registry,
        )
        self._written_bytes = Counter(
            "sessiond_snapshot_bytes_written",
            "Bytes written for snapshots; what these share with earlier ones is not written.",
            registry=self._registry,
        )
        self._read_bytes = Counter(
            "sessiond_snapshot_bytes_read",
            "Of them, those of snapshots that were loaded, counted once, at the first load.",
            registry=self._registry,
        )
        self._unread_bytes = Counter(
            "sessiond_snapshot_bytes_unread",
            "Of them, those that went with their snapshots, which no resume or turn was seen to "
            "load; the rest is not decided yet.",
            registry=self._registry,
        )
        self._store_bytes = Gauge(
            "sessiond_store_bytes",
            "What the store takes of its disk, by kind of file, at the last measurement.",
            ("kind",),
            registry=self._registry,
        )
        self._free_bytes = Gauge(
            "sessiond_store_free_bytes",
            "Free bytes of the store's file system, at the last measurement.",
            registry=self._registry,
        )

        self._verified_bytes = Counter(
            "sessiond_verified_bytes",
            "Bytes of segments that the scrub and verifications have read.",
            registry=self._registry,
        )
        self._damaged = Counter(
            "sessiond_damage_found",
            "Damaged files and chunks that they found, each as often as it was found.",
            registry=self._registry,
        )

        self._sweeps = Counter(
            "sessiond_sweep_sessions",
            "Due sessions of sweeps, by what became of them: suspended, failed, or left for a "
            "later sweep (yielded to resumes, throttled by the byte rate), which counts each time, "
            "or refused as not worth it, which counts once.",
            ("end",),
            registry=self._registry,
        )
        for end in _SWEEP_ENDS:
            self._sweeps.labels(end)
        self._windows = Counter(
            "sessiond_sweep_windows",
            "Sweep windows that came, by name; one that comes during a pause does not count.",
            ("window",),
            registry=self._registry,
        )
        self._paused = Gauge(
            "sessiond_sweeps_paused",
            "Whether the sweeps are paused: 1 or 0.",
            registry=self._registry,
        )

        self._add_plans()

    def _add_plans(self) -> None:
        self._plans = Counter(
            "sessiond_plans",
            "Plans that were carried out, by choice and by the first reason not to load all.",
            ("choice", "reason"),
            registry=self._registry,
        )
        self._plan_errors = Histogram(
            "sessiond_plan_error_ratio",
            "How far estimated times were from measured ones, as a part of these, by way.",
            ("way",),
            buckets=_BUCKETS_RATIO,
            registry=self._registry,
        )
        self._break_even = Gauge(
            "sessiond_break_even_bytes_per_second",
            "The effective rate from disk from which on the newest planned load pays.",
            registry=self._registry,
        )
        self._restore_rate = Gauge(
            "sessiond_restore_bytes_per_second",
            "The effective rate of the newest load, from lookup to ready, by tier.",
            ("tier",),
            registry=self._registry,
        )
        self._slow_paths = Gauge(
            "sessiond_slow_restore_paths",
            "Engines whose loads from a tier take longer than computing, by what takes longest.",
            ("tier", "cause"),
            registry=self._registry,
        )
        self._loads_paused = Gauge(
            "sessiond_engines_loads_paused",
            "Engines that load nothing from disk, because it took longer than computing lately.",
            registry=self._registry,
        )

    def planned(self, choice: str, reason: str) -> None:
        """Count one plan."""
        self._plans.labels(choice, reason).inc()

    def estimated(
        self, load_error: float | None, recompute_error: float | None, break_even: float | None
    ) -> None:
        """Show how good a plan's estimates were."""
        for way, error in (("load", load_error), ("recompute", recompute_error)):
            if error is not None:
                self._plan_errors.labels(way).observe(error)
        if break_even is not None:
            self._break_even.set(break_even)

    def restored(self, tier: str, bytes_per_s: float) -> None:
        """Show how fast a load was."""
        self._restore_rate.labels(tier).set(bytes_per_s)

    def loads_paused(self, engines: int) -> None:
        """Show how many engines load nothing."""
        self._loads_paused.set(engines)

    def ended(self, kind: OperationKind, outcome: str, reason: str, seconds: float) -> None:
        """Count one operation."""
        self._operations.labels(kind.value, outcome, reason).inc()
        if outcome not in ("failed", "skipped", "refused"):
            self._seconds.labels(kind.value).observe(seconds)

    def explained(self, kind: str, causes: Iterable[Cause]) -> None:
        """Count the causes of one operation or turn."""
        for reason in {cause.reason for cause in causes}:
            self._causes.labels(str(kind), reason.value).inc()

    def removed(self, cause: RemovalCause, size_bytes: int, *, unread: bool) -> None:
        """Count one session's snapshots that are gone."""
        self._removed.labels(cause.value).inc()
        self._removed_bytes.labels(cause.value).inc(size_bytes)
        if unread:
            self._unread.labels(cause.value).inc()

    def written(self, size_bytes: int) -> None:
        """Count what was written for one snapshot."""
        self._written_bytes.inc(size_bytes)

    def settled(self, size_bytes: int, *, read: bool) -> None:
        """Count what became of bytes that were written."""
        (self._read_bytes if read else self._unread_bytes).inc(size_bytes)

    def measured(self, by_kind: Mapping[str, int], free_bytes: int) -> None:
        """Show what the store takes of its disk."""
        for kind, size_bytes in by_kind.items():
            self._store_bytes.labels(kind).set(size_bytes)
        self._free_bytes.set(free_bytes)

    def verified(self, stored_bytes: int, damaged: int) -> None:
        """Count what verifications have read."""
        self._verified_bytes.inc(stored_bytes)
        self._damaged.inc(damaged)

    def swept(self, report: SweepReport) -> None:
        """Count what became of the sessions that were due."""
        for end in _SWEEP_ENDS:
            self._sweeps.labels(end).inc(getattr(report, end))
        if report.window and not report.paused:
            self._windows.labels(report.window).inc()

    def paused(self, *, on: bool) -> None:
        """Show whether the sweeps are paused."""
        self._paused.set(on)

    def exposition(
        self,
        live_engines: int,
        tiers_off: int = 0,
        resumes_waiting: int = 0,
        slow_paths: Iterable[SlowPath] = (),
    ) -> bytes:
        """Return all metrics in Prometheus' text form."""
        slow = Counted((one.tier, one.cause) for one in slow_paths)
        for tier, stage in product((Tier.RAM, Tier.NVME), Stage):
            self._slow_paths.labels(tier.value, stage.value).set(slow[tier, stage])
        self._resumes_waiting.set(resumes_waiting)
        self._engines.set(live_engines)
        self._tiers_off.set(tiers_off)
        return generate_latest(self._registry)
