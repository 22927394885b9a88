"""What is decided about work that was given a slot: a table, and laws over many seeded worlds."""

import random
from dataclasses import dataclass
from datetime import timedelta

import pytest

from isolet.plan import reasons, sandbox, sandbox_model, warm
from isolet.plan.sandbox_model import (
    Control,
    Decision,
    End,
    Kind,
    Life,
    Moment,
    RecordEnd,
    RecordRunning,
    SandboxFacts,
    SandboxRecord,
    Seen,
    SlotPart,
    Stop,
    Unassign,
)
from isolet.wire.execution import State, Step, Waiting
from unit.plan.worlds import (
    BOOT,
    NOW,
    WALL,
    a_container,
    a_record,
    a_spec,
    facts,
    later,
)

SLOT = SlotPart(uid="slot-1", digest="sha256:0")
CANCEL = Stop(reason=reasons.CANCELLED, message="cancelled before its end")
LATE = later(warm.ACK_SECONDS)


def given(**changes: object) -> SandboxRecord:
    return a_record(Step.DISPATCHED, slot=SLOT, **changes)


def ended(decision: Decision) -> str | None:
    """The reason of the outcome that is recorded, if one is."""
    found = [a.outcome.reason for a in decision.actions if isinstance(a, RecordEnd)]
    return found[0] if found else None


RUNNING, EXITED = a_container(), a_container(Life.EXITED, exit_code=3)
STARTED = {"control": Control.STARTED}
SILENT = {"heard_since": NOW.boottime}
TABLE = {
    "it has not said anything yet": (RUNNING, {}, {}, NOW, ()),
    "it says that it starts": (RUNNING, STARTED, {}, NOW, (RecordRunning(WALL),)),
    "it says so after its end": (EXITED, STARTED, {}, NOW, (RecordRunning(WALL),)),
    "it says nothing in time": (RUNNING, SILENT, {}, LATE, (End(0),)),
    "what it said is not read yet": (RUNNING, {}, {}, LATE, ()),
    "an agent that comes late has listened for a moment": (
        RUNNING,
        {"heard_since": LATE.boottime - 1},
        {},
        LATE,
        (),
    ),
    "another boot": (RUNNING, {}, {}, later(1, "boot-2"), (End(0),)),
    "cancelled meanwhile": (RUNNING, {}, {"stop": CANCEL}, NOW, (End(0),)),
    "ended, its log not read yet": (EXITED, {"output_done": False}, {}, NOW, ()),
    "ended without a word": (EXITED, {}, {}, LATE, (Unassign(),)),
}


@pytest.mark.parametrize(("seen", "more", "record", "now", "actions"), TABLE.values(), ids=TABLE)
def test_table(seen, more, record, now, actions) -> None:
    found = sandbox.decide(given(**record), facts(seen, **more), now)
    assert found.actions == actions
    assert actions or found.look_again_in


OUTCOMES = {
    "its log is not whole": (EXITED, {"output_incomplete": True}, {}, reasons.START_UNCONFIRMED),
    "the container is gone": (None, {}, {}, reasons.START_UNCONFIRMED),
    "cancelled and ended": (EXITED, {}, {"stop": CANCEL}, reasons.CANCELLED),
    "it could not be run": (
        EXITED,
        {"control": Control.START_FAILED, "control_detail": "missing"},
        {},
        reasons.START_FAILED,
    ),
}


