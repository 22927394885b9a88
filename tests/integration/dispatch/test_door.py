"""The front door before a real agent: what callers are told, and what they cannot do."""

import asyncio
import json
from typing import Any

import pytest
from multidict import CIMultiDict

from isolet.apiserver.app import HEADER_ADMITTED
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.dispatch import ReserveRequest
from tests.contract.apiserver.test_front_door import REFUSED
from tests.integration.dispatch.desk import CLASS, TOKEN, Desk, FrontDoor, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS = ("/execute", "/execute/stream", "/execute/sse")


async def answered(door: FrontDoor, path: str, body: Any, **headers: str) -> tuple[int, str, Any]:
    """Status, text, and the marker of what was certainly not begun."""
    async with door.post(path, body, **headers) as answer:
        return answer.status, await answer.text(), answer.headers.get(HEADER_ADMITTED)


async def works(door: FrontDoor) -> None:
    """A dispatch goes through; the slot for it may be on its way."""
    await door.desk.ready()
    status, text, _ = await answered(door, "/execute", door.body({"say": 1}))
    assert (status, json.loads(text)["mode"]) == (200, "callback")


@pytest.mark.parametrize("path", PATHS)
async def test_18_success_is_said_after_admission_and_the_marker_where_it_is_certain(
    desk: Desk, door: FrontDoor, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    kept = await desk.runs.reserve(ReserveRequest(class_name=CLASS))
    writes = len(desk.cluster.writes)
    status, text, marker = await answered(door, path, door.body({"say": 1}))
    assert (status, json.loads(text)["reason"], marker) == (429, "NoCapacity", "false")
    assert len(desk.cluster.writes) == writes
    await desk.runs.release(kept)

    async def fails(*_: object) -> None:
        raise errors.Unavailable("/secret/path: disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(desk.node.store, "assign", fails)
        status, text, marker = await answered(door, path, door.body({"say": 1}))
    assert (status, marker) == (502, None)
    assert "secret" not in text
    await desk.ready()
    status, text, marker = await answered(door, path, door.body({"say": 1}))
    assert (status, marker) == (200, None)
    assert "completed" in text or "digest" in text


async def test_19_a_wrong_dispatch_or_caller_never_reaches_a_slot(
    desk: Desk, door: FrontDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    reserve = door.client.reserve

    async def counted(request: ReserveRequest) -> Any:
        asked.append(request)
        return await reserve(request)

    monkeypatch.setattr(door.client, "reserve", counted)
    for change in REFUSED.values():
        status, _, marker = await answered(door, "/execute", {**door.body(), **change})
        assert (status, marker) == (400, None), change
    name = "X-Execution-Manager-Token"
    for tokens in ([], ["u" * 32], [TOKEN, TOKEN], [TOKEN, "u" * 32], [TOKEN[:-1]]):
        headers = CIMultiDict((name, token) for token in tokens)
        async with door.http.post("/execute", json=door.body(), headers=headers) as answer:
            assert answer.status == 401
    assert not asked
    await works(door)
    assert len(asked) == 1


async def test_20_a_caller_that_leaves_during_admission_changes_nothing(
    desk: Desk, door: FrontDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()
    assign = desk.node.store.assign

    async def held(*arguments: Any) -> Any:
        reached.set()
        await goes_on.wait()
        return await assign(*arguments)

    monkeypatch.setattr(desk.node.store, "assign", held)
    body = door.body({"say": 1})
    calling = asyncio.create_task(answered(door, "/execute", body))
    await reached.wait()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    goes_on.set()
    assert await door.book.drained(120)
    assert (await desk.ended(await door.uid_of(body["run_id"]))).succeeded


async def test_21_a_place_is_held_until_its_run_ends_though_its_reader_has_left(
    desk: Desk,
) -> None:
    door = await FrontDoor(desk, capacity=1).start()
    body = door.body({"say": 1}, {"sleep": 600})
    async with door.post("/execute/stream", body) as answer:
        assert json.loads(await answer.content.readline())["event_type"] == "said"
        answer.close()
    await desk.ready()
    status, text, marker = await answered(door, "/execute", door.body({"say": 1}))
    assert (status, json.loads(text)["reason"], marker) == (429, "CapacityReached", "false")
    headers = {"X-Execution-Manager-Token": TOKEN}
    async with door.http.delete(f"/execute/{body['run_id']}", headers=headers) as answer:
        assert (answer.status, (await answer.json())["terminated"]) == (200, True)
    assert await door.book.drained(120)
    await works(door)
    await door.close()


async def test_22_a_tenants_strings_inject_no_field_of_an_event(door: FrontDoor) -> None:
    bad = "a\nevent: injected\r\nid: 7\n\ndata: {}\u2028\x85retry: 1"
    status, text, _ = await answered(door, "/execute/sse", door.body({"say": bad}))
    assert status == 200
    fields = [line.partition(":")[0] for line in text.splitlines(keepends=False) if line]
    assert set(fields) <= {"id", "event", "data", ""}
    said, result = [block for block in text.split("\n\n") if "data:" in block]
    assert [line for line in said.split("\n") if line.startswith("id:")] == ["id: 1"]
    data = next(line for line in said.split("\n") if line.startswith("data:"))
    assert json.loads(data.removeprefix("data:"))["value"] == bad
    assert "completed" in result


async def half_closed(door: FrontDoor, body: Any) -> bytes:
    """The whole answer to a caller that has said that it will send no more."""
    data = json.dumps(body).encode()
    head = (
        "POST /execute HTTP/1.1\r\nHost: door\r\nConnection: close\r\n"
        f"X-Execution-Manager-Token: {TOKEN}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(head.encode() + data)
    writer.write_eof()
    async with asyncio.timeout(120):
        found = await reader.read()
    writer.close()
    await writer.wait_closed()
    return found


async def test_24_a_long_run_is_not_cut_off_nor_is_a_half_closed_caller(desk: Desk) -> None:
    door = await FrontDoor(desk, head_seconds=3.0, body_seconds=3.0).start()
    found = await half_closed(door, door.body({"say": 1}, {"sleep": 4}))
    assert found.startswith(b"HTTP/1.1 200")
    assert b'"mode":"callback"' in found
    await door.close()


async def test_37_of_32_callers_one_gets_the_slot_and_none_is_lost(desk: Desk) -> None:
    door = await FrontDoor(desk, capacity=32).start()
    await desk.ready()
    bodies = [door.body({"say": number}) for number in range(32)]
    objects = len(desk.cluster.objects)
    no_other = desk.proxy.rule("POST .*/containers/create", "refuse", times=10**9)
    found = await asyncio.gather(*(answered(door, "/execute", body) for body in bodies))
    no_other.times = 0
    statuses = [status for status, *_ in found]
    assert sorted(statuses) == [200] + 31 * [429]
    assert {(status, marker) for status, _, marker in found} == {(200, None), (429, "false")}
    assert len(desk.cluster.objects) == objects + 1
    # Nobody's name was used up by being refused.
    again = bodies[statuses.index(429)]
    await desk.ready()
    assert (await answered(door, "/execute", again))[0] == 200
    # A repeat is refused, and spends no slot; so is a wrong caller.
    await desk.ready()
    before = await desk.slots()
    assert (await answered(door, "/execute", again))[0] == 409
    wrong = {"X-Execution-Manager-Token": "u" * 32}
    assert (await answered(door, "/execute", door.body({"say": 1}), **wrong))[0] == 401
    assert await desk.slots() == before
    await door.close()


async def test_37_the_result_comes_before_the_end_and_a_line_over_its_bound_is_refused(
    desk: Desk, door: FrontDoor
) -> None:
    _, text, _ = await answered(door, "/execute/stream", door.body({"say": 1}))
    kinds = [json.loads(line)["event_type"] for line in text.splitlines()]
    assert kinds == ["said", "completed"]
    await desk.ready()
    body = door.body({"endless": 2 << 20}, {"sleep": 600})
    _, text, _ = await answered(door, "/execute/stream", body)
    last = json.loads(text.splitlines()[-1])
    assert last["event_type"] == "error"
    assert last["payload"]["reason"] == reasons.EVENT_TOO_LARGE


async def test_37_a_front_door_that_goes_leaves_its_run_to_its_end(desk: Desk) -> None:
    door = await FrontDoor(desk).start()
    body = door.body({"say": 1}, {"sleep": 2}, {"say": 2})
    calling = asyncio.create_task(answered(door, "/execute", body))
    await until(lambda: _is_begun(door, body["run_id"]))
    uid = await door.uid_of(body["run_id"])
    for task in (calling, *door.book._tasks):
        task.cancel()
    await asyncio.gather(calling, *door.book._tasks, return_exceptions=True)
    await door.close()
    assert (await desk.ended(uid)).succeeded
    assert len(await desk.lines(uid)) == 4


async def _is_begun(door: FrontDoor, run_id: str) -> bool:
    try:
        await door.desk.runs.dispatch(await door.uid_of(run_id))
    except errors.NotFound:
        return False
    return True
