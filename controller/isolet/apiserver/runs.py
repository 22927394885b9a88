"""The runs that this front door has admitted, and the places they hold.

A run is looked after by a task of its own: a caller that leaves, even while its run is being
admitted, changes nothing. Its place is given back when the run has ended, not when its caller has.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from isolet.apiserver import encoding
from isolet.apiserver.admission import Dispatch
from isolet.apiserver.dispatcher import Admitted, Dispatcher
from isolet.apiserver.metrics import DoorMetrics
from isolet.base import errors, log
from isolet.plan import dispatch_budget
from isolet.wire.dispatch import COMPLETED, DispatchLine
from isolet.wire.execution import Outcome

FULL = "CapacityReached"
CLOSED = "NotReady"

_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE = 5.0
_log = log.get("apiserver")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What is known of a run when its place is given back."""

    outcome: Outcome | None = None
    """None: it could not be followed to its end."""
    result: bytes | None = None
    """The payload of its terminal event, an object, as JSON: read, it may be many times as large,
    and it is kept until the run has ended."""


@dataclass(frozen=True, slots=True)
class Live:
    """An admitted run, for whoever waits for it."""

    run: Admitted
    ending: "asyncio.Future[Ending]"


class Place:
    """Room for one run; given back once."""

    def __init__(self, back: Callable[[], None]) -> None:
        self._back: Callable[[], None] | None = back

    def give_back(self) -> None:
        """Let another have it."""
        back, self._back = self._back, None
        if back is not None:
            back()


class RunBook:
    """All of them. Use it within one event loop."""

    def __init__(self, dispatcher: Dispatcher, capacity: int, metrics: DoorMetrics) -> None:
        self._dispatcher = dispatcher
        self._capacity = capacity
        self._metrics = metrics
        self._taken = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False
        metrics.capacity.set(capacity)

    @property
    def taken(self) -> int:
        """Places that are held."""
        return self._taken

    def ready(self) -> bool:
        """Whether a dispatch has any prospect here."""
        return not self.draining and self._dispatcher.ready()

    def take(self) -> Place:
        """A place.

        Raises:
            Unavailable: this front door takes nothing (`NotReady`), or all places are held
                (`CapacityReached`).
        """
        if not self.ready():
            raise errors.Unavailable("not ready", reason=CLOSED, retry_after=5.0)
        if self._taken >= self._capacity:
            raise errors.Unavailable("no execution capacity", reason=FULL)
        self._count(1)
        return Place(lambda: self._count(-1))

    def _count(self, change: int) -> None:
        self._taken += change
        self._metrics.active.set(self._taken)
        if self._taken:
            self._empty.clear()
        else:
            self._empty.set()

    async def drained(self, seconds: float) -> bool:
        """Wait until no place is held; False if that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def admit(self, place: Place, dispatch: Dispatch) -> Live:
        """Have the run begun; the place is the run's from here on.

        Raises:
            IsoletError: as `Dispatcher.reserve` and `Reserved.commit`.
        """
        admitted: asyncio.Future[Live] = asyncio.get_running_loop().create_future()
        # A caller that has left asks for neither.
        admitted.add_done_callback(lambda done: done.cancelled() or done.exception())
        task = asyncio.create_task(self._serve(place, dispatch, admitted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(admitted)

    async def _serve(
        self, place: Place, dispatch: Dispatch, admitted: "asyncio.Future[Live]"
    ) -> None:
        ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        found = Ending()
        try:
            began = time.perf_counter()
            reserved = await self._dispatcher.reserve(dispatch)
            run = await reserved.commit()
            del reserved, dispatch  # The document has gone where it belongs.
            self._metrics.admitted(time.perf_counter() - began)
            admitted.set_result(Live(run, ending))
            found = await self._to_its_end(run)
        except Exception as error:
            if admitted.done():
                _log.exception("a run is not followed any more")
            else:
                admitted.set_exception(error)
        finally:
            done = admitted.done() and not admitted.cancelled() and admitted.exception() is None
            if done:
                succeeded = found.outcome is not None and found.outcome.succeeded
                self._metrics.ended("completed" if succeeded else "failed")
            ending.set_result(found)
            place.give_back()

    async def _to_its_end(self, run: Admitted) -> Ending:
        result, outcome = None, None
        async for found in to_its_end(run, 0, self._dispatcher):
            if found.event is not None and found.event.type == COMPLETED:
                payload = found.event.event.get("payload")
                result = encoding.result(payload) if isinstance(payload, dict) else None
            outcome = found.ended or outcome
        return Ending(outcome=outcome, result=result)


async def to_its_end(
    run: Admitted, after: int, dispatcher: Dispatcher
) -> AsyncIterator[DispatchLine]:
    """A run's lines, asked for again wherever they break off.

    Without an end line if the run is not kept any more, or nobody has told of its end for longer
    than a run may take.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() + dispatch_budget.drain(dispatcher.budgets())
    pause = _PAUSE_SECONDS
    while loop.time() < due:
        try:
            async with aclosing(_closable(run.follow(after))) as lines:
                async for found in lines:
                    pause = _PAUSE_SECONDS
                    if found.event is not None:
                        after = found.event.sequence
                    yield found
                    if found.ended is not None:
                        return
        except errors.NotFound:
            return
        except errors.IsoletError as error:
            _log.warning(
                "a run cannot be followed now", extra={"run": run.run_id, "why": error.reason}
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _closable(lines: AsyncIterator[DispatchLine]) -> Any:
    async for found in lines:
        yield found
