"""The front door over HTTP: who gets in, what is refused before anything is reserved, what a caller
that leaves changes (nothing), and how it goes."""

import asyncio
import json

import pytest

from isolet.apiserver.app import HEADER_ADMITTED, HEADER_QUEUED
from isolet.base import errors
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES, Mode
from tests.contract.apiserver.conftest import BODY, TOKEN, Front
from tests.fakes.dispatcher import failed

HEAD = f"X-Execution-Manager-Token: {TOKEN}\r\n"


async def test_a_dispatch_gives_its_result(front: Front) -> None:
    asked = asyncio.create_task(_json(front))
    run = await front.begun()
    run.says("progress", payload=1)
    run.completes({"answer": 42})
    assert await asked == (200, {"answer": 42})
    await front.free()
    assert front.count("isolet_apiserver_executions_total", status="completed") == 1
    assert run.dispatch.mode is Mode.CALLBACK
    assert json.loads(run.dispatch.document) == BODY


async def _json(front: Front, **given) -> tuple[int, object]:
    async with front.post(**given) as answer:
        return answer.status, await answer.json()


async def test_a_queued_dispatch_has_its_own_mode(front: Front) -> None:
    headers = {"X-Execution-Manager-Token": TOKEN, HEADER_QUEUED: "true"}
    asked = asyncio.create_task(_json(front, headers=headers))
    run = await front.begun()
    assert run.dispatch.mode is Mode.CALLBACK_QUEUED
    run.completes()
    await asked
    await front.free()
    for path, value in (("/execute", "yes"), ("/execute/stream", "true")):
        async with front.post(path, headers={**headers, HEADER_QUEUED: value}) as answer:
            assert answer.status == 400


@pytest.mark.parametrize("path", ["/execute", "/execute/stream", "/execute/sse"])
async def test_success_is_said_only_after_admission_and_errors_do_not_leak(
    front: Front, path: str
) -> None:
    """Without capacity: the marker. In doubt: none. Never an inner word."""
    cases = (
        (errors.Unavailable("secret", reason="NoCapacity"), 429, "false"),
        (errors.Unavailable("secret", reason="APIServer"), 503, "false"),
        (errors.Unconfirmed("secret should not reach HTTP"), 502, None),
        (RuntimeError("secret should not reach HTTP"), 502, None),
    )
    for error, status, marker in cases:
        for where in (front.dispatcher.reserve_errors, front.dispatcher.commit_errors):
            where.append(error)
            body = {**BODY, "run_id": f"run-{len(front.dispatcher.reservations)}"}
            async with front.post(path, body=body) as answer:
                assert answer.status == status
                assert answer.headers.get(HEADER_ADMITTED) == marker
                assert answer.content_type == "application/json"
                assert "secret" not in await answer.text()
            await front.free()
    assert not front.dispatcher.runs


