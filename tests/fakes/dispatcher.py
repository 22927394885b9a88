"""A dispatcher in memory: runs whose admission and end a test decides."""

import asyncio

from isolet.apiserver.dispatcher import NO_CAPACITY, RUN_ID_USED, Cancelled
from isolet.base import errors
from isolet.wire.dispatch import Budgets, DispatchEvent, DispatchLine
from isolet.wire.execution import Outcome

SUCCEEDED = Outcome(succeeded=True, reason="Succeeded", message="", exit_code=0)


def failed(reason: str) -> Outcome:
    return Outcome(succeeded=False, reason=reason, message="a secret inner word")


class FakeRun:
    def __init__(self, dispatch) -> None:
        self.dispatch = dispatch
        self.run_id = dispatch.run_id
        self.lines: list[DispatchLine] = []
        self.breaks: list[Exception | None] = []
        """Where a follower's stream breaks off next: an error, or None for a mere end."""
        self.changed = asyncio.Event()

    def says(self, kind: str, **more: object) -> None:
        number = sum(line.event is not None for line in self.lines) + 1
        event = {"event_type": kind, **more}
        self._add(DispatchLine(event=DispatchEvent(sequence=number, type=kind, event=event)))

    def quiet(self) -> None:
        self._add(DispatchLine(heartbeat=True))

    def completes(self, payload: dict | None = None) -> None:
        self.says("completed", payload={"success": True} if payload is None else payload)
        self.ends(SUCCEEDED)

    def ends(self, outcome: Outcome) -> None:
        if not (self.lines and self.lines[-1].ended):
            self._add(DispatchLine(ended=outcome))

    def _add(self, line: DispatchLine) -> None:
        self.lines.append(line)
        self._tell()

    def breaks_off(self, error: Exception | None = None) -> None:
        self.breaks.append(error)
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def follow(self, after: int):
        at = 0
        while True:
            while at < len(self.lines):
                line = self.lines[at]
                at += 1
                if line.event is None or line.event.sequence > after:
                    yield line
                if line.ended is not None:
                    return
            if self.breaks:
                error = self.breaks.pop(0)
                if error is not None:
                    raise error
                return
            await self.changed.wait()


class FakeReserved:
    def __init__(self, owner, dispatch) -> None:
        self.owner, self.dispatch = owner, dispatch

    async def commit(self) -> FakeRun:
        await self.owner.committing.wait()
        if self.owner.commit_errors:
            raise self.owner.commit_errors.pop(0)
        run = FakeRun(self.dispatch)
        self.owner.runs[run.run_id] = run
        return run


class FakeDispatcher:
    """`slots` warm ones; a run's id is used once."""

    def __init__(self, slots: int = 100) -> None:
        self.slots = slots
        self.is_ready = True
        self.key = None
        self.times = Budgets()
        self.reservations = []
        self.used: set[str] = set()
        self.runs: dict[str, FakeRun] = {}
        self.cancelled: set[str] = set()
        self.reserve_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        self.cancel_errors: list[Exception] = []
        self.unconfirmed_cancels = 0
        self.committing = asyncio.Event()
        self.committing.set()
        self.closed = False

    def ready(self) -> bool:
        return self.is_ready

    def budgets(self) -> Budgets:
        return self.times

    def binding_key(self):
        return self.key

    async def reserve(self, dispatch) -> FakeReserved:
        self.reservations.append(dispatch)
        await asyncio.sleep(0)
        if self.reserve_errors:
            raise self.reserve_errors.pop(0)
        if self.slots < 1:
            raise errors.Unavailable("no slot is ready", reason=NO_CAPACITY)
        if dispatch.run_id in self.used | self.cancelled:
            raise errors.Conflict("the run was here before", reason=RUN_ID_USED)
        self.slots -= 1
        self.used.add(dispatch.run_id)
        return FakeReserved(self, dispatch)

    async def find(self, run_id: str) -> FakeRun:
        if run_id not in self.runs:
            raise errors.NotFound("the run was never begun")
        return self.runs[run_id]

    async def cancel(self, run_id: str) -> Cancelled:
        if self.cancel_errors:
            raise self.cancel_errors.pop(0)
        if self.unconfirmed_cancels:
            self.unconfirmed_cancels -= 1
            return Cancelled(confirmed=False)
        self.cancelled.add(run_id)
        run = self.runs.get(run_id)
        if run is None or (run.lines and run.lines[-1].ended):
            return Cancelled(confirmed=True)
        run.ends(failed("Cancelled"))
        return Cancelled(confirmed=True, removed=1)

    async def close(self) -> None:
        self.closed = True


class GivenAgents:
    """The agents that a test gives, by name; it closes them itself."""

    def __init__(self, by_name) -> None:
        self._by_name = by_name

    def of(self, node: str, _endpoint: str):
        return self._by_name(node)

    async def keep_only(self, nodes) -> None: ...
