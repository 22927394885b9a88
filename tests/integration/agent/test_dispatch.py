"""Dispatch on a real engine: a document into a runner that waits in gVisor, events out, once."""

import asyncio
import json
from contextlib import aclosing

import pytest

from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.dispatch import DispatchLine, ReserveRequest, RunnerContract
from isolet.wire.execution import Amendment, State
from isolet.wire.pool import PoolsWanted, PoolWanted
from isolet.wire.process import StagedFile
from tests.dispatches import CLASS, a_pool, a_run
from tests.integration.agent.conftest import MIB, environment
from tests.integration.agent.test_pools import pool_seen, pooled, ready, slots_of, until
from tests.witness import contents_below

__all__ = ["pooled"]


def pool(**changes: object) -> PoolWanted:
    return a_pool(environment("ISOLET_IMAGE_RUNNER"), **changes)


async def warm(node, **changes: object):
    """The runs of a node with one ready runner."""
    await node.service.put_pools(PoolsWanted(pools=(pool(**changes),)), None)
    await ready(node.service)
    return node.service.runs.service


def asked(*steps: dict[str, object], uid: str = "run-1", **more: object):
    document = json.dumps({"run_id": uid, "payload": list(steps), **more}).encode()
    return document, a_run(document, uid)


async def begun(node, *steps: dict[str, object], uid: str = "run-1"):
    runs = await warm(node)
    document, wanted = asked(*steps, uid=uid)
    kept = await runs.reserve(ReserveRequest(class_name=CLASS))
    await runs.begin(kept, wanted, document)
    return runs


async def lines(runs, uid: str = "run-1", after: int = 0) -> list[DispatchLine]:
    found = [line async for line in runs.follow(uid, after)]
    return [line for line in found if not line.heartbeat]


async def gone(node, uid: str = "run-1") -> None:
    """Nothing is left of a run: no container of its slot."""

    async def look() -> bool:
        seen = await node.service.get(uid)
        return seen.nothing_left

    await until(look)
    record = await node.store.get(uid)
    with pytest.raises(errors.NotFound):
        await node.engine.inspect(record.container_id)


async def test_a_document_gives_a_result_and_leaves_nothing(pooled) -> None:
    runs = await begun(pooled, {"echo": 1}, {"echo": "a\nb"})
    found = await lines(runs)
    assert [line.event.type for line in found[:-1]] == ["progress", "progress", "completed"]
    assert found[2].event.event["payload"] == {"mode": "stream", "result": "a\nb"}
    assert found[-1].ended.succeeded, found[-1]
    await gone(pooled)
    seen = await pooled.service.get("run-1")
    assert seen.outcome.reason == reasons.SUCCEEDED
    await ready(pooled.service)  # the pool is filled again


@pytest.mark.parametrize(
    ("program", "why"),
    [("/bin/false", reasons.NON_ZERO_EXIT), ("/no/such", reasons.START_FAILED)],
)
async def test_a_runner_that_never_waits_is_told_of_in_its_pool(pooled, program, why) -> None:
    broken = pool(runner=RunnerContract(command=(program,)))
    await pooled.service.put_pools(PoolsWanted(pools=(broken,)), None)

    async def said() -> str:
        return (await pool_seen(pooled.service)).message

    assert f"did not become ready ({why}: " in await until(said)
    assert (await pool_seen(pooled.service)).ready == 0


async def test_a_runner_whose_files_cannot_all_be_there_is_never_made(pooled) -> None:
    files = tuple(StagedFile(path=path, content=b"") for path in ("a/b", "a"))
    broken = pool(class_name="broken", runner=RunnerContract(command=("x",), files=files))
    await pooled.service.put_pools(PoolsWanted(pools=(pool(), broken)), None)
    await ready(pooled.service)  # The other pool of the wish is filled.
    told = {seen.class_name: seen for seen in (await pooled.service.node()).pools}
    assert "runner.files: a path lies below another file's path" in told["broken"].message
    assert (told["broken"].created_total, told[CLASS].created_total) == (0, 1)


