"""Containers, programs and execs of the engine in memory (tests/fakes/engine.py)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from isolet.agent.engine.base import SandboxConfig, Status, Stream
from isolet.base import errors

PIECE = 16 * 1024
KILLED = 137
TERMINATED = 143
ALIVE = frozenset({Status.RUNNING, Status.PAUSED})

Program = Callable[["Process"], Awaitable[int]]


class Process:
    """What a running program of the fake sees of its world."""

    def __init__(self, argv: tuple[str, ...], write: Callable[[Stream, bytes], None]) -> None:
        self.argv = argv
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.oom_killed = False
        self._write = write
        self._stdin = bytearray()
        self._stdin_ended = False
        self._stdin_changed = asyncio.Event()

    async def print(self, data: bytes, stream: Stream = Stream.STDOUT) -> None:
        """Write output; waits while the container is paused."""
        await self.resumed.wait()
        self._write(stream, data)
        await asyncio.sleep(0)

    async def read(self) -> bytes:
        """What has come on stdin; empty at its end."""
        while not self._stdin and not self._stdin_ended:
            self._stdin_changed.clear()
            await self._stdin_changed.wait()
        data = bytes(self._stdin)
        self._stdin.clear()
        return data

    def feed(self, data: bytes) -> None:
        """Put something on its stdin."""
        self._stdin += data
        self._stdin_changed.set()

    def end_stdin(self) -> None:
        """End its stdin."""
        self._stdin_ended = True
        self._stdin_changed.set()


def prints(stdout: bytes = b"", stderr: bytes = b"", code: int = 0) -> Program:
    """A program that prints and ends."""

    async def run(process: Process) -> int:
        if stdout:
            await process.print(stdout)
        if stderr:
            await process.print(stderr, Stream.STDERR)
        return code

    return run


async def sleeps(process: Process) -> int:
    """A program that runs until it is ended."""
    await asyncio.Event().wait()
    return 0


@dataclass
class Record:
    """One container of the fake."""

    id: str
    config: SandboxConfig
    image_id: str
    created_at: datetime
    status: Status = Status.CREATED
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    frames: list[tuple[Stream, bytes]] = field(default_factory=list)
    unfinished: dict[Stream, bytearray] = field(
        default_factory=lambda: {stream: bytearray() for stream in Stream}
    )
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    task: "asyncio.Task[None] | None" = None
    execs: list["Exec"] = field(default_factory=list)
    starts: int = 0
    logging: bool = True
    altered: dict[str, object] = field(default_factory=dict)
    """Bounds that inspect is to show otherwise than asked."""

    def store(self, stream: Stream, data: bytes) -> None:
        """Log it by lines and pieces of long lines, as the driver does."""
        if not self.logging:
            return
        held = self.unfinished[stream]
        held += data
        while held:
            end = held.find(b"\n")
            size = end + 1 if 0 <= end < PIECE else PIECE
            if end < 0 and len(held) < PIECE:
                break
            self.frames.append((stream, bytes(held[:size])))
            del held[:size]
        self.ring()

    def flush(self) -> None:
        """Log what has no newline: at the end."""
        for stream, held in self.unfinished.items():
            if held:
                self.frames.append((stream, bytes(held)))
                held.clear()

    def ring(self) -> None:
        """Wake everyone who follows."""
        self.changed.set()
        self.changed = asyncio.Event()


class Exec:
    """A running exec of the fake; implements `base.ExecStream`."""

    def __init__(self, exec_id: str, argv: tuple[str, ...]) -> None:
        self.id = exec_id
        self.exit_code: int | None = None
        self._queue: asyncio.Queue[tuple[Stream, bytes] | None] = asyncio.Queue()
        self.process = Process(argv, lambda stream, data: self._queue.put_nowait((stream, data)))
        self.task: asyncio.Task[None] | None = None

    async def run(self, program: Program) -> None:
        """Run to the end; killed with its container."""
        try:
            self.exit_code = await program(self.process)
        except asyncio.CancelledError:
            self.exit_code = KILLED
        finally:
            self._queue.put_nowait(None)

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        while (item := await self._queue.get()) is not None:
            yield item

    async def write(self, data: bytes) -> None:
        if self.exit_code is None:
            self.process.feed(data)
        await asyncio.sleep(0)

    async def close_stdin(self) -> None:
        self.process.end_stdin()


class Input:
    """The stdin of a container of the fake; implements `base.InputStream`."""

    def __init__(self, process: Process, went: asyncio.Event) -> None:
        self._process = process
        self._went = went

    async def write(self, data: bytes) -> None:
        if self._went.is_set():
            raise errors.Unconfirmed("the input broke off")
        self._process.feed(data)
        await asyncio.sleep(0)

    async def ended(self) -> None:
        await self._went.wait()
