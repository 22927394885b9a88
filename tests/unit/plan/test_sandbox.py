"""The sandbox plan as a table: a healthy base, one change, the whole decision."""

import pytest

from isolet.plan import reasons, sandbox
from isolet.plan.sandbox_model import (
    Bury,
    Control,
    Create,
    Decision,
    Dispatch,
    Dispose,
    End,
    Fetch,
    Fill,
    Life,
    RecordEnd,
    RecordRunning,
    RecordStop,
    RemoveContainer,
    Seen,
    Start,
    Stop,
    Undispatch,
)
from isolet.wire.execution import Medium, OOMSeen, Outcome, State, Step, Waiting
from isolet.wire.restore import Restore
from unit.plan.worlds import NOW, RESOURCES, WALL, a_container, a_record, a_spec, facts, later

CANCEL = Stop(reason=reasons.CANCELLED, message="cancelled before its end")
OOM = OOMSeen(engine_event=True)
DEADLINE = Stop(reason=reasons.DEADLINE_EXCEEDED, message="ran longer than 60 s")
ENDED = Outcome(succeeded=True, reason=reasons.SUCCEEDED, message="exited with code 0", exit_code=0)


def ends(reason: str, message: str, code: int | None = None, *, ok: bool = False) -> Decision:
    outcome = Outcome(succeeded=ok, reason=reason, message=message, exit_code=code)
    return Decision(actions=(RecordEnd(outcome),))


SILENT = Decision(
    waiting=Waiting(
        reason=reasons.ENGINE_UNAVAILABLE,
        message="the node's engine does not answer: its state cannot be read",
    ),
    look_again_in=1.0,
)

BEFORE_START = {
    "a new record is created, dispatched and started": (
        a_record(),
        facts(),
        Decision(actions=(Create(), Dispatch(), Start())),
    ),
    "a container that a crash left created is adopted by the same actions": (
        a_record(),
        facts(a_container(Life.CREATED)),
        Decision(actions=(Create(), Dispatch(), Start())),
    ),
    "a silent engine means wait, not absent": (
        a_record(),
        facts(container=Seen.UNKNOWN),
        SILENT,
    ),
    "an image that is not there ends it and is named": (
        a_record(),
        facts(image=Seen.ABSENT),
        ends(
            reasons.IMAGE_MISSING,
            f"image sha256:{'a' * 64} is not on this node, and is never pulled",
        ),
    ),
    "an image without its tools ends it": (
        a_record(),
        facts(image_problem="image x has no tar"),
        ends(reasons.IMAGE_UNSUITABLE, "image x has no tar"),
    ),
    "without its inputs it waits": (
        a_record(),
        facts(inputs=False),
        Decision(
            waiting=Waiting(
                reason=reasons.AWAITING_INPUTS,
                message="the agent restarted before the start: its owner must send the spec again",
            )
        ),
    ),
    "a stranger's container under the name is left alone": (
        a_record(),
        facts(a_container(ours=False)),
        ends(
            reasons.CONTAINER_CONFLICT,
            "a container named isolet-1 exists that is not this Execution's; it was left alone: "
            "rename or remove it",
        ),
    ),
    "ours, but started by someone else, is ended and never taken for our start": (
        a_record(),
        facts(a_container(Life.RUNNING)),
        Decision(
            actions=(
                End(0),
                RecordEnd(
                    Outcome(
                        succeeded=False,
                        reason=reasons.START_UNCONFIRMED,
                        message="container isolet-1 was started by someone else before its time",
                    )
                ),
            )
        ),
    ),
    "a container being removed is removed first": (
        a_record(),
        facts(a_container(Life.REMOVING)),
        Decision(actions=(RemoveContainer(),)),
    ),
    "terminated before the start: the wish is recorded first": (
        a_record(state=State.TERMINATED),
        facts(),
        Decision(actions=(RecordStop(CANCEL),)),
    ),
    "and then it ends without having run": (
        a_record(state=State.TERMINATED, stop=CANCEL),
        facts(),
        ends(reasons.CANCELLED, "cancelled before its end; nothing had run"),
    ),
    "a drained node says so": (
        a_record(state=State.TERMINATED, stop_reason=reasons.DRAINED),
        facts(),
        Decision(
            actions=(
                RecordStop(
                    Stop(reason=reasons.DRAINED, message="ended because its node was drained")
                ),
            )
        ),
    ),
}

