"""Tables of the pool plan, and its laws over many seeded worlds."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from isolet.agent.service import pool_records
from isolet.plan import dispatch_budget, pool
from isolet.plan.pool import Make, Pool, Retire, Slot, SlotLife
from isolet.wire.dispatch import Budgets, RunnerContract
from isolet.wire.execution import ExecutionSpec, Medium, Workspace
from isolet.wire.node import Amounts
from isolet.wire.pool import PoolWanted, WhenEmpty
from unit.plan.worlds import RESOURCES

PLENTY = Amounts(cpu_millis=64_000, memory_bytes=64 << 30, disk_bytes=1 << 40, executions=100)
IMAGE = "sha256:" + "a" * 64


def a_wish(size: int | tuple[int, int] = 2, **changes: object) -> PoolWanted:
    least, most = size if isinstance(size, tuple) else (size, size)
    base = {"class_name": "warm", "class_uid": "c", "generation": 1, "image": IMAGE}
    sizes = {"resources": RESOURCES, "minimum": least, "maximum": most, "create_concurrency": 8}
    return PoolWanted(**{**base, **sizes, **changes})


def a_slot(uid: str, life: SlotLife = SlotLife.READY, **changes: object) -> Slot:
    base: dict[str, object] = {"pool": a_wish().digest(), "amounts": pool.demand(a_wish())}
    if life is SlotLife.READY:
        base["ready_since"] = 1000.0
    return Slot(**{"uid": uid, "life": life, "made_at": 1000.0, **base, **changes})


def decided(
    slots: list[Slot],
    wish: PoolWanted | None = None,
    room: Amounts = PLENTY,
    now: float = 1000.0,
    **facts: object,
) -> list[str]:
    """What is done, in short: `+n` for slots made, `-uid` for one retired."""
    closed = bool(facts.pop("closed", False))
    pools = [Pool(wanted=wish or a_wish(), **facts)]
    found = pool.decide(pools, slots, room, now, closed=closed)
    assert found.look_again_in > 0
    made = sum(1 for action in found.actions if isinstance(action, Make))
    retired = [f"-{action.uid}" for action in found.actions if isinstance(action, Retire)]
    return [*retired, *([f"+{made}"] if made else [])]


READY, CREATING, RETIRING = SlotLife.READY, SlotLife.CREATING, SlotLife.RETIRING
ONE = pool.demand(a_wish())
NO_ROOM = Amounts()

TABLE = {
    "an empty pool is filled": ([], {}, ["+2"]),
    "a full one is left alone": ([a_slot("a"), a_slot("b")], {}, []),
    "what is being made counts": ([a_slot("a"), a_slot("b", CREATING)], {}, []),
    "what is being retired counts": ([a_slot("a"), a_slot("b", RETIRING)], {}, []),
    "one at a time": ([], {"wish": a_wish(3, create_concurrency=1)}, ["+1"]),
    "not more at a time": ([a_slot("a", CREATING)], {"wish": a_wish(3, create_concurrency=1)}, []),
    "the oldest goes where there are too many": (
        [a_slot("a", ready_since=990.0), a_slot("b"), a_slot("c")],
        {},
        ["-a"],
    ),
    "one that is too old goes, and is not replaced before it is gone": (
        [a_slot("a", ready_since=400.0), a_slot("b")],
        {},
        ["-a"],
    ),
    "one that somebody is about to be given stays": (
        [a_slot("a", ready_since=400.0, reserved=True), a_slot("b")],
        {},
        [],
    ),
    "one of another pool goes": ([a_slot("a", pool="old"), a_slot("b"), a_slot("c")], {}, ["-a"]),
    "one that does not become ready goes": (
        [a_slot("a", CREATING, made_at=880.0), a_slot("b")],
        {},
        ["-a"],
    ),
    "no room, no slots": ([], {"room": NO_ROOM}, []),
    "room for one": ([], {"room": ONE}, ["+1"]),
    "work that takes the room takes it from the youngest": (
        [a_slot("a"), a_slot("b", CREATING)],
        {"room": Amounts(memory_bytes=-1)},
        ["-b"],
    ),
    "what goes anyway gives its room first": (
        [a_slot("a"), a_slot("b", RETIRING)],
        {"room": Amounts(memory_bytes=-1)},
        [],
    ),
    "a closed node makes none": ([], {"closed": True}, []),
    "after a failure not at once": ([], {"failures": 1, "failed_at": 999.5}, []),
    "after a failure by and by": ([], {"failures": 1, "failed_at": 999.0}, ["+2"]),
    "after many failures later": ([], {"failures": 9, "failed_at": 941.0}, []),
    "demand makes it larger": ([], {"wish": a_wish((1, 4)), "asked": (950.0,) * 3}, ["+3"]),
    "not without bound": ([], {"wish": a_wish((1, 4)), "asked": (950.0,) * 9}, ["+4"]),
    "who waits counts": ([], {"wish": a_wish((0, 4)), "waiting": 2}, ["+2"]),
    "old demand does not count": ([], {"wish": a_wish((1, 4)), "asked": (940.0,) * 9}, ["+1"]),
}


@pytest.mark.parametrize(("slots", "more", "expected"), TABLE.values(), ids=TABLE)
def test_table(slots: list[Slot], more: dict[str, object], expected: list[str]) -> None:
    assert decided(slots, **more) == expected


FAILED = {"failures": 2, "failed_at": 999.5, "failed_why": "NonZeroExit: exited with code 1"}
WHY = "the last 2 did not become ready (NonZeroExit: exited with code 1)"
SHORT = {
    "all are there": ([a_slot("a"), a_slot("b")], FAILED, ""),
    "nothing went wrong": ([], {}, ""),
    "the last did not become ready": ([], FAILED, WHY),
    "nor is the next one ready yet": ([a_slot("a"), a_slot("b", CREATING)], FAILED, WHY),
    "nobody knows why": (
        [],
        {"failures": 2, "failed_at": 999.5},
        "the last 2 did not become ready",
    ),
    "no room": ([], {"room": NO_ROOM}, "the node has no room for more"),
}


@pytest.mark.parametrize(("slots", "more", "expected"), SHORT.values(), ids=SHORT)
def test_what_is_said_of_a_pool_that_is_short(
    slots: list[Slot], more: dict[str, Any], expected: str
) -> None:
    seen = Pool(wanted=a_wish(), **{k: v for k, v in more.items() if k != "room"})
    found = pool.decide([seen], slots, more.get("room", PLENTY), 1000.0)
    assert dict(found.short).get(a_wish().digest(), "") == expected


def test_only_one_that_is_not_ready_in_time_has_failed() -> None:
    wish = a_wish(1)
    mine = {"pool": wish.digest()}
    late = a_slot("late", CREATING, **mine, made_at=0.0)
    old = a_slot("old", **mine, ready_since=0.0)
    found = pool.decide([Pool(wanted=wish)], [late, old], PLENTY, 1000.0)
    assert [a for a in found.actions if isinstance(a, pool.Retire)] == [
        pool.Retire("old", "unused for too long"),
        pool.Retire("late", "not ready within 120 s", failed=True),
    ]


def test_of_a_runner_that_is_not_ready_in_time_its_ready_line_is_asked() -> None:
    runner = RunnerContract(
        command=("/app/run",), ready_line="here", budgets=Budgets(startup_seconds=5)
    )
    wish = a_wish(1).model_copy(update={"runner": runner})
    late = a_slot("late", CREATING, pool=wish.digest(), made_at=0.0)
    found = pool.decide([Pool(wanted=wish)], [late], PLENTY, 1000.0)
    why = "not ready within 125 s: is 'here' the first line that the runner writes?"
    assert found.actions == (pool.Retire("late", why, failed=True),)


def test_what_is_too_old_is_passed_over_wherever_it_stands() -> None:
    wish = a_wish(idle_timeout_seconds=10)
    mine = {"pool": wish.digest()}
    old, fresh = a_slot("a", **mine, ready_since=980.0), a_slot("b", **mine, ready_since=995.0)
    for slots in ([old, fresh], [fresh, old]):
        assert pool.choose(wish, slots, 1000.0) == fresh
    assert pool.choose(wish, [old], 1000.0) is None


def test_a_runner_has_its_startup_budget_before_it_is_late_or_old() -> None:
    budgets = Budgets(startup_seconds=300)
    runner = RunnerContract(command=("/app/runtime",), budgets=budgets)
    wish = a_wish(1, idle_timeout_seconds=10, runner=runner)
    mine = {"pool": wish.digest(), "made_at": 1000.0}
    coming = a_slot("a", CREATING, **mine)
    waits = a_slot("b", **mine, ready_since=1000.0)
    late, old = 1000.0 + pool.READY_SECONDS + 300, 1310.0
    assert decided([coming], wish, now=late - 1) == []
    assert decided([coming], wish, now=late) == ["-a"]
    assert decided([waits], wish, now=old - 1) == []
    assert decided([waits], wish, now=old) == ["-b"]
    assert pool.choose(wish, [waits], old - 1) == waits
    assert pool.choose(wish, [waits], old) is None
    assert pool_records.unused_life(wish) > max(late, old) - 1000.0


@pytest.mark.parametrize(("seconds", "life"), [(3600, 4530), (1, 931), (86_000, 86_930)])
def test_a_slot_outlives_a_run_that_it_is_given_at_its_last_moment(seconds, life) -> None:
    budgets = Budgets(execution_seconds=seconds)
    runner = RunnerContract(command=("/app/runtime",), budgets=budgets)
    total = dispatch_budget.total(budgets)
    wish = a_wish(
        idle_timeout_seconds=300, runner=runner, maximum_deadline_seconds=min(total, 86_400)
    )
    assert pool_records.longest_life(wish) == life
    assert life >= budgets.startup_seconds + 300 + total


def test_one_before_whom_others_are_served_gets_what_is_left() -> None:
    slots = [a_slot("a", ready_since=990.0), a_slot("b")]
    found = [pool.choose(a_wish(), slots, 1000.0, ahead=ahead) for ahead in range(3)]
    assert found == [slots[0], slots[0], None]


def test_only_what_waits_is_given() -> None:
    slots = [
        a_slot("a", reserved=True),
        a_slot("b", CREATING),
        a_slot("c", RETIRING),
        a_slot("d", pool="other"),
    ]
    assert pool.choose(a_wish(), slots, 1000.0) is None


def test_a_pool_serves_exactly_what_it_is_made_for() -> None:
    wish = a_wish(maximum_deadline_seconds=600)
    spec = ExecutionSpec(
        image=IMAGE, resources=RESOURCES, command=("true",), maximum_deadline_seconds=600
    )
    assert wish.serves("warm", spec)
    others = {
        "image": "sha256:" + "b" * 64,
        "runtime": "runc",
        "user": "1:1",
        "resources": RESOURCES.model_copy(update={"pids": 65}),
        "workspace": Workspace(medium=Medium.DISK),
        "tmp_executable": True,
        "maximum_deadline_seconds": 601,
    }
    for name, value in others.items():
        assert not wish.serves("warm", spec.model_copy(update={name: value})), name
    assert not wish.serves(
        "warm", spec.model_copy(update={"workspace": Workspace(executable=False)})
    )
    assert not wish.serves("another", spec)
    kept = {"retain_seconds": 60}
    assert wish.serves("warm", spec.model_copy(update={"workspace": Workspace(**kept)}))


def test_sizes_are_not_part_of_what_a_slot_is() -> None:
    digest = a_wish().digest()
    assert a_wish(7, create_concurrency=1, when_empty=WhenEmpty.REFUSE).digest() == digest
    assert a_wish(idle_timeout_seconds=10).digest() != digest
    assert a_wish(generation=2).digest() != digest
    assert a_wish(class_uid="d").digest() != digest
    assert a_wish(resources=RESOURCES.model_copy(update={"pids": 65})).digest() != digest


# Laws.


@dataclass
class World:
    """A node that makes and removes slots as it is told, with work that comes and goes."""

    rng: random.Random
    wish: PoolWanted
    now: float = 1000.0
    slots: dict[str, Slot] = field(default_factory=dict)
    work: Amounts = field(default_factory=Amounts)
    asked: tuple[float, ...] = ()
    given: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def room(self) -> Amounts:
        held = [self.work, *(slot.amounts for slot in self.slots.values())]
        return Amounts(
            cpu_millis=8_000 - sum(h.cpu_millis for h in held),
            memory_bytes=(1 << 30) - sum(h.memory_bytes for h in held),
            disk_bytes=(1 << 30) - sum(h.disk_bytes for h in held),
            executions=20 - sum(h.executions for h in held),
        )

    def tend(self) -> pool.PoolDecision:
        pools = [Pool(wanted=self.wish, asked=self.asked)]
        decision = pool.decide(pools, list(self.slots.values()), self.room(), self.now)
        for action in decision.actions:
            if isinstance(action, Retire):
                slot = self.slots[action.uid]
                assert not slot.reserved
                self.slots[slot.uid] = replace(slot, life=RETIRING, ready_since=None)
            else:
                self.number += 1
                uid = f"s{self.number}"
                made = a_slot(uid, CREATING, pool=action.pool, made_at=self.now)
                self.slots[uid] = replace(made, amounts=pool.demand(self.wish))
        return decision

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 0.1, 1.0, 30.0])
        for slot in list(self.slots.values()):
            if slot.life is CREATING and self.rng.random() < 0.4:
                self.slots[slot.uid] = replace(slot, life=READY, ready_since=self.now)
            elif slot.life is RETIRING and self.rng.random() < 0.4:
                del self.slots[slot.uid]
        match self.rng.randrange(5):
            case 0:
                self.asked = (*self.asked, self.now)[-50:]
                choice = pool.choose(self.wish, self.slots.values(), self.now)
                if choice is not None:
                    del self.slots[choice.uid]
                    self.given[choice.uid] += 1
                    self.work = self.work.plus(choice.amounts)
            case 1:
                self.work = Amounts()
            case 2:
                self.work = self.work.plus(pool.demand(self.wish), self.rng.randrange(3))
            case 3 if self.rng.random() < 0.2:
                generation = self.wish.generation + 1
                self.wish = self.wish.model_copy(update={"generation": generation})
        if self.rng.random() < 0.8:
            self.tend()


@pytest.mark.parametrize("seed", range(200))
def test_laws(seed: int) -> None:
    rng = random.Random(seed)
    least = rng.randrange(4)
    wish = a_wish((least, rng.randrange(max(1, least), 7)), idle_timeout_seconds=60)
    world = World(rng, wish.model_copy(update={"create_concurrency": rng.randrange(1, 4)}))
    for _ in range(120):
        before = set(world.slots)
        world.step()
        made = set(world.slots) - before
        mine = [s for s in world.slots.values() if s.pool == world.wish.digest()]
        creating = [s for s in mine if s.life is CREATING]
        assert len(creating) <= world.wish.create_concurrency
        # Never made past its size, whatever is on its way out.
        assert not made or len(mine) <= world.wish.maximum
        # Nothing is made into room that work or other slots hold.
        assert not made or min(world.room().memory_bytes, world.room().executions) >= 0
    assert set(world.given.values()) <= {1}
    # Left alone, it comes to rest at its size.
    world.work = Amounts()
    world.wish = world.wish.model_copy(update={"idle_timeout_seconds": 86_400})
    for _ in range(60):
        world.now += 1.0
        world.tend()
        for slot in list(world.slots.values()):
            if slot.life is RETIRING:
                del world.slots[slot.uid]
            elif slot.life is CREATING:
                world.slots[slot.uid] = replace(slot, life=READY, ready_since=world.now)
    wanted = pool.target(Pool(wanted=world.wish, asked=world.asked), world.now)
    assert [s.life for s in world.slots.values()] == [READY] * wanted
