"""The life of one sandbox on a node: record, facts and now in; actions out. PURE.

Called by the agent's worker on every pass. The order of steps is: record, create, start dispatched,
one start, look. A start of unknown outcome is decided by inspection, by the engine's events since
the dispatch and by confirmed removal; it is never repeated unless it is proved that nothing ran
(docs/decisions/0009-a-start-is-decided.md).
"""

from isolet.plan import reasons, sandbox_git, sandbox_outcome, warm
from isolet.plan.sandbox_model import (
    Action,
    Assign,
    Bury,
    Collect,
    ContainerFacts,
    Create,
    Decision,
    Dispatch,
    Dispose,
    End,
    Fetch,
    Fill,
    Kind,
    Life,
    Moment,
    RecordEnd,
    RecordRunning,
    RecordStop,
    RemoveContainer,
    SandboxFacts,
    SandboxRecord,
    Seen,
    Start,
    Stop,
    Undispatch,
)
from isolet.wire.execution import Medium, Outcome, State, Step, Waiting

ENGINE_RETRY_SECONDS = 1.0
"""How soon an unanswered engine is asked again."""

RUNNING_LOOK_SECONDS = 30.0
"""A running sandbox is looked at this often even if no event came: events are only hints."""

OUTPUT_LOOK_SECONDS = 0.5
"""How soon to look again whether the output of an ended sandbox has been read."""

SLOT_LOOK_SECONDS = 5.0
"""What waits for a warm slot is woken when one is ready, and looks this often all the same."""

STOP_GRACE_SECONDS = 2
"""Between TERM and KILL where the end was asked for."""

_WHAT = {Kind.EXECUTION: "Execution", Kind.PROCESS: "Process", Kind.SLOT: "slot"}

_NO_GRACE = frozenset(
    {reasons.DEADLINE_EXCEEDED, reasons.OUTPUT_LIMIT_EXCEEDED, reasons.COMMAND_TIMEOUT}
)


def decide(record: SandboxRecord, facts: SandboxFacts, now: Moment) -> Decision:
    """The next actions for one sandbox."""
    if record.outcome is not None:
        return _after_end(record, now)
    if record.step is Step.RECORDED and record.boot_id != now.boot_id:
        # What was loaded before a reboot need not have reached the disk.
        record = record.with_(restored=False)
    stop = record.stop or stop_due(record, facts, now)
    if stop is not None and record.stop is None:
        return Decision(actions=(RecordStop(stop),))
    if facts.container is Seen.UNKNOWN:
        return _engine_silent(record)
    if record.step is Step.RECORDED:
        return _before_dispatch(record, facts)
    if record.step is Step.DISPATCHED:
        return _dispatched(record, facts, now)
    return _running(record, facts, now)


def stop_due(record: SandboxRecord, facts: SandboxFacts, now: Moment) -> Stop | None:
    """Why the sandbox should end now, if it should."""
    if facts.overflow:
        limit = record.process.output_limit if record.process else None
        limit = limit or record.spec.resources.output_bytes
        return Stop(
            reason=reasons.OUTPUT_LIMIT_EXCEEDED,
            message=f"stdout and stderr together passed the limit of {limit} bytes",
        )
    if facts.ended_by_watchdog or past_deadline(record, now):
        return Stop(
            reason=reasons.DEADLINE_EXCEEDED, message=sandbox_outcome.over_deadline(record, now)
        )
    if record.removing or record.state is State.TERMINATED:
        return _asked_to_end(record)
    if facts.ended_for is not None:
        return facts.ended_for
    if _idle_for(record, now) is not None and _idle_left(record, now) <= 0:
        return Stop(
            reason=reasons.IDLE_TIMEOUT,
            message=f"no command for {record.spec.idle_timeout_seconds} s",
            succeeded=True,
        )
    return None


def _asked_to_end(record: SandboxRecord) -> Stop:
    if record.stop_reason == reasons.DRAINED and not record.removing:
        return Stop(reason=reasons.DRAINED, message="ended because its node was drained")
    if record.spec.session:
        return Stop(reason=reasons.TERMINATED, message="terminated as asked", succeeded=True)
    return Stop(reason=reasons.CANCELLED, message="cancelled before its end")


def past_deadline(record: SandboxRecord, now: Moment) -> bool:
    """Whether it should be dead by now, or should not even start any more."""
    deadline = record.deadline_boottime()
    if deadline is None:
        at = record.process.deadline_at if record.process else None
        return at is not None and now.wall >= at
    return deadline is not None and record.boot_id == now.boot_id and now.boottime >= deadline


