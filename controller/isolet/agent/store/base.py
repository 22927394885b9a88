"""The agent's store: one record an Execution or Process, changed by compare-and-set.

It says what is owned and which step was reached; the engine's list says what exists. One agent
holds a state folder at a time (a lock on a file in it), and the folder must be on a local file
system: SQLite's locks cannot be trusted on a network one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from isolet.plan.sandbox_model import Kind, Moment, SandboxRecord
from isolet.wire.base import Fence


@dataclass(frozen=True, kw_only=True, slots=True)
class Tombstone:
    """A uid that was here and must not run here again."""

    uid: str
    namespace: str
    name: str
    spec_digest: str
    buried_at: datetime
    kind: Kind = Kind.EXECUTION


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """Which tombstones are to be forgotten: those for which both of these have passed."""

    before: datetime
    """Wall time (exclusive), whatever the boot."""
    boot_id: str
    """The present boot."""
    boottime_before: float
    """Seconds of its clock (exclusive). What was buried in another boot was so before 0 of it."""

    def covers(self, buried: Moment) -> bool:
        """Whether one that was buried at that moment is among them."""
        boottime = buried.boottime if buried.boot_id == self.boot_id else 0.0
        return buried.wall < self.before and boottime < self.boottime_before


class Store(Protocol):
    """Durable records. Every write is on disk when the call returns."""

    epoch: str
    """Random identity of this store, made with it."""

    async def get(self, uid: str) -> SandboxRecord | None:
        """The record, or None."""
        ...

    async def list(self) -> Sequence[SandboxRecord]:
        """All records, ordered by created_at, then uid."""
        ...

    async def add(self, record: SandboxRecord) -> SandboxRecord:
        """Insert; returns it with revision 1 and its sequence.

        Raises:
            Conflict: the uid has a record, or a tombstone (reason `AlreadyEnded`).
        """
        ...

    async def update(self, record: SandboxRecord) -> SandboxRecord:
        """Write `record` if the stored revision is still `record.revision`.

        Returns it with the next revision and a new sequence. uid, namespace, name, spec_digest and
        created_at never change.

        Raises:
            Conflict: the stored revision differs (reason `StaleRevision`).
            NotFound: there is no such record.
        """
        ...

    async def assign(self, slot: str, record: SandboxRecord) -> SandboxRecord:
        """Write `record` and take the warm slot's own record away, in one transaction.

        A `record` of revision 0 is added, another one is updated. A slot has no tombstone: its uid
        is random and never used again.

        Raises:
            Conflict: the slot is not to be had any more (`SlotTaken`); or as `add` and `update`.
            NotFound: as `update`.
        """
        ...

    async def pools(self) -> str:
        """The wish for warm pools that was kept last; empty if there is none."""
        ...

    async def keep_pools(self, wish: str) -> None:
        """Keep a wish for warm pools, as its owner sent it."""
        ...

    async def bury(self, uid: str, *, at: Moment, kind: Kind = Kind.EXECUTION) -> int:
        """Replace the record by a tombstone in one transaction; returns the sequence of that.

        Burying a uid that has no record writes a tombstone of `kind` all the same. Burying again
        keeps the tombstone and its sequence, and at most makes it younger.
        """
        ...

    async def fence(self, uid: str, *, at: Moment, kind: Kind = Kind.EXECUTION) -> None:
        """A tombstone for a uid that is not here, so that it never will be; as `bury` otherwise.

        Raises:
            Conflict: it has a record (`AlreadyExists`), which stays.
        """
        ...

    async def tombstone(self, uid: str) -> Tombstone | None:
        """The tombstone of `uid`, if it has one."""
        ...

    async def forget(self, uids: Sequence[str], kind: Kind) -> int:
        """Drop the tombstones of these uids that are of `kind`; returns how many there were."""
        ...

    async def purge_tombstones(self, served: Served, *, limit: int = 4096) -> int:
        """Forget the oldest of those that have served their time; returns how many."""
        ...

    async def changed_since(
        self, sequence: int
    ) -> tuple[Sequence[SandboxRecord], Sequence[Tombstone], int]:
        """Records and tombstones changed after `sequence`, and the newest sequence."""
        ...

    async def present(self) -> tuple[Sequence[SandboxRecord], int]:
        """Every record by sequence, and the newest number: nothing of a day's worth of tombstones.

        Both as they are at one moment.
        """
        ...

    async def check_fence(self, fence: Fence) -> None:
        """Obey this fence or a newer one from now on.

        Raises:
            Fenced: an equal Lease with more transitions, or a Lease that came after this one, has
                been obeyed.
        """
        ...

    async def close(self) -> None:
        """Flush and let go of the folder."""
        ...
