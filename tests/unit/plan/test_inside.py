"""The plan of a Process in a session as a table, and its laws over random worlds."""

import random
from dataclasses import replace

import pytest

from isolet.plan import inside, reasons
from isolet.plan.inside import InsideFacts
from isolet.plan.sandbox_model import (
    Bury,
    Collect,
    Control,
    Create,
    Decision,
    Dispatch,
    Dispose,
    End,
    Kind,
    ProcessPart,
    RecordEnd,
    RecordRunning,
    RecordStop,
    Seen,
    Start,
    Stop,
    Undispatch,
)
from isolet.wire.execution import OOMSeen, Outcome, State, Step
from unit.plan.worlds import NOW, WALL, a_record, later

PART = ProcessPart(host_uid="host", output_limit=1000)
CANCEL = Stop(reason=reasons.CANCELLED, message="cancelled before its end")
TERMINATED = Outcome(succeeded=True, reason=reasons.TERMINATED, message="terminated as asked")
LATE = Outcome(succeeded=False, reason=reasons.DEADLINE_EXCEEDED, message="ran longer than 8 s")
OUT_OF_MEMORY = Outcome(
    succeeded=False,
    reason=reasons.OOM_KILLED,
    message="killed at its memory limit",
    oom=OOMSeen(engine_flag=True),
)
DESTROYED = Outcome(succeeded=False, reason=reasons.DEADLINE_EXCEEDED, message="Process x: late")


def record(step=Step.RECORDED, **changes):
    return a_record(step, **{"kind": Kind.PROCESS, "process": PART, **changes})


def facts(**changes):
    return InsideFacts(**{"host_running": True, "inputs": True, **changes})


def actions(*wanted):
    return lambda decision: decision.actions == wanted


def ends(reason, code=None):
    def check(decision: Decision) -> bool:
        (action,) = decision.actions
        outcome = action.outcome
        assert isinstance(action, RecordEnd)
        return (outcome.reason, outcome.exit_code) == (reason, code)

    return check


def waits(reason):
    return lambda decision: decision.actions == () and decision.waiting.reason == reason


