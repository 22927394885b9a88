"""What a front door counts. No label names a run, a caller or an error text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

STATUSES = ("completed", "failed", "rejected")


class DoorMetrics:
    """In a registry of their own, so that two front doors can live in one test."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.active = Gauge(
            "isolet_apiserver_active_runs", "Runs that hold a place.", registry=self.registry
        )
        self.capacity = Gauge(
            "isolet_apiserver_capacity", "Places for runs.", registry=self.registry
        )
        self._ended = Counter(
            "isolet_apiserver_executions",
            "Dispatches by how they ended; rejected ones were not admitted.",
            ("status",),
            registry=self.registry,
        )
        for status in STATUSES:
            self._ended.labels(status)
        self._admission = Histogram(
            "isolet_apiserver_admission_seconds",
            "Time from a whole request until its run has its document.",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5),
            registry=self.registry,
        )

    def ended(self, status: str) -> None:
        """One dispatch ended so."""
        self._ended.labels(status).inc()

    def admitted(self, seconds: float) -> None:
        """One was admitted, after so long."""
        self._admission.observe(seconds)

    def render(self) -> bytes:
        """All in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)
