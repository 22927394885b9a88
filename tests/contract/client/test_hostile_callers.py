"""Broken and hostile requests: each gets a clear answer, and none reaches the agent."""

import asyncio
import contextlib
import logging
import os
import stat

import pytest

from isolet.base import errors
from isolet.wire import http
from isolet.wire.base import HEADER_FENCE, HEADER_WIRE, Fence
from isolet.wire.execution import Amendment
from tests.contract.client import wire
from tests.contract.client.harness import Served, hasty, wanted

ONE = http.execution("uid-1")
AMENDMENT = Amendment(active_deadline_seconds=5).to_json()


def _case(value: object) -> str:
    return value[:50].decode("latin-1").strip() if isinstance(value, bytes) else str(value)[:50]


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (wire.request("GET", "/"), 404, "NoSuchPath"),
        (wire.request("GET", "/v1/"), 404, "NoSuchPath"),
        (wire.request("GET", "/v2/executions"), 404, "NoSuchPath"),
        (wire.request("GET", "/v1/executions/a/b"), 404, "NoSuchPath"),
        (wire.request("GET", "/v1/executions/../../etc/passwd"), 404, "NoSuchPath"),
        (wire.request("GET", "/v1/executions/%2e%2e%2f%2e%2e%2fetc"), 422, "InvalidUid"),
        (wire.request("GET", "/v1/executions/%00"), 422, "InvalidUid"),
        (wire.request("GET", "/v1/executions/%ff%fe"), 422, "InvalidUid"),
        (wire.request("GET", "/v1/executions/a%0a"), 422, "InvalidUid"),
        (wire.request("GET", "/v1/executions/" + "a" * 65), 422, "InvalidUid"),
        (wire.request("GET", ONE + "/output/stdin"), 404, "NoSuchPath"),
        (wire.request("POST", ONE), 405, "MethodNotAllowed"),
        (wire.request("LOCK", ONE), 405, "MethodNotAllowed"),
        (wire.request("GET", http.WATCH + "?after=-1"), 422, "InvalidRequest"),
        (wire.request("GET", http.WATCH + "?after=x"), 422, "InvalidRequest"),
        (wire.request("GET", http.WATCH + "?after=" + "9" * 400), 422, "InvalidRequest"),
        (wire.request("GET", ONE + "/output/stdout?limit=0"), 422, "InvalidRequest"),
        (wire.request("GET", ONE + "/output/stdout?limit=1e3"), 422, "InvalidRequest"),
        (wire.request("GET", ONE + "/output/stdout?offset=%D9%A1"), 422, "InvalidRequest"),
    ],
    ids=_case,
)
async def test_what_is_asked_must_exist(
    served: Served, raw: bytes, status: int, reason: str
) -> None:
    answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (status, reason)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert served.agent.calls == []


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        "0/lease",
        "0/lease/1/2",
        "0/lease/-1",
        "0/lease/x",
        "//1",
        "0/lease/" + "9" * 19,
        "0/lease/9223372036854775808",
        "0/" + "l" * 300 + "/1",
        "0/le ase/1",
        "0/\xff/1",
    ],
    ids=_case,
)
async def test_a_garbage_fence_is_refused(served: Served, header: str) -> None:
    raw = wire.request("DELETE", ONE, headers=(f"{HEADER_FENCE}: {header}",))
    answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (400, "InvalidFence")
    assert served.agent.calls == []


async def test_two_fences_are_refused(served: Served) -> None:
    fence = f"{HEADER_FENCE}: 0/lease/1"
    answer = await wire.send(served, wire.request("DELETE", ONE, headers=(fence, fence)))
    assert (answer.status, answer.reason) == (400, "InvalidFence")


async def test_the_largest_fence_is_obeyed(served: Served) -> None:
    fence = f"{HEADER_FENCE}: 0/lease/{2**63 - 1}"
    assert (await wire.send(served, wire.request("DELETE", ONE, headers=(fence,)))).status == 200


@pytest.mark.parametrize(
    ("version", "status", "reason"),
    [
        ("99", 415, "UnsupportedWireVersion"),
        ("0", 415, "UnsupportedWireVersion"),
        ("-1", 415, "UnsupportedWireVersion"),
        ("9" * 400, 400, "InvalidWireVersion"),
        ("one", 400, "InvalidWireVersion"),
        ("", 400, "InvalidWireVersion"),
    ],
    ids=_case,
)
async def test_a_foreign_wire_version_is_told_what_is_spoken(
    served: Served, version: str, status: int, reason: str
) -> None:
    raw = wire.request("GET", http.NODE, headers=(f"{HEADER_WIRE}: {version}",))
    answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (status, reason)
    if status == 415:
        assert answer.headers[http.HEADER_WIRE_VERSIONS.lower()] == "1"


