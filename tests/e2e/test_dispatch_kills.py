"""Many dispatches while agents, operator and front doors are killed at random: each at most once.

How often something ran is not asked of Isolet: the judge reads the engines' own log files. Every
choice follows from ISOLET_FAULT_SEED. ISOLET_FAULT_DISPATCHES says how many runs are sent.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import pytest

from isolet.apiserver.kubernetes import object_name
from isolet_stack.stack import Stack
from tests.e2e.dispatch_callers import Callers, Run, kept
from tests.e2e.dispatch_witness import Runs, runs_of
from tests.e2e.faults_arena import Keeper, Trap, ask_agent, chance, eventually
from tests.e2e.faults_watch import Sight, doubles, verdict
from tests.e2e.front_door import FrontDoor, runner_class
from tests.e2e.world import World, is_finished

pytestmark = pytest.mark.faults

NODES = ("node-0", "node-1")
PARTS = ("agent-node-0", "agent-node-1", "operator-0")
VICTIMS = (*PARTS, "door-0", "door-1", "both doors")
SIZE = 3
CALLERS = 8
MANY = int(os.environ.get("ISOLET_FAULT_DISPATCHES") or 300)
RUNS_TO_A_KILL = 8


@dataclass
class Place:
    """A namespace with two front doors and a warm pool on each of two nodes, and who looks on."""

    world: World
    doors: tuple[FrontDoor, FrontDoor]
    runs: Runs
    sight: Sight

    def perform(self, work: list[Run], callers: Callers) -> None:
        """Have all of it sent, by some callers at a time."""
        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(callers.perform, work))

    def judge(self, work: list[Run]) -> None:
        """Each at most once; what anybody was told has happened, and is kept."""
        made = {name for name in map(_name, work) if self.world.get("execution", name)}
        ends = {name: self.sight.until(name, is_finished, 300) for name in sorted(made)}
        for run in work:
            if run.ended is not None:
                self.runs.until(run.mark or run.run_id)
        times, wrong = self.runs.times(), []
        for number, run in enumerate(work):
            told = verdict(ends.get(_name(run)))[:2]
            wrong += [f"{run.run_id}: {what}" for what in run.wrong]
            wrong += _wrong(run, told, times[run.mark or run.run_id])
            if run.ended is not None:
                wrong += self._lost(run, number)
        assert wrong == []
        assert (self.runs.shared(), self.runs.missed(), doubles(self.runs.tapes)) == ([], [], {})
        assert self.sight.broken == []

    def _lost(self, run: Run, number: int) -> list[str]:
        found = kept(self.doors[number % 2], run)
        same = all(found.events.get(n) == event for n, event in run.events.items())
        if found.ended == run.ended and same and not found.wrong:
            return []
        return [f"{run.run_id}: told {run.ended} {run.events}, kept {found.answers} {found.events}"]

    def whole(self) -> None:
        """On the nodes there are the slots of the pool, and nothing else."""
        stack = self.world.stack
        for node in NODES:
            eventually(f"the pool of {node} waits", lambda n=node: _waits(stack, n), 150)
        witnesses = [self.world.witness(node) for node in NODES]
        installation = stack.installation
        eventually(
            "no more than the pools' own",
            lambda: [len(w.containers(installation)) for w in witnesses] == [SIZE, SIZE],
            150,
        )


def _name(run: Run) -> str:
    return object_name(run.run_id)


def _wrong(run: Run, told: tuple[str, ...], times: int) -> list[str]:
    """How a run's end differs from what it may be."""
    succeeded = told == ("True", "Succeeded")
    wrong = []
    if times > 1:
        wrong.append(f"it ran {times} times")
    if run.ended is not None and not (succeeded and times == 1):
        wrong.append(f"its result was told, it ran {times} times, and came to {told}")
    if succeeded and times != 1:
        wrong.append(f"it succeeded and ran {times} times")
    if told not in ((), ("True", "Succeeded"), ("False", "StartUnconfirmed")):
        wrong.append(f"it came to {told}")
    if not told and times:
        wrong.append("it ran, and there is no object of it")
    if run.answers.count(200) > 1:
        wrong.append(f"it was taken more than once: {run.answers}")
    if set(run.answers) - {200, 409, 429, 502, 503, None}:
        wrong.append(f"it was answered with {run.answers}")
    return [f"{run.run_id}: {what}; {run.answers}" for what in wrong]


def _waits(stack: Stack, node: str) -> bool:
    """Whether all slots of the one pool wait; an agent that was killed last may not be there."""
    try:
        pools = json.loads(ask_agent(stack, node, "/v1/node"))["pools"]
    except OSError:
        return False
    return [(p["ready"], p["creating"], p["retiring"]) for p in pools] == [(SIZE, 0, 0)]


