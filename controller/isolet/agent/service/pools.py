"""The warm pools of a node: which slots there are, which are ready, and who is given one.

What is wanted is kept in the store, so that an agent goes on without its operator. A slot is a
record as any other, made, watched and removed by a worker of its own; here is only what a slot has
beside: the open input, and whether somebody is about to be given it. Both are in memory: after a
restart those that wait and are exactly what was asked for are attached to, the others removed.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pydantic

from isolet.agent.engine import config as engine_config
from isolet.agent.engine.base import InputStream, Status
from isolet.agent.policy import checks
from isolet.agent.service import config, pool_records
from isolet.agent.service.context import Context
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.line import Line
from isolet.agent.service.node import Node
from isolet.agent.service.pool_records import Births, PoolSeen
from isolet.base import errors, log
from isolet.plan import pool
from isolet.plan.sandbox_model import Kind, SandboxRecord, Seen
from isolet.wire.execution import Step
from isolet.wire.pool import PoolsObserved, PoolsWanted, PoolWanted

SETTLE_SECONDS = 0.25
"""What was just given away begins before its replacement is made, which keeps a processor busy."""

_log = log.get("agent.pools")


@dataclass(slots=True)
class _Ready:
    """A slot whose input is open."""

    slot: SandboxRecord
    input: InputStream
    since: float
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """One slot, kept for whoever is about to be given it. It holds nothing of a tenant."""

    slot: SandboxRecord
    input: InputStream


class Pools:
    """All pools of the node."""

    def __init__(
        self,
        context: Context,
        inputs: Inputs,
        node: Node,
        ensure: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._context = context
        self._inputs = inputs
        self._node = node
        self._ensure = ensure
        self._changed = changed
        self._wanted = PoolsWanted()
        self._digests: dict[str, PoolWanted] = {}
        self._ready: dict[str, _Ready] = {}
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._births = Births()
        self._owners: dict[str, str] = {}
        self._line = Line()
        self._seen: dict[str, PoolSeen] = {}
        self._messages: dict[str, str] = {}
        self._look = asyncio.Event()
        self._closed = False

    async def start(self, records: Sequence[SandboxRecord]) -> None:
        """Take up the wish and the slots of an earlier agent.

        A slot that was not running yet is doubtful: what it was to be given to run is gone.
        """
        text = await self._context.store.pools()
        try:
            self._want(PoolsWanted.model_validate_json(text) if text else PoolsWanted())
        except pydantic.ValidationError:
            _log.error("the kept wish for pools cannot be read; none is kept until it is sent")
        for record in records:
            if record.slot is not None:
                self._owners[record.slot.uid] = record.uid
            if record.kind is Kind.SLOT and record.step in (Step.RECORDED, Step.DISPATCHED):
                await self._retire(record.uid, "the agent restarted before it ran")

    def stop(self) -> None:
        """Make no more and give none away; what is ready stays for the next agent."""
        self._closed = True

    async def close(self) -> None:
        """Let go of the inputs; slots wait on."""
        self._closed = True
        tasks = list(self._attending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def put(self, wanted: PoolsWanted) -> None:
        """Want exactly these pools from now on, also after a restart."""
        if wanted.digest() != self._wanted.digest():
            await self._context.store.keep_pools(wanted.to_json().decode())
            self._want(wanted)
            self._changed()
        self._look.set()

    def _want(self, wanted: PoolsWanted) -> None:
        self._wanted = wanted
        self._digests = {one.digest(): one for one in wanted.pools}
        self._seen = {digest: self._seen.get(digest, PoolSeen()) for digest in self._digests}

    async def run(self) -> None:
        """Make and retire slots, for ever."""
        await self._node.first_round.wait()
        while True:
            self._look.clear()
            delay = await self._tend()
            try:
                async with asyncio.timeout(delay):
                    await self._look.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SETTLE_SECONDS)
            await self._context.calm.wait()

    async def _tend(self) -> float:
        now = self._context.clock.boottime()
        records = await self._context.store.list()
        slots = [self._slot(record, now) for record in records if record.kind is Kind.SLOT]
        self._forget_strangers({slot.uid for slot in slots})
        allowed = self._allowed()
        closed = self._closed or not self._node.qualification.is_serving
        capacity = self._context.policy.capacity_amounts()
        room = pool_records.room(capacity, records, slots)
        decision = pool.decide(allowed, slots, room, now, closed=closed)
        self._messages = self._messages | dict(decision.short)
        for action in decision.actions:
            if isinstance(action, pool.Make):
                await self._make(action.pool)
            else:
                await self._retire(action.uid, action.why, failed=action.failed)
        return decision.look_again_in

    def _allowed(self) -> list[pool.Pool]:
        """The pools that this node's policy allows."""
        self._messages = {}
        found = []
        for digest, wanted in self._digests.items():
            names = self._node.names_of(wanted.image)
            problems = checks.pool_violations(wanted, self._context.policy, image_names=names)
            if problems:
                self._messages[digest] = "; ".join(map(str, problems))
                continue
            found.append(self._seen[digest].as_pool(wanted, self._line.length(digest)))
        return found

    def _slot(self, record: SandboxRecord, now: float) -> pool.Slot:
        ready = self._ready.get(record.uid)
        return pool_records.slot(
            record,
            made_at=self._births.since(record.uid, record.spec_digest, now),
            ready_since=ready.since if ready else None,
            reserved=ready.reserved if ready else False,
        )

    async def _make(self, digest: str) -> None:
        context, wanted = self._context, self._digests.get(digest)
        if wanted is None:
            return  # Another wish has come since the plan was made.
        uid = f"slot-{secrets.token_hex(16)}"
        record = pool_records.new(wanted, uid, context.installation, context.clock.now())
        self._inputs.keep_slot(uid, pool_records.longest_life(wanted), wanted)
        await context.store.add(record)
        self._births.since(uid, digest, context.clock.boottime())
        self._seen[digest].tally.created += 1
        self._ensure(uid)

    async def _retire(self, uid: str, why: str, *, failed: bool = False) -> None:
        """Have an unused slot removed; whoever is about to be given it keeps it."""
        if self._is_leased(uid):
            return
        self._withdraw(uid)
        if failed:
            self.failed(uid, why)
        self._births.settle(uid)
        store = self._context.store
        while (record := await store.get(uid)) is not None and not record.removing:
            try:
                await store.update(record.with_(removing=True))
            except errors.Conflict:
                continue
            except errors.NotFound:
                return
            _log.info("slot retired", extra={"slot": uid, "why": why})
        self._ensure(uid)

    async def offer(self, slot: SandboxRecord) -> None:
        """The slot runs and says that it waits: have its input open.

        Raises:
            Unavailable: the engine did not answer.
        """
        if slot.uid in self._attending or slot.removing or self._closed:
            return
        context = self._context
        assert slot.container_id
        folder = str(context.launches.folder(slot.uid))
        asked = config.sandbox(slot, installation=context.installation, launch_folder=folder)
        found = await context.engine.inspect(slot.container_id)
        differences = engine_config.differences(engine_config.bounds(asked), found.seen)
        if differences:
            await self._retire(slot.uid, "; ".join(differences))
        elif found.status is Status.RUNNING and slot.uid not in self._attending:
            task = asyncio.create_task(self._attend(slot, slot.container_id))
            self._attending[slot.uid] = task

    async def _attend(self, slot: SandboxRecord, container: str) -> None:
        """Hold its input until that ends or the slot is given away."""
        try:
            async with self._context.engine.attach(container) as stream:
                self._enter(slot, stream)
                await stream.ended()
        except errors.IsoletError as error:
            _log.info("slot's input lost", extra={"slot": slot.uid, "reason": error.reason})
        finally:
            self._ready.pop(slot.uid, None)
            self._attending.pop(slot.uid, None)
            self._look.set()
        # The engine went: its worker looks, and offers the slot again if it is well.
        await asyncio.sleep(pool_records.REATTACH_SECONDS)
        self._ensure(slot.uid)

    def _enter(self, slot: SandboxRecord, stream: InputStream) -> None:
        seen = self._seen.get(slot.spec_digest)
        if seen is not None:
            seen.failures, seen.failed_at = 0, None
        # Its age counts from when it ran, so that a restart does not make it young again.
        since = slot.started_boottime or self._context.clock.boottime()
        self._ready[slot.uid] = _Ready(slot, stream, since)
        self._births.settle(slot.uid)
        self._look.set()
        self._call(slot.spec_digest)

    def _call(self, digest: str | None) -> None:
        """Have those look whose turn it is."""
        if digest is not None and digest in self._digests:
            slots, now = self._offered(digest)
            able = pool.to_give(self._digests[digest], slots, now)
            for uid in self._line.first(digest, len(able)):
                self._ensure(uid)

    def _withdraw(self, uid: str) -> None:
        """Give it to nobody any more."""
        self._ready.pop(uid, None)
        task = self._attending.pop(uid, None)
        if task is not None:
            task.cancel()

    def withdraw(self, uid: str) -> None:
        """The slot is not what it should be."""
        if uid in self._attending:
            self._withdraw(uid)
            self._look.set()

    def _is_leased(self, uid: str) -> bool:
        """Whether somebody may be writing to its input: that one gives it back, by `given`."""
        ready = self._ready.get(uid)
        return ready is not None and ready.reserved

    def _forget_strangers(self, slots: set[str]) -> None:
        for uid in set(self._attending) - slots:
            if not self._is_leased(uid):
                self._withdraw(uid)

    def gone(self, uid: str) -> None:
        """The slot's record is gone: removed, or given away."""
        if not self._is_leased(uid):
            self._withdraw(uid)
        self.failed(uid, "")
        self._births.forget(uid)
        self._look.set()

    def failed(self, uid: str, why: str) -> None:
        """It has ended; if it was never ready, its pool waits a little before the next."""
        seen = self._seen.get(self._births.fail(uid) or "")
        if seen is not None:
            _log.warning("slot did not become ready", extra={"slot": uid, "why": why})
            seen.fail(self._context.clock.boottime(), why)

    # Who is given one.

    @property
    def wanted(self) -> PoolsWanted:
        """Every pool that there is to be."""
        return self._wanted

    def outlook(self, record: SandboxRecord) -> Seen:
        """Whether a record that waits for a slot can have one; it is woken once it may."""
        spec = self._inputs.spec(record.uid)
        wanted = self._wanted.serving(record.class_name, spec) if spec else None
        if wanted is None or record.stop is not None or record.outcome is not None:
            self._call(self._line.leave(record.uid))
            return Seen.ABSENT
        if self._line.join(record, wanted.digest()):
            self._look.set()
        return Seen.UNKNOWN if self._choice(wanted, record) is None else Seen.PRESENT

    def reserve(
        self, wanted: PoolWanted, record: SandboxRecord | None = None, *, asked: bool = True
    ) -> Lease | None:
        """Keep a ready slot for the caller, who gives it away or releases it at once.

        It is given to `record`, whose turn comes after those who have waited longer. `asked` counts
        it as demand; whoever waited was counted when it came.
        """
        now = self._context.clock.boottime()
        choice = None if self._closed else self._choice(wanted, record)
        seen = self._seen.get(wanted.digest())
        if seen is not None and asked:
            seen.asked.append(now)
            seen.tally.missed += choice is None
            self._look.set()
        if choice is None:
            return None
        choice.reserved = True
        self._context.calm.stir()
        return Lease(choice.slot, choice.input)

    def _choice(self, wanted: PoolWanted, record: SandboxRecord | None) -> _Ready | None:
        slots, now = self._offered(digest := wanted.digest())
        ahead = 0 if record is None else self._line.ahead(record, digest)
        found = pool.choose(wanted, slots, now, ahead=ahead)
        return self._ready.get(found.uid) if found else None

    def _offered(self, digest: str) -> tuple[list[pool.Slot], float]:
        now = self._context.clock.boottime()
        mine = (one.slot for one in self._ready.values() if one.slot.spec_digest == digest)
        return [self._slot(slot, now) for slot in mine], now

    def release(self, lease: Lease, *, gone: bool) -> None:
        """It was given to nobody; `gone` says that it is not to be had any more."""
        ready = self._ready.get(lease.slot.uid)
        if ready is not None:
            ready.reserved = False
        if gone:
            self._withdraw(lease.slot.uid)
            self._ensure(lease.slot.uid)
        self._call(lease.slot.spec_digest)
        self._look.set()

    def given(self, lease: Lease, uid: str) -> None:
        """It belongs to `uid` now."""
        self._context.calm.stir()
        self._owners[lease.slot.uid] = uid
        self._line.leave(uid)
        seen = self._seen.get(lease.slot.spec_digest)
        if seen is not None:
            seen.tally.assigned += 1
        self._withdraw(lease.slot.uid)
        self._ensure(lease.slot.uid)
        self._look.set()

    def ended(self, uid: str) -> None:
        """Its record is gone."""
        self._call(self._line.leave(uid))
        for slot in [slot for slot, owner in self._owners.items() if owner == uid]:
            del self._owners[slot]

    def owner(self, uid: str) -> str:
        """Who has the slot of this id; the id itself if nobody has."""
        return self._owners.get(uid, uid)

    def account(self, records: Sequence[SandboxRecord]) -> PoolsObserved:
        """Every wanted pool."""
        at, now = self._context.clock.now(), self._context.clock.boottime()
        slots = [self._slot(record, now) for record in records if record.kind is Kind.SLOT]
        pools = tuple(
            pool_records.observed(
                self._seen[digest].as_pool(wanted),
                [slot for slot in slots if slot.pool == digest],
                records,
                self._seen[digest].tally,
                self._messages.get(digest, ""),
                now,
            )
            for digest, wanted in self._digests.items()
        )
        return PoolsObserved(digest=self._wanted.digest(), at=at, pools=pools)
