"""Runs in slots of runners: when they are due, and what a run's end leaves."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent import deadlines
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.engine.base import OutputFrame, Status, Stream
from isolet.agent.service import dispatches, pool_records
from isolet.agent.service.admission import Admission
from isolet.agent.service.assign import Assigner
from isolet.agent.service.calm import Calm
from isolet.agent.service.dispatches import RunnerSlot, RunnerSlots
from isolet.agent.service.due import deadline_entry
from isolet.agent.service.ends import End
from isolet.agent.service.node import allocated
from isolet.agent.service.pools import Lease
from isolet.agent.service.qualify import Qualification
from isolet.base import errors, names
from isolet.plan import dispatch_budget, reasons
from isolet.plan.dispatch_events import Violation
from isolet.plan.dispatch_outcome import Exit
from isolet.plan.sandbox_model import Moment, SandboxRecord
from isolet.wire.dispatch import Budgets, DispatchWanted, ReserveRequest, RunnerContract
from isolet.wire.execution import OOMSeen, Outcome, Step
from isolet.wire.pool import PoolsWanted, PoolWanted
from tests.contract.store.records import NOON, a_record
from tests.dispatches import a_run
from tests.fakes.store import MemoryStore

MIB = 1 << 20
BUDGETS = Budgets(execution_seconds=7200)
DOCUMENT = b'{"run_id":"run-1"}\n'
QUALIFIED = Qualification(conditions=(), runtimes=("runsc",), media=("Memory", "Disk"))
BEGAN, TAKEN = 1000.0, 1500.0
"""When the slot ran, and when a run was given it."""


def pool() -> PoolWanted:
    return PoolWanted(
        class_name="runner",
        image="sha256:" + "0" * 64,
        resources=a_record("any").spec.resources,
        minimum=1,
        maximum=1,
        runner=RunnerContract(command=("/app/runtime",), budgets=BUDGETS),
    )


class Input:
    """A slot's stdin, and what the watchdog would have read when it was written to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.written = b""
        self.due: list[deadlines.Deadline] = []

    async def write(self, data: bytes) -> None:
        self.written += data
        self.due = list(deadlines.read(self._file).entries)


class World:
    """One ready slot."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "deadlines.json"
        self.book = DeadlineBook(self.file, "here")
        self.store = MemoryStore()
        self.input = Input(self.file)
        self.told: list[SandboxRecord] = []
        self.capacity = allocated([a_record("one")])
        self.released = 0
        self.log: list[tuple[Stream, bytes]] = []
        self.end = End(code=0)
        self.judged = self.events_unread = 0
        self.oom: OOMSeen | None = None
        moment = Moment(wall=NOON, boottime=TAKEN, boot_id="boot")
        self.context: Any = SimpleNamespace(
            store=self.store,
            calm=Calm(),
            moment=lambda: moment,
            clock=SimpleNamespace(now=lambda: NOON),
            installation="here",
            key=b"key",
            engine=SimpleNamespace(inspect=self.inspect, output=self.output, kill=self.kill),
            policy=SimpleNamespace(capacity_amounts=lambda: self.capacity),
        )

    async def open(self) -> RunnerSlots:
        """The slot is ready and the watchdog knows of it."""
        new = pool_records.new(pool(), "slot-1", "here", NOON).with_(
            step=Step.RUNNING, container_id="c1", boot_id="boot", started_boottime=BEGAN
        )
        self.slot = await self.store.add(new)
        entry = deadline_entry(self.slot)
        assert entry is not None
        await self.book.put(entry)
        pools = SimpleNamespace(
            wanted=PoolsWanted(pools=(pool(),)),
            reserve=lambda _: Lease(self.slot, cast(Any, self.input)),
            given=lambda *_: None,
            release=lambda *_, **__: self.count(),
        )
        assigner = Assigner(
            self.context, self.book, cast(Any, None), cast(Any, pools), cast(Any, None)
        )
        node: Any = SimpleNamespace(qualification=QUALIFIED)
        admission = Admission(self.context, node)
        return RunnerSlots(
            self.context,
            self.book,
            cast(Any, pools),
            assigner,
            admission,
            cast(Any, SimpleNamespace(ends=self, oom=lambda _: self.oom)),
            self.told.append,
        )

    async def judge(self, _record: object, _container: object) -> End:
        """As `Ends`."""
        self.judged += 1
        if self.events_unread:
            self.events_unread -= 1
            raise errors.Unavailable("the engine's events have not been read yet")
        return self.end

    async def kill(self, _container: str) -> None:
        """It is dead already."""

    async def inspect(self, _container: str) -> Any:
        """It has ended."""
        return SimpleNamespace(status=Status.EXITED, exit_code=0, oom_killed=False)

    async def output(self, _container: str, **_: Any) -> AsyncIterator[OutputFrame]:
        """Its log."""
        for number, (stream, data) in enumerate(self.log, 1):
            yield OutputFrame(stream=stream, index=number, data=data)

    def count(self) -> None:
        """A slot went back."""
        self.released += 1

    async def taken(self) -> RunnerSlot:
        """The slot is a run's."""
        slots = await self.open()
        kept = await slots.reserve(ReserveRequest(class_name="runner"))
        return await slots.assign(kept, wanted())