def _idle_for(record: SandboxRecord, now: Moment) -> float | None:
    """Seconds since the last command of a running session that has an idle timeout."""
    since = record.last_activity_boottime or record.started_boottime
    counted = record.spec.session and record.spec.idle_timeout_seconds is not None
    if not counted or since is None or record.boot_id != now.boot_id:
        return None
    return now.boottime - since


def _idle_left(record: SandboxRecord, now: Moment) -> float:
    return (record.spec.idle_timeout_seconds or 0) - (_idle_for(record, now) or 0.0)


def _engine_silent(record: SandboxRecord) -> Decision:
    what = "the end cannot be confirmed" if record.stop else "its state cannot be read"
    return Decision(
        waiting=Waiting(
            reason=reasons.ENGINE_UNAVAILABLE, message=f"the node's engine does not answer: {what}"
        ),
        look_again_in=ENGINE_RETRY_SECONDS,
    )


def _before_dispatch(record: SandboxRecord, facts: SandboxFacts) -> Decision:
    """Nothing of this uid has been started by us."""
    seen = facts.seen
    if seen is not None and not seen.ours:
        return _end(_conflict(record))
    if seen is not None and seen.life not in (Life.CREATED, Life.REMOVING):
        return Decision(actions=(End(0), RecordEnd(_started_by_other(record))))
    if record.stop is not None:
        return _end(sandbox_outcome.never_started(record.stop))
    if facts.image is Seen.UNKNOWN:
        return _engine_silent(record)
    if facts.image is Seen.ABSENT:
        return _end(
            Outcome(
                succeeded=False,
                reason=reasons.IMAGE_MISSING,
                message=f"image {record.spec.image} is not on this node, and is never pulled",
            )
        )
    if facts.image_problem is not None:
        return _end(
            Outcome(succeeded=False, reason=reasons.IMAGE_UNSUITABLE, message=facts.image_problem)
        )
    if not facts.inputs or (record.to_be_filled and not facts.source):
        return Decision(
            waiting=Waiting(
                reason=reasons.AWAITING_INPUTS,
                message="the agent restarted before the start: its owner must send the spec again",
            )
        )
    if seen is not None and seen.life is Life.REMOVING:
        return Decision(actions=(RemoveContainer(),))
    reading = record.git and sandbox_git.before_create(record.git, facts.tree)
    return reading or _startable(record, facts)


def _made_and_started(record: SandboxRecord) -> tuple[Action, ...]:
    if not record.to_be_filled:
        return (Create(), Dispatch(), Start())
    if record.spec.medium is Medium.DISK:
        return (Fetch(), Fill(), Create(), Dispatch(), Start())
    # A workspace in memory is there once the sandbox is; its program waits until it is filled.
    return (Fetch(), Create(), Dispatch(), Start(), Fill())


def _startable(record: SandboxRecord, facts: SandboxFacts) -> Decision:
    """All that a start needs is at hand."""
    if record.awaits_slot and facts.slot is Seen.PRESENT:
        return Decision(actions=(Assign(),))
    if record.awaits_slot and facts.slot is Seen.UNKNOWN:
        return Decision(
            waiting=Waiting(
                reason=reasons.POOL_EMPTY,
                message=f"no warm slot of class {record.class_name} is ready on this node",
            ),
            look_again_in=SLOT_LOOK_SECONDS,
        )
    return Decision(actions=_made_and_started(record))


def _dispatched(record: SandboxRecord, facts: SandboxFacts, now: Moment) -> Decision:
    """The one start may or may not have happened."""
    if record.slot is not None:
        return warm.decide(record, facts, now)
    seen = facts.seen
    if seen is None:
        return _dispatched_absent(facts)
    if not seen.ours:
        return _end(_conflict(record))
    if sandbox_git.is_unpacking(record, facts):
        return sandbox_git.UNPACKING
    if seen.life in (Life.RUNNING, Life.PAUSED, Life.EXITED):
        if record.to_be_filled and record.stop is None:
            return _cut_off_while_filled(seen)
        started = seen.started_at if record.git is None else None
        return Decision(actions=(RecordRunning(started or now.wall),))
    # Created, never started: a start may still be on its way inside the engine. Removal settles it,
    # since the engine serialises both; the events then say whether it ever ran.
    return Decision(actions=(RemoveContainer(),))