DISPATCHED = {
    "running: recorded with the engine's time": (
        facts(a_container()),
        Decision(actions=(RecordRunning(WALL),)),
    ),
    "already exited: still recorded as having run": (
        facts(a_container(Life.EXITED)),
        Decision(actions=(RecordRunning(WALL),)),
    ),
    "created and never started: removal settles whether the start still comes": (
        facts(a_container(Life.CREATED)),
        Decision(actions=(RemoveContainer(),)),
    ),
    "gone, and proved never started: may be dispatched again": (
        facts(started_since_dispatch=Seen.ABSENT),
        Decision(actions=(Undispatch(),)),
    ),
    "gone, and was started: lost": (
        facts(started_since_dispatch=Seen.PRESENT),
        ends(
            reasons.CONTAINER_LOST,
            "it was started, and its container was then removed by someone else",
        ),
    ),
    "gone, and nobody knows: never again": (
        facts(started_since_dispatch=Seen.UNKNOWN),
        ends(
            reasons.START_UNCONFIRMED,
            "its container is gone and nothing tells whether the start happened; "
            "it is not started again",
        ),
    ),
    "a silent engine": (facts(container=Seen.UNKNOWN), SILENT),
}


@pytest.mark.parametrize("name", BEFORE_START)
def test_before_the_start(name: str) -> None:
    record, seen, want = BEFORE_START[name]
    assert sandbox.decide(record, seen, NOW) == want


@pytest.mark.parametrize("name", DISPATCHED)
def test_after_the_dispatch(name: str) -> None:
    seen, want = DISPATCHED[name]
    assert sandbox.decide(a_record(Step.DISPATCHED), seen, NOW) == want


def exited(code: int, **changes: object) -> object:
    return a_container(Life.EXITED, exit_code=code, **changes)


OUTCOMES = {
    "exit 0": (a_record(Step.RUNNING), facts(exited(0)), ENDED),
    "a code that the engine made up is no end": (
        a_record(Step.RUNNING),
        facts(exited(0, end_unknown=True)),
        Outcome(
            succeeded=False,
            reason=reasons.CONTAINER_LOST,
            message="it ended while the node's engine was restarted, and nobody saw how",
        ),
    ),
    "a session whose end nobody saw was not ended from inside": (
        a_record(Step.RUNNING, spec=a_spec(program="")),
        facts(exited(255, end_unknown=True)),
        Outcome(
            succeeded=False,
            reason=reasons.CONTAINER_LOST,
            message="it ended while the node's engine was restarted, and nobody saw how",
        ),
    ),
    "a cancelled one is cancelled, without a code": (
        a_record(Step.RUNNING, stop=CANCEL, state=State.TERMINATED),
        facts(exited(255, end_unknown=True)),
        Outcome(
            succeeded=False,
            reason=reasons.CANCELLED,
            message="cancelled before its end",
        ),
    ),
    "the program's own 127 is its own": (
        a_record(Step.RUNNING),
        facts(exited(127), control=Control.STARTED),
        Outcome(
            succeeded=False,
            reason=reasons.NON_ZERO_EXIT,
            message="exited with code 127",
            exit_code=127,
        ),
    ),
    "its own SIGKILL is no memory kill": (
        a_record(Step.RUNNING),
        facts(exited(137)),
        Outcome(
            succeeded=False,
            reason=reasons.NON_ZERO_EXIT,
            message="exited with code 137",
            exit_code=137,
        ),
    ),
    "a missing program is named": (
        a_record(Step.RUNNING, spec=a_spec(program="/no/such/bin")),
        facts(exited(127), control=Control.START_FAILED, control_detail="missing"),
        Outcome(
            succeeded=False,
            reason=reasons.START_FAILED,
            message="program '/no/such/bin' was not found in the image",
        ),
    ),
    "a slot's program has no name in its record": (
        a_record(Step.RUNNING, spec=a_spec(program="")),
        facts(exited(127), control=Control.START_FAILED, control_detail="missing"),
        Outcome(
            succeeded=False,
            reason=reasons.START_FAILED,
            message="the slot's program was not found in the image",
        ),
    ),
    "a folder is no program": (
        a_record(Step.RUNNING, spec=a_spec(program="/etc")),
        facts(exited(126), control=Control.START_FAILED, control_detail="not-executable"),
        Outcome(
            succeeded=False,
            reason=reasons.START_FAILED,
            message="'/etc' is not an executable file: permission denied",
        ),
    ),
    "memory": (
        a_record(Step.RUNNING),
        facts(exited(137, oom=OOM)),
        Outcome(
            succeeded=False,
            reason=reasons.OOM_KILLED,
            message=f"killed at its memory limit of {RESOURCES.memory_bytes} bytes",
            exit_code=137,
            oom=OOM,
        ),
    ),
    "a cancelled program's 137 is a cancel, memory flag or not": (
        a_record(Step.RUNNING, stop=CANCEL, state=State.TERMINATED),
        facts(exited(137, oom=OOM)),
        Outcome(
            succeeded=False,
            reason=reasons.CANCELLED,
            message="cancelled before its end",
            exit_code=137,
            oom=OOM,
        ),
    ),
    "a full workspace explains a failure": (
        a_record(Step.RUNNING),
        facts(exited(1), workspace_full=True),
        Outcome(
            succeeded=False,
            reason=reasons.WORKSPACE_FULL,
            message="exited with code 1 and left its workspace full",
            exit_code=1,
        ),
    ),
    "a full workspace does not make a success a failure": (
        a_record(Step.RUNNING),
        facts(exited(0), workspace_full=True),
        ENDED,
    ),
    "a session killed from inside": (
        a_record(Step.RUNNING, spec=a_spec(program="")),
        facts(exited(137)),
        Outcome(
            succeeded=False,
            reason=reasons.NON_ZERO_EXIT,
            message="the session's main process was ended from inside the sandbox",
            exit_code=137,
        ),
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome_of_an_exit(name: str) -> None:
    record, seen, want = OUTCOMES[name]
    assert sandbox.decide(record, seen, NOW) == Decision(actions=(RecordEnd(want),))


def test_an_exit_waits_for_the_output_to_be_read() -> None:
    seen = facts(a_container(Life.EXITED), output_done=False)
    assert sandbox.decide(a_record(Step.RUNNING), seen, NOW) == Decision(look_again_in=0.5)


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (59.999999999, Decision(look_again_in=0.001)),
        (60.0, Decision(actions=(RecordStop(DEADLINE),))),
        (60.000000001, Decision(actions=(RecordStop(DEADLINE),))),
    ],
)
def test_exactly_at_the_deadline_counts_as_expired(seconds: float, want: Decision) -> None:
    assert sandbox.decide(a_record(Step.RUNNING), facts(a_container()), later(seconds)) == want


