"""Of what a follower of output tells its worker."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from isolet.agent.engine.base import OutputFrame, Stream
from isolet.agent.service.output import READ_TRIES, Follower, OutputFiles
from isolet.base import errors

NONCE = "n" * 16
STARTED = f"{NONCE} started\n".encode()


class Engine:
    """One log, and how often its reader had been woken at each frame."""

    def __init__(self, frames: list[tuple[Stream, bytes]]) -> None:
        self.frames = frames
        self.woken: list[int] = []
        self.count = 0
        self.breaks: list[errors.IsoletError] = []
        """What its reader meets after the first frame, once each."""

    def wake(self) -> None:
        self.count += 1

    async def output(
        self, _container: str, *, after: dict[Stream, int], **_: object
    ) -> AsyncIterator[OutputFrame]:
        for number, (stream, data) in enumerate(self.frames, 1):
            if number <= after[stream]:
                continue
            yield OutputFrame(stream=stream, index=number, data=data)
            self.woken.append(self.count)
            if self.breaks:
                raise self.breaks.pop(0)


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


AWAY = errors.Unavailable("the engine cannot be reached")
GONE = errors.NotFound("no such container")
LOG = [(OUT, STARTED), (OUT, b"first\n"), (OUT, b"last\n")]

# How often the engine goes away, and whether the container goes with its log then.
REST = {
    "it is read at once": ([], 0, True),
    "the engine goes away under it": ([AWAY], 1, True),
    "and again": ([AWAY, AWAY], 2, True),
    "it cannot be read": ([AWAY] * READ_TRIES, READ_TRIES - 1, False),
    "the container is gone": ([GONE], 0, False),
}


@pytest.mark.parametrize("name", REST)
async def test_the_rest_of_a_log_outlives_an_engine_that_goes_away(
    tmp_path: Path, name: str
) -> None:
    breaks, away, whole = REST[name]
    engine = Engine(LOG)
    engine.breaks = list(breaks)
    files = OutputFiles(tmp_path / "output")
    follower = Follower(cast(Any, engine), files, cap=1 << 20, nonce=NONCE, wake=engine.wake)
    for _ in range(away):
        with pytest.raises(errors.Unavailable):
            await follower.finish("c1", lost=False)
        assert not follower.done
    await follower.finish("c1", lost=False)
    assert (follower.done, follower.incomplete) == (True, not whole)
    if whole:
        assert files.read(OUT, 0, 100)[1] == b"first\nlast\n"
