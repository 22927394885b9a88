"""When a sandbox is due: on a clock that no step moves, in the words of the watchdog. Pure."""

from dataclasses import replace

from isolet.agent import deadlines
from isolet.plan.sandbox_model import Moment, ProcessPart, SandboxRecord


def deadline_entry(record: SandboxRecord, pid: int = 0) -> deadlines.Deadline | None:
    """What the watchdog is told of a sandbox that may be running; None for one that cannot be."""
    deadline = record.deadline_boottime()
    if deadline is None or record.boot_id is None or record.outcome is not None:
        return None
    if record.checkpoint is not None:
        return None  # The sandbox that stands still for it has an entry of its own.
    return deadlines.Deadline(
        name=record.container_name,
        deadline_boottime=deadline,
        boot_id=record.boot_id,
        container_id=record.container_id or "",
        pid=pid,
        pid_start=(deadlines.start_of(pid) or 0) if pid else 0,
    )


def on_boot_clock(part: ProcessPart | None, now: Moment) -> ProcessPart | None:
    """With the wall time of its deadline on this boot's clock, which no step moves."""
    if part is None or part.deadline_at is None:
        return part
    left = (part.deadline_at - now.wall).total_seconds()
    return replace(part, deadline_at_boottime=now.boottime + left)