@pytest.fixture(scope="module")
def place(whole: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    whole.stack.start_missing()
    whole.stack.wait_ready()
    stack, doors = whole.stack, []
    kubectl = [stack.kubectl, "--kubeconfig", str(stack.kubeconfig)]
    with whole.in_namespace() as world, runs_of(world) as runs:
        sight = Sight(kubectl, world.namespace)
        name = f"runner-{world.namespace}"
        world.apply(runner_class(name, SIZE))
        try:
            for number in (0, 1):
                door = FrontDoor(world, tmp_path_factory.mktemp(f"door-{number}"), name)
                doors.append(door)
                door.start()
            made = Place(world, (doors[0], doors[1]), runs, sight)
            yield made
        finally:
            for door in doors:
                door.kill()
            objects = f"/apis/isolet.dev/v1alpha1/namespaces/{world.namespace}/executions"
            stack.kube("delete", "--raw", objects)
            stack.kube("delete", "executionclass", name)
            sight.close()
    whole.nothing_left(150)


def test_the_judge_would_see_a_run_done_twice(place: Place) -> None:
    callers = Callers(place.doors, chance("control"))
    place.perform([Run(f"control-{n}", n, mark="control") for n in (1, 2)], callers)
    place.runs.until("control", 2)
    assert place.runs.times()["control"] == 2


def test_one_id_at_two_doors_at_the_same_moment_is_one_run(place: Place) -> None:
    work = [Run(f"both-{n}", n, both=True) for n in range(10)]
    place.perform(work, Callers(place.doors, chance("both")))
    for run in work:
        ends = sorted(status for status in run.answers if status not in (429, 503))
        assert ends == [200, 409], run
        place.runs.until(run.run_id)
    assert {run.run_id: place.runs.times()[run.run_id] for run in work} == {
        run.run_id: 1 for run in work
    }
    place.judge(work)


def work_of(dice: Random) -> list[Run]:
    """Runs of every kind."""
    return [
        Run(
            f"run-{number}",
            number,
            seconds=round(dice.uniform(0, 0.4), 3),
            path=dice.choice(("/execute", "/execute/stream", "/execute/stream")),
            both=dice.random() < 0.15,
            stubborn=dice.random() < 0.3,
        )
        for number in range(MANY)
    ]


class Killer(threading.Thread):
    """Kills one part after another, whenever some more runs are over."""

    def __init__(self, place: Place, callers: Callers, dice: Random) -> None:
        super().__init__(daemon=True)
        self._place, self._callers, self._dice = place, callers, dice
        victims = list(VICTIMS)
        self.plan: list[tuple[int, str]] = []
        for after in range(RUNS_TO_A_KILL, MANY, RUNS_TO_A_KILL):
            if not len(self.plan) % len(victims):
                dice.shuffle(victims)
            self.plan.append((after, victims[len(self.plan) % len(victims)]))
        self.struck: list[str] = []
        callers.may_go_on = self._keeps_up

    def _keeps_up(self, settled: int) -> bool:
        """Whether no more than one kill is owed, or this thread has ended."""
        owed = [after for after, _ in self.plan[len(self.struck) :] if after <= settled]
        return len(owed) < 2 or not self.is_alive()

    def run(self) -> None:
        """All of the plan; a part that is not there yet is waited for."""
        for after, victim in self.plan:
            self._callers.until_settled(after)
            time.sleep(self._dice.uniform(0, 0.5))
            self._strike(victim)
            with self._callers.bell:
                self.struck.append(victim)
                self._callers.bell.notify_all()

    def _strike(self, victim: str) -> None:
        if victim in PARTS:
            stack = self._place.world.stack
            eventually(f"{victim} is there", lambda: stack.alive(victim), 150)
            stack.kill(victim)
            return
        both = enumerate(self._place.doors)
        doors = [door for n, door in both if victim in (f"door-{n}", "both doors")]
        for door in doors:
            door.kill()
        for door in doors:
            door.start()


@pytest.fixture
def keeper(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    folder = tmp_path_factory.mktemp("traps")
    made = Keeper(place.world.stack, {part: Trap(folder, part) for part in PARTS})
    made.start()
    yield made
    made.close()


@pytest.mark.timeout(300 + 4 * MANY)
def test_many_runs_at_most_once_while_all_parts_are_killed(place: Place, keeper: Keeper) -> None:
    work = work_of(chance("work"))
    callers = Callers(place.doors, chance("callers"))
    killer = Killer(place, callers, chance("killer"))
    killer.start()
    place.perform(work, callers)
    killer.join(300)
    assert not killer.is_alive()
    assert killer.struck == [victim for _, victim in killer.plan]
    assert set(killer.struck) == set(VICTIMS)
    place.judge(work)
    print(counted(place, work, killer))
    acknowledged = sum(run.ended is not None for run in work)
    assert acknowledged > 0.8 * MANY, f"only {acknowledged} of {MANY} were given their result"
    place.whole()


def counted(place: Place, work: list[Run], killer: Killer) -> str:
    """What became of the runs, for whoever reads along (-s)."""
    ends = Counter(verdict(place.sight.objects.get(_name(run)))[1:2] for run in work)
    answers = Counter(answer for run in work for answer in run.answers)
    ran, told = place.runs.times(), sum(run.ended is not None for run in work)
    once = sum(ran[run.run_id] for run in work)
    return f"{len(killer.struck)} kills, {once} ran, {told} told, ends {ends}, answers {answers}"
