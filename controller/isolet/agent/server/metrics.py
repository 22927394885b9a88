"""Counters of the HTTP face. Labels are routes, methods and status codes: a closed set."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class ServerMetrics:
    """What the server counts, in a registry that the agent's other parts may share."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._requests = Counter(
            "isolet_agent_requests",
            "Requests answered, by route, method and status.",
            ("route", "method", "code"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "isolet_agent_request_seconds",
            "Time from a request's head to the end of its answer, streams excepted.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.streams = Gauge(
            "isolet_agent_watch_streams", "Open watch streams.", registry=self.registry
        )

    def answered(self, route: str, method: str, code: int, seconds: float | None) -> None:
        """Count one answer; `seconds` is None for a stream, whose length says nothing."""
        self._requests.labels(route, method, str(code)).inc()
        if seconds is not None:
            self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        """All of the registry in Prometheus' text format."""
        return generate_latest(self.registry)
