"""The plan of a Checkpoint as a table, and its laws over random worlds."""

import random
from dataclasses import replace

import pytest

from isolet.plan import checkpoint, reasons
from isolet.plan.checkpoint import MOST_ATTEMPTS, CheckpointFacts
from isolet.plan.sandbox_model import (
    Bury,
    CheckpointPart,
    Dispatch,
    Dispose,
    Kind,
    RecordEnd,
    Save,
    Seen,
    Stop,
    Take,
    Thaw,
)
from isolet.wire.execution import Medium, Outcome, Step
from isolet.wire.restore import StoreCopy
from unit.plan.worlds import NOW, WALL, a_record, a_spec, later

PART = CheckpointPart(execution_uid="host", execution_namespace="default", execution_name="work")
READY = Outcome(succeeded=True, reason=reasons.CHECKPOINT_READY, message="whole")
FAILED = Outcome(succeeded=False, reason=reasons.CHECKPOINT_FAILED, message="no")
DONE = Outcome(succeeded=True, reason=reasons.SUCCEEDED, message="exited with code 0")
ENDING = Stop(reason=reasons.CANCELLED, message="x")
DISK = a_spec(medium=Medium.DISK)


def record(step=Step.RECORDED, **changes):
    return a_record(step, **{"kind": Kind.CHECKPOINT, "checkpoint": PART, **changes})


def host(step=Step.RUNNING, **changes):
    return a_record(step, **{"spec": DISK, "container_id": "c1", **changes})


def ended_host(**changes):
    return host(**{"step": Step.ENDED, "outcome": DONE, **changes})


def facts(of=None, **changes):
    return CheckpointFacts(
        **{"host": of or host(), "engine": Seen.PRESENT, "turn": True, **changes}
    )


def decide(given, seen, now=NOW, retain=None):
    return checkpoint.decide(given, seen, now, retain_seconds=retain)


def actions(*wanted):
    return lambda decision: decision.actions == wanted


def fails(word):
    def check(decision):
        (action,) = decision.actions
        outcome = action.outcome
        return outcome.reason == reasons.CHECKPOINT_FAILED and word in outcome.message

    return check


def waits(reason):
    return lambda decision: decision.actions == () and decision.waiting.reason == reason


TAKE = actions(Dispatch(), Take())

