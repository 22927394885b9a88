"""Whatever always finds more to do gives everybody else a turn."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from isolet.agent.engine.base import OutputFrame, Stream
from isolet.agent.engine.transport import Connection
from isolet.agent.service.output import Follower, OutputFiles
from isolet.base.fairness import Turns


@asynccontextmanager
async def others() -> AsyncIterator[list[int]]:
    """Somebody who counts the turns that they are given."""
    turns = [0]

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    task = asyncio.create_task(count())
    await asyncio.sleep(0)
    yield turns
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def turns_during(work: Awaitable[object]) -> int:
    """How many turns others have while this goes on."""
    async with others() as turns:
        before = turns[0]
        await work
        return turns[0] - before


async def test_a_turn_is_given_once_its_time_is_over() -> None:
    async def busy(seconds: float) -> None:
        turns = Turns(seconds)
        for _ in range(100):
            await turns.give()

    assert await turns_during(busy(0)) == 100
    assert await turns_during(busy(60)) == 0


async def test_a_socket_that_always_has_more_is_read_in_turns() -> None:
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(b"a" * 1000)
    connection = Connection(ours)

    async def read() -> None:
        for _ in range(1000):
            assert await connection.receive(1) == b"a"

    assert await turns_during(read()) >= 999
    connection.close()
    theirs.close()


async def test_a_log_that_floods_is_followed_in_turns(tmp_path) -> None:
    class Engine:
        async def output(self, _container, *, after, follow):
            for number in range(1, 50_001):
                yield OutputFrame(stream=Stream.STDERR, index=number, data=b"a\n")

    files = OutputFiles(tmp_path / "output")
    follower = Follower(Engine(), files, cap=None, nonce="n" * 16, wake=lambda: None)
    assert await turns_during(follower._copy("c1", follow=True)) > 2
    await follower.close()
    assert files.size(Stream.STDERR) == 100_000
