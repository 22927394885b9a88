"""The life of one Checkpoint on a node: record, facts and now in; actions out. PURE.

The steps are: recorded, taking (the sandbox may stand still, a copy may lie aside), ended,
disposed. Whatever is found at the step of taking was cut off there: the sandbox is let go on first,
what lies aside goes, and the workspace is taken anew. So a copy is whole or absent.

Taking it and commands in the same session exclude each other. A Checkpoint waits for its turn; what
comes after it waits for the Checkpoint.
"""

from dataclasses import dataclass

from isolet.plan import reasons
from isolet.plan.sandbox_model import (
    Bury,
    CheckpointPart,
    Decision,
    Dispatch,
    Dispose,
    Moment,
    RecordEnd,
    SandboxRecord,
    Save,
    Seen,
    Take,
    Thaw,
)
from isolet.wire.execution import Medium, Outcome, Step, Waiting

LOOK_SECONDS = 1.0
"""How soon what is waited for is looked at again, if nothing was heard of it."""

MOST_ATTEMPTS = 3
"""How often taking it is begun; an agent that is killed each time must not go on for ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts:
    """What was seen of one Checkpoint and of the Execution that it is taken from."""

    host: SandboxRecord | None = None
    """The Execution's record; None once it is buried."""
    engine: Seen = Seen.UNKNOWN
    """Whether the engine has the sandbox alive; read only where it was last known to run."""
    turn: bool = False
    """No command runs in the session, and none begins before this Checkpoint has ended."""
    readers: int = 0
    store: str | None = None
    """Name of the node's object store, if it has one."""


def decide(
    record: SandboxRecord, facts: CheckpointFacts, now: Moment, *, retain_seconds: int | None
) -> Decision:
    """The next actions for one Checkpoint.

    Args:
        record: its record.
        facts: what was just seen.
        now: the present.
        retain_seconds: how long the node keeps a copy after it was taken; None for ever.
    """
    if record.outcome is not None:
        return _after_end(record, facts, now, retain_seconds)
    if record.step is Step.DISPATCHED:
        return _cut_off(record, facts)
    if record.removing:
        return _end(reasons.CANCELLED, "removed before it was taken")
    problem = _cannot(facts.host)
    if problem is not None:
        return _end(reasons.CHECKPOINT_FAILED, problem)
    waiting = _not_yet(facts)
    if waiting is not None:
        return Decision(waiting=waiting, look_again_in=LOOK_SECONDS)
    if part_of(record).attempts >= MOST_ATTEMPTS:
        return _end(
            reasons.CHECKPOINT_FAILED,
            f"taking it was cut off {MOST_ATTEMPTS} times; the workspace is as it was",
        )
    return Decision(actions=(Dispatch(), Take()))


def part_of(record: SandboxRecord) -> CheckpointPart:
    """What it has beside a sandbox."""
    assert record.checkpoint is not None
    return record.checkpoint


def is_frozen(facts: CheckpointFacts) -> bool:
    """Whether a sandbox has to stand still while it is taken."""
    return facts.host is not None and facts.host.outcome is None


def _cannot(host: SandboxRecord | None) -> str | None:
    """Why there is nothing that could ever be taken."""
    if host is None:
        return "its Execution is gone"
    if host.nothing_left or host.step is Step.DISPOSED:
        return "its Execution has ended and the workspace is gone"
    if host.outcome is None:
        if _is_being_ended(host) and host.spec.medium is Medium.MEMORY:
            return "its Execution is being ended, and a Memory workspace goes with its sandbox"
        return None
    if host.container_id is None:
        return f"its Execution never ran ({host.outcome.reason})"
    if host.spec.medium is Medium.MEMORY:
        return "its Execution has ended, and a Memory workspace goes with its sandbox"
    return None


def _is_being_ended(host: SandboxRecord) -> bool:
    return host.stop is not None or host.removing


def _not_yet(facts: CheckpointFacts) -> Waiting | None:
    host = facts.host
    assert host is not None
    if host.outcome is None and _is_being_ended(host):
        # Its disk is not let go of while a Checkpoint waits for it: nothing is lost by waiting.
        return Waiting(
            reason=reasons.AWAITING_EXECUTION,
            message="its Execution is being ended; its disk is taken as soon as it has ended",
        )
    if host.outcome is None and host.step is not Step.RUNNING:
        return Waiting(reason=reasons.AWAITING_EXECUTION, message="its Execution does not run yet")
    if not facts.turn:
        return Waiting(
            reason=reasons.AWAITING_TURN, message="a command or Process runs in the session"
        )
    if is_frozen(facts) and facts.engine is Seen.UNKNOWN:
        return Waiting(
            reason=reasons.ENGINE_UNAVAILABLE, message="the node's engine does not answer"
        )
    if is_frozen(facts) and facts.engine is Seen.ABSENT:
        # Each try would fail, and they are counted.
        return Waiting(
            reason=reasons.AWAITING_EXECUTION,
            message="its sandbox has stopped; its workspace is taken once that is recorded",
        )
    return None


def _cut_off(record: SandboxRecord, facts: CheckpointFacts) -> Decision:
    """An agent was killed, or an engine went away, while it was taken: first let everything go on.

    `Thaw` leaves it recorded and not taken, and the next look decides about it anew.
    """
    if is_frozen(facts) and facts.engine is Seen.UNKNOWN:
        return Decision(
            waiting=Waiting(
                reason=reasons.ENGINE_UNAVAILABLE,
                message="the node's engine does not answer: its sandbox may stand still",
            ),
            look_again_in=LOOK_SECONDS,
        )
    return Decision(actions=(Thaw(),))


def _after_end(
    record: SandboxRecord, facts: CheckpointFacts, now: Moment, retain_seconds: int | None
) -> Decision:
    """The outcome stands; a copy is kept until it is removed or its time is over."""
    if record.nothing_left:
        return Decision(actions=(Bury(),)) if record.removing else Decision()
    assert record.ended_at is not None
    left = None
    if retain_seconds is not None:
        left = retain_seconds - (now.wall - record.ended_at).total_seconds()
    if not record.removing and (left is None or left > 0) and _is_kept(record):
        if facts.store is not None and part_of(record).in_store is None:
            return Decision(actions=(Save(),), look_again_in=left)
        return Decision(look_again_in=left)
    if facts.readers:
        return Decision(
            waiting=Waiting(
                reason=reasons.CHECKPOINT_IN_USE, message=f"{facts.readers} still read it"
            ),
            look_again_in=LOOK_SECONDS,
        )
    return Decision(actions=(Dispose(),))


def _is_kept(record: SandboxRecord) -> bool:
    """Whether there is anything to keep."""
    return record.outcome is not None and record.outcome.succeeded


def _end(reason: str, message: str) -> Decision:
    return Decision(actions=(RecordEnd(Outcome(succeeded=False, reason=reason, message=message)),))
