"""What the store writes inside a transaction: each checks first, so one that raises wrote nothing.

Shared by the calls that change one record and the one that changes two.
"""

from isolet.agent.store import codec
from isolet.agent.store.base import Served
from isolet.agent.store.writer import Transaction
from isolet.base import errors
from isolet.plan.sandbox_model import Kind, Moment, SandboxRecord
from isolet.wire.execution import Step

RECORD = ", ".join((*codec.COLUMNS, "body"))
TOMBSTONE = ", ".join(codec.TOMBSTONE_COLUMNS)


async def insert(transaction: Transaction, record: SandboxRecord, encoded: str) -> SandboxRecord:
    """A new record. Raises Conflict: the uid has a record or a tombstone."""
    await _require_unused(transaction, record.uid)
    added = record.with_(revision=1, sequence=transaction.next_sequence())
    places = ", ".join("?" * (len(codec.COLUMNS) + 1))
    await transaction.run(
        f"INSERT INTO records ({RECORD}) VALUES ({places})", *codec.columns(added), encoded
    )
    return added


async def update(transaction: Transaction, record: SandboxRecord, encoded: str) -> SandboxRecord:
    """Compare and set. Raises Conflict or NotFound."""
    sequence = transaction.sequence + 1
    rows = await transaction.run(
        "UPDATE records SET step = ?, removing = ?, revision = revision + 1, sequence = ?,"
        " body = ? WHERE uid = ? AND revision = ? AND namespace = ? AND name = ?"
        " AND spec_digest = ? AND created_at = ? RETURNING revision",
        record.step.value,
        int(record.removing),
        sequence,
        encoded,
        record.uid,
        record.revision,
        record.namespace,
        record.name,
        record.spec_digest,
        codec.to_micros(record.created_at),
    )
    if not rows:
        raise await _why_not_updated(transaction, record)
    return record.with_(revision=rows[0][0], sequence=transaction.next_sequence())


async def require_slot(transaction: Transaction, uid: str) -> None:
    """Check that a slot is there and waits to be given.

    Raises:
        Conflict: it does not (`SlotTaken`).
    """
    rows = await transaction.run(
        "SELECT 1 FROM records WHERE uid = ? AND step = ? AND removing = 0"
        " AND json_extract(body, '$.kind') = ? AND json_extract(body, '$.stop') IS NULL"
        " AND json_extract(body, '$.outcome') IS NULL",
        uid,
        Step.RUNNING.value,
        Kind.SLOT.value,
    )
    if not rows:
        raise errors.Conflict(f"slot {uid} is not to be had any more", reason="SlotTaken")


async def bury(transaction: Transaction, uid: str, at: Moment, kind: Kind) -> int:
    """A tombstone in the place of the record; returns its sequence."""
    when = codec.to_micros(at.wall)
    old = await transaction.run("SELECT sequence FROM tombstones WHERE uid = ?", uid)
    if old:
        await transaction.run(
            "UPDATE tombstones SET buried_at = max(buried_at, ?1), boot_id = ?2,"
            " boottime = CASE boot_id WHEN ?2 THEN max(boottime, ?3) ELSE ?3 END WHERE uid = ?4",
            when,
            at.boot_id,
            at.boottime,
            uid,
        )
        return int(old[0][0])
    known = await transaction.run(
        "DELETE FROM records WHERE uid = ?"
        " RETURNING namespace, name, spec_digest, json_extract(body, '$.kind')",
        uid,
    )
    *facts, of = known[0] if known else ("", "", "", kind.value)
    sequence = transaction.next_sequence()
    await transaction.run(
        f"INSERT INTO tombstones ({TOMBSTONE}, sequence, boot_id, boottime)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        uid,
        *facts,
        when,
        of,
        sequence,
        at.boot_id,
        at.boottime,
    )
    return sequence


async def purge(transaction: Transaction, served: Served, limit: int) -> int:
    """Forget those that `served` covers, at most so many, the oldest first; returns how many."""
    rows = await transaction.run(
        "DELETE FROM tombstones WHERE uid IN (SELECT uid FROM tombstones WHERE buried_at < ?"
        " AND CASE boot_id WHEN ? THEN boottime ELSE 0 END < ?"
        " ORDER BY buried_at LIMIT ?) RETURNING uid",
        codec.to_micros(served.before),
        served.boot_id,
        served.boottime_before,
        limit,
    )
    return len(rows)


async def fence(transaction: Transaction, uid: str, at: Moment, kind: Kind) -> None:
    """A tombstone where there is no record. Raises Conflict: there is one."""
    await _require_no_record(transaction, uid)
    await bury(transaction, uid, at, kind)


async def _require_no_record(transaction: Transaction, uid: str) -> None:
    if await transaction.run("SELECT 1 FROM records WHERE uid = ?", uid):
        raise errors.Conflict(f"{uid} has a record", reason="AlreadyExists")


async def _require_unused(transaction: Transaction, uid: str) -> None:
    """Raise Conflict if the uid has a record or a tombstone."""
    await _require_no_record(transaction, uid)
    if await transaction.run("SELECT 1 FROM tombstones WHERE uid = ?", uid):
        raise errors.Conflict(f"{uid} has ended here before", reason="AlreadyEnded")


async def _why_not_updated(transaction: Transaction, record: SandboxRecord) -> errors.IsoletError:
    """The error of an update that matched no row."""
    rows = await transaction.run("SELECT revision FROM records WHERE uid = ?", record.uid)
    if not rows:
        return errors.NotFound(f"{record.uid} has no record")
    if rows[0][0] != record.revision:
        return errors.Conflict(
            f"{record.uid} is at revision {rows[0][0]}, not {record.revision}",
            reason="StaleRevision",
        )
    return errors.Conflict(f"{record.uid}: a field that never changes was changed")
