"""Metrics, read from the operator's state when they are asked for.

No label names an object, a node or an error text, so the number of series is fixed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isolet.operator import steps
from isolet.operator.kube import EXECUTIONS, OURS, PROCESSES
from isolet.plan.actions import Flag

if TYPE_CHECKING:
    from isolet.operator.assembly import Operator

_PREFIX = "isolet_operator"


class PassTimes:
    """How long passes take, and how many failed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            f"{_PREFIX}_pass_seconds",
            "Duration of one pass over one object.",
            ["kind", "result"],
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60),
            registry=registry,
        )

    def observe(self, kind: str, failed: bool, seconds: float) -> None:
        """One pass."""
        self._seconds.labels(kind, "failed" if failed else "done").observe(seconds)


@dataclass(eq=False)
class StateCollector(Collector):
    """Reads the live state at each scrape."""

    operator: "Operator"

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance: the parts are not all there when this is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every gauge and counter."""
        part = self.operator
        yield _gauge("leader", "Whether this process leads.", int(part.leadership.valid()))
        yield _gauge("queue_depth", "Keys that wait for a worker.", part.queue.schedule.depth)
        yield _gauge("queue_failing", "Keys whose last pass failed.", part.queue.schedule.failing)
        yield _gauge("passes_under_way", "Passes under way.", part.queue.busy)
        yield self._objects()
        yield self._nodes()
        yield self._flags()
        yield _gauge(
            "orphans", "Things on nodes whose object is gone.", sum(part.orphans.found.values())
        )
        yield _gauge(
            "orphan_breaker_open",
            "Nodes whose orphans the circuit breaker keeps: someone must look.",
            len(part.orphans.stopped),
        )
        yield _gauge(
            "tombstones",
            "Releases that no agent has confirmed yet.",
            len(part.tombstones.all()),
        )
        yield _gauge(
            "watch_stalled",
            "Kinds whose watch owes an event.",
            len(part.relist.stalled(part.settings.stall_grace_seconds)),
        )
        yield _counter("events_dropped", "Events not written.", part.recorder.dropped)
        yield self._effects()

    def _objects(self) -> Metric:
        family = GaugeMetricFamily(f"{_PREFIX}_objects", "Objects by kind.", labels=["kind"])
        for kind in OURS:
            family.add_metric([kind.kind], self.operator.cache.count(kind))
        return family

    def _nodes(self) -> Metric:
        nodes = self.operator.nodes
        heard = sum(nodes.is_heard(name) for name in nodes.names())
        family = GaugeMetricFamily(
            f"{_PREFIX}_nodes", "Nodes by whether their agent is heard.", labels=["heard"]
        )
        family.add_metric(["true"], heard)
        family.add_metric(["false"], len(nodes.names()) - heard)
        return family

    def _flags(self) -> Metric:
        flags = self.operator.reconciler.memory.flags.items()
        counts = Counter((key.kind, flag) for key, found in flags for flag in found)
        family = GaugeMetricFamily(
            f"{_PREFIX}_objects_waiting", "Objects that wait, by what for.", labels=["kind", "for"]
        )
        for kind in (EXECUTIONS.kind, PROCESSES.kind):
            for flag in Flag:
                family.add_metric([kind, flag.value], counts[kind, flag])
        return family

    def _effects(self) -> Metric:
        family = CounterMetricFamily(
            f"{_PREFIX}_effects", "Writes to the API server and calls of agents.", labels=["effect"]
        )
        for effect in steps.Effect:
            family.add_metric([effect.value], steps.done[effect])
        return family


def new_registry(collector: Collector) -> CollectorRegistry:
    """A registry of its own, so that two operators can live in one test."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """The metrics as text."""
    return generate_latest(registry)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)
