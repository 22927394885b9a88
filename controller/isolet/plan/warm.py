"""The start of work that was given a warm slot: did it happen? PURE; called by `plan.sandbox`.

The slot runs all the time, so its container says nothing of the start. What says it is the line
that the launch script writes before it becomes the program, and which is in the engine's log before
the program's first instruction. A slot that does not say it in time is destroyed; its log, read to
the end, then decides: with the line it ran, without it nothing of the tenant's was ever executed,
and with a log that is not whole nobody knows (docs/decisions/0009-a-start-is-decided.md).
"""

from isolet.plan import reasons, sandbox_outcome
from isolet.plan.sandbox_model import (
    ContainerFacts,
    Control,
    Decision,
    End,
    Life,
    Moment,
    RecordEnd,
    RecordRunning,
    SandboxFacts,
    SandboxRecord,
    Unassign,
)
from isolet.wire.execution import Outcome

ACK_SECONDS = 20.0
"""How long a slot may take to say that it starts what it was given; it takes milliseconds.

Only time in which it would have been heard counts: what was said to an agent or an engine that was
away is in the log, and heard a moment after they are back.
"""

LOOK_SECONDS = 0.5


def decide(record: SandboxRecord, facts: SandboxFacts, now: Moment) -> Decision:
    """What to do about a record that was given a slot and is not known to have started."""
    seen = facts.seen
    if seen is None or not seen.ours:
        return _unconfirmed("the slot that it was given is gone, and its log with it")
    if facts.control in (Control.STARTED, Control.EXEC_FAILED):
        # Never counted from later than the moment it was given the slot.
        return Decision(actions=(RecordRunning(record.dispatched_at or now.wall),))
    if seen.life is Life.EXITED:
        return _ended(record, facts, seen, now)
    if seen.life not in (Life.RUNNING, Life.PAUSED):
        return Decision(look_again_in=LOOK_SECONDS)
    if record.stop is not None or _overdue(record, facts, now):
        return Decision(actions=(End(0),))
    return Decision(look_again_in=LOOK_SECONDS)


def _overdue(record: SandboxRecord, facts: SandboxFacts, now: Moment) -> bool:
    given = record.dispatched_boottime
    if given is None or record.boot_id != now.boot_id:
        return True
    heard = facts.heard_since
    return heard is not None and now.boottime - max(given, heard) >= ACK_SECONDS


def _ended(
    record: SandboxRecord, facts: SandboxFacts, seen: ContainerFacts, now: Moment
) -> Decision:
    if not facts.output_done:
        return Decision(look_again_in=LOOK_SECONDS)
    if record.stop is not None or facts.control is Control.START_FAILED:
        return Decision(actions=(RecordEnd(sandbox_outcome.of_exit(record, facts, seen, now)),))
    if facts.output_incomplete:
        return _unconfirmed("the slot that it was given has ended, and not all of its log is left")
    return Decision(actions=(Unassign(),))


def _unconfirmed(what: str) -> Decision:
    outcome = Outcome(
        succeeded=False,
        reason=reasons.START_UNCONFIRMED,
        message=f"{what}: nothing tells whether it started; it is not started again",
    )
    return Decision(actions=(RecordEnd(outcome),))