TABLE = {
    "a running session is taken": (record(), facts(), TAKE),
    "so is an ended disk": (record(), facts(ended_host(), engine=Seen.UNKNOWN), TAKE),
    "and a session in memory": (record(), facts(host(spec=a_spec(program=""))), TAKE),
    "not before it is its turn": (record(), facts(turn=False), waits(reasons.AWAITING_TURN)),
    "not before its session runs": (
        record(), facts(host(Step.DISPATCHED)), waits(reasons.AWAITING_EXECUTION)),
    "a silent engine means wait": (
        record(), facts(engine=Seen.UNKNOWN), waits(reasons.ENGINE_UNAVAILABLE)),
    "a sandbox that has stopped is not tried in vain": (
        record(), facts(engine=Seen.ABSENT), waits(reasons.AWAITING_EXECUTION)),
    "one that stood still when it stopped is let go of first": (
        record(Step.DISPATCHED), facts(engine=Seen.ABSENT), actions(Thaw())),
    "without its Execution it fails": (
        record(), CheckpointFacts(turn=True), fails("is gone")),
    "an ended session in memory has nothing left": (
        record(), facts(ended_host(spec=a_spec())), fails("goes with its sandbox")),
    "nor has one that was disposed of": (
        record(), facts(ended_host(step=Step.DISPOSED, nothing_left=True)), fails("is gone")),
    "one that never ran has nothing": (
        record(), facts(ended_host(container_id=None)), fails("never ran")),
    "a session in memory that is being ended is not held up": (
        record(), facts(host(spec=a_spec(program=""), stop=ENDING)), fails("being ended")),
    "nor one that is removed": (
        record(), facts(host(spec=a_spec(program=""), removing=True)), fails("being ended")),
    "a disk is taken once its session has ended": (
        record(), facts(host(stop=ENDING)), waits(reasons.AWAITING_EXECUTION)),
    "also if that is removed": (
        record(), facts(host(removing=True)), waits(reasons.AWAITING_EXECUTION)),
    "one that ended before it ran has nothing": (
        record(), facts(ended_host(stop=ENDING, container_id=None)), fails("never ran")),
    "it is not begun for ever": (
        record(checkpoint=replace(PART, attempts=MOST_ATTEMPTS)), facts(), fails("cut off")),
    "a removal before it was taken": (
        record(removing=True), facts(),
        lambda d: d.actions[0].outcome.reason == reasons.CANCELLED),
    "what was cut off lets the sandbox go on first": (
        record(Step.DISPATCHED), facts(), actions(Thaw())),
    "also if it is being removed": (
        record(Step.DISPATCHED, removing=True), facts(), actions(Thaw())),
    "also if its turn is over": (record(Step.DISPATCHED), facts(turn=False), actions(Thaw())),
    "also if its Execution ended meanwhile": (
        record(Step.DISPATCHED), facts(ended_host(), engine=Seen.UNKNOWN), actions(Thaw())),
    "but cannot while the engine is silent": (
        record(Step.DISPATCHED), facts(engine=Seen.UNKNOWN), waits(reasons.ENGINE_UNAVAILABLE)),
    "a copy is kept": (
        record(Step.ENDED, outcome=READY, ended_at=WALL), facts(), actions()),
    "and written to the store where there is one": (
        record(Step.ENDED, outcome=READY, ended_at=WALL), facts(store="main"), actions(Save())),
    "once": (
        record(Step.ENDED, outcome=READY, ended_at=WALL,
            checkpoint=replace(PART, in_store=StoreCopy(store="main", key="c"))),
        facts(store="main"), actions()),
    "not what is being removed": (
        record(Step.ENDED, outcome=READY, ended_at=WALL, removing=True), facts(store="main"),
        actions(Dispose())),
    "nor what failed": (
        record(Step.ENDED, outcome=FAILED, ended_at=WALL), facts(store="main"),
        actions(Dispose())),
    "what failed leaves nothing": (
        record(Step.ENDED, outcome=FAILED, ended_at=WALL), facts(), actions(Dispose())),
    "its removal waits for those that read it": (
        record(Step.ENDED, outcome=READY, ended_at=WALL, removing=True), facts(readers=1),
        waits(reasons.CHECKPOINT_IN_USE)),
    "and no longer": (
        record(Step.ENDED, outcome=READY, ended_at=WALL, removing=True), facts(),
        actions(Dispose())),
    "then the record goes": (
        record(Step.DISPOSED, outcome=READY, ended_at=WALL, removing=True, nothing_left=True),
        facts(), actions(Bury())),
    "and stays where only the copy went": (
        record(Step.DISPOSED, outcome=READY, ended_at=WALL, nothing_left=True), facts(),
        actions()),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    given, seen, check = TABLE[name]
    decision = decide(given, seen)
    assert check(decision), decision


def test_the_node_keeps_a_copy_for_as_long_as_it_says():
    kept = record(Step.ENDED, outcome=READY, ended_at=WALL)
    assert decide(kept, facts(), later(9), retain=10).look_again_in == 1
    assert decide(kept, facts(), later(10), retain=10).actions == (Dispose(),)
    assert decide(kept, facts(readers=1), later(10), retain=10).actions == ()


def a_world(dice: random.Random):
    step = dice.choice([Step.RECORDED, Step.DISPATCHED, Step.ENDED, Step.DISPOSED])
    ended = step in (Step.ENDED, Step.DISPOSED)
    given = record(
        step,
        removing=dice.random() < 0.3,
        outcome=dice.choice([READY, FAILED]) if ended else None,
        ended_at=WALL if ended else None,
        nothing_left=step is Step.DISPOSED,
        checkpoint=replace(PART, attempts=dice.randrange(MOST_ATTEMPTS + 1)),
    )
    of = dice.choice([None, host(), host(Step.RECORDED), ended_host(), ended_host(spec=a_spec())])
    seen = CheckpointFacts(
        host=of,
        engine=dice.choice(list(Seen)),
        turn=dice.random() < 0.7,
        readers=dice.choice([0, 0, 2]),
    )
    return given, seen, later(dice.randrange(100)), dice.choice([None, 10])


@pytest.mark.parametrize("seed", range(400))
def test_laws(seed):
    given, seen, now, retain = a_world(random.Random(seed))
    decision = decide(given, seen, now, retain)
    assert decision == decide(given, seen, now, retain)
    done = {type(action) for action in decision.actions}
    if Take in done:
        assert seen.turn, "it is never taken while a command runs"
        assert given.step is Step.RECORDED
        assert decision.actions == (Dispatch(), Take()), "intent before the act"
    if given.step is Step.DISPATCHED:
        assert done <= {Thaw}, "first the sandbox goes on, whatever else is wanted"
    if seen.readers:
        assert Dispose not in done, "nobody's copy is taken away while it is read"
    if given.outcome is not None:
        assert not done & {Take, RecordEnd, Thaw}, "an outcome stands"
    if not decision.actions and given.outcome is None:
        assert decision.waiting is not None, "who waits is told why"
        assert decision.look_again_in is not None
    if decision.look_again_in is not None:
        assert decision.look_again_in > 0
