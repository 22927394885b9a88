"""Streams that last, readers that do not read, servers that close, agents that are no agents."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from isolet.agent.server import listeners
from isolet.agent.server.server import AgentServer
from isolet.api.executionnode import ENDPOINT_PATTERN
from isolet.base import errors
from isolet.base.tls import TLSFiles
from isolet.client.connection import Timeouts
from isolet.client.http import HTTPAgent
from isolet.wire import http
from isolet.wire.agent_api import Change
from isolet.wire.base import Fence
from isolet.wire.execution import ExecRequest, Outcome
from isolet.wire.pool import PoolsWanted
from tests.contract.client import wire
from tests.contract.client.harness import LIMITS, TIMEOUTS, Served, hasty, wanted
from tests.contract.client.memory import MemoryAgent

FAILED = Outcome(succeeded=False, reason="NonZeroExit", message="exit 9", exit_code=9)
SHORT = Timeouts(connect=20, read=1, write=1, output=1, exec_grace=1, watch_inactivity=1)


async def test_more_watchers_than_allowed_are_told_so(served: Served) -> None:
    client = served.over_unix()
    open_ = [client.watch(0) for _ in range(3)]
    for stream in open_:
        await anext(stream)
    with pytest.raises(errors.Unavailable) as caught:
        await anext(client.watch(0))
    assert caught.value.reason == "TooManyStreams"
    for stream in open_:
        await stream.aclose()
    await client.close()


async def test_a_watcher_that_has_gone_leaves_its_place(served: Served) -> None:
    client = served.over_unix()
    for _ in range(8):
        async with aclosing(client.watch(0)) as changes:
            await anext(changes)
        await no_watcher_is_left(served)  # Noticed with the next bookmark.
    await client.close()


async def no_watcher_is_left(served: Served) -> None:
    async with asyncio.timeout(60):
        while (
            b"isolet_agent_watch_streams 0.0"
            not in (await wire.send(served, wire.request("GET", http.METRICS))).body
        ):
            await asyncio.sleep(0.05)


@hasty
async def test_a_reader_that_does_not_read_is_cut_off(served: Served) -> None:
    reader, writer = await wire.dial(served)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.transport.pause_reading()
    writer.write(wire.request("GET", http.WATCH))
    for number in range(3000):
        await served.agent.put(wanted(f"uid-{number}", name="n" * 200), None)
    await no_watcher_is_left(served)
    await wire.hang_up(writer)
    del reader


@hasty
async def test_an_answer_that_nobody_reads_is_given_up(served: Served) -> None:
    await served.agent.put(wanted(), None)
    served.agent.finish("uid-1", FAILED, stdout=b"x" * (1 << 20))
    reader, writer = await wire.dial(served)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.transport.pause_reading()
    writer.write(wire.request("GET", http.output("uid-1", "stdout")))
    async with asyncio.timeout(60):  # 0.4 s, and 4 s for a MiB.
        while not connections(served):
            await asyncio.sleep(0.01)
        while connections(served):
            await asyncio.sleep(0.05)
    writer.transport.resume_reading()
    assert len(await asyncio.wait_for(reader.read(), 60)) < 1 << 20
    await wire.hang_up(writer)


def connections(served: Served) -> int:
    server = served.server._listeners[0]._runner.server
    assert server is not None
    return len(server.connections)


async def test_who_hangs_up_does_not_undo_what_was_asked(served: Served) -> None:
    begun, done = asyncio.Event(), asyncio.Event()
    put = served.agent.put

    async def slow(*given: object) -> object:
        begun.set()
        await asyncio.sleep(0.2)
        answer = await put(*given)  # type: ignore[arg-type]
        done.set()
        return answer

    served.agent.put = slow  # type: ignore[method-assign,assignment]
    _, writer = await wire.dial(served)
    writer.write(wire.request("PUT", http.execution("uid-1"), wanted().to_json()))
    await writer.drain()
    await asyncio.wait_for(begun.wait(), 60)
    await wire.hang_up(writer)
    await asyncio.wait_for(done.wait(), 60)
    assert (await served.agent.get("uid-1")).uid == "uid-1"


async def test_an_error_in_a_running_watch_arrives(served: Served) -> None:
    client = served.over_unix()
    fault = errors.Corrupt("the store cannot be read")

    async def broken(after: int) -> AsyncIterator[Change]:
        yield Change(epoch="e", sequence=after)
        raise fault

    served.agent.watch = broken  # type: ignore[method-assign]
    changes = client.watch(7)
    assert (await anext(changes)).sequence == 7
    with pytest.raises(errors.Corrupt) as caught:
        await anext(changes)
    assert caught.value.message == fault.message
    await client.close()


async def test_a_bug_in_a_running_watch_ends_it_and_tells_nothing(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    client = served.over_unix()

    async def broken(after: int) -> AsyncIterator[Change]:
        yield Change(epoch="e", sequence=after)
        raise RuntimeError("canary")

    served.agent.watch = broken  # type: ignore[method-assign]
    changes = client.watch(7)
    assert (await anext(changes)).sequence == 7
    with pytest.raises(errors.Unavailable) as caught:
        await anext(changes)
    assert caught.value.reason == "InternalError"
    assert "canary" not in caught.value.message
    assert "canary" in caplog.text
    await client.close()


async def test_closing_ends_streams_and_lets_requests_finish(short_folder: Path) -> None:
    agent, begun = MemoryAgent(), asyncio.Event()
    slow = agent.put

    async def put(*given: object) -> object:
        begun.set()
        await asyncio.sleep(0.2)
        return await slow(*given)  # type: ignore[arg-type]

    agent.put = put  # type: ignore[method-assign,assignment]
    server = AgentServer(agent, limits=replace(LIMITS, shutdown_seconds=60))
    path = short_folder / "agent.sock"
    await server.listen_unix(path)
    client = HTTPAgent(f"unix://{path}", timeouts=TIMEOUTS)
    changes = client.watch(0)
    await anext(changes)
    putting = asyncio.create_task(client.put(wanted(), None))
    await begun.wait()
    await server.close()
    assert (await putting).uid == "uid-1"
    async with asyncio.timeout(60):
        async for _ in changes:
            continue
    assert not path.exists()
    with pytest.raises(errors.Unavailable):
        await client.get("uid-1")
    with pytest.raises(errors.Unavailable) as caught:
        await client.put(wanted(), None)
    assert not isinstance(caught.value, errors.Unconfirmed)
    await client.close()


def test_a_dead_agents_socket_is_taken_over_and_a_live_ones_is_not(short_folder: Path) -> None:
    path = short_folder / "agent.sock"
    first = listeners.unix_socket(path)
    first.listen(1)
    with pytest.raises(errors.Conflict):
        listeners.unix_socket(path)
    first.close()
    listeners.unix_socket(path).close()


def test_a_file_in_the_sockets_place_is_left_alone(short_folder: Path) -> None:
    path = short_folder / "agent.sock"
    path.write_text("precious")
    with pytest.raises(errors.Conflict):
        listeners.unix_socket(path)
    assert path.read_text() == "precious"
    with pytest.raises(errors.Invalid):
        listeners.unix_socket(short_folder / ("x" * 120))


# Agents that are none.

Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def impostor(
    folder: Path, behave: Behave, timeouts: Timeouts = SHORT
) -> AsyncIterator[HTTPAgent]:
    """A client whose other end does what the test says."""
    path = folder / "impostor.sock"
    server = await asyncio.start_unix_server(behave, str(path))
    client = HTTPAgent(f"unix://{path}", timeouts=timeouts)
    try:
        yield client
    finally:
        await client.close()
        server.close()


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer greetings as an agent would, until a request of another kind has come."""
    while http.HEALTHZ.encode() in await reader.readuntil(b"\r\n\r\n"):
        writer.write(_ok(b"ok"))


