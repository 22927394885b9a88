"""Counters of the HTTP face and of the warm pools.

Labels are routes, methods, status codes and the names of classes with a pool: closed sets.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isolet.wire.pool import PoolObserved

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class PoolMetrics(Collector):
    """What was last told of the warm pools."""

    def __init__(self) -> None:
        self.pools: Sequence[PoolObserved] = ()

    def collect(self) -> Iterator[Metric]:
        """One sample for each class and state or event."""
        slots = GaugeMetricFamily(
            "isolet_agent_pool_slots", "Warm slots, by state.", labels=("class", "state")
        )
        events = CounterMetricFamily(
            "isolet_agent_pool_events",
            "Slots made, failed and given away, and Executions that found none.",
            labels=("class", "event"),
        )
        for pool in self.pools:
            for state in ("target", "ready", "creating", "assigned", "retiring"):
                slots.add_metric((pool.class_name, state), getattr(pool, state))
            for event in ("created", "failed", "assigned", "missed"):
                events.add_metric((pool.class_name, event), getattr(pool, f"{event}_total"))
        yield slots
        yield events


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
        self.pools = PoolMetrics()
        self.registry.register(self.pools)

    def answered(self, route: str, method: str, code: int, seconds: float | None) -> None:
        """Count one answer; `seconds` is None for a stream, whose length says nothing."""
        self._requests.labels(route, method, str(code)).inc()
        if seconds is not None:
            self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        """All of the registry in Prometheus' text format."""
        return generate_latest(self.registry)