def wanted() -> DispatchWanted:
    return a_run(DOCUMENT, budgets=BUDGETS)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_run_is_due_by_its_own_budgets_before_it_has_its_document(world: World) -> None:
    slot = await world.taken()
    await slot.deliver(DOCUMENT)
    assert world.input.written == DOCUMENT
    (due,) = world.input.due
    assert due == deadlines.Deadline(
        name=names.container_name("here", "run-1"),
        deadline_boottime=TAKEN + dispatch_budget.total(BUDGETS),
        boot_id="boot",
        container_id="c1",
    )
    assert due.deadline_boottime > BEGAN + pool_records.unused_life(pool())


async def test_nothing_else_is_run_in_a_run(world: World) -> None:
    await world.taken()
    record = await world.store.get("run-1")
    assert record is not None
    assert world.slot.spec.session
    assert not record.spec.session


async def test_a_slot_of_another_class_is_not_given(world: World) -> None:
    slots = await world.open()
    kept = await slots.reserve(ReserveRequest(class_name="runner"))
    other = wanted().model_copy(update={"class_name": "another"})
    with pytest.raises(errors.Invalid):
        await slots.assign(kept, other)
    assert await world.store.get("run-1") is None
    assert (world.released, slots._admission._coming) == (1, {})


async def test_no_document_is_sent_while_the_watchdog_cannot_be_told(world: World) -> None:
    slot = await world.taken()
    world.file.unlink()
    world.file.mkdir()
    with pytest.raises(errors.Unavailable):
        await slot.deliver(DOCUMENT)
    assert world.input.written == b""


@pytest.mark.parametrize("delivered", [True, False])
async def test_an_ended_run_leaves_no_deadline(world: World, delivered: bool) -> None:
    slot = await world.taken()
    if delivered:
        await slot.deliver(DOCUMENT)
    assert len(deadlines.read(world.file).entries) == 1
    await slot.conclude(Outcome(succeeded=True, reason="Succeeded", message=""))
    assert deadlines.read(world.file).entries == ()
    assert world.told[-1].step is Step.ENDED


@pytest.mark.parametrize("unseen", [True, False])
@pytest.mark.parametrize("oom", [None, OOMSeen(engine_flag=False, engine_event=True)])
async def test_how_it_ended_is_told_by_all_that_was_seen(
    world: World, unseen: bool, oom: OOMSeen | None
) -> None:
    slot = await world.taken()
    world.end, world.oom = End(code=0, output_lost=unseen), oom
    assert await slot.exit() == Exit(code=0, oom_killed=oom is not None, output_lost=unseen)


async def test_a_code_that_the_engine_made_up_is_no_end(world: World) -> None:
    slot = await world.taken()
    world.end = End(output_lost=True, unknown=True)
    assert await slot.exit() == Exit(code=None, output_lost=True)


