"""Of what a follower of output tells its worker."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from isolet.agent.engine.base import OutputFrame, Stream
from isolet.agent.service.output import Follower, OutputFiles

NONCE = "n" * 16
STARTED = f"{NONCE} started\n".encode()


class Engine:
    """One log, and how often its reader had been woken at each frame."""

    def __init__(self, frames: list[tuple[Stream, bytes]]) -> None:
        self.frames = frames
        self.woken: list[int] = []
        self.count = 0

    def wake(self) -> None:
        self.count += 1

    async def output(self, _container: str, **_: object) -> AsyncIterator[OutputFrame]:
        for number, (stream, data) in enumerate(self.frames, 1):
            yield OutputFrame(stream=stream, index=number, data=data)
            self.woken.append(self.count)


OUT, ERR = Stream.STDOUT, Stream.STDERR

# Frames, how many bytes are awaited, how often it was woken after each frame.
AWAITED = {
    "nothing is awaited: the start alone": ([(OUT, STARTED), (OUT, b"ready\n")], 0, [1, 1]),
    "the line": ([(OUT, STARTED), (OUT, b"ready\n"), (OUT, b"more\n")], 6, [1, 2, 2]),
    "the line in parts": ([(OUT, STARTED), (OUT, b"rea"), (OUT, b"dy\n")], 6, [1, 1, 2]),
    "with the start": ([(OUT, STARTED + b"ready\n")], 6, [2]),
    "stderr is not it": ([(OUT, STARTED), (ERR, b"ready\nready\n")], 6, [1, 1]),
}


@pytest.mark.parametrize("name", AWAITED)
async def test_output_that_is_awaited_wakes_once(tmp_path: Path, name: str) -> None:
    frames, size, woken = AWAITED[name]
    engine = Engine(frames)
    files = OutputFiles(tmp_path / "output")
    follower = Follower(cast(Any, engine), files, cap=1 << 20, nonce=NONCE, wake=engine.wake)
    follower.await_stdout(size)
    await follower._copy("c1", follow=True)
    await follower.close()
    assert engine.woken == woken
