"""The life of a Process inside a running session: record, facts and now in; actions out. PURE.

The steps are those of a sandbox: record, launch laid down, dispatched, one start, look. Its start
makes a folder in the sandbox first, and goes no further if that is there: so an undecided start is
simply asked for again, and still never runs twice. What ends it early ends its whole sandbox, since
no engine can end the tree of one command.
"""

from dataclasses import dataclass

from isolet.plan import reasons, sandbox, sandbox_outcome
from isolet.plan.sandbox_model import (
    Bury,
    Collect,
    Control,
    Create,
    Decision,
    Dispatch,
    Dispose,
    End,
    Moment,
    RecordEnd,
    RecordRunning,
    RecordStop,
    SandboxRecord,
    Seen,
    Start,
    Stop,
    Undispatch,
)
from isolet.wire.execution import Outcome, State, Step, Waiting

LOOK_SECONDS = 1.0
"""How often a running one is looked at: its output comes with each look."""

_ASKED = frozenset({reasons.TERMINATED, reasons.IDLE_TIMEOUT, reasons.CANCELLED, reasons.DRAINED})


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideFacts:
    """What was seen of one Process and of the session that it runs in."""

    host_running: bool
    host_outcome: Outcome | None = None
    """How the session ended; also set, by hand, when its record is gone."""
    host_taken: bool = False
    """A Checkpoint of the session is being taken, or waits for its turn."""
    inputs: bool = False
    begun: Seen = Seen.UNKNOWN
    """Whether its folder is in the sandbox."""
    control: Control | None = None
    control_detail: str = ""
    exit_code: int | None = None
    """Set once it has ended and all its output has been read."""
    overflow: bool = False
    ended_by_watchdog: bool = False


def decide(record: SandboxRecord, facts: InsideFacts, now: Moment) -> Decision:
    """The next actions for one Process."""
    if record.outcome is not None:
        return _after_end(record)
    if record.step is Step.RUNNING and facts.exit_code is not None:
        return _exited(record, facts)
    stop = record.stop or _stop_due(record, facts, now)
    if stop is not None and record.stop is None:
        return Decision(actions=(RecordStop(stop),))
    if facts.host_outcome is not None:
        return _end(_with_its_host(record, facts.host_outcome))
    if record.step is Step.RECORDED:
        return _before_dispatch(record, facts)
    if record.stop is not None:
        return Decision(actions=(End(0),), look_again_in=LOOK_SECONDS)
    if facts.begun is Seen.UNKNOWN:
        return _engine_silent()
    if record.step is Step.DISPATCHED:
        return _dispatched(facts, now)
    return Decision(look_again_in=_next_look(record, now))


def _stop_due(record: SandboxRecord, facts: InsideFacts, now: Moment) -> Stop | None:
    if facts.overflow:
        limit = record.process.output_limit if record.process else 0
        return Stop(
            reason=reasons.OUTPUT_LIMIT_EXCEEDED,
            message=f"stdout and stderr together passed the limit of {limit} bytes",
        )
    if facts.ended_by_watchdog or sandbox.past_deadline(record, now):
        return _over_deadline(record, now)
    if record.removing or record.state is State.TERMINATED:
        reason = record.stop_reason or reasons.CANCELLED
        return Stop(reason=reason, message="cancelled before its end")
    return None


def ends_session(record: SandboxRecord, now: Moment) -> Stop | None:
    """Why this Process has its whole session ended, in the session's words.

    Also where its own stop is not recorded yet: the watchdog may have been there first.
    """
    if record.outcome is not None or record.step is Step.RECORDED:
        return None
    stop = record.stop
    if stop is None and sandbox.past_deadline(record, now):
        stop = _over_deadline(record, now)
    if stop is None:
        return None
    message = f"Process {record.name}: {stop.message}; its session is destroyed"
    return Stop(reason=stop.reason, message=message)


def _over_deadline(record: SandboxRecord, now: Moment) -> Stop:
    return Stop(
        reason=reasons.DEADLINE_EXCEEDED, message=sandbox_outcome.over_deadline(record, now)
    )


def _before_dispatch(record: SandboxRecord, facts: InsideFacts) -> Decision:
    if record.stop is not None:
        return _end(sandbox_outcome.never_started(record.stop))
    if not facts.host_running:
        return Decision(
            waiting=Waiting(
                reason=reasons.AWAITING_EXECUTION, message="its Execution does not run yet"
            ),
            look_again_in=LOOK_SECONDS,
        )
    if not facts.inputs:
        return Decision(
            waiting=Waiting(
                reason=reasons.AWAITING_INPUTS,
                message="the agent restarted before the start: its owner must send the spec again",
            )
        )
    if facts.host_taken:
        return Decision(
            waiting=Waiting(
                reason=reasons.AWAITING_TURN, message="a Checkpoint of its session is being taken"
            ),
            look_again_in=LOOK_SECONDS,
        )
    return Decision(actions=(Create(), Dispatch(), Start()))


def _dispatched(facts: InsideFacts, now: Moment) -> Decision:
    if facts.control in (Control.START_FAILED, Control.EXEC_FAILED) or facts.begun is Seen.PRESENT:
        return Decision(actions=(RecordRunning(now.wall),))
    return Decision(actions=(Start(),) if facts.inputs else (Undispatch(),))


def _exited(record: SandboxRecord, facts: InsideFacts) -> Decision:
    if record.process is not None and record.process.globs and not record.process.collected:
        return Decision(actions=(Collect(),))
    return _end(_outcome(record, facts))


def _outcome(record: SandboxRecord, facts: InsideFacts) -> Outcome:
    if facts.control in (Control.START_FAILED, Control.EXEC_FAILED):
        message = sandbox_outcome.not_started(record.spec.program, facts.control_detail)
        return Outcome(succeeded=False, reason=reasons.START_FAILED, message=message)
    code = facts.exit_code
    return Outcome(
        succeeded=code == 0,
        reason=reasons.SUCCEEDED if code == 0 else reasons.NON_ZERO_EXIT,
        message=f"exited with code {code}",
        exit_code=code,
    )


def _with_its_host(record: SandboxRecord, host: Outcome) -> Outcome:
    """The sandbox is gone and with it the Process: its own end, or somebody else's."""
    if record.stop is not None:
        if record.step is Step.RECORDED:
            return sandbox_outcome.never_started(record.stop)
        return Outcome(
            succeeded=False, reason=record.stop.reason, message=record.stop.message, oom=host.oom
        )
    before = "; nothing had run" if record.step is Step.RECORDED else ""
    asked = host.succeeded or host.reason in _ASKED
    return Outcome(
        succeeded=False,
        reason=reasons.EXECUTION_ENDED if asked else reasons.SANDBOX_DESTROYED,
        message=f"its session ended ({host.reason}): {host.message}{before}",
        oom=None if before else host.oom,
    )


def _after_end(record: SandboxRecord) -> Decision:
    if not record.nothing_left:
        return Decision(actions=(Dispose(),))
    return Decision(actions=(Bury(),)) if record.removing else Decision()


def _next_look(record: SandboxRecord, now: Moment) -> float:
    deadline = record.deadline_boottime()
    if deadline is None or record.boot_id != now.boot_id:
        return LOOK_SECONDS
    return max(0.001, min(LOOK_SECONDS, deadline - now.boottime))


def _engine_silent() -> Decision:
    return Decision(
        waiting=Waiting(
            reason=reasons.ENGINE_UNAVAILABLE, message="the node's engine does not answer"
        ),
        look_again_in=LOOK_SECONDS,
    )


def _end(outcome: Outcome) -> Decision:
    return Decision(actions=(RecordEnd(outcome),))
