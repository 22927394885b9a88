"""A store in memory, for tests of what stands on a store. Held to the same suite as SQLite."""

from collections.abc import Sequence
from datetime import datetime

from isolet.agent.store import codec, fences
from isolet.agent.store.base import Served, Tombstone
from isolet.base import errors
from isolet.plan.sandbox_model import Kind, Moment, SandboxRecord
from isolet.wire.base import Fence
from isolet.wire.execution import Step


class MemoryStore:
    """Implements `isolet.agent.store.base.Store` in dicts. `fail_with` makes every call raise."""

    def __init__(self, epoch: str = "memory") -> None:
        self.epoch = epoch
        self.fail_with: errors.IsoletError | None = None
        self._sequence = 0
        self._records: dict[str, SandboxRecord] = {}
        self._tombstones: dict[str, tuple[Tombstone, int]] = {}
        self._buried: dict[str, Moment] = {}
        self._obeyed: dict[str, fences.Obeyed] = {}
        self._pools = ""

    async def get(self, uid: str) -> SandboxRecord | None:
        self._check()
        return self._records.get(uid)

    async def list(self) -> Sequence[SandboxRecord]:
        self._check()
        return tuple(sorted(self._records.values(), key=lambda r: (r.created_at, r.uid)))

    async def add(self, record: SandboxRecord) -> SandboxRecord:
        self._check()
        if record.uid in self._records:
            raise errors.Conflict(f"{record.uid} has a record", reason="AlreadyExists")
        if record.uid in self._tombstones:
            raise errors.Conflict(f"{record.uid} has ended here before", reason="AlreadyEnded")
        return self._keep(record.with_(revision=1))

    async def update(self, record: SandboxRecord) -> SandboxRecord:
        self._check()
        old = self._records.get(record.uid)
        if old is None:
            raise errors.NotFound(f"{record.uid} has no record")
        if old.revision != record.revision:
            raise errors.Conflict(
                f"{record.uid} is at revision {old.revision}, not {record.revision}",
                reason="StaleRevision",
            )
        if _fixed(old) != _fixed(record):
            raise errors.Conflict(f"{record.uid}: a field that never changes was changed")
        return self._keep(record.with_(revision=record.revision + 1))

    async def assign(self, slot: str, record: SandboxRecord) -> SandboxRecord:
        self._check()
        found = self._records.get(slot)
        ready = found is not None and found.kind is Kind.SLOT and found.step is Step.RUNNING
        if found is None or not ready or found.removing or found.stop or found.outcome:
            raise errors.Conflict(f"slot {slot} is not to be had any more", reason="SlotTaken")
        written = await (self.update if record.revision else self.add)(record)
        del self._records[slot]
        return written

    async def pools(self) -> str:
        self._check()
        return self._pools

    async def keep_pools(self, wish: str) -> None:
        self._check()
        self._pools = wish

    async def bury(self, uid: str, *, at: Moment, kind: Kind = Kind.EXECUTION) -> int:
        self._check()
        if uid in self._tombstones:
            old, sequence = self._tombstones[uid]
            younger = _tombstone(uid, old, max(at.wall, old.buried_at), kind)
            self._buried[uid] = _younger(self._buried[uid], at)
            self._tombstones[uid] = (younger, sequence)
            return sequence
        self._sequence += 1
        tombstone = _tombstone(uid, self._records.pop(uid, None), at.wall, kind)
        self._buried[uid] = at
        self._tombstones[uid] = (tombstone, self._sequence)
        return self._sequence

    async def fence(self, uid: str, *, at: Moment, kind: Kind = Kind.EXECUTION) -> None:
        self._check()
        if uid in self._records:
            raise errors.Conflict(f"{uid} has a record", reason="AlreadyExists")
        await self.bury(uid, at=at, kind=kind)

    async def tombstone(self, uid: str) -> Tombstone | None:
        self._check()
        return self._tombstones[uid][0] if uid in self._tombstones else None

    async def forget(self, uids: Sequence[str], kind: Kind) -> int:
        self._check()
        mine = [u for u in uids if u in self._tombstones and self._tombstones[u][0].kind is kind]
        for uid in mine:
            del self._tombstones[uid]
        return len(mine)

    async def purge_tombstones(self, served: Served, *, limit: int = 4096) -> int:
        self._check()
        old = [t for t, _ in self._tombstones.values() if served.covers(self._buried[t.uid])]
        gone = sorted(old, key=lambda t: t.buried_at)[:limit]
        for tombstone in gone:
            del self._tombstones[tombstone.uid]
        return len(gone)

    async def changed_since(
        self, sequence: int
    ) -> tuple[Sequence[SandboxRecord], Sequence[Tombstone], int]:
        self._check()
        records = [r for r in self._records.values() if r.sequence > sequence]
        buried = [(n, t) for t, n in self._tombstones.values() if n > sequence]
        return (
            tuple(sorted(records, key=lambda r: r.sequence)),
            tuple(t for _, t in sorted(buried, key=lambda pair: pair[0])),
            self._sequence,
        )

    async def present(self):
        records, _, newest = await self.changed_since(0)
        return records, newest

    async def check_fence(self, fence: Fence) -> None:
        self._check()
        self._obeyed[fence.shard] = fences.obey(self._obeyed.get(fence.shard, ()), fence)

    async def close(self) -> None:
        self.fail_with = errors.Unavailable("the store is closed")

    def _check(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with

    def _keep(self, record: SandboxRecord) -> SandboxRecord:
        self._sequence += 1
        kept = codec.keepable(record).with_(sequence=self._sequence)
        self._records[record.uid] = kept
        return kept


def _fixed(record: SandboxRecord) -> tuple[object, ...]:
    return record.namespace, record.name, record.spec_digest, record.created_at


def _tombstone(
    uid: str, source: SandboxRecord | Tombstone | None, at: datetime, kind: Kind
) -> Tombstone:
    if source is None:
        return Tombstone(uid=uid, namespace="", name="", spec_digest="", buried_at=at, kind=kind)
    return Tombstone(
        uid=uid,
        namespace=source.namespace,
        name=source.name,
        spec_digest=source.spec_digest,
        buried_at=at,
        kind=source.kind,
    )


def _younger(old: Moment, new: Moment) -> Moment:
    same = old.boot_id == new.boot_id
    boottime = max(old.boottime, new.boottime) if same else new.boottime
    return Moment(wall=max(old.wall, new.wall), boottime=boottime, boot_id=new.boot_id)
