"""What operations did, for Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sessiond.domain.session import OperationKind

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters and histograms of one daemon; the service's observer."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._operations = Counter(
            "sessiond_operations",
            "Operations that ended, by kind, outcome and first reason.",
            ("kind", "outcome", "reason"),
            registry=self._registry,
        )
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

    def ended(self, kind: OperationKind, outcome: str, reason: str, seconds: float) -> None:
        """Count one operation."""
        self._operations.labels(kind.value, outcome, reason).inc()
        if outcome != "failed":
            self._seconds.labels(kind.value).observe(seconds)

    def exposition(self, live_engines: int) -> bytes:
        """Return all metrics in Prometheus' text form."""
        self._engines.set(live_engines)
        return generate_latest(self._registry)