REFUSED = {
    "an image": {"image": "evil"},
    "another callback": {"callback_url": "http://other"},
    "a general token": {"token": "general-key"},
    "no artifact": {"artifact": None},
    "an id with a slash": {"run_id": "a/b"},
    "an id that begins with a dot": {"job_id": ".a"},
    "an id of 129": {"app_id": "a" * 129},
    "a number as id": {"node_id": 7},
    "no user": {"user_id": ""},
    "a user of 1025": {"user_id": "a" * 1025},
    "a token of 32 KiB + 1": {"executor_jwt": "a" * 32_769},
    "credentials that are a list": {"credentials": []},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
async def test_a_wrong_dispatch_never_reaches_reservation(front: Front, change: dict) -> None:
    async with front.post(body={**BODY, **change}) as answer:
        assert answer.status == 400
        assert HEADER_ADMITTED not in answer.headers
        assert "evil" not in await answer.text()
    assert not front.dispatcher.reservations
    await front.free()


@pytest.mark.parametrize(
    "raw", [b"[]", b"{}{}", b"nope", b'{"run_id":"a","run_id":"b"}', b'{"payload":NaN}', b"\xff"]
)
async def test_what_is_not_one_json_object_never_reaches_reservation(
    front: Front, raw: bytes
) -> None:
    async with front.post(body=raw) as answer:
        assert answer.status == 400
        assert (await answer.json())["reason"].startswith("Document")
    assert not front.dispatcher.reservations


async def test_exactly_one_right_token_is_needed(front: Front) -> None:
    name = "X-Execution-Manager-Token"
    once = f"exactly one credential is needed, {name} or Authorization, and once"
    other, bearer = f"the {name} is not taken", "such an Authorization is not taken"
    wrong = (
        ([], once),
        ([(name, "x" * 32)], other),
        ([(name, TOKEN[:-1])], other),
        ([(name, "")], other),
        ([(name, TOKEN), (name, "duplicate")], once),
        ([(name, TOKEN), (name, TOKEN)], once),
        ([(name, TOKEN), ("Authorization", f"Bearer {TOKEN}")], once),
        ([("Authorization", f"Bearer {TOKEN}")], bearer),
    )
    for headers, said in wrong:
        async with front.post(headers=headers) as answer:
            assert answer.status == 401, headers
            assert await answer.json() == {"error": said, "reason": "Unauthenticated"}
        async with front.http.delete("/execute/run", headers=headers) as answer:
            assert answer.status == 401
        async with front.http.get("/execute/run/events", headers=headers) as answer:
            assert answer.status == 401
    assert not front.dispatcher.reservations
    assert not front.dispatcher.cancelled


async def test_another_token_is_taken_up_when_the_file_changes(front: Front) -> None:
    front.path.write_text("short")
    async with front.http.delete("/execute/a", headers={"X-Execution-Manager-Token": TOKEN}) as a:
        assert a.status == 200
    front.path.write_text("n" * 40)
    async with front.http.delete("/execute/a", headers={"X-Execution-Manager-Token": TOKEN}) as a:
        assert a.status == 401
    headers = {"X-Execution-Manager-Token": "n" * 40}
    async with front.http.delete("/execute/a", headers=headers) as answer:
        assert answer.status == 200


async def test_nothing_was_begun_where_nobody_can_say_who_calls(tmp_path) -> None:
    class Away:
        async def allows(self, token: str, verb: str) -> bool:
            raise errors.Unavailable("secret", reason="ReviewUnavailable")

    front = Front(tmp_path)
    front.reviewer = Away()
    await front.start()
    async with front.post(headers={"Authorization": "Bearer some"}) as answer:
        assert (answer.status, answer.headers[HEADER_ADMITTED]) == (503, "false")
        assert "secret" not in await answer.text()
    assert not front.dispatcher.reservations
    await front.close()


LENGTHS = f"a document has 1 to {MAX_DOCUMENT_BYTES} bytes"
FRAMINGS = {
    "no length": b"\r\n",
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "length 0": b"Content-Length: 0\r\n\r\n",
    "8 MiB + 1": f"Content-Length: {MAX_DOCUMENT_BYTES + 1}\r\n\r\n".encode(),
    "two lengths": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a sign": b"Content-Length: +2\r\n\r\n{}",
    "compressed": b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
}


# The server's own parser refuses what is not told here, before there is a request to answer.
FRAMING_SAID = {
    "no length": "exactly one Content-Length is needed, not 0",
    "chunked": "a Transfer-Encoding is not taken",
    "length 0": LENGTHS,
    "8 MiB + 1": LENGTHS,
    "compressed": "a Content-Encoding is not taken",
}


@pytest.mark.parametrize("case", FRAMINGS)
async def test_a_body_has_one_length_that_is_true(front: Front, case: str) -> None:
    head = f"POST /execute HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{HEAD}".encode()
    reader, writer = await front.raw(head + FRAMINGS[case])
    answer = await reader.read()
    assert answer.split()[1] == b"400"
    assert FRAMING_SAID.get(case, "").encode() in answer
    writer.close()
    assert not front.dispatcher.reservations
    await front.free()


async def test_what_is_no_http_is_quoted_nowhere(front: Front, caplog) -> None:
    for head in (b"POST /execute HTTP/1.1\r\nhunter2 hunter2: x\r\n\r\n", b"hunter2\r\n\r\n"):
        reader, writer = await front.raw(head)
        answer = await reader.read()
        assert answer.split()[1] == b"400"
        assert b"hunter2" not in answer
        writer.close()
    assert "hunter2" not in caplog.text


async def test_a_body_that_does_not_come_in_time_gives_its_place_back(tmp_path) -> None:
    front = await Front(tmp_path, body_seconds=0.05).start()
    head = f"POST /execute HTTP/1.1\r\nHost: x\r\n{HEAD}Content-Length: 100\r\n\r\n{{".encode()
    reader, writer = await front.raw(head)
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await front.free()
    await front.close()


async def test_the_order_of_its_questions(front: Front) -> None:
    """Token, then readiness and room, then framing and document, then a reservation."""
    bad = b"nope"
    async with front.post(body=bad, headers={}) as answer:
        assert answer.status == 401
    front.dispatcher.is_ready = False
    async with front.post(body=bad) as answer:
        assert (answer.status, answer.headers[HEADER_ADMITTED]) == (503, "false")
    front.dispatcher.is_ready = True
    place = front.book.take()
    async with front.post(body=bad) as answer:
        assert (answer.status, answer.headers[HEADER_ADMITTED]) == (429, "false")
    place.give_back()
    front.dispatcher.slots = 0
    async with front.post(body=bad) as answer:
        assert (answer.status, HEADER_ADMITTED in answer.headers) == (400, False)
    async with front.post() as answer:
        assert (answer.status, answer.headers[HEADER_ADMITTED]) == (429, "false")
    async with front.http.get("/ready") as answer:
        assert answer.status == 200, "an empty pool is no reason not to be ready"
    assert front.count("isolet_apiserver_executions_total", status="rejected") == 3


async def test_the_same_run_again_is_refused_without_the_marker(front: Front) -> None:
    asked = asyncio.create_task(_json(front))
    (await front.begun()).completes()
    await asked
    await front.free()
    async with front.post() as answer:
        assert answer.status == 409
        assert HEADER_ADMITTED not in answer.headers


async def test_a_caller_that_leaves_during_admission_changes_nothing(front: Front) -> None:
    front.dispatcher.committing.clear()
    asked = asyncio.create_task(_json(front))
    while not front.dispatcher.reservations:
        await asyncio.sleep(0.001)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    front.dispatcher.committing.set()
    run = await front.begun()
    assert not await front.book.drained(0)
    run.completes()
    await front.free()
    assert front.count("isolet_apiserver_executions_total", status="completed") == 1


async def test_a_place_is_held_until_the_run_ends_though_its_reader_has_left(front: Front) -> None:
    async with front.post("/execute/stream") as answer:
        assert answer.status == 200
    async with front.post(body={**BODY, "run_id": "second"}) as answer:
        assert answer.status == 429
    assert len(front.dispatcher.reservations) == 1
    (await front.begun()).completes()
    await front.free()


async def test_a_stream_of_events(front: Front) -> None:
    async with front.post("/execute/stream") as answer:
        assert answer.content_type == "application/x-ndjson"
        run = await front.begun()
        run.quiet()
        assert json.loads(await answer.content.readline()) == {"event_type": "heartbeat"}
        run.says("progress", payload={"text": "a\nb"})
        line = json.loads(await answer.content.readline())
        assert line == {"sequence": 1, "event_type": "progress", "payload": {"text": "a\nb"}}
        run.completes()
        rest = [json.loads(found) async for found in answer.content]
    assert [found["event_type"] for found in rest] == ["completed"]


@pytest.mark.parametrize("path", ["/execute/stream", "/execute/sse"])
async def test_a_failed_run_ends_its_stream_with_an_error_event(front: Front, path: str) -> None:
    async with front.post(path) as answer:
        (await front.begun()).ends(failed("NonZeroExit"))
        text = await answer.text()
    last = json.loads(text.strip().splitlines()[-1].removeprefix("data: "))
    assert last["event_type"] == "error"
    assert last["payload"]["reason"] == "NonZeroExit"
    assert "secret" not in text


async def test_a_failed_run_is_a_502_without_an_inner_word(front: Front) -> None:
    asked = asyncio.create_task(_json(front))
    (await front.begun()).ends(failed("OOMKilled"))
    status, body = await asked
    assert status == 502
    assert body["reason"] == "OOMKilled"
    assert "secret" not in str(body)


async def test_tenant_strings_cannot_inject_sse_fields(front: Front) -> None:
    evil = "x\n\nevent: injected\ndata: {}\r\rid: 9\u2028event: injected"
    async with front.post("/execute/sse") as answer:
        assert answer.content_type == "text/event-stream"
        run = await front.begun()
        run.says("progress", payload={evil: evil}, extra=evil)
        run.completes({"text": evil})
        text = (await answer.read()).decode("ascii")
    fields = [line.partition(":")[0] for line in text.splitlines() if line]
    assert fields == ["id", "data"] * 2
    assert "\r" not in text
    assert text.endswith("\n\n")


async def test_whoever_comes_back_goes_on_by_sequence_number(front: Front) -> None:
    async with front.post("/execute/stream") as answer:
        run = await front.begun()
        for number in range(5):
            run.says("progress", payload=number)
        await answer.content.readline()
    run.completes()
    headers = {"X-Execution-Manager-Token": TOKEN}
    async with front.http.get("/execute/run/events?after=3", headers=headers) as answer:
        lines = [json.loads(line) async for line in answer.content]
    assert [line["sequence"] for line in lines] == [4, 5, 6]
    sse = {**headers, "Accept": "text/event-stream", "Last-Event-ID": "5"}
    async with front.http.get("/execute/run/events", headers=sse) as answer:
        assert (await answer.text()).startswith("id: 6\ndata: {")
    async with front.http.get("/execute/other/events", headers=headers) as answer:
        assert answer.status == 404


async def test_a_stream_that_breaks_off_behind_the_door_is_taken_up_again(front: Front) -> None:
    async with front.post("/execute/stream") as answer:
        run = await front.begun()
        run.says("progress")
        await answer.content.readline()
        for error in (None, errors.Unavailable("the agent restarts"), None, None):
            run.breaks_off(error)
        run.completes()
        rest = [json.loads(line) async for line in answer.content]
    assert [line["sequence"] for line in rest] == [2]
    await front.free()


async def test_a_run_that_cannot_be_followed_any_more_is_in_doubt(front: Front) -> None:
    asked = asyncio.create_task(_json(front))
    run = await front.begun()
    run.breaks_off(errors.NotFound("not kept"))
    status, body = await asked
    said = "how the run ended is not known here; inspect the run's status"
    assert (status, body) == (502, {"error": said, "reason": "Unconfirmed"})
    await front.free()
    headers = {"X-Execution-Manager-Token": TOKEN}
    run.breaks_off(errors.NotFound("not kept"))
    async with front.http.get("/execute/run/events", headers=headers) as answer:
        assert json.loads(await answer.text()) == {
            "event_type": "error",
            "payload": {"message": said, "reason": "Unconfirmed"},
        }


async def test_a_reader_that_stalls_is_cut_off_and_the_run_goes_on(tmp_path) -> None:
    front = await Front(tmp_path, write_seconds=0.05).start()
    body = json.dumps(BODY).encode()
    head = f"POST /execute/stream HTTP/1.1\r\nHost: x\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n"
    _, writer = await front.raw(head.encode() + body)
    run = await front.begun()
    for _ in range(40):
        run.says("progress", payload="a" * 1_000_000)
    while len(front.server._runner.server.connections) > 0:
        await asyncio.sleep(0.01)
    assert not await front.book.drained(0)
    run.completes()
    await front.free()
    writer.close()
    await front.close()


async def test_a_long_run_is_not_cut_by_the_time_for_a_head(tmp_path) -> None:
    front = await Front(tmp_path, head_seconds=2).start()
    asked = asyncio.create_task(_json(front))
    run = await front.begun()
    await asyncio.sleep(3)
    assert not asked.done()
    run.completes()
    assert (await asked)[0] == 200
    await front.close()


async def test_a_head_that_does_not_come_is_cut_off(tmp_path) -> None:
    front = await Front(tmp_path, head_seconds=0.05).start()
    reader, writer = await front.raw(b"POST /execute HTTP/1.1\r\nHost:")
    assert await reader.read() == b""
    writer.close()
    await front.close()


async def test_a_half_closed_caller_still_gets_its_result(front: Front) -> None:
    body = json.dumps(BODY).encode()
    head = f"POST /execute HTTP/1.1\r\nHost: x\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n"
    reader, writer = await front.raw(head.encode() + body, half_close=True)
    (await front.begun()).completes()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"success":true}')
    writer.close()


