"""Laws of the sandbox plan over many seeded worlds.

A world is a tiny engine that performs the plan's actions, may fail any one of them, may lose the
reply of one, may be silent, and may have its container removed by a stranger. The witness counts
starts outside of the record.
"""

import random
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from isolet.plan import reasons, sandbox, sandbox_model
from isolet.plan.sandbox_model import (
    ContainerFacts,
    Life,
    Moment,
    SandboxFacts,
    SandboxRecord,
    Seen,
)
from isolet.wire.execution import State, Step
from unit.plan.worlds import BOOT, WALL, a_record, a_spec

WORLDS = range(400)
PASSES = 200


class ReplyLost(Exception):
    """The action may or may not have had its effect; the agent has restarted."""


@dataclass
class World:
    rng: random.Random
    record: SandboxRecord | None
    now: float = 1000.0
    life: Life | None = None
    started_at: float | None = None
    exit_code: int = 0
    finished_at: float | None = None
    starts: int = 0
    cleared_unstarted: bool = False
    stranger: bool = False
    silent: int = 0
    outcomes: list[object] = field(default_factory=list)

    def moment(self) -> Moment:
        return Moment(
            wall=WALL + timedelta(seconds=self.now - 1000), boottime=self.now, boot_id=BOOT
        )

    def wall(self, at: float | None) -> object:
        return None if at is None else WALL + timedelta(seconds=at - 1000)

    def facts(self) -> SandboxFacts:
        if self.silent:
            self.silent -= 1
            return SandboxFacts(container=Seen.UNKNOWN, image=Seen.PRESENT, inputs=True)
        if self.life is None:
            started = Seen.UNKNOWN
            if self.cleared_unstarted:
                started = Seen.ABSENT
            elif self.starts:
                started = self.rng.choice([Seen.PRESENT, Seen.UNKNOWN])
            return SandboxFacts(
                container=Seen.ABSENT,
                image=Seen.PRESENT,
                inputs=True,
                started_since_dispatch=started,
            )
        return SandboxFacts(
            container=Seen.PRESENT,
            seen=ContainerFacts(
                id="c1",
                ours=True,
                life=self.life,
                exit_code=self.exit_code if self.life is Life.EXITED else None,
                started_at=self.wall(self.started_at),
                finished_at=self.wall(self.finished_at),
            ),
            image=Seen.PRESENT,
            inputs=True,
            output_done=True,
        )

    def perform(self, action: object) -> None:
        fate = self.rng.random()
        if fate < 0.08:
            raise ReplyLost  # before any effect
        self._effect(action)
        if fate < 0.16:
            raise ReplyLost  # after it

    def _effect(self, action: object) -> None:  # noqa: C901
        record = self.record
        assert record is not None
        match action:
            case sandbox_model.Create():
                if self.life is None:
                    self.life, self.cleared_unstarted = Life.CREATED, False
                self.record = record.with_(container_id="c1")
            case sandbox_model.Dispatch():
                self.record = record.with_(
                    step=Step.DISPATCHED,
                    boot_id=BOOT,
                    dispatched_at=self.wall(self.now),
                    dispatched_boottime=self.now,
                )
            case sandbox_model.Start():
                assert self.life is Life.CREATED
                self.starts += 1
                self.life, self.started_at = Life.RUNNING, self.now
            case sandbox_model.Undispatch():
                self.record = record.with_(step=Step.RECORDED, dispatched_boottime=None)
            case sandbox_model.RecordRunning():
                self.record = record.with_(
                    step=Step.RUNNING, started_at=action.started_at, started_boottime=self.now
                )
            case sandbox_model.RecordStop():
                assert record.stop is None
                self.record = record.with_(stop=action.stop)
            case sandbox_model.End():
                if self.life in (Life.RUNNING, Life.PAUSED):
                    self._exit(137)
            case sandbox_model.RemoveContainer():
                self.cleared_unstarted = self.started_at is None
                self.life = None
            case sandbox_model.RecordEnd():
                self.outcomes.append(action.outcome)
                self.record = record.with_(
                    outcome=action.outcome,
                    step=Step.ENDED,
                    boot_id=BOOT,
                    ended_boottime=self.now,
                )
            case sandbox_model.Dispose():
                self.life = None
                self.record = record.with_(step=Step.DISPOSED, nothing_left=True)
            case sandbox_model.Bury():
                self.record = None

    def _exit(self, code: int) -> None:
        self.life, self.exit_code, self.finished_at = Life.EXITED, code, self.now

    def drift(self) -> None:
        """What happens beside the plan: time, the program, users, strangers."""
        self.now += self.rng.choice([0.0, 0.5, 3.0, 30.0])
        roll = self.rng.random()
        if self.life is Life.RUNNING and roll < 0.3:
            self._exit(self.rng.choice([0, 0, 1, 137]))
        elif self.life is not None and roll < 0.33:
            self.life, self.stranger = None, True
        elif roll < 0.38:
            self.silent = self.rng.randint(1, 3)
        elif roll < 0.42 and self.record is not None and self.record.outcome is None:
            self.record = self.record.with_(state=State.TERMINATED)


def settle(world: World) -> None:
    """Pass until quiet, as a worker would; a lost reply ends the pass."""
    for number in range(PASSES):
        if world.record is None:
            return
        if number == 60:
            world.record = world.record.with_(removing=True)
        if number < 40:
            world.drift()
        facts = world.facts()
        now = world.moment()
        decision = sandbox.decide(world.record, facts, now)
        assert decision == sandbox.decide(world.record, facts, now), "the same twice"
        assert decision.look_again_in is None or decision.look_again_in > 0
        if not decision.actions and decision.look_again_in:
            world.now += min(decision.look_again_in, 60.0)
        try:
            for action in decision.actions:
                world.perform(action)
        except ReplyLost:
            continue


def a_world(seed: int) -> World:
    rng = random.Random(seed)
    spec = a_spec(
        program=rng.choice(["make", ""]),
        retain_seconds=rng.choice([0, 20]),
        idle_timeout_seconds=None,
    )
    return World(rng=rng, record=a_record(spec=spec))


@pytest.mark.parametrize("seed", WORLDS)
def test_every_world_ends_with_nothing_left_one_outcome_and_at_most_one_start(seed: int) -> None:
    world = a_world(seed)
    settle(world)
    assert world.record is None, "buried"
    assert world.life is None, "no container is left"
    assert world.starts <= 1, "never a second run"
    assert len(world.outcomes) >= 1
    assert len(set(map(str, world.outcomes))) == 1, "the first recorded outcome stays"


@pytest.mark.parametrize("seed", WORLDS)
def test_a_success_is_never_claimed_without_an_exit_code_of_zero(seed: int) -> None:
    world = a_world(seed)
    settle(world)
    (outcome, *_) = world.outcomes
    if outcome.succeeded and outcome.reason == reasons.SUCCEEDED:
        assert (outcome.exit_code, world.starts) == (0, 1)