async def test_8_mib_go_in_and_the_file_of_the_class_is_there(pooled) -> None:
    runs = await warm(pooled)
    document, wanted = asked({"echo": 1}, filler="a" * (7 * MIB + 900_000))
    kept = await runs.reserve(ReserveRequest(class_name=CLASS))
    await runs.begin(kept, wanted, document)
    assert (await lines(runs))[-1].ended.succeeded


@pytest.mark.parametrize("calls", [1, 2])
async def test_many_callers_for_one_slot_make_one_run(pooled, calls: int) -> None:
    runs = await warm(pooled)

    async def one(number: int) -> bool:
        document, wanted = asked({"echo": number}, uid=f"run-{number}")
        try:
            request = ReserveRequest(class_name=CLASS)
            kept = await runs.reserve(request) if calls == 2 else None
            await runs.begin(kept, wanted, document)
        except errors.Unavailable:
            return False
        return True

    found = await asyncio.gather(*(one(number) for number in range(32)))
    assert sum(found) == 1
    assert (await lines(runs, f"run-{found.index(True)}"))[-1].ended.succeeded


async def test_a_duplicate_and_a_cancelled_run_spend_no_slot(pooled) -> None:
    runs = await begun(pooled, {"echo": 1})
    await lines(runs)
    await gone(pooled)  # or its container would be one of those that are labelled as slots
    await ready(pooled.service)
    (before,) = await slots_of(pooled)
    assert not (await runs.cancel("ahead")).known
    for uid in ("run-1", "ahead"):
        document, wanted = asked({"echo": 2}, uid=uid)
        kept = await runs.reserve(ReserveRequest(class_name=CLASS))
        with pytest.raises(errors.Conflict):
            await runs.begin(kept, wanted, document)
    assert [slot.id for slot in await slots_of(pooled)] == [before.id]
    await ready(pooled.service)


async def test_events_go_on_over_a_restart_of_the_agent(pooled) -> None:
    steps = ({"echo": 1}, {"sleep": 1.5}, {"echo": 2})
    runs = await begun(pooled, *steps)
    async with aclosing(runs.follow("run-1", 0)) as found:
        async for line in found:
            if line.event is not None:
                break
    await pooled.close()
    await pooled.open()
    rest = await lines(pooled.service.runs.service, after=1)
    assert [line.event.sequence for line in rest[:-1]] == [2, 3, 4]
    assert rest[-1].ended.succeeded
    await gone(pooled)


async def test_cancelled_means_confirmed_dead(pooled) -> None:
    runs = await begun(pooled, {"echo": 1}, {"sleep": 60})
    answer = await runs.cancel("run-1")
    assert answer.dispatch.outcome.reason == reasons.CANCELLED
    await gone(pooled)


async def test_its_owner_ends_it_as_any_execution(pooled) -> None:
    runs = await begun(pooled, {"echo": 1}, {"sleep": 60})
    await pooled.service.amend("run-1", Amendment(generation=2, state=State.TERMINATED), None)
    assert (await lines(runs))[-1].ended.reason == reasons.CANCELLED
    await pooled.service.remove("run-1", None)

    async def buried() -> bool:
        return await pooled.store.get("run-1") is None

    await until(buried)


async def test_nothing_of_a_document_is_on_the_node(pooled) -> None:
    runs = await warm(pooled)
    document, wanted = asked({"echo": "said"}, {"sleep": 5}, filler="hunter2")
    kept = await runs.reserve(ReserveRequest(class_name=CLASS))
    await runs.begin(kept, wanted, document)
    record = await pooled.store.get("run-1")
    inspected = await pooled.engine.inspect(record.container_id)
    assert "hunter2" not in str(inspected)
    assert (await lines(runs))[-1].ended.succeeded
    await gone(pooled)
    files = dict(contents_below(pooled.root / "state"))
    assert any(b"said" in content for content in files.values())  # kept, and looked through
    assert [path for path, content in files.items() if b"hunter2" in content] == []