async def test_a_caller_that_names_no_version_speaks_the_first(served: Served) -> None:
    answer = await wire.send(served, wire.request("GET", http.NODE))
    assert (answer.status, answer.headers[HEADER_WIRE.lower()]) == (200, "1")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "body: Invalid JSON"),
        (b'{"activeDeadlineSeconds":', "body: Invalid JSON"),
        (b"\xff\xfe", "body: Invalid JSON"),
        (b"[" * 5000, "body: Invalid JSON"),
        (b"null", "body: "),
        (b'{"activeDeadlineSeconds":0}', "activeDeadlineSeconds: "),
        (b'{"activeDeadlineSeconds":1e400}', "activeDeadlineSeconds: "),
        (b'{"activeDeadlineSeconds":5,"state":"Paused"}', "state: "),
        (b'{"activeDeadlineSeconds":5,"stopReason":"\\ud800"}', "body: Invalid JSON"),
    ],
    ids=_case,
)
async def test_a_wrong_body_names_field_and_rule(served: Served, body: bytes, part: str) -> None:
    answer = await wire.send(served, wire.request("PATCH", ONE, body))
    assert (answer.status, answer.reason) == (422, "InvalidRequest")
    assert part in answer.message
    assert served.agent.calls == []


async def test_fields_that_lack_are_all_named(served: Served) -> None:
    answer = await wire.send(served, wire.request("PUT", ONE, b'{"uid":"uid-1"}'))
    assert answer.status == 422
    for field in ("name", "spec", "activeDeadlineSeconds"):
        assert f"{field}: Field required" in answer.message


async def test_a_wrong_value_is_not_repeated(served: Served) -> None:
    body = b'{"activeDeadlineSeconds":"canary-77","state":"canary-78"}'
    answer = await wire.send(served, wire.request("PATCH", ONE, body))
    assert answer.status == 422
    assert b"canary" not in answer.body


async def test_the_uid_of_path_and_body_must_agree(served: Served) -> None:
    answer = await wire.send(served, wire.request("PUT", ONE, wanted("uid-2").to_json()))
    assert (answer.status, answer.message) == (422, "uid: is not the one in the path")


async def test_a_newer_callers_extra_fields_are_ignored(served: Served) -> None:
    body = wanted().to_json().replace(b'{"uid"', b'{"fromTheFuture":[1],"uid"', 1)
    assert (await wire.send(served, wire.request("PUT", ONE, body))).status == 200


async def test_a_body_that_says_it_is_too_large_is_not_read(served: Served) -> None:
    raw = wire.request("PATCH", ONE, headers=("Content-Length: 999999999999",))
    answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (413, "BodyTooLarge")


async def test_a_body_that_becomes_too_large_is_cut_off(served: Served) -> None:
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    raw = wire.request("PATCH", ONE, chunk * 3, ("Transfer-Encoding: chunked",))
    answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (413, "BodyTooLarge")


async def test_a_compressed_body_is_not_unpacked(served: Served) -> None:
    raw = wire.request("PATCH", ONE, b"\x1f\x8b\x08" + b"\0" * 20, ("Content-Encoding: gzip",))
    assert (await wire.send(served, raw)).status == 422