def _cut_off_while_filled(seen: ContainerFacts) -> Decision:
    """Its program has not been let run: the sandbox is worth nothing, and another may be made."""
    if seen.life is Life.EXITED:
        return _end(
            Outcome(
                succeeded=False,
                reason=reasons.START_FAILED,
                message="the sandbox ended while its workspace was being restored",
            )
        )
    return Decision(actions=(RemoveContainer(), Undispatch()))


def _dispatched_absent(facts: SandboxFacts) -> Decision:
    if facts.started_since_dispatch is Seen.ABSENT:
        return Decision(actions=(Undispatch(),))
    if facts.started_since_dispatch is Seen.PRESENT:
        return _end(
            Outcome(
                succeeded=False,
                reason=reasons.CONTAINER_LOST,
                message="it was started, and its container was then removed by someone else",
            )
        )
    return _end(
        Outcome(
            succeeded=False,
            reason=reasons.START_UNCONFIRMED,
            message="its container is gone and nothing tells whether the start happened; "
            "it is not started again",
        )
    )


def _running(record: SandboxRecord, facts: SandboxFacts, now: Moment) -> Decision:
    seen = facts.seen
    if seen is None or not seen.ours:
        return _end(sandbox_outcome.lost(record, now))
    if seen.life is Life.EXITED:
        return _exited(record, facts, seen, now)
    if seen.life in (Life.REMOVING, Life.CREATED):
        return Decision(look_again_in=ENGINE_RETRY_SECONDS)
    if record.stop is not None:
        return Decision(actions=(End(_grace(record)),))
    return Decision(look_again_in=_next_look(record, now))


def _exited(
    record: SandboxRecord, facts: SandboxFacts, seen: ContainerFacts, now: Moment
) -> Decision:
    if not facts.output_done:
        return Decision(look_again_in=OUTPUT_LOOK_SECONDS)
    if record.process is not None and record.process.globs and not record.process.collected:
        return Decision(actions=(Collect(),))
    return Decision(actions=(RecordEnd(sandbox_outcome.of_exit(record, facts, seen, now)),))


def _grace(record: SandboxRecord) -> int:
    """Seconds between TERM and KILL; there is nothing in a slot that would want to tidy up."""
    hard = record.stop is not None and record.stop.reason in _NO_GRACE
    return 0 if hard or record.kind is Kind.SLOT else STOP_GRACE_SECONDS


def _next_look(record: SandboxRecord, now: Moment) -> float:
    """Seconds until the deadline, the idle timeout or the next look, whichever comes first."""
    looks = [RUNNING_LOOK_SECONDS]
    deadline = record.deadline_boottime()
    if deadline is not None and record.boot_id == now.boot_id:
        looks.append(deadline - now.boottime)
    if _idle_for(record, now) is not None:
        looks.append(_idle_left(record, now))
    return max(0.001, min(looks))


def _after_end(record: SandboxRecord, now: Moment) -> Decision:
    """The outcome stands; what is left is to clear away."""
    if record.nothing_left:
        over = record.removing or record.kind is Kind.SLOT
        return Decision(actions=(Bury(),)) if over else Decision()
    left = _retention_left(record, now)
    if record.removing or left <= 0:
        return Decision(actions=(Dispose(),))
    return Decision(look_again_in=left)


def _retention_left(record: SandboxRecord, now: Moment) -> float:
    if record.to_be_filled:
        return 0.0  # Nothing of the user's is in it.
    if record.ended_boottime is None or record.boot_id != now.boot_id:
        return 0.0  # A reboot ends retention: what was kept was tied to that boot.
    return record.ended_boottime + record.spec.retain_seconds - now.boottime


def _end(outcome: Outcome) -> Decision:
    return Decision(actions=(RecordEnd(outcome),))


def _conflict(record: SandboxRecord) -> Outcome:
    return Outcome(
        succeeded=False,
        reason=reasons.CONTAINER_CONFLICT,
        message=f"a container named {record.container_name} exists that is not this "
        f"{_WHAT[record.kind]}'s; it was left alone: rename or remove it",
    )


def _started_by_other(record: SandboxRecord) -> Outcome:
    return Outcome(
        succeeded=False,
        reason=reasons.START_UNCONFIRMED,
        message=f"container {record.container_name} was started by someone else before its time",
    )
