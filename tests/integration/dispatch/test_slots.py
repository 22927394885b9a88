"""What a slot is, who is given one, and what becomes of one that resists or never gets ready."""

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from isolet.agent.dispatch.service import DispatchService
from isolet.base import errors, names
from isolet.base.clock import SystemClock
from isolet.plan import pool as plan
from isolet.plan import reasons
from isolet.plan.sandbox_model import Kind
from isolet.wire.dispatch import Budgets, ReserveRequest, RunnerContract
from isolet.wire.pool import PoolsWanted
from tests.integration.agent.conftest import Node
from tests.integration.dispatch.desk import CLASS, QUICK, Desk, pool, refused, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK = ReserveRequest(class_name=CLASS)
CREATE, START = r"create\?.*name=isolet-[0-9a-f]{40}", "[0-9a-f]{64}/start"
"""Of slots alone: probes of images and runtimes come and go."""


async def given(runs: DispatchService) -> bool:
    """Whether a slot is there to be had."""
    try:
        await runs.release(await runs.reserve(ASK))
    except errors.Unavailable as error:
        return error.reason != "NoCapacity"
    return True


def made(desk: Desk, since: int = 0) -> set[str]:
    """Every slot that the engine was ever asked to make; the agent looks at its runtime too."""
    probe = names.container_name(desk.node.installation, "probe-runsc")
    asked = desk.proxy.seen[since:]
    return {each for each in asked if re.search(CREATE, each) and probe not in each}