def test_a_wall_clock_step_moves_no_deadline() -> None:
    record = a_record(Step.RUNNING)
    stepped = later(10)
    for hours in (-10, 10):
        now = type(stepped)(
            wall=stepped.wall.replace(hour=(stepped.wall.hour + hours) % 24),
            boottime=stepped.boottime,
            boot_id=stepped.boot_id,
        )
        assert sandbox.decide(record, facts(a_container()), now).look_again_in == 30.0


def test_a_hung_engine_does_not_delay_the_decision_to_stop() -> None:
    seen = facts(container=Seen.UNKNOWN)
    assert sandbox.decide(a_record(Step.RUNNING), seen, later(61)) == Decision(
        actions=(RecordStop(DEADLINE),)
    )


@pytest.mark.parametrize(("stop", "grace"), [(CANCEL, 2), (DEADLINE, 0)])
def test_a_recorded_stop_ends_what_runs(stop: Stop, grace: int) -> None:
    record = a_record(Step.RUNNING, stop=stop)
    for life in (Life.RUNNING, Life.PAUSED):
        want = Decision(actions=(End(grace),))
        assert sandbox.decide(record, facts(a_container(life)), NOW) == want


def test_removed_behind_our_back_while_it_ran() -> None:
    want = ends(reasons.CONTAINER_LOST, "its container was removed by someone else while it ran")
    assert sandbox.decide(a_record(Step.RUNNING), facts(), NOW) == want


def test_a_reboot_is_the_nodes_loss_and_not_the_programs_failure() -> None:
    seen = facts(a_container(Life.EXITED, exit_code=255))
    want = ends(reasons.NODE_LOST, "the node restarted while it ran")
    assert sandbox.decide(a_record(Step.RUNNING), seen, later(5, boot="boot-2")) == want


def test_a_session_that_is_dead_for_a_process_in_it_says_so() -> None:
    record = a_record(Step.RUNNING, spec=a_spec(program=""))
    late = Stop(reason=reasons.DEADLINE_EXCEEDED, message="Process one: ran longer than 9 s")
    seen = facts(a_container(Life.EXITED, exit_code=137), ended_for=late)
    assert sandbox.decide(record, seen, NOW) == Decision(actions=(RecordStop(late),))


def test_an_idle_session_ends_as_asked() -> None:
    record = a_record(Step.RUNNING, spec=a_spec(program="", idle_timeout_seconds=20))
    at = facts(a_container())
    assert sandbox.decide(record, at, later(5)).look_again_in == 15.0
    stop = Stop(reason=reasons.IDLE_TIMEOUT, message="no command for 20 s", succeeded=True)
    assert sandbox.decide(record, at, later(20)) == Decision(actions=(RecordStop(stop),))
    used = record.with_(last_activity_boottime=1015.0)
    assert sandbox.decide(used, at, later(20)).look_again_in == 15.0


