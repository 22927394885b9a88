"""Slots as records and as the pool plan sees them, and what is told of a pool. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from isolet.agent.service import records
from isolet.agent.service.node import allocated
from isolet.base import names
from isolet.plan import pool
from isolet.plan.sandbox_model import Kind, SandboxRecord
from isolet.wire.execution import State
from isolet.wire.node import Amounts
from isolet.wire.pool import PoolObserved, PoolWanted

REATTACH_SECONDS = 0.5
"""How soon after the loss of its input a slot is looked at again."""

LATE_SECONDS = 300
"""How long past its idle time a slot may live when no agent is there to retire it."""


@dataclass(slots=True)
class Tally:
    """Counts of one pool since the agent began."""

    created: int = 0
    failed: int = 0
    assigned: int = 0
    missed: int = 0


@dataclass(slots=True)
class PoolSeen:
    """What was seen of one pool since the agent began."""

    asked: deque[float] = field(default_factory=lambda: deque(maxlen=1024))
    tally: Tally = field(default_factory=Tally)
    failures: int = 0
    failed_at: float | None = None
    failed_why: str = ""

    def fail(self, now: float, why: str) -> None:
        """One more that did not become ready."""
        self.tally.failed += 1
        self.failures += 1
        self.failed_at, self.failed_why = now, why

    def as_pool(self, wanted: PoolWanted, waiting: int = 0) -> pool.Pool:
        """The pool as its plan sees it, with so many records that wait for a slot."""
        return pool.Pool(
            wanted=wanted,
            asked=tuple(self.asked),
            waiting=waiting,
            failures=self.failures,
            failed_at=self.failed_at,
            failed_why=self.failed_why,
        )


class Births:
    """Since when slots are known, and which of them may still fail to become ready."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}
        self._settled: set[str] = set()

    def since(self, uid: str, pool_digest: str, now: float) -> float:
        """When it was first heard of."""
        return self._known.setdefault(uid, (now, pool_digest))[0]

    def settle(self, uid: str) -> None:
        """It became ready or was retired: its end is no failure."""
        self._settled.add(uid)

    def fail(self, uid: str) -> str | None:
        """The digest of the pool that it failed, once; None if its end is no failure."""
        if uid in self._settled or uid not in self._known:
            return None
        self._settled.add(uid)
        return self._known[uid][1]

    def forget(self, uid: str) -> None:
        """Nothing is left of it."""
        self._known.pop(uid, None)
        self._settled.discard(uid)


def unused_life(wanted: PoolWanted) -> int:
    """Seconds after which the watchdog ends a slot that nobody was given."""
    return wanted.startup_seconds + wanted.idle_timeout_seconds + LATE_SECONDS


def longest_life(wanted: PoolWanted) -> int:
    """Seconds that a slot can live in all, given to somebody at the last moment."""
    return unused_life(wanted) + wanted.maximum_deadline_seconds


def new(wanted: PoolWanted, uid: str, installation: str, now: datetime) -> SandboxRecord:
    """The record of a slot that is to be made."""
    return SandboxRecord(
        uid=uid,
        namespace="",
        name=uid,
        class_name=wanted.class_name,
        generation=wanted.generation,
        spec_digest=wanted.digest(),
        spec=records.pinned(wanted.spec()),
        kind=Kind.SLOT,
        state=State.RUNNING,
        active_deadline_seconds=unused_life(wanted),
        container_name=names.container_name(installation, uid),
        created_at=now,
        updated_at=now,
    )


def slot(
    record: SandboxRecord, *, made_at: float, ready_since: float | None, reserved: bool
) -> pool.Slot:
    """A slot's record as the plan sees it."""
    if record.removing or record.stop is not None or record.outcome is not None:
        life = pool.SlotLife.RETIRING
    else:
        life = pool.SlotLife.CREATING if ready_since is None else pool.SlotLife.READY
    return pool.Slot(
        uid=record.uid,
        pool=record.spec_digest,
        life=life,
        made_at=made_at,
        ready_since=ready_since if life is pool.SlotLife.READY else None,
        reserved=reserved,
        amounts=Amounts.of_sandbox(record.spec.resources, record.spec.medium),
    )


def room(
    capacity: Amounts, records: Sequence[SandboxRecord], slots: Sequence[pool.Slot]
) -> Amounts:
    """What is left of the node beside all work and all slots.

    The room of work that waits for a slot is there for that slot.
    """
    work = allocated([record for record in records if not record.awaits_slot])
    left = capacity.plus(work, -1)
    for one in slots:
        left = left.plus(one.amounts, -1)
    return left


def observed(
    one: pool.Pool,
    slots: Sequence[pool.Slot],
    owned: Sequence[SandboxRecord],
    tally: Tally,
    message: str,
    now: float,
) -> PoolObserved:
    """What is told of a pool."""
    wanted, lives = one.wanted, [slot.life for slot in slots]
    digest = wanted.digest()
    given = [r for r in owned if r.slot is not None and r.slot.digest == digest]
    return PoolObserved(
        class_name=wanted.class_name,
        class_uid=wanted.class_uid,
        generation=wanted.generation,
        target=pool.target(one, now),
        ready=lives.count(pool.SlotLife.READY),
        creating=lives.count(pool.SlotLife.CREATING),
        retiring=lives.count(pool.SlotLife.RETIRING),
        assigned=sum(1 for record in given if record.outcome is None),
        created_total=tally.created,
        failed_total=tally.failed,
        assigned_total=tally.assigned,
        missed_total=tally.missed,
        message=message,
    )
