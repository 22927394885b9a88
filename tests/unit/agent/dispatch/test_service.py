"""Runs on a node whose slots are in memory: begun once, followed by anyone, taken up again."""

import asyncio
import itertools
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from isolet.agent.dispatch import service
from isolet.agent.dispatch.service import DispatchService, Times
from isolet.agent.dispatch.spool import Spools
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.plan import reasons
from isolet.wire.dispatch import (
    Budgets,
    CancelAnswer,
    DispatchLine,
    DispatchWanted,
    Mode,
    Reservation,
    ReserveRequest,
)
from isolet.wire.execution import Outcome
from tests.dispatches import a_run
from tests.fakes.slots import FakeSlot, FakeSlots
from tests.unit.base.test_fairness import others

DOCUMENT = b'{"run_id": "r",\n "payload": {"secret": "hunter2"}}'
BOOT = "boot-1"
PROGRESS = b'{"event_type":"progress","payload":1}\n'
DONE = b'{"event_type":"completed","payload":{"answer":42}}\n'


def wanted(uid: str = "u1", document: bytes = DOCUMENT, **changes: object) -> DispatchWanted:
    said = {"name": "run-1", "run_id": "r", "class_name": "fast"}
    return a_run(document, uid, **{**said, **changes})


class Node:
    """A service that can be restarted, over slots and a folder that stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slots = FakeSlots(ready=4)
        self.clock = FixedClock()
        self.times = Times(heartbeat_seconds=3600, handover_seconds=0)
        self.boot = BOOT
        self.service = self._made()

    def _made(self) -> DispatchService:
        return DispatchService(
            self.slots, Spools(self.folder), self.clock, boot_id=self.boot, times=self.times
        )

    async def restart(self) -> None:
        await self.service.close()
        self.service = self._made()
        await self.service.recover()

    async def reserved(self) -> Reservation:
        return await self.service.reserve(ReserveRequest(class_name="fast"))

    async def begin(self, want: DispatchWanted | None = None) -> FakeSlot:
        want = want or wanted()
        await self.service.begin(await self.reserved(), want, DOCUMENT)
        return self.slots.seen[want.uid]

    async def lines(self, uid: str = "u1", after: int = 0) -> list[DispatchLine]:
        return [line async for line in self.service.follow(uid, after)]

    async def outcome(self, uid: str = "u1") -> Outcome:
        last = (await self.lines(uid))[-1]
        assert last.ended is not None
        return last.ended


@pytest.fixture
async def node(tmp_path: Path):
    made = Node(tmp_path / "dispatch")
    yield made
    await made.service.close()


async def test_a_run_from_its_document_to_its_result(node: Node) -> None:
    slot = await node.begin()
    slot.writes(PROGRESS)
    slot.writes(DONE)
    slot.ends(0)
    first, second, last = await node.lines()
    assert json.loads(slot.stdin) == {"mode": "stream", "payload": json.loads(DOCUMENT)}
    assert slot.stdin.count(b"\n") == 1
    assert slot.closed
    assert first.event is not None
    assert (first.event.sequence, first.event.type) == (1, "progress")
    assert second.event is not None
    assert second.event.event["payload"] == {"answer": 42}
    assert last.ended is not None
    assert last.ended.succeeded
    assert slot.destroyed == 1
    assert slot.concluded == [last.ended]


ENDS = {
    "no result": (PROGRESS, 0, reasons.RESULT_MISSING),
    "another exit code": (DONE, 7, reasons.NON_ZERO_EXIT),
    "gone": (PROGRESS, None, reasons.CONTAINER_LOST),
    "a lie": (b"all is well\n", 0, reasons.PROTOCOL_VIOLATED),
    "no newline": (DONE[:-1], 0, reasons.PROTOCOL_VIOLATED),
    "a line too long": (b"x" * ((1 << 20) + 1), 0, reasons.EVENT_TOO_LARGE),
}


@pytest.mark.parametrize(("output", "code", "reason"), ENDS.values(), ids=ENDS)
async def test_a_runner_that_lies_or_dies_ends_with_its_own_reason_and_a_clean_node(
    node: Node, output: bytes, code: int | None, reason: str
) -> None:
    slot = await node.begin()
    slot.writes(output)
    slot.ends(code)
    assert (await node.outcome()).reason == reason
    assert slot.destroyed == 1
    assert not node.slots.assigned


async def test_a_runner_that_floods_is_ended_while_it_writes(node: Node) -> None:
    slot = await node.begin()
    line = b'{"event_type":"x","payload":"' + b"a" * 1_000_000 + b'"}\n'
    for _ in range(70):
        slot.writes(line)
    assert (await node.outcome()).reason == reasons.OUTPUT_LIMIT_EXCEEDED
    assert Spools(node.folder).of("u1").size() == 64 << 20


async def test_a_runner_that_takes_nothing_is_ended_within_the_startup_budget(node: Node) -> None:
    node.slots.prepare = lambda slot: setattr(slot, "blocks", True)
    slot = await node.begin(wanted(budgets=Budgets(startup_seconds=1)))
    node.clock.advance(1)
    node.service._runs["u1"]._reschedule()
    assert (await node.outcome()).reason == reasons.HANDOVER_TIMEOUT
    assert slot.destroyed == 1


async def test_a_runner_that_hangs_is_ended_within_the_execution_budget(node: Node) -> None:
    slot = await node.begin(wanted(budgets=Budgets(execution_seconds=5)))
    await read(node, PROGRESS, slot)
    node.clock.advance(5)
    node.service._runs["u1"]._reschedule()
    assert (await node.outcome()).reason == reasons.DEADLINE_EXCEEDED


async def test_a_runner_that_does_not_end_after_its_result_is_ended(node: Node) -> None:
    slot = await node.begin(wanted(budgets=Budgets(finalization_seconds=5)))
    await read(node, DONE, slot)
    node.clock.advance(5)
    node.service._runs["u1"]._reschedule()
    assert (await node.outcome()).reason == reasons.FINALIZATION_TIMEOUT


async def read(node: Node, data: bytes, slot: FakeSlot) -> None:
    """Have the runner write, and wait until the agent has it."""
    before = (await node.service.dispatch("u1")).last_sequence
    async with aclosing(node.service.follow("u1", before)) as lines:
        slot.writes(data)
        async for line in lines:
            if line.event is not None:
                return


async def test_the_lifetime_of_a_run_holds_whatever_its_parts_may_take(node: Node) -> None:
    """Startup, execution and finalization together, from the assignment on."""
    budgets = Budgets(startup_seconds=1, execution_seconds=1, finalization_seconds=1)
    await node.begin(wanted(budgets=budgets))
    run = node.service._runs["u1"]
    for _ in range(100):
        node.clock.advance(0.01)
        await asyncio.sleep(0)
        assert run._left() <= 3 - (node.clock.boottime() - run.begun.boottime) + 1e-9


async def test_the_same_run_again_answers_with_what_is_and_spends_no_slot(node: Node) -> None:
    slot = await node.begin()
    again = await node.service.begin(await node.reserved(), wanted(), DOCUMENT)
    assert again.uid == "u1"
    assert len(node.slots.ready) == 3
    assert bytes(slot.stdin).count(b"hunter2") <= 1
    with pytest.raises(errors.Conflict):
        await node.service.begin(await node.reserved(), wanted(mode=Mode.CALLBACK), DOCUMENT)
    assert len(node.slots.ready) == 3
    slot.writes(DONE)
    slot.ends(0)
    await node.outcome()
    ended = await node.service.begin(await node.reserved(), wanted(), DOCUMENT)
    assert ended.outcome is not None
    assert ended.outcome.succeeded
    assert len(node.slots.seen) == 1


async def test_a_document_that_is_not_the_announced_one_spends_no_slot(node: Node) -> None:
    for document in (DOCUMENT + b" ", b"{" + DOCUMENT[1:].replace(b"r", b"R")):
        with pytest.raises(errors.Invalid):
            await node.service.begin(await node.reserved(), wanted(), document)
    two = b"{}{}"
    with pytest.raises(errors.Invalid, match="follows the document"):
        await node.service.begin(await node.reserved(), wanted(document=two), two)
    assert not node.slots.seen
    assert len(node.slots.ready) == 4


async def test_32_contenders_for_one_slot_make_one_run(node: Node) -> None:
    node.slots.ready = ["only"]
    kept = await node.reserved()
    found = await asyncio.gather(
        *(node.service.begin(kept, wanted(f"u{n}"), DOCUMENT) for n in range(32)),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, Exception) for one in found) == 1
    assert {type(one) for one in found if isinstance(one, Exception)} == {errors.Unavailable}


async def test_without_a_reservation_it_is_whichever_slot_is_ready(node: Node) -> None:
    seen = await node.service.begin(None, wanted(), DOCUMENT)
    assert (seen.uid, seen.outcome) == ("u1", None)
    assert len(node.slots.ready) == 3
    again = await node.service.begin(None, wanted(), DOCUMENT)
    assert again.uid == "u1"
    assert len(node.slots.ready) == 3
    with pytest.raises(errors.Invalid):
        await node.service.begin(None, wanted("u2"), b"no document")
    node.slots.ready.clear()
    with pytest.raises(errors.Unavailable):
        await node.service.begin(None, wanted("u3"), DOCUMENT)
    assert list(node.slots.seen) == ["u1"]


async def test_a_follower_that_stalls_or_leaves_holds_up_nothing(node: Node) -> None:
    slot = await node.begin()
    stalled = node.service.follow("u1", 0)
    slot.writes(PROGRESS)
    assert (await anext(stalled)).event is not None
    for _ in range(50):
        slot.writes(PROGRESS)
    slot.writes(DONE)
    slot.ends(0)
    assert (await node.outcome()).succeeded
    left = await anext(stalled)
    assert left.event is not None
    assert left.event.sequence == 2
    await stalled.aclose()


async def test_whoever_comes_back_goes_on_by_sequence_number(node: Node) -> None:
    slot = await node.begin()
    for _ in range(5):
        slot.writes(PROGRESS)
    async with aclosing(node.service.follow("u1", 0)) as lines:
        async for line in lines:
            if line.event is not None and line.event.sequence == 3:
                break
    slot.writes(DONE)
    slot.ends(0)
    rest = await node.lines(after=3)
    assert [line.event.sequence for line in rest if line.event] == [4, 5, 6]
    assert (await node.lines(after=6))[0].ended is not None


async def test_a_quiet_run_sends_heartbeats(node: Node) -> None:
    node.times = Times(heartbeat_seconds=0.001)
    await node.restart()
    slot = await node.begin()
    lines = node.service.follow("u1", 0)
    assert (await anext(lines)).heartbeat
    assert (await anext(lines)).heartbeat
    slot.writes(DONE)
    slot.ends(0)
    seen = [line async for line in lines]
    assert [line.event.sequence for line in seen if line.event] == [1]


async def test_cancelled_means_confirmed_dead(node: Node) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    answer = await node.service.cancel("u1")
    assert answer.known
    assert answer.dispatch is not None
    assert answer.dispatch.outcome is not None
    assert answer.dispatch.outcome.reason == reasons.CANCELLED
    assert slot.destroyed == 1
    again = await node.service.cancel("u1")
    assert again.dispatch is not None
    assert again.dispatch.outcome == answer.dispatch.outcome


async def test_a_cancellation_that_is_not_confirmed_says_no_outcome(node: Node) -> None:
    def resist(slot: FakeSlot) -> None:
        slot.resists = [errors.Unavailable("the engine is away")] * 20

    node.slots.prepare = resist
    slot = await node.begin(wanted(budgets=Budgets(cleanup_seconds=1)))
    answer = await node.service.cancel("u1")
    assert answer.dispatch is not None
    assert answer.dispatch.outcome is None
    slot.resists.clear()
    assert (await node.outcome()).reason == reasons.CANCELLED


async def test_a_cancellation_that_meets_the_assignment_ends_the_run(node: Node) -> None:
    node.slots.answering = asyncio.Event()
    beginning = asyncio.create_task(node.begin())
    while not node.slots.assigned:
        await asyncio.sleep(0)
    cancelling = asyncio.create_task(node.service.cancel("u1"))
    for _ in range(8):
        await asyncio.sleep(0)
    assert not cancelling.done()
    node.slots.answering.set()
    slot = await beginning
    answer = await cancelling
    assert answer.dispatch is not None
    assert answer.dispatch.outcome is not None
    assert answer.dispatch.outcome.reason == reasons.CANCELLED
    assert slot.destroyed
    assert node.slots.fenced == set()


async def test_a_run_that_was_recorded_though_nobody_was_told_is_settled(node: Node) -> None:
    """Its document is not handed over any more: whoever wanted it was told that it is in doubt."""
    node.slots.doubtful = [errors.Unconfirmed("the disk did not say")]
    node.slots.unreadable = [errors.Unavailable("nor does it now")]
    with pytest.raises(errors.Unconfirmed):
        await node.begin()
    assert await node.service.cancel("u1") == CancelAnswer(known=True)
    slot = node.slots.seen["u1"]
    async with asyncio.timeout(60):
        while not slot.concluded:
            await asyncio.sleep(0.01)
    assert [outcome.reason for outcome in slot.concluded] == [reasons.START_UNCONFIRMED]
    assert (slot.destroyed, bytes(slot.stdin)) == (1, b"")


async def test_a_run_in_doubt_that_was_not_recorded_leaves_nothing(node: Node) -> None:
    node.slots.prepare = lambda slot: node.slots.assigned.clear()
    node.slots.doubtful = [errors.Unconfirmed("the disk did not say")]
    with pytest.raises(errors.Unconfirmed):
        await node.begin()
    async with asyncio.timeout(60):
        while (await node.service.cancel("u1")).known:
            await asyncio.sleep(0)
    assert not node.slots.seen["u1"].destroyed


async def test_a_cancellation_waits_only_so_long_on_a_node_where_much_is_begun(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_BEGIN_SECONDS", 0.1)
    node.slots.assigned["u9"] = FakeSlot("u9", node.slots)

    async def busy() -> None:
        for number in itertools.count():
            node.service._keep(f"other-{number}", asyncio.sleep(0))
            await asyncio.sleep(0.01)

    task = asyncio.create_task(busy())
    async with asyncio.timeout(60):
        with pytest.raises(errors.Unavailable):
            await node.service.cancel("u9")
    task.cancel()
    node.slots.assigned.clear()


async def test_a_run_that_was_cancelled_ahead_is_not_begun(node: Node) -> None:
    assert not (await node.service.cancel("u1")).known
    with pytest.raises(errors.Conflict):
        await node.begin()
    assert not node.slots.seen


async def test_a_restart_goes_on_where_the_events_ended(node: Node) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    slot.writes(PROGRESS[:10])
    await node.restart()
    slot.writes(PROGRESS[10:])
    slot.writes(DONE)
    slot.ends(0)
    seen = await node.lines()
    assert [line.event.sequence for line in seen if line.event] == [1, 2, 3]
    assert seen[-1].ended is not None
    assert seen[-1].ended.succeeded
    assert bytes(slot.stdin).count(b"hunter2") == 1


async def test_the_end_of_a_run_stays_known_over_a_restart(node: Node) -> None:
    slot = await node.begin()
    slot.writes(DONE)
    slot.ends(0)
    before = await node.lines()
    await node.restart()
    assert await node.lines() == before


async def test_a_hand_over_that_a_crash_cut_off_is_not_repeated(node: Node) -> None:
    node.slots.prepare = lambda slot: setattr(slot, "blocks", True)
    slot = await node.begin()
    await asyncio.sleep(0)
    await node.restart()
    slot.ends(65)
    outcome = await node.outcome()
    assert outcome.reason == reasons.START_UNCONFIRMED
    assert slot.closed
    assert not slot.stdin


async def test_an_agent_that_closes_hands_over_what_it_has_begun(node: Node) -> None:
    node.times = Times(handover_seconds=60)
    await node.restart()
    node.slots.prepare = lambda slot: setattr(slot, "blocks", True)
    slot = await node.begin()
    assert not slot.stdin
    asyncio.get_running_loop().call_later(0.05, slot.takes)
    await node.restart()
    assert slot.stdin
    slot.writes(DONE)
    slot.ends(0)
    assert (await node.outcome()).succeeded


async def test_a_document_goes_before_the_answer(node: Node) -> None:
    slot = await node.begin()
    assert json.loads(slot.stdin)["payload"] == json.loads(DOCUMENT)


async def test_one_that_is_not_taken_holds_no_answer_up(node: Node) -> None:
    node.slots.prepare = lambda slot: setattr(slot, "blocks", True)
    async with asyncio.timeout(60):
        slot = await node.begin()
    assert not slot.stdin
    slot.takes()
    slot.writes(DONE)
    slot.ends(0)
    assert (await node.outcome()).succeeded
    assert slot.stdin


async def test_a_runner_that_says_something_was_given_its_document(node: Node) -> None:
    node.slots.prepare = lambda slot: setattr(slot, "blocks", True)
    slot = await node.begin()
    await asyncio.sleep(0)
    await node.restart()
    slot.writes(DONE)
    slot.ends(0)
    assert (await node.outcome()).succeeded


async def test_no_event_is_lost_where_a_hand_over_cannot_be_written_down(node: Node) -> None:
    node.slots.prepare = lambda slot: setattr(slot, "blocks", True)
    slot = await node.begin()
    await asyncio.sleep(0)
    (node.folder / "u1" / "delivered").mkdir()
    await node.restart()
    slot.writes(PROGRESS + PROGRESS + DONE)
    slot.ends(0)
    seen = await node.lines()
    assert [line.event.sequence for line in seen if line.event] == [1, 2, 3]
    assert (await node.outcome()).succeeded


async def test_a_run_of_an_earlier_boot_is_written_off(node: Node) -> None:
    slot = await node.begin()
    node.boot = "boot-2"
    await node.restart()
    while not slot.concluded:
        await asyncio.sleep(0)
    assert slot.concluded[0].reason == reasons.CONTAINER_LOST


async def test_a_wish_to_end_it_outlives_the_agent(node: Node) -> None:
    def resist(slot: FakeSlot) -> None:
        slot.resists = [errors.Unavailable("the engine is away")]

    node.slots.prepare = resist
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    cancelling = asyncio.create_task(node.service.cancel("u1"))
    while slot.destroyed == 0:
        await asyncio.sleep(0)
    await node.restart()
    await cancelling
    assert (await node.outcome()).reason == reasons.CANCELLED


async def test_an_output_that_cannot_be_read_is_read_again_from_there(node: Node) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    slot.unreadable = [errors.Unavailable("the engine is away")]
    slot.writes(DONE)
    slot.ends(0)
    seen = await node.lines()
    assert [line.event.sequence for line in seen if line.event] == [1, 2]


async def test_a_runner_that_floods_leaves_everybody_else_their_turns(node: Node) -> None:
    async def flood(_offset: int):
        for _ in range(20_000):
            yield b'{"event_type":"a"}\n'
        slot.ends(0)

    node.slots.prepare = lambda slot: setattr(slot, "output", flood)
    slot = await node.begin()
    async with others() as turns:
        while (run := node.service._runs["u1"]).whole_bytes == 0:
            await asyncio.sleep(0)
        assert run.whole_bytes < 20_000 * 19
        before = turns[0]
        assert (await node.outcome()).reason == reasons.RESULT_MISSING
        assert turns[0] - before > 2


async def test_a_run_that_is_overdue_while_the_engine_is_away_is_not_asked_for_without_a_pause(
    node: Node,
) -> None:
    away = [errors.Unavailable("the engine is away")] * 1000
    node.slots.prepare = lambda slot: setattr(slot, "unreadable", away)
    slot = await node.begin()
    while len(away) == 1000:
        await asyncio.sleep(0.01)
    node.clock.advance(wanted().budgets.execution_seconds + 1)
    assert (await node.outcome()).reason == reasons.DEADLINE_EXCEEDED
    assert slot.destroyed == 1
    assert len(away) > 900


async def test_what_the_engine_lost_is_not_held_against_the_runner(node: Node) -> None:
    slot = await node.begin()
    slot.writes(PROGRESS + DONE[:-9])
    slot.ends(0, output_lost=True)
    outcome = await node.outcome()
    assert outcome.reason == reasons.RESULT_MISSING
    assert "some of its output was lost" in outcome.message
    assert [line.event.sequence for line in await node.lines() if line.event] == [1]


async def test_the_document_is_kept_nowhere(node: Node) -> None:
    await node.begin()
    await asyncio.sleep(0)
    kept = [path.read_bytes() for path in node.folder.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hunter2" in content for content in kept)


async def test_old_events_go_and_those_of_running_work_stay(node: Node) -> None:
    node.times = Times(keep_seconds=60)
    await node.restart()
    for uid in ("old", "new"):
        slot = await node.begin(wanted(uid))
        slot.writes(DONE)
        slot.ends(0)
        await node.outcome(uid)
        node.clock.advance(61 if uid == "old" else 0)
    running = await node.begin(wanted("running"))
    node.clock.advance(30)
    last = await node.begin(wanted("last"))
    last.writes(DONE)
    last.ends(0)
    await node.outcome("last")
    await node.service.prune()
    assert {spool.uid for spool in Spools(node.folder).all()} == {"new", "running", "last"}
    with pytest.raises(errors.NotFound):
        await node.lines("old")
    running.ends(0)


async def test_events_that_are_forgotten_while_they_are_read_are_not_said_to_be_all(
    node: Node,
) -> None:
    slot = await node.begin()
    event = b'{"event_type":"progress","payload":"' + b"a" * 300_000 + b'"}\n'
    slot.writes(event * 2 + DONE)
    slot.ends(0)
    assert (await node.outcome()).succeeded
    async with aclosing(node.service.follow("u1", 0)) as lines:
        assert (await anext(lines)).event
        node.clock.advance(node.times.keep_seconds + 1)
        await node.service.prune()
        with pytest.raises(errors.NotFound):
            [line async for line in lines]


async def test_a_run_that_was_written_off_leaves_no_events_for_ever(node: Node) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    node.boot = "boot-2"
    await node.restart()
    while node.service._tasks:
        await asyncio.sleep(0.01)
    assert len(slot.concluded) == 1
    assert list(Spools(node.folder).all()) == []


async def test_events_of_which_nothing_else_is_left_go_with_the_next_start(node: Node) -> None:
    await node.begin()
    node.slots.assigned.clear()
    await node.restart()
    assert list(Spools(node.folder).all()) == []


async def test_a_slot_that_is_being_written_off_is_not_said_to_be_gone(node: Node) -> None:
    slot = await node.begin()
    slot.resists = [errors.Unavailable("the engine is away")] * 3
    node.boot = "boot-2"
    await node.restart()
    answer = await node.service.cancel("u1")
    assert (answer.known, answer.dispatch) == (True, None)
    while not slot.concluded:
        await asyncio.sleep(0.01)


async def test_a_stop_that_cannot_be_written_down_still_ends_it(node: Node) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    (node.folder / "u1" / "stop.json").mkdir()
    answer = await node.service.cancel("u1")
    assert answer.dispatch is not None
    assert answer.dispatch.outcome is not None
    assert answer.dispatch.outcome.reason == reasons.CANCELLED


async def test_nothing_of_the_document_is_held_once_it_was_handed_over(node: Node) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    assert node.service._runs["u1"]._envelope is None
    slot.ends(1)