AFTER_END = {
    "kept for its retention": (
        a_record(Step.ENDED, spec=a_spec(retain_seconds=30)),
        Decision(look_again_in=20.0),
    ),
    "then cleared away": (
        a_record(Step.ENDED, spec=a_spec(retain_seconds=10)),
        Decision(actions=(Dispose(),)),
    ),
    "at once when its owner wants nothing left": (
        a_record(Step.ENDED, spec=a_spec(retain_seconds=30), removing=True),
        Decision(actions=(Dispose(),)),
    ),
    "the record stays": (a_record(Step.DISPOSED, nothing_left=True), Decision()),
    "until its owner lets go": (
        a_record(Step.DISPOSED, nothing_left=True, removing=True),
        Decision(actions=(Bury(),)),
    ),
}


@pytest.mark.parametrize("name", AFTER_END)
def test_after_the_end(name: str) -> None:
    record, want = AFTER_END[name]
    ended = record.with_(outcome=ENDED, boot_id=NOW.boot_id, ended_boottime=1000.0)
    assert sandbox.decide(ended, facts(), later(10)) == want


RESTORE = Restore(
    checkpoint_uid="c", manifest_digest="sha256:" + "1" * 64, content_digest="sha256:" + "2" * 64
)
IN_MEMORY = a_spec(restore=RESTORE)
ON_DISK = a_spec(restore=RESTORE, medium=Medium.DISK)
LOST_SOURCE = Decision(
    waiting=Waiting(
        reason=reasons.AWAITING_INPUTS,
        message="the agent restarted before the start: its owner must send the spec again",
    )
)

RESTORED = {
    "a disk is filled before there is a sandbox": (
        a_record(spec=ON_DISK),
        facts(source=True),
        Decision(actions=(Fetch(), Fill(), Create(), Dispatch(), Start())),
    ),
    "a disk that is full of it is not filled again": (
        a_record(spec=ON_DISK, restored=True, boot_id=NOW.boot_id),
        facts(),
        Decision(actions=(Create(), Dispatch(), Start())),
    ),
    "a disk that was filled before a reboot is filled again": (
        a_record(spec=ON_DISK, restored=True, boot_id="boot-0"),
        facts(source=True),
        Decision(actions=(Fetch(), Fill(), Create(), Dispatch(), Start())),
    ),
    "memory is filled once there is a sandbox": (
        a_record(spec=IN_MEMORY),
        facts(source=True),
        Decision(actions=(Fetch(), Create(), Dispatch(), Start(), Fill())),
    ),
    "nothing is made while nobody says where it comes from": (
        a_record(spec=ON_DISK),
        facts(),
        LOST_SOURCE,
    ),
    "a sandbox that an agent left half filled is made anew": (
        a_record(Step.DISPATCHED, spec=IN_MEMORY),
        facts(a_container()),
        Decision(actions=(RemoveContainer(), Undispatch())),
    ),
    "one that is filled runs": (
        a_record(Step.DISPATCHED, spec=IN_MEMORY, restored=True),
        facts(a_container()),
        Decision(actions=(RecordRunning(WALL),)),
    ),
    "one that ended meanwhile says so": (
        a_record(Step.DISPATCHED, spec=IN_MEMORY),
        facts(a_container(Life.EXITED)),
        ends(reasons.START_FAILED, "the sandbox ended while its workspace was being restored"),
    ),
    "an end that was asked for goes the way of every end": (
        a_record(Step.DISPATCHED, spec=IN_MEMORY, stop=CANCEL),
        facts(a_container()),
        Decision(actions=(RecordRunning(WALL),)),
    ),
}


@pytest.mark.parametrize("name", RESTORED)
def test_a_restore(name: str) -> None:
    record, seen, want = RESTORED[name]
    assert sandbox.decide(record, seen, NOW) == want


def test_what_was_not_restored_is_not_retained() -> None:
    record = a_record(
        Step.ENDED,
        spec=a_spec(restore=RESTORE, retain_seconds=30),
        outcome=Outcome(succeeded=False, reason=reasons.CHECKPOINT_INVALID, message="no"),
        boot_id=NOW.boot_id,
        ended_boottime=1000.0,
    )
    assert sandbox.decide(record, facts(), NOW) == Decision(actions=(Dispose(),))
    restored = record.with_(restored=True)
    assert sandbox.decide(restored, facts(), NOW) == Decision(look_again_in=30.0)
