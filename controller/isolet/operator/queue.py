"""Keys to work on: one pass a key at a time, coalesced, delayed, backed off.

`Schedule` is the whole behaviour, without a loop or a clock of its own; `WorkQueue` lets N workers
take from it. An `add` carries no reason: losing or repeating one changes nothing, since a pass
looks at what is.
"""

import asyncio
import contextlib
import heapq
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from isolet.base import log
from isolet.base.clock import Clock

K = TypeVar("K", bound=Hashable)

_log = log.get("operator.queue")

_SPARE = 64
"""Stale entries of a heap that are not worth a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays after failures in a row: `base`, doubled each time, at most `cap`, jittered."""

    base: float = 0.1
    cap: float = 60.0
    jitter: Callable[[], float] = random.random
    """A number in [0, 1); the delay lies between half and all of its nominal value."""

    def delay(self, failures: int) -> float:
        """Seconds to wait after the n-th failure in a row."""
        # The exponent is bounded so that a key that fails for weeks does not overflow a float.
        nominal = min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return nominal * (0.5 + self.jitter() / 2)


@dataclass
class Schedule(Generic[K]):
    """Which key is ready, in work, or due later. All times are of one monotonic clock."""

    backoff: Backoff = field(default_factory=Backoff)
    _ready: OrderedDict[K, None] = field(default_factory=OrderedDict)
    _later: OrderedDict[K, None] = field(default_factory=OrderedDict)
    """Rung by nobody in particular: taken when nothing else is ready."""
    _working: set[K] = field(default_factory=set)
    _again: set[K] = field(default_factory=set)
    """In work and rung meanwhile."""
    _due: dict[K, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, K]] = field(default_factory=list)
    """Entries of `_due`, with stale ones among them; the number keeps keys from being compared."""
    _count: int = 0
    _failures: dict[K, int] = field(default_factory=dict)

    def add(self, key: K) -> None:
        """Ring: the key gets a pass that begins after now."""
        if key in self._working:
            self._again.add(key)
        else:
            self._later.pop(key, None)
            self._ready.setdefault(key)

    def add_idle(self, key: K) -> None:
        """Ring without hurry: a resync of ten thousand must not stand in front of one new key."""
        if key not in self._working and key not in self._ready:
            self._later.setdefault(key)

    def add_at(self, key: K, when: float) -> None:
        """Ring at `when`; of several such wishes the earliest holds."""
        if self._due.get(key, when + 1.0) <= when:
            return
        self._due[key] = when
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, key))
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            self._tidy()

    def take(self, now: float) -> K | None:
        """A key to work on, or None. Its pass ends with `done` or `failed`."""
        self._promote(now)
        lane = self._ready or self._later
        if not lane:
            return None
        key, _ = lane.popitem(last=False)
        # The pass that begins looks at everything and says anew when to look again.
        self._due.pop(key, None)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """The pass went well."""
        self._failures.pop(key, None)
        self._end(key)

    def failed(self, key: K, now: float, at_least: float = 0.0) -> float:
        """The pass failed; returns the delay before the next one."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self.backoff.delay(self._failures[key]))
        self._end(key)
        self.add_at(key, now + delay)
        return delay

    def next_due(self) -> float | None:
        """When the earliest delayed key becomes ready."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    @property
    def depth(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._ready) + len(self._later) + len(self._again)

    @property
    def failing(self) -> int:
        """Keys whose last pass failed."""
        return len(self._failures)

    def _tidy(self) -> None:
        """Drop stale entries: of what is to go in a day, each pass until then leaves one."""
        self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)

    def _end(self, key: K) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._ready.setdefault(key)

    def _promote(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key)


@dataclass(frozen=True, slots=True)
class Again:
    """What a pass says of the next one; None for both: nothing until it is rung."""

    after: float | None = None
    failed: bool = False
    """Back off; `after` is then the least delay."""


class WorkQueue(Generic[K]):
    """A `Schedule` with workers on the running loop. Call it from that loop only."""

    def __init__(self, clock: Clock, backoff: Backoff | None = None) -> None:
        self._clock = clock
        self.schedule: Schedule[K] = Schedule(backoff or Backoff())
        self._bell = asyncio.Event()
        self._closed = False
        self._busy = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def add(self, key: K, after: float = 0.0) -> None:
        """Ring a key, now or later."""
        if after > 0:
            self.schedule.add_at(key, self._clock.monotonic() + after)
        else:
            self.schedule.add(key)
        self._bell.set()

    def add_idle(self, key: K) -> None:
        """Ring a key without hurry."""
        self.schedule.add_idle(key)
        self._bell.set()

    def close(self) -> None:
        """Begin no pass any more."""
        self._closed = True

    async def quiet(self) -> None:
        """Wait until no pass is under way."""
        await self._quiet.wait()

    @property
    def busy(self) -> int:
        """Passes under way."""
        return self._busy

    async def run(self, workers: int, work: Callable[[K], Awaitable[Again]]) -> None:
        """Work until cancelled; a pass that is under way is then cancelled too."""
        async with asyncio.TaskGroup() as group:
            while True:
                full = self._closed or self._busy >= workers
                key = None if full else self.schedule.take(self._clock.monotonic())
                if key is None:
                    await self._sleep(timed=not full)
                    continue
                self._busy += 1
                self._quiet.clear()
                group.create_task(self._work(key, work))

    async def _work(self, key: K, work: Callable[[K], Awaitable[Again]]) -> None:
        try:
            await self._pass(key, work)
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()
            self._bell.set()

    async def _pass(self, key: K, work: Callable[[K], Awaitable[Again]]) -> None:
        try:
            again = await work(key)
        except asyncio.CancelledError:
            raise
        except Exception:
            # A pass answers with a value also when it fails; this is a bug, and one object's bug
            # must not end the others' service.
            _log.exception("a pass broke off", extra={"key": str(key)})
            again = Again(failed=True)
        if again.failed:
            now = self._clock.monotonic()
            self.schedule.failed(key, now, at_least=again.after or 0.0)
        else:
            self.schedule.done(key)
            if again.after is not None:
                self.add(key, max(again.after, 0.001))

    async def _sleep(self, *, timed: bool) -> None:
        """Until something changed, or, if `timed`, a delayed key is due."""
        self._bell.clear()
        due = self.schedule.next_due() if timed else None
        timeout = None if due is None else max(0.0, due - self._clock.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._bell.wait()