TABLE = {
    "a new one is laid down, dispatched and started": (
        record(), facts(), actions(Create(), Dispatch(), Start())),
    "one whose session is being taken waits": (
        record(), facts(host_taken=True), waits(reasons.AWAITING_TURN)),
    "one whose values are lost waits": (
        record(), facts(inputs=False), waits(reasons.AWAITING_INPUTS)),
    "one whose session does not run yet waits": (
        record(), facts(host_running=False), waits(reasons.AWAITING_EXECUTION)),
    "a cancel before the start leaves the session alone": (
        record(stop=CANCEL), facts(), ends(reasons.CANCELLED)),
    "an undecided start is asked for again: only the first does anything": (
        record(Step.DISPATCHED), facts(begun=Seen.ABSENT), actions(Start())),
    "without its values it goes back": (
        record(Step.DISPATCHED), facts(begun=Seen.ABSENT, inputs=False), actions(Undispatch())),
    "its folder proves the start": (
        record(Step.DISPATCHED), facts(begun=Seen.PRESENT), actions(RecordRunning(WALL))),
    "a silent engine means wait": (
        record(Step.DISPATCHED), facts(), waits(reasons.ENGINE_UNAVAILABLE)),
    "a cancel is recorded first": (
        record(Step.RUNNING, state=State.TERMINATED), facts(), actions(RecordStop(CANCEL))),
    "then ends the session": (
        record(Step.RUNNING, stop=CANCEL), facts(), actions(End(0))),
    "and is confirmed by its end": (
        record(Step.RUNNING, stop=CANCEL), facts(host_outcome=DESTROYED), ends(reasons.CANCELLED)),
    "a sibling's end takes it along": (
        record(Step.RUNNING), facts(host_outcome=DESTROYED), ends(reasons.SANDBOX_DESTROYED)),
    "the session's own deadline is named": (
        record(Step.RUNNING), facts(host_outcome=LATE),
        actions(RecordEnd(Outcome(
            succeeded=False, reason=reasons.SANDBOX_DESTROYED,
            message="its session ended (DeadlineExceeded): ran longer than 8 s")))),
    "what was seen of the session's memory is told": (
        record(Step.RUNNING), facts(host_outcome=OUT_OF_MEMORY),
        actions(RecordEnd(Outcome(
            succeeded=False, reason=reasons.SANDBOX_DESTROYED, oom=OUT_OF_MEMORY.oom,
            message="its session ended (OOMKilled): killed at its memory limit")))),
    "but not to one that never ran": (
        record(), facts(host_outcome=OUT_OF_MEMORY, host_running=False),
        lambda d: d.actions[0].outcome.oom is None),
    "the session's own end takes it along": (
        record(Step.RUNNING), facts(host_outcome=TERMINATED), ends(reasons.EXECUTION_ENDED)),
    "an exit that was seen counts more than what came after": (
        record(Step.RUNNING), facts(exit_code=0, host_outcome=DESTROYED),
        ends(reasons.SUCCEEDED, 0)),
    "another code is a failure": (
        record(Step.RUNNING), facts(exit_code=3), ends(reasons.NON_ZERO_EXIT, 3)),
    "a program that never was": (
        record(Step.RUNNING),
        facts(exit_code=127, control=Control.START_FAILED, control_detail="missing"),
        ends(reasons.START_FAILED)),
    "artifacts first": (
        record(Step.RUNNING, process=replace(PART, globs=("x",))), facts(exit_code=0),
        actions(Collect())),
    "overflow": (
        record(Step.RUNNING), facts(overflow=True),
        lambda d: d.actions[0].stop.reason == reasons.OUTPUT_LIMIT_EXCEEDED),
    "after the end its room is given back": (
        record(Step.ENDED, outcome=TERMINATED), facts(), actions(Dispose())),
    "and its record stays": (
        record(Step.DISPOSED, outcome=TERMINATED, nothing_left=True), facts(), actions()),
    "until it is removed": (
        record(Step.DISPOSED, outcome=TERMINATED, nothing_left=True, removing=True), facts(),
        actions(Bury())),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    given, seen, check = TABLE[name]
    decision = inside.decide(given, seen, NOW)
    assert check(decision), decision


FOR_ITS_SESSION = {
    "one that is well": (record(Step.RUNNING), 59, None),
    "one that is late, recorded or not": (
        record(Step.RUNNING), 60, (reasons.DEADLINE_EXCEEDED, "ran longer than 60 s")),
    "one that may have begun and is late": (
        record(Step.DISPATCHED), 60, (reasons.DEADLINE_EXCEEDED, "ran longer than 60 s")),
    "one that is cancelled": (
        record(Step.RUNNING, stop=CANCEL), 5, (reasons.CANCELLED, "cancelled before its end")),
    "one that never began": (record(stop=CANCEL), 5, None),
    "one that has ended": (record(Step.ENDED, stop=CANCEL, outcome=TERMINATED), 90, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FOR_ITS_SESSION)
def test_why_a_session_ends_for_one(name):
    given, seconds, want = FOR_ITS_SESSION[name]
    found = inside.ends_session(given, later(seconds))
    if want is None:
        assert found is None
    else:
        message = f"Process hello: {want[1]}; its session is destroyed"
        assert found == Stop(reason=want[0], message=message)


def test_the_deadline_on_the_wall_is_kept_on_the_boot_clock():
    part = replace(PART, deadline_at=later(10).wall, deadline_at_boottime=1010.0)
    running = record(Step.RUNNING, process=part)
    assert running.deadline_boottime() == 1010.0
    assert not inside.decide(running, facts(begun=Seen.PRESENT), later(9)).actions
    (stop,) = inside.decide(running, facts(begun=Seen.PRESENT), later(10)).actions
    assert stop.stop.reason == reasons.DEADLINE_EXCEEDED


@pytest.mark.parametrize("seed", range(200))
def test_every_world_ends_with_one_outcome_and_one_run(seed):  # noqa: C901
    """Lost replies, restarts without the values, cancels, a dying session: at most one run."""
    rng = random.Random(seed)
    given, runs, begun, host, now = record(), 0, False, None, 0.0
    code, inputs, outcomes = None, True, []
    for number in range(300):
        now += rng.choice([0.0, 0.5, 2.0])
        seen = facts(
            host_running=host is None,
            host_outcome=host,
            inputs=inputs,
            begun=Seen.UNKNOWN if rng.random() < 0.2 else (Seen.PRESENT if begun else Seen.ABSENT),
            exit_code=code if given.step is Step.RUNNING and rng.random() < 0.8 else None,
        )
        for action in inside.decide(given, seen, later(now)).actions:
            lost = rng.random() < 0.15
            match action:
                case Dispatch():
                    given = given.with_(step=Step.DISPATCHED, boot_id=NOW.boot_id,
                                        dispatched_boottime=1000.0 + now)  # fmt: skip
                case Start() if not begun and host is None and rng.random() < 0.8:
                    runs, begun = runs + 1, True
                case Undispatch():
                    given = given.with_(step=Step.RECORDED, dispatched_boottime=None)
                case RecordRunning():
                    given = given.with_(step=Step.RUNNING, started_boottime=1000.0 + now)
                case RecordStop():
                    given = given.with_(stop=action.stop)
                case End() if host is None:
                    host = DESTROYED
                case RecordEnd():
                    outcomes.append(action.outcome)
                    given = given.with_(step=Step.ENDED, outcome=action.outcome)
                case Dispose():
                    given = given.with_(nothing_left=True)
            if lost:
                inputs = rng.random() < 0.5
                break
        if begun and code is None and rng.random() < 0.1:
            code = rng.choice([0, 1])
        if rng.random() < 0.01:
            host = host or TERMINATED
        if number > 100:
            inputs = True
        if number > 200:
            given = given.with_(state=State.TERMINATED)
    assert given.nothing_left
    assert (len(outcomes), runs <= 1) == (1, True)
    if outcomes[0].succeeded:
        assert runs == 1
