"""One worker a sandbox: gather, decide, perform, wait; until its record is buried.

Woken by a message, an engine event or time. An error ends the pass, not the worker: the next pass
looks afresh. What cannot be confirmed for a while is told as `waiting` and retried with backoff, so
that one bad sandbox (a quarantined slot) never stops the node.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from isolet.agent.engine.base import Stream
from isolet.agent.service.context import Context
from isolet.agent.service.effects import Effects
from isolet.agent.service.facts import Facts
from isolet.agent.service.output import OutputFiles
from isolet.agent.service.pools import Pools
from isolet.agent.service.turns import Turns
from isolet.base import errors, log
from isolet.plan import reasons, sandbox
from isolet.plan.sandbox_model import (
    Action,
    CheckpointAction,
    Control,
    Decision,
    Kind,
    Life,
    SandboxRecord,
    Seen,
)
from isolet.wire.execution import State, Step, Waiting

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 30.0
SETTLED_LOOK_SECONDS = 300.0
"""A sandbox with nothing to do is looked at this often all the same."""

READY_LOOK_SECONDS = 1.0
"""How soon a runner that starts is looked at again, if its log does not tell of its ready line."""

TAKING_LOOK_SECONDS = 1.0
"""How soon an ended sandbox is looked at again whose workspace is being taken."""


class Driver(Protocol):
    """Looks, decides and performs for records of one form."""

    async def decide(self, record: SandboxRecord) -> Decision:
        """What to do now."""
        ...

    async def perform(
        self, action: Action | CheckpointAction, record: SandboxRecord
    ) -> SandboxRecord | None:
        """Do one action; returns the record afterwards, None once it is buried."""
        ...

    async def drop(self, uid: str) -> None:
        """Forget one that is buried."""
        ...


class SandboxDriver:
    """Drives what has a sandbox of its own."""

    def __init__(
        self, context: Context, facts: Facts, effects: Effects, pools: Pools, turns: Turns
    ) -> None:
        self._context = context
        self._turns = turns
        self._facts = facts
        self._pools = pools
        self.perform = effects.perform

    async def decide(self, record: SandboxRecord) -> Decision:
        """Look, then ask the plan. A workspace that is being taken is not disposed of meanwhile."""
        if record.outcome is not None and self._turns.is_claimed(record.uid):
            return Decision(look_again_in=TAKING_LOOK_SECONDS)
        facts = await self._facts.gather(record)
        return sandbox.decide(record, facts, self._context.moment())

    async def drop(self, uid: str) -> None:
        """Forget one that is buried."""
        self._pools.ended(uid)
        await self._facts.drop(uid)


def _soon(found: Decision) -> Decision:
    """The same, looked at again as soon as a runner may have said that it is ready."""
    return found if found.actions else replace(found, look_again_in=READY_LOOK_SECONDS)


class SlotDriver:
    """Drives an unused warm slot, and says whether it can be given away."""

    def __init__(self, context: Context, facts: Facts, effects: Effects, pools: Pools) -> None:
        self._context = context
        self._facts = facts
        self._pools = pools
        self.perform = effects.perform

    async def decide(self, record: SandboxRecord) -> Decision:
        """Look, ask the plan, and offer the slot if it waits."""
        if record.outcome is not None:
            self._pools.failed(record.uid, f"{record.outcome.reason}: {record.outcome.message}")
        facts = await self._facts.gather(record)
        waits = record.step is Step.RUNNING and facts.control is Control.STARTED
        line = self._ready_line(record)
        self._facts.await_stdout(record.uid, len(line))
        if waits and not self._has_said(record, line):
            return _soon(sandbox.decide(record, facts, self._context.moment()))
        if waits and facts.seen is not None and facts.seen.life is Life.RUNNING:
            await self._pools.offer(record)
        elif facts.container is not Seen.UNKNOWN:
            self._pools.withdraw(record.uid)
        return sandbox.decide(record, facts, self._context.moment())

    def _ready_line(self, record: SandboxRecord) -> bytes:
        """What its runner, if it has one, writes once it is ready."""
        runner = self._pools.wanted.runner_of(record.spec_digest)
        return b"" if runner is None else runner.ready_line.encode() + b"\n"

    def _has_said(self, record: SandboxRecord, line: bytes) -> bool:
        if not line:
            return True
        files = OutputFiles(self._context.output_folder(record.uid))
        return files.read(Stream.STDOUT, 0, len(line))[1] == line

    async def drop(self, uid: str) -> None:
        """Forget one that is removed or was given away, and what was read of it meanwhile."""
        self._pools.gone(uid)
        await self._facts.drop(uid)
        OutputFiles(self._context.output_folder(uid)).delete()


class Worker:
    """Drives one uid."""

    def __init__(
        self,
        uid: str,
        context: Context,
        driver: Callable[[SandboxRecord], Driver],
        changed: Callable[[], None],
    ) -> None:
        self._uid = uid
        self._context = context
        self._driver = driver
        self._last: Driver | None = None
        self._changed = changed
        self._wake = asyncio.Event()
        self._backoff = 0.0
        self._log = log.get("agent.worker", uid=uid)

    def wake(self) -> None:
        """Something may have changed: look now."""
        self._wake.set()

    async def run(self) -> None:
        """Passes until the record is buried."""
        while True:
            self._wake.clear()
            delay = await self._guarded_pass()
            if delay is None:
                if self._last is not None:
                    await self._last.drop(self._uid)
                return
            await self._sleep(delay)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        # A wake does not undo a backoff: a container that flaps must not turn into a busy loop.
        if self._backoff > FIRST_BACKOFF_SECONDS:
            await asyncio.sleep(FIRST_BACKOFF_SECONDS)

    async def _guarded_pass(self) -> float | None:
        """One pass; seconds to the next, None when there will be none."""
        try:
            delay = await self._pass()
            self._backoff = 0.0
            return delay
        except errors.Conflict as error:
            if error.reason == "StaleRevision":
                return 0.0
            return await self._failed(error)
        except errors.IsoletError as error:
            return await self._failed(error)
        except Exception:
            self._log.exception("pass failed")
            return self._back_off()

    async def _pass(self) -> float | None:
        record = await self._context.store.get(self._uid)
        if record is None:
            return None
        if _can_wait(record):
            await self._context.calm.wait()
        driver = self._last = self._driver(record)
        decision = await driver.decide(record)
        for action in decision.actions:
            before = record
            after = await driver.perform(action, record)
            if after is None:
                self._changed()
                return None
            record = after
            if record.sequence != before.sequence:
                self._changed()
            if record.outcome is not None and before.outcome is None:
                break  # The rest of the plan was for a sandbox that is to live.
        if decision.actions:
            return decision.look_again_in or 0.0
        await self._tell_waiting(record, decision.waiting)
        return decision.look_again_in or SETTLED_LOOK_SECONDS

    async def _tell_waiting(self, record: SandboxRecord, waiting: Waiting | None) -> None:
        if record.waiting != waiting:
            await self._context.store.update(record.with_(waiting=waiting))
            self._changed()

    async def _failed(self, error: errors.IsoletError) -> float:
        self._log.warning("will look again", extra={"reason": error.reason, "why": error.message})
        delay = self._back_off()
        record = await self._context.store.get(self._uid)
        if record is not None:
            try:
                await self._tell_waiting(record, _waiting_for(record, error))
            except errors.IsoletError as second:
                self._log.warning("could not be recorded", extra={"reason": second.reason})
        return delay

    def _back_off(self) -> float:
        self._backoff = min(LONGEST_BACKOFF_SECONDS, max(FIRST_BACKOFF_SECONDS, self._backoff * 2))
        return self._backoff


def _can_wait(record: SandboxRecord) -> bool:
    """Whether nobody waits for this look who is not better served by a free processor.

    What has just been given a slot begins by itself, and what has ended is only to be removed.
    """
    if record.outcome is not None or record.kind is Kind.SLOT:
        return True
    wished_over = record.removing or record.stop is not None or record.state is State.TERMINATED
    return record.slot is not None and not wished_over


def _waiting_for(record: SandboxRecord, error: errors.IsoletError) -> Waiting:
    """What to tell those who wait: what is being tried, and why it does not succeed."""
    if record.outcome is not None and error.reason != reasons.OBJECT_STORE_UNAVAILABLE:
        return Waiting(
            reason=reasons.QUARANTINED,
            message=f"what is left of it cannot be removed yet: {error.message}",
        )
    if record.stop is not None:
        return Waiting(
            reason=reasons.CANCEL_UNVERIFIED,
            message=f"its end is not confirmed yet: {error.message}",
        )
    return Waiting(reason=error.reason, message=error.message)


class Workers:
    """The workers of all sandboxes on the node, one a uid at a time."""

    def __init__(self, make: Callable[[str], Worker]) -> None:
        self._make = make
        self._running: dict[str, tuple[Worker, asyncio.Task[None]]] = {}

    def ensure(self, uid: str) -> None:
        """Have `uid` looked at now."""
        if uid in self._running:
            self._running[uid][0].wake()
            return
        worker = self._make(uid)
        task = asyncio.create_task(worker.run())
        self._running[uid] = (worker, task)
        task.add_done_callback(lambda _: self._running.pop(uid, None))

    def wake(self, uid: str) -> None:
        """Have `uid` looked at now, if it has a worker."""
        if uid in self._running:
            self._running[uid][0].wake()

    def wake_all(self) -> None:
        """Have everyone look."""
        for worker, _ in self._running.values():
            worker.wake()

    async def close(self) -> None:
        """Stop all workers; what they were doing is taken up at the next start."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
