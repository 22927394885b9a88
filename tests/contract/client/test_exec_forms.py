"""A command's input and output on the wire: as JSON with base64, or framed."""

import json

import pytest

from isolet.wire import http
from isolet.wire.execution import ExecRequest, ExecResult
from tests.contract.client import wire
from tests.contract.client.harness import Served, wanted

EXEC = http.exec_("uid-1")
FRAMED = f"Content-Type: {http.FRAMED}"
ANY_BYTES = bytes(range(256))


@pytest.fixture
async def session(served: Served) -> Served:
    await served.agent.put(wanted(), None)
    now = served.agent.clock.now()

    def echo(_uid: str, request: ExecRequest) -> ExecResult:
        return ExecResult(
            exit_code=0, stdout=request.stdin, stderr=b"\n", started_at=now, completed_at=now
        )

    served.agent.run = echo
    served.agent.calls.clear()
    return served


async def test_json_in_json_out(session: Served) -> None:
    for spelling in ("-_8=", "+/8="):
        body = json.dumps({"command": ["cat"], "stdin": spelling}).encode()
        answer = await wire.send(session, wire.request("POST", EXEC, body))
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert ExecResult.model_validate_json(answer.body).stdout == b"\xfb\xff"


async def test_framed_in_framed_out(session: Served) -> None:
    body = http.frame_request(ExecRequest(command=("cat",), stdin=ANY_BYTES))
    raw = wire.request("POST", EXEC, body, (FRAMED, f"Accept: {http.FRAMED}"))
    answer = await wire.send(session, raw)
    assert answer.headers["content-type"] == http.FRAMED
    result = http.unframe_result(answer.body)
    assert (result.stdout, result.stderr) == (ANY_BYTES, b"\n")


@pytest.mark.parametrize(
    "body",
    [b"", b"\n", b"{}\n", b'{"command":["a"]}', b"garbage\nx", b'{"command":[]}\n', b"\xff\n"],
)
async def test_a_frame_that_is_none_is_refused(session: Served, body: bytes) -> None:
    answer = await wire.send(session, wire.request("POST", EXEC, body, (FRAMED,)))
    assert (answer.status, answer.reason) == (422, "InvalidRequest")
    assert session.agent.calls == []


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
async def test_any_size_comes_back_whole(session: Served, size: int) -> None:
    client = session.over_tls("stream")
    data = (ANY_BYTES * (size // 256 + 1))[:size]
    result = await client.exec("uid-1", ExecRequest(command=("cat",), stdin=data))
    assert (result.stdout, result.stderr) == (data, b"\n")
    await client.close()


def test_a_result_shorter_than_it_says_is_refused() -> None:
    now = "2026-01-01T00:00:00Z"
    head = f'{{"exitCode":0,"startedAt":"{now}","completedAt":"{now}","stdoutLength":5}}'.encode()
    assert http.unframe_result(head + b"\n12345").stdout == b"12345"
    for broken in (head, head + b"\n1234", b"\n12345", head.replace(b"5}", b"-1}") + b"\n"):
        with pytest.raises(ValueError, match=r"stdoutLength|shorter|JSON"):
            http.unframe_result(broken)
