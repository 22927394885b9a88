"""What is told of a record that is gone, and for how long."""

import asyncio
from datetime import timedelta

from isolet.agent.service import checkpoint_records, process_records, records
from isolet.agent.service.context import Context
from isolet.agent.service.watchers import Observed
from isolet.agent.store.base import Served, Tombstone
from isolet.base import errors, log
from isolet.plan.sandbox_model import Kind, Moment

LIFE = timedelta(hours=25)
"""Tombstones fence replays for at least 24 h."""

PURGE_SECONDS = 600.0

_log = log.get("agent.tombstones")


def buried(tombstone: Tombstone, sequence: int) -> Observed:
    """In the words of its kind."""
    if tombstone.kind is Kind.CHECKPOINT:
        return checkpoint_records.buried(tombstone, sequence)
    if tombstone.kind is Kind.PROCESS:
        return process_records.buried(tombstone, sequence)
    return records.buried(tombstone, sequence)


def served(now: Moment) -> Served:
    """Which have served their time by now.

    Both clocks have to say so. The wall clock alone would take all of them away when it is set a
    day ahead; the boot-time clock, which nothing sets, knows how long ago one was buried at least:
    in this boot, exactly; in another one, longer ago than this boot has lasted. A node that is
    never up for so long keeps them until it is.
    """
    return Served(
        before=now.wall - LIFE,
        boot_id=now.boot_id,
        boottime_before=now.boottime - LIFE.total_seconds(),
    )


async def purge_loop(context: Context) -> None:
    """Forget, now and then, those that have served their time."""
    while True:
        try:
            while await context.store.purge_tombstones(served(context.moment())):
                continue  # Each time so many; a day can bury more than that in ten minutes.
        except errors.IsoletError as error:
            _log.warning("tombstones not purged", extra={"reason": error.reason})
        await asyncio.sleep(PURGE_SECONDS)
