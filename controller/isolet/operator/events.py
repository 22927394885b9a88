"""Kubernetes Events: for transitions that are worth a person's time, and never a burden.

The plan says an event as often as it looks, under one key; it is told once. Different keys of one
(object, type, reason) are one Event object whose count grows. Writes go through a token bucket, in
the background, and are dropped when there are too many: an Event is a courtesy, the conditions are
the truth. Messages are the plan's, so no tenant data gets here.
"""

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from isolet.base import errors, log, names
from isolet.base.clock import Clock
from isolet.operator.kube import EVENTS, OURS, Cluster, Object
from isolet.operator.steps import Effect, at
from isolet.plan.objects import ObjectRef

_K = TypeVar("_K")
_V = TypeVar("_V")

_log = log.get("operator.events")

COMPONENT = "isolet-operator"
NODE_NAMESPACE = "default"
"""Of Events on cluster-scoped objects: the API server takes them nowhere else."""

KEY_ANNOTATION = "isolet.dev/event-key"
"""Digest of the key that was told last, so that the next leader does not count it again."""

_VERSIONS = {kind.kind: kind.api_version for kind in OURS}


@dataclass(frozen=True, slots=True)
class Series:
    """What is counted as the same event."""

    uid: str
    type: str
    reason: str


@dataclass(slots=True)
class _Pending:
    ref: ObjectRef
    message: str
    key: str
    first: datetime
    last: datetime
    count: int = 1


@dataclass
class TokenBucket:
    """At most `burst` at once and `rate` a second in the long run."""

    clock: Clock
    rate: float = 5.0
    burst: float = 25.0

    def __post_init__(self) -> None:
        self._tokens = self.burst
        self._at = self.clock.monotonic()

    def wait(self) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self.clock.monotonic()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self.rate


class Recorder:
    """Takes events at any rate and writes what it can."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        *,
        identity: str,
        capacity: int = 1000,
        repeat_every: float = 30.0,
        bucket: TokenBucket | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._identity = identity
        self._capacity = capacity
        self._repeat_every = repeat_every
        self._bucket = bucket or TokenBucket(clock)
        self._pending: dict[Series, _Pending] = {}
        self._written: OrderedDict[Series, float] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._bell = asyncio.Event()
        self.dropped = 0

    def record(self, ref: ObjectRef, type_: str, reason: str, message: str, key: str) -> None:
        """Tell it, unless this key was told; never waits."""
        if (ref.uid, key) in self._told:
            return
        series = Series(ref.uid, type_, reason)
        known = self._pending.get(series)
        if known is None and len(self._pending) >= self._capacity:
            # Not marked as told: the next pass may find room.
            self.dropped += 1
            return
        _remember(self._told, (ref.uid, key), None, 8 * self._capacity)
        now = self._clock.now()
        if known is None:
            self._pending[series] = _Pending(ref, message, key, now, now)
            self._bell.set()
        else:
            known.count += 1
            known.last, known.message, known.key = now, message, key

    async def run(self) -> None:
        """Write for ever."""
        while True:
            self._bell.clear()
            delay = await self.step()
            if delay == 0:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._bell.wait()

    async def step(self) -> float | None:
        """Write one, if one is due; returns when to come again (None: when there is a new one)."""
        due = self._next()
        if due is None:
            return None
        series, delay = due
        delay = delay or self._bucket.wait()
        if delay > 0:
            return delay
        pending = self._pending.pop(series)
        again = series in self._written
        _remember(self._written, series, self._clock.monotonic(), 4 * self._capacity)
        try:
            await self._write(series, pending, again)
        except errors.IsoletError as error:
            self.dropped += 1
            _log.debug("event not written", extra={"detail": str(error)})
        except Exception:
            # A bug in a courtesy must not end the operator.
            self.dropped += 1
            _log.exception("event not written")
        return 0.0

    def _next(self) -> tuple[Series, float] | None:
        """The series that may be written soonest, and in how many seconds."""
        now = self._clock.monotonic()
        best: tuple[Series, float] | None = None
        for series in self._pending:
            last = self._written.get(series)
            delay = 0.0 if last is None else max(0.0, last + self._repeat_every - now)
            if delay <= 0:
                return series, 0.0
            if best is None or delay < best[1]:
                best = series, delay
        return best

    async def _write(self, series: Series, pending: _Pending, again: bool) -> None:
        namespace = pending.ref.namespace or NODE_NAMESPACE
        name = _name(series, pending.ref.name)
        if not again:
            body = self._body(series, pending, name)
            try:
                await at(Effect.EVENT, self._cluster.create(EVENTS, namespace, body))
                return
            except errors.Conflict:
                pass  # an earlier leader told it: the name is made of the series
        known = await self._cluster.get(EVENTS, namespace, name)
        patch = _count_up(known, pending)
        if patch is not None:
            await at(Effect.EVENT, self._cluster.patch(EVENTS, namespace, name, patch))

    def _body(self, series: Series, pending: _Pending, name: str) -> Object:
        ref = pending.ref
        involved = {
            "apiVersion": _VERSIONS[ref.kind],
            "kind": ref.kind,
            "name": ref.name,
            "uid": ref.uid,
        }
        if ref.namespace:
            involved["namespace"] = ref.namespace
        return {
            "metadata": {"name": name, "annotations": {KEY_ANNOTATION: _digest(pending.key)}},
            "involvedObject": involved,
            "type": series.type,
            "reason": series.reason,
            "message": pending.message[:1024],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity[:128],
            "firstTimestamp": _time(pending.first),
            "lastTimestamp": _time(pending.last),
            "count": pending.count,
        }


def _count_up(known: Object, pending: _Pending) -> Object | None:
    """The patch that counts further occurrences; None if they were counted already."""
    metadata, digest = known["metadata"], _digest(pending.key)
    if (metadata.get("annotations") or {}).get(KEY_ANNOTATION) == digest:
        return None
    return {
        "count": int(known.get("count") or 1) + pending.count,
        "lastTimestamp": _time(pending.last),
        "message": pending.message[:1024],
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {KEY_ANNOTATION: digest},
        },
    }


def _remember(store: OrderedDict[_K, _V], key: _K, value: _V, limit: int) -> None:
    store[key] = value
    store.move_to_end(key)
    while len(store) > limit:
        store.popitem(last=False)


def _name(series: Series, name: str) -> str:
    digest = names.short_digest(series.uid, series.type, series.reason)[:16]
    return f"{name[:200].rstrip('-.')}.{digest}"


def _digest(key: str) -> str:
    return names.short_digest(key)[:16]


def _time(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
