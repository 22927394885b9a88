"""From what was seen of an ended sandbox to its outcome. PURE, and never more than was seen."""

from isolet.plan import reasons, sandbox_git
from isolet.plan.sandbox_model import (
    ContainerFacts,
    Control,
    Moment,
    SandboxFacts,
    SandboxRecord,
    Stop,
)
from isolet.wire.execution import Outcome


def never_started(stop: Stop) -> Outcome:
    """The end was asked for before anything ran."""
    return Outcome(
        succeeded=stop.succeeded, reason=stop.reason, message=f"{stop.message}; nothing had run"
    )


def lost(record: SandboxRecord, now: Moment) -> Outcome:
    """The container is gone. A recorded stop explains it only if we were ending it."""
    if record.boot_id != now.boot_id:
        return _node_restarted()
    if record.stop is not None:
        return _stopped(record.stop, None)
    return Outcome(
        succeeded=False,
        reason=reasons.CONTAINER_LOST,
        message="its container was removed by someone else while it ran",
    )


def of_exit(
    record: SandboxRecord, facts: SandboxFacts, seen: ContainerFacts, now: Moment
) -> Outcome:
    """The container has exited and its output has been read as far as it can be."""
    return _of_exit(record, facts, seen, now).model_copy(update={"oom": seen.oom})


def _of_exit(
    record: SandboxRecord, facts: SandboxFacts, seen: ContainerFacts, now: Moment
) -> Outcome:
    code = None if seen.end_unknown else seen.exit_code
    if record.stop is not None:
        return _stopped(record.stop, code)
    if facts.control is Control.START_FAILED and facts.control_detail == sandbox_git.NO_TREE:
        return sandbox_git.did_not_fit(record)
    if facts.control in (Control.START_FAILED, Control.EXEC_FAILED):
        return Outcome(
            succeeded=False,
            reason=reasons.START_FAILED,
            message=not_started(record.spec.program, facts.control_detail),
        )
    if seen.oom:
        return Outcome(
            succeeded=False,
            reason=reasons.OOM_KILLED,
            message=f"killed at its memory limit of {record.spec.resources.memory_bytes} bytes",
            exit_code=code,
        )
    if record.boot_id != now.boot_id:
        return _node_restarted()
    if _guard_fired(record, seen):
        return _stopped(
            Stop(
                reason=reasons.DEADLINE_EXCEEDED,
                message=over_deadline(record, now),
            ),
            code,
        )
    if seen.end_unknown:
        return Outcome(
            succeeded=False,
            reason=reasons.CONTAINER_LOST,
            message="it ended while the node's engine was restarted, and nobody saw how",
        )
    return _own_exit(record, facts, code)


def over_deadline(record: SandboxRecord, now: Moment) -> str:
    """Which of its two bounds in time a sandbox has passed, in words."""
    at = record.process.deadline_at if record.process else None
    if at is not None and now.wall >= at:
        return f"its deadline, {at.isoformat(timespec='seconds')}, passed"
    return f"ran longer than {record.active_deadline_seconds} s"


def not_started(program: str, why: str) -> str:
    """Why a program could not be run, in words that name it; a slot's has no name in its record."""
    named = repr(program) if program else "the slot's program"
    match why:
        case "missing":
            return f"{'program ' if program else ''}{named} was not found in the image"
        case "not-executable":
            return f"{named} is not an executable file: permission denied"
        case "bad-cwd":
            return "the working folder does not exist, is outside or cannot be entered"
        case "no-files":
            return "its files could not be put into the workspace: is there no room?"
        case "bad-stdin":
            return "its input could not be opened"
    return f"the kernel refused to run {named} (exec failed, code {why})"


def _own_exit(record: SandboxRecord, facts: SandboxFacts, code: int | None) -> Outcome:
    if record.spec.session:
        return Outcome(
            succeeded=False,
            reason=reasons.NON_ZERO_EXIT,
            message="the session's main process was ended from inside the sandbox",
            exit_code=code,
        )
    if code == 0:
        return Outcome(
            succeeded=True, reason=reasons.SUCCEEDED, message="exited with code 0", exit_code=0
        )
    if facts.workspace_full:
        return Outcome(
            succeeded=False,
            reason=reasons.WORKSPACE_FULL,
            message=f"exited with code {code} and left its workspace full",
            exit_code=code,
        )
    return Outcome(
        succeeded=False,
        reason=reasons.NON_ZERO_EXIT,
        message=f"exited with code {code}",
        exit_code=code,
    )


def _stopped(stop: Stop, code: int | None) -> Outcome:
    return Outcome(
        succeeded=stop.succeeded, reason=stop.reason, message=stop.message, exit_code=code
    )


def _node_restarted() -> Outcome:
    return Outcome(
        succeeded=False, reason=reasons.NODE_LOST, message="the node restarted while it ran"
    )


def _guard_fired(record: SandboxRecord, seen: ContainerFacts) -> bool:
    """Whether the guard inside ended it while nobody outside looked: killed, and over its time."""
    if seen.exit_code != 137 or seen.started_at is None or seen.finished_at is None:
        return False
    lived = (seen.finished_at - seen.started_at).total_seconds()
    return lived >= record.active_deadline_seconds