def answers(raw: bytes, later: bytes = b"") -> Behave:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await greeted(reader, writer)
        except asyncio.IncompleteReadError:
            return await wire.hang_up(writer)
        writer.write(raw)
        await asyncio.sleep(0.05 if later else 0)
        writer.write(later)
        await wire.hang_up(writer)

    return behave


def _ok(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        _ok(b"{}"),
        _ok(b"<html>"),
        _ok(b'{"reason":"NotFound"}', "404 Not Found"),
        _ok(b"<html>nginx</html>", "404 Not Found"),
        _ok(b"", "403 Forbidden"),
        _ok(b"", "302 Found\r\nLocation: http://127.0.0.1:1/"),
        _ok(b'{"reason":"NoSuchPath","message":"m"}', "404 Not Found"),
        _ok(b'{"reason":"InternalError","message":"m"}', "500 Oops"),
        _ok(b'{"reason":"Teapot","message":"m"}', "418 Teapot"),
    ],
)
async def test_an_answer_that_tells_nothing_is_never_taken_for_one(
    short_folder: Path, raw: bytes
) -> None:
    async with impostor(short_folder, answers(raw)) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await client.get("uid-1")
        assert not isinstance(caught.value, errors.Unconfirmed)
        with pytest.raises(errors.Unavailable):
            await client.exec("uid-1", ExecRequest(command=("true",), timeout_seconds=1))


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", _ok(b"{}"), _ok(b"", "502 Bad")]
)
async def test_a_lost_answer_to_an_effect_is_unconfirmed(short_folder: Path, raw: bytes) -> None:
    async with impostor(short_folder, answers(raw)) as client:
        for call in (
            client.put(wanted(), Fence(lease_uid="l", transitions=1)),
            client.remove("uid-1", None),
            client.exec("uid-1", ExecRequest(command=("true",), timeout_seconds=1)),
            client.remove_strays(["x"], None),
            client.put_pools(PoolsWanted(), None),
        ):
            with pytest.raises(errors.Unconfirmed):
                await call


