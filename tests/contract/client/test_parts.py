"""The files of Checkpoints as callers get them: whole, from where they stopped, or refused."""

import asyncio
import os
from contextlib import aclosing

import pytest

from isolet.base import errors
from isolet.wire import http
from isolet.wire.checkpoint import Part
from tests.contract.client import wire
from tests.contract.client.harness import LIMITS, Served, hasty

DATA = os.urandom(5 << 20)
GRANT = "c-1/node-2"
"""What the agent in memory takes for one."""


async def read(api: object, part: Part = Part.CONTENT, **how: object) -> bytes:
    async with aclosing(api.read_checkpoint("c-1", part, **how)) as pieces:  # type: ignore[attr-defined]
        return b"".join([piece async for piece in pieces])


@pytest.fixture(autouse=True)
def parts(served: Served) -> None:
    served.agent.parts = {("c-1", Part.CONTENT): DATA, ("c-1", Part.MANIFEST): b"{}"}


async def test_all_of_it_arrives_over_the_socket(served: Served) -> None:
    client = served.over_unix()
    assert await read(client) == DATA
    assert await read(client, Part.MANIFEST) == b"{}"
    assert await read(client, offset=3 << 20) == DATA[3 << 20 :]
    assert await read(client, offset=len(DATA)) == b""
    assert {reader for _, reader, _ in served.agent.readings} == {None}
    await client.close()


async def test_another_node_is_who_its_certificate_says(served: Served) -> None:
    client = served.over_tls("node-2")
    assert await read(client, token=GRANT) == DATA
    assert served.agent.readings == [("c-1", "node-2", GRANT)]
    for token in (None, "c-1/node-3", "x"):
        with pytest.raises(errors.Refused) as caught:
            await read(client, token=token)
        assert caught.value.reason == "GrantRefused"
    await client.close()


@pytest.mark.parametrize("who", ["operator", "stream", "dispatch"])
async def test_nobody_else_gets_any_of_it_over_the_network(served: Served, who: str) -> None:
    client = served.over_tls(who)
    with pytest.raises(errors.Refused) as caught:
        await read(client, token=GRANT)
    assert caught.value.reason == "IdentityNotAllowed"
    assert served.agent.calls == []
    await client.close()


async def test_what_is_not_there_is_told_before_anything(served: Served) -> None:
    client = served.over_unix()
    with pytest.raises(errors.NotFound):
        await read(client, Part.ENTRIES)
    for path in (http.part("c-1", "else"), http.part("c-1", "content") + "?offset=-1"):
        answer = await wire.send(served, wire.request("GET", path), "node-2")
        assert answer.status in (404, 422)
    await client.close()


async def test_a_stream_that_breaks_is_seen_as_broken(served: Served) -> None:
    served.agent.pause = asyncio.Event()
    client = served.over_unix()
    got = bytearray()

    async def take() -> None:
        async with aclosing(client.read_checkpoint("c-1", Part.CONTENT)) as pieces:
            async for piece in pieces:
                got.extend(piece)

    taking = asyncio.create_task(take())
    await until(lambda: len(got) == 1 << 20)
    await served.server.close()
    with pytest.raises(errors.Unavailable):
        await taking
    assert DATA.startswith(got)
    await client.close()


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_a_reader_that_leaves_lets_go(served: Served) -> None:
    served.agent.pause = asyncio.Event()
    client = served.over_unix()
    async with aclosing(client.read_checkpoint("c-1", Part.CONTENT)) as pieces:
        await anext(pieces)
        assert served.agent.reading == 1
    await client.close()
    await until(lambda: served.agent.reading == 0)


@hasty
async def test_a_reader_that_does_not_read_is_cut_off(served: Served) -> None:
    """And what it holds is let go of, long before it goes."""
    reader, writer = await asyncio.open_unix_connection(str(served.socket), limit=1024)
    writer.write(wire.request("GET", http.part("c-1", "content")))
    await reader.readline()
    assert served.agent.readings
    await until(lambda: served.agent.reading == 0)
    await wire.hang_up(writer)


async def test_there_are_not_too_many_at_a_time(served: Served) -> None:
    served.agent.pause = asyncio.Event()
    client = served.over_unix()
    streams = [client.read_checkpoint("c-1", Part.CONTENT) for _ in range(LIMITS.copies)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(errors.Unavailable) as caught:
        await read(client)
    assert caught.value.reason == "TooManyStreams"
    for stream in streams:
        await stream.aclose()
    await until(lambda: served.agent.reading == 0)
    served.agent.pause.set()
    assert await read(client) == DATA
    await client.close()
