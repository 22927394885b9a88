"""Giving a warm slot away: one transaction, then one line to an input that is open already.

The transaction is the fence: it refuses a uid that has a record or a tombstone, and a slot that is
not to be had any more, and puts the new owner's record in the slot's place. Not one byte of the
tenant's goes anywhere before it. No call of the engine stands on this path. Whether the program
began is decided afterwards (`isolet.plan.warm`), the same way whether or not the agent was killed
in between.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.service import config
from isolet.agent.service.context import Context
from isolet.agent.service.due import deadline_entry
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.pools import Lease, Pools
from isolet.agent.steps import AgentStep
from isolet.agent.workspace import script
from isolet.base import errors, log, steps
from isolet.plan import reasons
from isolet.plan.sandbox_model import SandboxRecord, SlotPart
from isolet.wire.execution import ExecutionSpec, Medium, Step
from isolet.wire.pool import WhenEmpty

SLOT_TAKEN = "SlotTaken"

_log = log.get("agent.assign")


class Assigner:
    """Gives slots to records."""

    def __init__(
        self,
        context: Context,
        book: DeadlineBook,
        inputs: Inputs,
        pools: Pools,
        drop: Callable[[str], Awaitable[None]],
    ) -> None:
        """`drop` forgets what was read of a container that is not the record's any more."""
        self._drop = drop
        self._context = context
        self._book = book
        self._inputs = inputs
        self._pools = pools

    async def begin(self, record: SandboxRecord, spec: ExecutionSpec) -> SandboxRecord:
        """Make a new record durable, with a warm slot where its class has one that fits.

        Raises:
            Conflict: the uid has a record or a tombstone; no slot is lost by that.
            Refused: there is no slot, and its class wants nothing else (`NoWarmSlot`).
        """
        wanted = self._pools.wanted.serving(record.class_name, spec)
        if wanted is None:
            return await self._context.store.add(record)
        while (lease := self._pools.reserve(wanted, record)) is not None:
            try:
                return await self.give(record, lease)
            except errors.Conflict as error:
                if error.reason != SLOT_TAKEN:
                    raise
        if wanted.when_empty is WhenEmpty.REFUSE:
            self._inputs.forget(record.uid)
            raise errors.Refused(
                f"no warm slot of class {record.class_name} is ready on this node",
                reason=reasons.NO_WARM_SLOT,
            )
        waits = wanted.when_empty is WhenEmpty.WAIT
        return await self._context.store.add(record.with_(awaits_slot=waits))

    async def assign(self, record: SandboxRecord, _: Any) -> SandboxRecord:
        """Give a slot to a record that waited for one; without one it goes on waiting."""
        spec = self._inputs.spec(record.uid)
        wanted = self._pools.wanted.serving(record.class_name, spec) if spec else None
        lease = self._pools.reserve(wanted, record, asked=False) if wanted else None
        return record if lease is None else await self.give(record, lease)

    async def give(self, record: SandboxRecord, lease: Lease) -> SandboxRecord:
        """Give it this slot.

        Raises:
            Conflict: see `begin`; or the slot is not to be had any more (`SlotTaken`).
            Unavailable: it could not be recorded.
        """
        given = self._given(record, lease)
        content = self._inputs.warm(record.uid)
        stored = await self._record(given, lease)
        try:
            await self._hand(stored, lease, content)
        except errors.IsoletError as error:
            # It may have begun or not; its worker finds out.
            _log.warning("slot not reached", extra={"uid": record.uid, "reason": error.reason})
        finally:
            self._pools.given(lease, record.uid)
        return stored

    async def take(self, record: SandboxRecord, lease: Lease) -> SandboxRecord:
        """Give it the slot of a runner, which runs already; what it is to do is sent later.

        Raises:
            Conflict: see `begin`; or the slot is not to be had any more (`SlotTaken`).
            Unavailable: it could not be recorded.
        """
        now = self._context.moment()
        given = self._given(record, lease)
        running = given.with_(step=Step.RUNNING, started_at=now.wall, started_boottime=now.boottime)
        return await self._record(running, lease)

    def _given(self, record: SandboxRecord, lease: Lease) -> SandboxRecord:
        now, slot = self._context.moment(), lease.slot
        return record.with_(
            step=Step.DISPATCHED,
            slot=SlotPart(uid=slot.uid, digest=slot.spec_digest),
            awaits_slot=False,
            container_id=slot.container_id,
            image_id=slot.image_id,
            boot_id=now.boot_id,
            dispatched_at=now.wall,
            dispatched_boottime=now.boottime,
            waiting=None,
        )

    async def _record(self, given: SandboxRecord, lease: Lease) -> SandboxRecord:
        """Ownership, durable before anything of the tenant's is sent."""
        steps.reach(AgentStep.ASSIGN_BEFORE)
        try:
            stored = await self._context.store.assign(lease.slot.uid, given)
        except errors.Conflict as error:
            # Nothing was sent to it: it is as good as before, unless it is the one that is gone.
            self._pools.release(lease, gone=error.reason == SLOT_TAKEN)
            raise
        except BaseException:
            self._pools.release(lease, gone=True)
            raise
        steps.reach(AgentStep.ASSIGN_AFTER)
        return stored

    async def _hand(self, record: SandboxRecord, lease: Lease, content: bytes) -> None:
        """The deadline, then the script, then the line."""
        entry = deadline_entry(record)
        assert entry is not None
        await self._book.move(lease.slot.container_name, entry)
        launches = self._context.launches
        launches.hand_over(lease.slot.uid, record.uid)
        launches.write(record.uid, config.MAIN_SCRIPT, content)
        steps.reach(AgentStep.HAND_BEFORE)
        await lease.input.write(script.GO)
        steps.reach(AgentStep.HAND_AFTER)

    async def unassign(self, record: SandboxRecord, _: Any) -> SandboxRecord:
        """Remove the slot, which never ran what it was given; it is started cold instead."""
        context, slot = self._context, record.slot
        assert slot is not None
        assert record.container_id is not None
        await context.engine.remove(record.container_id)
        if record.spec.medium is Medium.DISK:
            for volume in await context.engine.volumes(config.labels(record, context.installation)):
                await context.engine.remove_volume(volume.name)
            await context.disks.release(slot.uid)
        for place in (slot.uid, record.uid):
            context.launches.remove(place)
        await self._drop(record.uid)
        await self._book.drop(record.container_name)
        stored = await context.store.update(
            record.with_(
                step=Step.RECORDED,
                slot=None,
                container_id=None,
                image_id=None,
                dispatched_at=None,
                dispatched_boottime=None,
            )
        )
        steps.reach(AgentStep.UNASSIGN_AFTER)
        return stored