async def test_a_caller_that_has_its_answer_and_goes_holds_no_connection(tmp_path) -> None:
    front = await Front(tmp_path, head_seconds=3600).start()
    reader, writer = await front.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    writer.write_eof()
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    await front.close()


async def test_65_headers_are_too_many(front: Front) -> None:
    headers = {"X-Execution-Manager-Token": TOKEN, **{f"X-{n}": "1" for n in range(64)}}
    async with front.post(headers=headers) as answer:
        assert answer.status == 400
    assert not front.dispatcher.reservations


async def test_a_connection_too_many_is_told_that_nothing_was_begun(tmp_path) -> None:
    front = await Front(tmp_path, spare_connections=2).start()
    held = [await front.raw(b"") for _ in range(3)]
    while len(front.server._runner.server.connections) < 3:
        await asyncio.sleep(0.001)
    reader, writer = await front.raw(b"")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"X-Execution-Admitted: false" in answer
    for _, one in (*held, (reader, writer)):
        one.close()
    await front.close()


async def test_cancelling(front: Front) -> None:
    headers = {"X-Execution-Manager-Token": TOKEN}
    asked = asyncio.create_task(_json(front))
    await front.begun()
    async with front.http.delete("/execute/run", headers=headers) as answer:
        body = await answer.json()
    assert body == {"run_id": "run", "terminated": True, "containers_removed": 1}
    assert (await asked)[0] == 502
    await front.free()
    async with front.http.delete("/execute/ahead", headers=headers) as answer:
        assert (await answer.json())["containers_removed"] == 0
    async with front.post(body={**BODY, "run_id": "ahead"}) as answer:
        assert answer.status == 409
    async with front.http.delete("/execute/%2e%2e", headers=headers) as answer:
        assert answer.status in (400, 404)
    async with front.http.delete("/execute/a%20b", headers=headers) as answer:
        assert answer.status == 400