@pytest.mark.parametrize(("seen", "more", "record", "reason"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes(seen, more, record, reason) -> None:
    assert ended(sandbox.decide(given(**record), facts(seen, **more), NOW)) == reason


def test_what_waits_for_a_slot_is_started_by_one_alone() -> None:
    record = a_record(awaits_slot=True)
    ready = sandbox.decide(record, facts(slot=Seen.PRESENT), NOW)
    assert ready.actions == (sandbox_model.Assign(),)
    empty = sandbox.decide(record, facts(slot=Seen.UNKNOWN), NOW)
    assert (empty.actions, empty.waiting.reason) == ((), reasons.POOL_EMPTY)
    cold = (sandbox_model.Create(), sandbox_model.Dispatch(), sandbox_model.Start())
    assert sandbox.decide(record, facts(slot=Seen.ABSENT), NOW).actions == cold


def test_an_unused_slot_that_is_to_go_goes_at_once() -> None:
    slot = a_record(Step.RUNNING, kind=Kind.SLOT, spec=a_spec(program=""), removing=True)
    stop = sandbox.decide(slot, facts(a_container()), NOW).actions[0].stop
    assert stop.reason == reasons.TERMINATED
    assert sandbox.decide(slot.with_(stop=stop), facts(a_container()), NOW).actions == (End(0),)


def test_nothing_of_an_unused_slot_is_kept() -> None:
    outcome = sandbox_model.Outcome(succeeded=True, reason="Terminated", message="")
    slot = a_record(Step.DISPOSED, kind=Kind.SLOT, outcome=outcome, nothing_left=True)
    assert sandbox.decide(slot, facts(), NOW).actions == (sandbox_model.Bury(),)
    assert sandbox.decide(slot.with_(kind=Kind.EXECUTION), facts(), NOW).actions == ()


# Laws.


@dataclass
class World:
    """A slot, the agent that hands it over and may die at any point, an engine that may lose logs.

    `runs` is the witness: what was executed, counted where it happens.
    """

    rng: random.Random
    record: SandboxRecord | None
    sent: bool
    """Whether the line reached the slot before the agent died."""
    now: float = 1000.0
    life: Life | None = Life.RUNNING
    warm: bool = True
    said: bool = False
    runs: int = 0
    log_lost: bool = False
    inputs: bool = True
    exit_code: int = 0
    outcomes: int = 0
    heard_since: float | None = None

    def moment(self) -> Moment:
        wall = WALL + timedelta(seconds=self.now - 1000)
        return Moment(wall=wall, boottime=self.now, boot_id=BOOT)

    def pass_time(self) -> None:
        self.now += self.rng.choice([0.05, 0.5, 5.0])
        if self.life is not Life.RUNNING:
            return
        if self.warm and self.sent and not self.said and self.rng.random() < 0.5:
            self.said, self.runs = True, self.runs + 1
        if self.rng.random() < 0.1:  # a stranger, an accident
            self.life = self.rng.choice([Life.EXITED, None])
            self.exit_code, self.log_lost = 137, self.rng.random() < 0.5
        elif (self.said or not self.warm) and self.rng.random() < 0.3:
            self.life, self.exit_code = Life.EXITED, self.rng.choice([0, 1])

    def facts(self) -> SandboxFacts:
        if self.rng.random() < 0.1:
            self.heard_since = None
            return SandboxFacts(container=Seen.UNKNOWN, image=Seen.PRESENT, inputs=self.inputs)
        common = {"image": Seen.PRESENT, "inputs": self.inputs, "output_done": True}
        if self.life is None:
            started = Seen.PRESENT if self.runs else Seen.ABSENT
            return SandboxFacts(container=Seen.ABSENT, started_since_dispatch=started, **common)
        known = self.said or not self.warm
        begins = self.heard_since is None  # What the log holds already has not been read yet.
        self.heard_since = self.now if begins else self.heard_since
        late = begins and self.life is Life.RUNNING
        lost = self.life is Life.EXITED and self.log_lost
        return SandboxFacts(
            container=Seen.PRESENT,
            seen=a_container(self.life, started_at=WALL, exit_code=self.exit_code),
            control=Control.STARTED if known and not lost and not late else None,
            output_incomplete=lost,
            heard_since=self.heard_since,
            **common,
        )

    def perform(self, action: object) -> None:
        getattr(self, f"on_{type(action).__name__}")(action)

    def change(self, **changes: object) -> None:
        assert self.record is not None
        self.record = self.record.with_(**changes)

    def on_Create(self, _: object) -> None:
        assert self.life in (None, Life.CREATED)
        self.life, self.warm = Life.CREATED, False

    def on_Dispatch(self, _: object) -> None:
        at = {"dispatched_boottime": self.now, "dispatched_at": self.moment().wall}
        self.change(step=Step.DISPATCHED, boot_id=BOOT, **at)

    def on_Undispatch(self, _: object) -> None:
        assert not self.runs
        self.change(step=Step.RECORDED, dispatched_boottime=None, dispatched_at=None)

    def on_Start(self, _: object) -> None:
        self.life, self.runs = Life.RUNNING, self.runs + 1

    def on_Unassign(self, _: object) -> None:
        self.life = None
        self.change(step=Step.RECORDED, slot=None, dispatched_boottime=None)

    def on_RecordRunning(self, action: RecordRunning) -> None:
        at = {"started_at": action.started_at, "started_boottime": self.now}
        self.change(step=Step.RUNNING, **at)

    def on_RecordStop(self, action: sandbox_model.RecordStop) -> None:
        self.change(stop=action.stop)

    def on_End(self, _: object) -> None:
        if self.life is Life.RUNNING:
            assert not self.said or self.record.stop, "what runs is not ended by an agent's absence"
            self.life, self.exit_code = Life.EXITED, 137

    def on_RemoveContainer(self, _: object) -> None:
        self.life = None

    def on_RecordEnd(self, action: RecordEnd) -> None:
        self.outcomes += 1
        self.change(step=Step.ENDED, outcome=action.outcome)

    def on_Dispose(self, _: object) -> None:
        self.life = None
        self.change(step=Step.DISPOSED, nothing_left=True)

    def on_Bury(self, _: object) -> None:
        self.record = None

    def look(self) -> None:
        assert self.record is not None
        decision = sandbox.decide(self.record, self.facts(), self.moment())
        if decision.waiting == Waiting(reason=reasons.AWAITING_INPUTS, message=""):
            return
        for action in decision.actions:
            if self.rng.random() < 0.1:
                return  # It failed, or the agent died: the next pass looks afresh.
            self.perform(action)
            if self.record is None or (self.record.outcome and isinstance(action, RecordEnd)):
                return


@pytest.mark.parametrize("seed", range(400))
def test_laws(seed: int) -> None:
    rng = random.Random(seed)
    record = given(spec=a_spec(), active_deadline_seconds=10_000)
    world = World(rng, record, sent=rng.random() < 0.5)
    cancel_at = rng.randrange(60) if rng.random() < 0.4 else None
    for number in range(400):
        if world.record is None:
            break
        if number == cancel_at and world.record is not None and world.record.outcome is None:
            world.record = world.record.with_(state=State.TERMINATED)
        if rng.random() < 0.1:
            world.inputs = not world.inputs
        world.pass_time()
        world.look()
        assert world.runs <= 1
        if world.record is not None and world.record.outcome is not None:
            outcome = world.record.outcome
            if outcome.succeeded:
                assert world.runs == 1
            if outcome.reason == reasons.START_UNCONFIRMED:
                assert world.log_lost or world.life is None
            world.record = world.record.with_(removing=True)
    assert world.record is None
    assert world.outcomes == 1
    assert world.life is None