async def test_events_that_decide_are_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatches, "_EVENTS_LOOK_SECONDS", 0.0)
    slot = await world.taken()
    world.events_unread = 3
    assert await slot.exit() == Exit(code=0)


async def test_what_is_dead_is_destroyed_however_it_ended(world: World) -> None:
    slot = await world.taken()
    world.events_unread = 1 << 30
    await slot.destroy()
    assert world.judged == 0


async def test_a_stderr_that_was_not_thrown_away_is_no_output_and_is_bounded(world: World) -> None:
    slot = await world.taken()
    out, err, piece = Stream.STDOUT, Stream.STDERR, b"e" * MIB
    world.log = [(out, b"nonce started\n"), (err, piece), (out, b"ready\n{}"), (out, b"\n")]
    assert [data async for data in slot.output(0)] == [b"{}", b"\n"]
    world.log += [(err, piece)] * 63
    assert len([data async for data in slot.output(0)]) == 2
    world.log.append((err, b"e"))
    with pytest.raises(Violation) as found:
        [data async for data in slot.output(0)]
    assert found.value.reason == reasons.OUTPUT_LIMIT_EXCEEDED


ASK = ReserveRequest(class_name="runner")


async def test_a_reserved_slot_has_the_room_that_work_will_hold(world: World) -> None:
    slots = await world.open()
    kept = await slots.reserve(ASK)
    with pytest.raises(errors.Unavailable) as found:
        await slots.reserve(ASK)
    assert (found.value.reason, world.released) == ("NodeFull", 1)
    await slots.release(kept)
    await slots.release(kept)
    assert world.released == 2
    assert await slots.reserve(ASK)


async def test_a_reservation_that_ran_out_is_not_that_of_the_next(world: World) -> None:
    slots = await world.open()
    late = await slots.reserve(ASK)
    slots._let_go(late.slot)
    kept = await slots.reserve(ASK)
    await slots.release(late)
    assert world.released == 1
    with pytest.raises(errors.Unavailable):
        await slots.assign(late, wanted())
    assert (await slots.assign(kept, wanted())).uid == "run-1"


async def test_work_that_came_meanwhile_leaves_no_room_for_a_run(world: World) -> None:
    slots = await world.open()
    await world.store.add(a_record("work"))
    with pytest.raises(errors.Unavailable) as found:
        await slots.reserve(ASK)
    assert (found.value.reason, world.released) == ("NodeFull", 1)


async def test_a_run_holds_its_room_itself(world: World) -> None:
    slot = await world.taken()
    assert not slot._owner._admission._coming
    with pytest.raises(errors.Unavailable):
        await slot._owner.reserve(ASK)
    await slot.conclude(Outcome(succeeded=True, reason="Succeeded", message=""))
    ended = await world.store.get("run-1")
    assert ended is not None
    await world.store.update(ended.with_(nothing_left=True))
    assert await slot._owner.reserve(ASK)


async def test_a_slot_of_a_runtime_that_failed_is_not_given(world: World) -> None:
    slots = await world.open()
    node: Any = SimpleNamespace(qualification=Qualification(conditions=()))
    slots._admission._node = node
    with pytest.raises(errors.Unavailable) as found:
        await slots.reserve(ASK)
    assert (found.value.reason, world.released) == ("RuntimeUnqualified", 1)


async def test_a_run_that_was_recorded_though_nobody_was_told_is_found(world: World) -> None:
    record = world.store.assign

    async def silent(slot: str, given: SandboxRecord) -> SandboxRecord:
        await record(slot, given)
        raise errors.Unavailable("the disk did not say")

    world.store.assign = silent  # type: ignore[method-assign]
    with pytest.raises(errors.Unconfirmed):
        await world.taken()
    slots = RunnerSlots(world.context, *[cast(Any, None)] * 6)
    assert [slot.uid for slot in await slots.adopt()] == ["run-1"]
    assert world.released == 1