async def test_a_cancellation_that_is_not_confirmed_is_a_503_and_admission_stays_open(
    front: Front,
) -> None:
    headers = {"X-Execution-Manager-Token": TOKEN}
    front.dispatcher.unconfirmed_cancels = 1
    front.dispatcher.cancel_errors = []
    async with front.http.delete("/execute/run", headers=headers) as answer:
        assert answer.status == 503
    front.dispatcher.cancel_errors = [errors.Unavailable("secret", reason="TooManyCancellations")]
    async with front.http.delete("/execute/run", headers=headers) as answer:
        assert answer.status == 503
        assert "secret" not in await answer.text()
    async with front.http.get("/ready") as answer:
        assert answer.status == 200


async def test_probes_and_metrics(front: Front) -> None:
    async with front.http.get("/health") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "healthy"})
    async with front.http.get("/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await answer.text()
    assert "isolet_apiserver_capacity 1.0" in text
    front.dispatcher.is_ready = False
    async with front.http.get("/ready") as answer:
        assert (answer.status, await answer.json()) == (503, {"ready": False})
    async with front.http.get("/nothing") as answer:
        assert answer.status == 404
    async with front.http.get("/execute") as answer:
        assert answer.status == 405


async def test_32_callers_for_one_slot(wide: Front) -> None:
    wide.dispatcher.slots = 1
    asked = [
        asyncio.create_task(_json(wide, body={**BODY, "run_id": f"run-{n}"})) for n in range(32)
    ]
    while not wide.dispatcher.runs:
        await asyncio.sleep(0.001)
    for run in wide.dispatcher.runs.values():
        run.completes()
    statuses = sorted([(await one)[0] for one in asked])
    assert statuses == [200] + [429] * 31
    await wide.free()


async def test_a_document_of_8_mib(front: Front) -> None:
    frame = len('{"mode":"callback-queued","payload":}\n')
    empty = len(json.dumps({**BODY, "payload": ""}))
    body = {**BODY, "payload": "a" * (MAX_DOCUMENT_BYTES - empty - frame)}
    asked = asyncio.create_task(_json(front, body=body))
    (await front.begun()).completes()
    assert (await asked)[0] == 200
    await front.free()
    body = {**BODY, "run_id": "other", "payload": body["payload"] + "a" * (frame - 2)}
    async with front.post(body=body) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (400, "DocumentTooLarge")