BROKEN = {
    "broken chunk": wire.request("PATCH", ONE, b"zz\r\n{}\r\n", ("Transfer-Encoding: chunked",)),
    "two lengths": wire.request("PATCH", ONE, b"{}", ("Content-Length: 2", "Content-Length: 3")),
    "negative length": wire.request("PATCH", ONE, b"", ("Content-Length: -1",)),
    "length and chunks": wire.request(
        "PATCH", ONE, b"0\r\n\r\n", ("Content-Length: 2", "Transfer-Encoding: chunked")
    ),
    "blank before colon": wire.request("DELETE", ONE, headers=("Isolet-Fence : 0/l/1",)),
    "version of the future": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "endless path": wire.request("GET", "/" + "a" * 20_000),
    "endless header": wire.request("GET", "/", headers=("A: " + "a" * 20_000,)),
    "endless headers": wire.request("GET", "/", headers=("A: a",) * 500),
    "TLS on the plain socket": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "zeros": b"\0" * 100 + b"\r\n\r\n",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
async def test_broken_http_is_a_bad_request(served: Served, raw: bytes) -> None:
    assert (await wire.send(served, raw)).status in (400, 431)
    assert served.agent.calls == []
    assert (await wire.send(served, wire.request("GET", http.NODE))).status == 200


async def test_a_body_that_is_cut_short_reaches_nobody(served: Served) -> None:
    _, writer = await wire.dial(served)
    writer.write(wire.request("PATCH", ONE, headers=("Content-Length: 100",)) + AMENDMENT)
    await writer.drain()
    await wire.hang_up(writer)
    await asyncio.sleep(0.05)
    assert served.agent.calls == []


@hasty
async def test_a_slow_body_is_given_up(served: Served) -> None:
    raw = wire.request("PATCH", ONE, headers=("Content-Length: 100",)) + b"{"
    answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (408, "BodyTooSlow")


@hasty
@pytest.mark.parametrize("sent", [b"", b"GET /v1/no", b"GET /v1/node HTTP/1.1\r\nHost: a\r\nX: "])
async def test_a_slow_head_is_given_up(served: Served, sent: bytes) -> None:
    reader, writer = await wire.dial(served)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    await wire.hang_up(writer)


@hasty
async def test_a_head_that_drips_is_given_up(served: Served) -> None:
    reader, writer = await wire.dial(served)
    writer.write(b"GET /v1/node HTTP/1.1\r\nHost: a\r\nX: ")
    closed = asyncio.create_task(reader.read())
    for _ in range(600):
        if closed.done():
            break
        writer.write(b"X")
        await asyncio.sleep(0.1)
    assert closed.result() == b""
    await wire.hang_up(writer)


async def test_more_connections_than_allowed_are_closed(served: Served) -> None:
    pipes = [await wire.dial(served) for _ in range(24)]
    reader, writer = await wire.dial(served)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    for pipe in (*pipes, (reader, writer)):
        await wire.hang_up(pipe[1])
    async with asyncio.timeout(60):
        while True:  # Until the server has noticed that they are gone.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                answer = await wire.send(served, wire.request("GET", http.NODE))
                break
    assert answer.status == 200


async def test_two_requests_in_one_write_get_two_answers(served: Served) -> None:
    reader, writer = await wire.dial(served)
    writer.write(wire.request("GET", http.NODE) + wire.request("GET", "/nowhere"))
    answers = [await wire.read_answer(reader), await wire.read_answer(reader)]
    assert [answer.status for answer in answers] == [200, 404]
    await wire.hang_up(writer)


async def test_an_internal_error_tells_its_number_and_nothing_else(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.agent.fail_with = RuntimeError("canary-77 at /var/lib/isolet")
    with caplog.at_level(logging.ERROR, logger="isolet"):
        raw = wire.request("GET", http.NODE, headers=(f"{http.HEADER_REQUEST_ID}: req-7",))
        answer = await wire.send(served, raw)
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert b"canary" not in answer.body
    assert "req-7" in answer.message
    assert "canary-77" in caplog.text
    client = served.over_unix()
    with pytest.raises(errors.Unavailable):
        await client.get("uid-1")
    with pytest.raises(errors.Unconfirmed):
        await client.remove("uid-1", None)
    await client.close()


@pytest.mark.parametrize("given", ["a b", "x" * 65, "<script>", '"'])
async def test_a_request_id_that_is_none_is_replaced(served: Served, given: str) -> None:
    raw = wire.request("GET", http.NODE, headers=(f"{http.HEADER_REQUEST_ID}: {given}",))
    answer = await wire.send(served, raw)
    assert len(answer.headers["isolet-request-id"]) == 16


async def test_nothing_of_a_body_is_logged(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        body = wanted(stop_reason="canary-77").to_json()
        assert (await wire.send(served, wire.request("PUT", ONE, body))).status == 200
        await wire.send(served, wire.request("PUT", ONE, body + b"canary-78"))
        await wire.send(served, wire.request("GET", ONE + "?canary-79"))
    assert "request" in caplog.text
    assert "canary" not in caplog.text
    assert all("canary" not in str(record.__dict__) for record in caplog.records)


async def test_our_client_cannot_be_made_to_inject_a_header(served: Served) -> None:
    client = served.over_unix()
    for lease in ("a\r\nX: y", "a b", "a/b", "", "ü"):
        with pytest.raises(errors.Invalid):
            await client.remove("uid-1", Fence(lease_uid=lease, transitions=1))
    await client.close()
    assert served.agent.calls == []


async def test_only_the_owner_may_open_the_socket(served: Served) -> None:
    assert stat.S_IMODE(os.stat(served.socket).st_mode) == 0o600


async def test_probes_serve_nothing_else(served: Served) -> None:
    for path, status in (
        (http.HEALTHZ, 200),
        (http.READYZ, 200),
        (http.METRICS, 200),
        (http.NODE, 404),
        (ONE, 404),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.probes)
        writer.write(wire.request("GET", path))
        assert (await wire.read_answer(reader)).status == status
        await wire.hang_up(writer)


async def test_not_ready_says_why(served: Served) -> None:
    good, bad = served.agent.conditions
    no = bad.model_copy(update={"status": "False", "reason": "RuntimeUnusable", "message": "cure"})
    served.agent.conditions = (good, no)
    answer = await wire.send(served, wire.request("GET", http.READYZ))
    assert (answer.status, answer.reason, answer.message) == (503, "RuntimeUnusable", "cure")
    served.agent.conditions = (good,)
    answer = await wire.send(served, wire.request("GET", http.READYZ))
    assert (answer.status, answer.reason) == (503, "NotQualified")


async def test_metrics_have_no_label_from_a_caller(served: Served) -> None:
    for raw in (wire.request("LOCK", "/canary"), wire.request("GET", "/v1/executions/canary")):
        await wire.send(served, raw)
    text = (await wire.send(served, wire.request("GET", http.METRICS))).body.decode()
    assert 'isolet_agent_requests_total{code="404",method="other",route="other"} 1.0' in text
    assert 'route="/v1/executions/{uid}"' in text
    assert "canary" not in text