async def test_silence_ends_with_its_time(short_folder: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeted(reader, writer)
        await reader.read()
        await wire.hang_up(writer)

    async with impostor(short_folder, silent) as client:
        with pytest.raises(errors.Unavailable):
            await client.node()
        with pytest.raises(errors.Unconfirmed):
            await client.put(wanted(), None)
        with pytest.raises(errors.Unavailable):
            await anext(client.watch(0))


async def test_a_watch_that_falls_silent_or_breaks_ends(short_folder: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    line = Change(epoch="e", sequence=3).to_json() + b"\n"
    chunk = f"{len(line):x}\r\n".encode() + line + b"\r\n"

    async def falls_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + chunk)
        await reader.read()
        await wire.hang_up(writer)

    async with impostor(short_folder, falls_silent) as client:
        assert [change.sequence async for change in client.watch(0)] == [3]
    for end in (b"", b"0\r\n\r\n", b"zz", b"5\r\nab"):
        async with impostor(short_folder, answers(head + chunk, end)) as client:
            assert [change.sequence async for change in client.watch(0)] == [3]


@pytest.mark.parametrize("line", [b"garbage\n", b"{}\n", b"x" * (http.MAX_LINE + 2)])
async def test_a_watch_line_that_is_none_is_an_error(short_folder: Path, line: bytes) -> None:
    raw = b"HTTP/1.1 200 OK\r\n\r\n" + line
    async with impostor(short_folder, answers(raw)) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await anext(client.watch(0))
        assert caught.value.reason == "BadAnswer"


async def test_an_endless_answer_is_cut_off(short_folder: Path) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * (1 << 16))
                await writer.drain()
        except OSError:
            await wire.hang_up(writer)

    async with impostor(short_folder, endless, TIMEOUTS) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await client.output("uid-1", "stdout", 0, 1)
        assert caught.value.reason == "BadAnswer"


async def test_where_nobody_listens_nothing_was_done(short_folder: Path) -> None:
    client = HTTPAgent(f"unix://{short_folder}/none.sock", timeouts=SHORT)
    for call in (client.put(wanted(), None), client.get("uid-1")):
        with pytest.raises(errors.Unavailable) as caught:
            await call
        assert not isinstance(caught.value, errors.Unconfirmed)
    await client.close()


async def test_the_newest_common_version_is_found(served: Served) -> None:
    client = served.over_unix(wire_versions=(1, 99))
    seen = await asyncio.gather(*(client.put(wanted(f"uid-{n}"), None) for n in range(4)))
    assert len(seen) == 4
    await client.close()


async def test_no_common_version_is_said(served: Served) -> None:
    client = served.over_unix(wire_versions=(98, 99))
    with pytest.raises(errors.Unavailable) as caught:
        await client.put(wanted(), None)
    assert caught.value.reason == "UnsupportedWireVersion"
    await client.close()
    assert served.agent.calls == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://10.0.0.1:80",
        "https://",
        "https://h/path",
        "https://u:p@h",
        "https://10.0.0.1:9443",
        "unix://relative",
        "/run/isolet/agent.sock",
        "",
    ],
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(errors.Invalid):
        HTTPAgent(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["https://[abc]:7443", "https://[::::]:7443", "https://h:65536", "https://h:0"],
)
def test_an_endpoint_of_the_right_form_that_can_be_none_is_refused(endpoint: str) -> None:
    assert re.match(ENDPOINT_PATTERN, endpoint), "an ExecutionNode can have it"
    files = TLSFiles.in_folder(Path("/none"))
    with pytest.raises(errors.Invalid):
        HTTPAgent(endpoint, node="n", files=files)