def mounts(inspected: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {m["Destination"]: (m["Type"], m["RW"]) for m in inspected["Mounts"]}


async def test_01_02_a_slot_is_one_locked_sandbox_without_a_secret_of_ours(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second container stands beside it, and nothing has a capability."""
    planted = {"AWS_SECRET_ACCESS_KEY": "k", "ISOLET_TOKEN": "t", "PRIVATE_KEY": "p"}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    await desk.serve()
    await desk.serve(pool())
    (slot,) = desk.witness.containers(desk.node.installation)
    found = desk.witness.inspect(slot)
    host, config = found["HostConfig"], found["Config"]
    assert (host["Runtime"], host["NetworkMode"], host["ReadonlyRootfs"]) == ("runsc", "none", True)
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False)
    assert "no-new-privileges" in str(host["SecurityOpt"])
    assert host["Memory"] == host["MemorySwap"] == pool().resources.memory_bytes
    assert (host["PidsLimit"] > 0, host["NanoCpus"]) == (True, 1_000_000_000)
    assert config["User"] == "65532:65532"
    options = {place: set(text.split(",")) for place, text in host["Tmpfs"].items()}
    assert options["/tmp"] >= {"noexec", "nosuid", "nodev"}
    binds = {place: writable for place, (kind, writable) in mounts(found).items() if kind == "bind"}
    assert binds == {"/.isolet": False}
    text = str(found)
    assert not [name for name in planted if name in text]
    # From within, too: the runner's own environment.
    event, *_ = await desk.lines(await desk.begin({"env": 1}))
    assert event.event is not None
    names = set(event.event.event["value"])
    assert "PATH" in names
    assert not names & planted.keys()


async def test_03_a_slot_is_given_while_the_engine_answers_nothing(desk: Desk) -> None:
    stuck = desk.proxy.rule(".", "hang", times=10**9)
    try:
        seen = len(desk.proxy.seen)
        document, wanted = desk.asked({"say": 1}, uid=desk.uid())
        async with asyncio.timeout(60):
            kept = await desk.runs.reserve(ASK)
            assert not await given(desk.runs)
            await desk.runs.begin(kept, wanted, document)
        await until(lambda: _handed_over(desk, wanted.uid))
        asked = desk.proxy.seen[seen:]
        assert not [request for request in asked if request.startswith("POST")]
    finally:
        stuck.times = 0
        await desk.cut()
    assert (await desk.ended(wanted.uid)).succeeded


async def _handed_over(desk: Desk, uid: str) -> bool:
    return desk.runs._spools.of(uid).delivered() is not None


async def test_04_an_empty_pool_has_no_slot_and_makes_none_for_it(desk: Desk) -> None:
    kept = await desk.runs.reserve(ASK)
    before = made(desk)
    for _ in range(8):
        assert not await given(desk.runs)
    await desk.runs.release(kept)
    await desk.ready()
    assert made(desk) == before
    assert await given(desk.runs)


async def test_05_a_slot_that_is_being_removed_still_counts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slot,) = await desk.slots()
    held = desk.proxy.rule(f"DELETE .*/containers/{slot}", "refuse", times=10**9)
    before = made(desk)
    with monkeypatch.context() as patched:
        patched.setattr(plan, "_is_old", lambda wanted, one, now: True)
        desk.node.service._pools._look.set()
        await until(lambda: _retiring(desk))
    # It is not too old any more, and one is wanted: but one is there, though on its way out.
    desk.node.service._pools._look.set()
    await until(lambda: _struck(held, 3))
    assert made(desk) == before
    held.times = 0
    await desk.ready()
    assert await desk.slots() != [slot]
    assert len(made(desk)) == len(before) + 1


async def _retiring(desk: Desk) -> bool:
    return (await desk.pools())[0].retiring == 1


async def _struck(rule: Any, times: int) -> bool:
    return rule.struck >= times


async def test_06_what_cannot_be_removed_is_quarantined_and_the_node_goes_on(desk: Desk) -> None:
    (slot,) = await desk.slots()
    held = desk.proxy.rule(f"DELETE .*/containers/{slot}", "refuse", times=10**9)
    uid = await desk.begin({"say": 1})
    assert (await desk.ended(uid)).succeeded

    async def quarantined() -> bool:
        seen = await desk.node.service.get(uid)
        return seen.waiting is not None and seen.waiting.reason == reasons.QUARANTINED

    await until(quarantined)
    await desk.ready()
    assert (await desk.ended(await desk.begin())).succeeded
    assert slot in desk.witness.containers(desk.node.installation)
    assert not (await desk.node.service.get(uid)).nothing_left
    held.times = 0
    await desk.clean()


async def test_07_10_a_cancellation_is_confirmed_or_says_that_it_is_not(desk: Desk) -> None:
    (slot,) = await desk.slots()
    held = desk.proxy.rule(f"POST .*/containers/{slot}/kill", "refuse", times=10**9)
    budgets = QUICK.model_copy(update={"cleanup_seconds": 1})
    uid = await desk.begin({"sleep": 600}, budgets=budgets)
    answer = await desk.runs.cancel(uid)
    assert answer.known
    assert answer.dispatch is not None
    assert answer.dispatch.outcome is None
    await desk.ready()
    assert (await desk.ended(await desk.begin())).succeeded  # the node goes on
    held.times = 0
    assert (await desk.ended(uid)).reason == reasons.CANCELLED
    await desk.clean()
    await desk.ready()  # its place in the pool is filled


async def test_09_one_run_at_once_on_two_slots_and_never_again(desk: Desk) -> None:
    await desk.serve(pool(minimum=2, maximum=2))
    uid, before = desk.uid(), (await desk.pools())[0].assigned_total
    document, wanted = desk.asked({"say": uid}, uid=uid)
    kept = [await desk.runs.reserve(ASK) for _ in range(2)]
    work = (desk.runs.begin(one, wanted, document) for one in kept)
    found = await asyncio.gather(*work, return_exceptions=True)
    wrong = [error for error in found if isinstance(error, BaseException)]
    assert [type(error) for error in wrong] in ([], [errors.Conflict])
    assert (await desk.ended(uid)).succeeded
    assert (await desk.pools())[0].assigned_total == before + 1
    await desk.serve()
    await desk.node.service.remove(uid, None)
    await desk.clean()
    await desk.node.close()
    await desk.node.open()
    await desk.serve(pool())
    before = await desk.slots()
    await desk.begin({"say": uid}, uid=uid)  # the same again is told how it ended
    error = await refused(desk.begin({"say": "another"}, uid=uid))
    assert isinstance(error, errors.Conflict)
    desk.runs._spools.prune(SystemClock().now() + timedelta(days=1), 0)
    error = await refused(desk.begin({"say": uid}, uid=uid))  # and once that is forgotten
    assert (type(error), error.reason) == (errors.Conflict, "AlreadyEnded")
    assert await desk.slots() == before
    assert await given(desk.runs)


async def test_11_another_agents_start_and_end_touch_no_slot(desk: Desk, tmp_path) -> None:
    before = await desk.slots()
    other = Node(desk.witness.socket, tmp_path)
    for _ in range(2):
        await other.open()
        await other.service.put_pools(PoolsWanted(pools=(pool(),)), None)
        await until(lambda: _one_is_ready(other))
        await other.close()
    await other.open()
    await other.service.put_pools(PoolsWanted(), None)
    await until(lambda: _none_is_left(other))
    await other.clear()
    assert desk.witness.containers(other.installation) == []
    assert await desk.slots() == before
    assert (await desk.ended(await desk.begin())).succeeded


async def _one_is_ready(node: Node) -> bool:
    found = (await node.service.node()).pools
    return bool(found) and found[0].ready == 1


async def _none_is_left(node: Node) -> bool:
    return not await node.store.list()


@pytest.mark.parametrize("call", [CREATE, START], ids=["create", "start"])
async def test_12_13_after_a_lost_answer_there_is_one_container_and_one_start(
    desk: Desk, call: str
) -> None:
    """A start is not asked for again. A create is, under its name, which the engine gives once."""
    await desk.serve()
    seen = len(desk.proxy.seen)
    rule = desk.proxy.rule(f"POST .*/containers/{call}", "drop")
    await desk.serve(pool())
    (slot,) = desk.witness.containers(desk.node.installation)
    assert (await desk.slots(), rule.struck) == ([slot], 1)
    assert len(made(desk, since=seen)) == 1
    started = f"containers/{slot}/start"
    assert len([request for request in desk.proxy.seen[seen:] if started in request]) == 1
    assert (await desk.ended(await desk.begin())).succeeded


async def test_14_15_events_stay_whole_beside_a_loud_stderr(desk: Desk) -> None:
    """In pieces that end anywhere, with as much on the other stream in between."""
    found = await desk.lines(await desk.begin({"pieces": 60}))
    events = [line.event.event for line in found if line.event is not None]
    assert [event.get("n") for event in events[:-1]] == list(range(60))
    assert {event["x"] for event in events[:-1]} == {"y" * 40_000}
    # Its own input had an end, or it would not have come so far.
    assert events[-1]["event_type"] == "completed"
    assert found[-1].ended is not None
    assert found[-1].ended.succeeded


NEVER_READY = {
    "says half of its line": "printf read; exec sleep 600",
    "says it on the other stream": "echo ready >&2; exec sleep 600",
    "says something else first": "echo hello; echo ready; exec sleep 600",
    "says more than its line": "echo ready steady; exec sleep 600",
    "never ends its line": "head -c 3000000 /dev/zero | tr '\\0' r; exec sleep 600",
    "ends": "exit 0",
}


async def test_16_17_a_runner_that_does_not_say_its_line_is_given_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed once its time is over, and the others are made and given meanwhile."""
    budgets = Budgets(startup_seconds=1)
    bad = [
        pool(f"bad-{number}", runner=RunnerContract(command=("sh", "-c", text), budgets=budgets))
        for number, text in enumerate(NEVER_READY.values())
    ]
    monkeypatch.setattr(plan, "READY_SECONDS", 1.0)
    good = pool(runner=pool().runner.model_copy(update={"budgets": Budgets(startup_seconds=600)}))
    await desk.put(good, *bad)

    async def all_failed() -> bool:
        found = {one.class_name: one for one in await desk.pools()}
        seen = [found[one.class_name] for one in bad]
        return all(one.created_total > 1 or one.failed_total for one in seen)

    await until(all_failed)
    for one in bad:
        error = await refused(desk.runs.reserve(ReserveRequest(class_name=one.class_name)))
        assert error.reason == "NoCapacity"
    await until(lambda: given(desk.runs))
    assert (await desk.ended(await desk.begin())).succeeded
    monkeypatch.undo()
    await desk.serve(pool())


async def test_35_one_that_is_too_old_is_passed_over_for_a_fresh_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = await desk.slots()
    await desk.serve(pool(minimum=2, maximum=2))
    store, pools = desk.node.store, desk.node.service._pools
    slots = [record for record in await store.list() if record.kind is Kind.SLOT]
    waits = {slot.container_id: slot.started_boottime for slot in slots}
    (fresh,) = waits.keys() - {old}
    wanted = pools.wanted.runners_of(CLASS)
    life = wanted.startup_seconds + wanted.idle_timeout_seconds
    assert waits[old] < waits[fresh]
    moment = (waits[old] + waits[fresh]) / 2 + life  # the first is too old, the second is not
    with monkeypatch.context() as patched:
        patched.setattr(SystemClock, "boottime", lambda self: moment)
        lease = pools.reserve(wanted)
        assert lease is not None
        assert pools.reserve(wanted) is None
    assert lease.slot.container_id == fresh
    pools.release(lease, gone=False)
