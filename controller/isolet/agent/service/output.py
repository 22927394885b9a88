"""The output of a sandbox, copied from the engine's log into files that outlive the container.

The position is the size of the file: after a restart the log is read from its beginning and the
bytes that are stored already are passed over, so nothing is lost or doubled and there is no second
thing to keep in step. (The log keeps its whole content: its bound lies above the output cap, see
`config.log_bytes`.) Stored bytes never exceed the cap, counted over both streams together.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from isolet.agent.engine.base import Engine, Stream
from isolet.agent.service.context import Context
from isolet.agent.service.tail import TailFiles
from isolet.agent.workspace import control
from isolet.agent.workspace.control import ControlLines
from isolet.base import errors, log
from isolet.base.fairness import Turns
from isolet.plan.sandbox_model import Control, ProcessPart, SandboxRecord
from isolet.wire.execution import OutputFacts
from isolet.wire.process import OnOverflow

READ_LIMIT_SECONDS = 120.0
"""A log that cannot be read to its end in this time is marked incomplete."""

READ_TRIES = 3
"""How often an engine may go away as the rest of a log is read, which outlives it."""

SETTLE_SECONDS = 2.0
"""How long the live stream may take to end by itself after the container has."""

_log = log.get("agent.output")


class OutputFiles:
    """The stored streams of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def size(self, stream: Stream) -> int:
        """Stored bytes; 0 if there is nothing."""
        try:
            return (self.folder / stream.value).stat().st_size
        except FileNotFoundError:
            return 0

    def open(self, stream: Stream) -> BinaryIO:
        """For appending, unbuffered, readable by the agent's user alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / stream.value
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "ab", buffering=0)

    def read(self, stream: Stream, offset: int, limit: int) -> tuple[int, bytes, int]:
        """(offset, bytes, total). A negative offset counts from the end."""
        try:
            with (self.folder / stream.value).open("rb") as file:
                total = os.fstat(file.fileno()).st_size
                start = max(0, total + offset) if offset < 0 else min(offset, total)
                file.seek(start)
                return start, file.read(limit), total
        except FileNotFoundError:
            return 0, b"", 0

    def sink(self, stream: Stream) -> "HeadSink":
        """For what comes."""
        return HeadSink(self, stream)

    def was_cut(self, stream: Stream) -> bool:
        """Whether only the end is kept: here it never is."""
        return False

    def sync(self) -> None:
        """Have what is stored on disk."""
        for stream in Stream:
            path = self.folder / stream.value
            if self.size(stream):
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def delete(self) -> None:
        """Remove the files and the folder."""
        for stream in Stream:
            (self.folder / stream.value).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rmdir()


class HeadSink:
    """One stream on its way into its file."""

    def __init__(self, files: OutputFiles, stream: Stream) -> None:
        self.stored = files.size(stream)
        self._skip = self.stored
        self._files = files
        self._stream = stream
        self._file: BinaryIO | None = None

    def take(self, data: bytes, room: int | None) -> bool:
        """Store what is new and fits; False when there was more than fits."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        new = data[skipped:]
        kept = new if room is None else new[:room]
        if kept:
            if self._file is None:
                self._file = self._files.open(self._stream)
            self._file.write(kept)
            self.stored += len(kept)
        return len(kept) == len(new)

    @property
    def fell_short(self) -> bool:
        """The log held less than had been stored of it before: the engine lost some."""
        return self._skip > 0

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


Files = OutputFiles | TailFiles


def files_of(record: SandboxRecord, folder: Path) -> Files:
    """Where and how the output of this record is stored."""
    part = record.process
    if part is None or part.on_overflow is not OnOverflow.KEEP_TAIL:
        return OutputFiles(folder)
    # What runs inside a session has its output in a file that is never rotated.
    exact = record.spec.resources.output_bytes if part.host_uid is None else 1 << 62
    return TailFiles(folder, limit=part.output_limit, exact_up_to=exact)


def cap_of(record: SandboxRecord) -> int | None:
    """The bound on both streams together; None where each keeps its end."""
    if record.process is None:
        return record.spec.resources.output_bytes
    if record.process.on_overflow is OnOverflow.KEEP_TAIL:
        return None
    return record.process.output_limit


class Follower:
    """Copies one container's log while it runs and to its end.

    `cap` is for both streams together; None: `files` bound themselves. `wake` is called when
    something a decision depends on has changed: the control line, overflow, as much output as is
    awaited.
    """

    def __init__(
        self,
        engine: Engine,
        files: Files,
        *,
        cap: int | None,
        nonce: str,
        slot_nonce: str | None = None,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._files = files
        self._cap = cap
        self._nonce = nonce
        self._wake = wake
        self._sinks = {stream: files.sink(stream) for stream in Stream}
        self._frames = dict.fromkeys(Stream, 0)
        self._control_lines = ControlLines(nonce, slot_nonce)
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._tries = 0
        self._awaited = 0
        self.control: Control | None = None
        self.control_detail = ""
        self.overflow = False
        self.done = False
        self.incomplete = False

    def ensure(self, container_id: str) -> bool:
        """Follow the running container's log; whether that was not being done."""
        begins = not self.done and not self.overflow and (self._task is None or self._task.done())
        if begins:
            self._task = asyncio.create_task(self._follow(container_id))
        return begins

    def await_stdout(self, size: int) -> None:
        """Have `wake` called once so many bytes of stdout are stored."""
        self._awaited = size

    async def finish(self, container_id: str, *, lost: bool) -> None:
        """Read what is left of an ended container's log. Sets `done`.

        `lost` says that the engine was down when the container ended: it did not see the end of
        the output (docs/measured.md#output), which is then marked incomplete.

        Raises:
            Unavailable: the engine went away meanwhile: to be done again.
        """
        if self.done:
            return
        if self._task is not None:
            await asyncio.wait([self._task], timeout=SETTLE_SECONDS)
        if not self._ended and not self.overflow:
            await self.stop()
            await self._read_rest(container_id)
        await self.stop()
        self._finish_control()
        short = any(sink.fell_short for sink in self._sinks.values())
        self.incomplete = self.incomplete or lost or short
        self._close_files()
        await asyncio.to_thread(self._files.sync)
        self.done = True

    def give_up(self) -> None:
        """The container is gone: what is stored is all there will be."""
        self.incomplete = self.incomplete or not self._ended
        self._close_files()
        self.done = True

    async def close(self) -> None:
        """Let go of everything; what is stored stays."""
        await self.stop()
        self._close_files()

    def _close_files(self) -> None:
        for sink in self._sinks.values():
            sink.close()

    async def stop(self) -> None:
        """End the live stream, if there is one."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _follow(self, container_id: str) -> None:
        try:
            await self._copy(container_id, follow=True)
            self._ended = not self.overflow
        except errors.IsoletError as error:
            _log.info("log stream broke off", extra={"reason": error.reason})

    async def _read_rest(self, container_id: str) -> None:
        try:
            async with asyncio.timeout(READ_LIMIT_SECONDS):
                await self._copy(container_id, follow=False)
            self._ended = True
        except (errors.IsoletError, TimeoutError) as error:
            self._tries += 1
            if isinstance(error, errors.Unavailable) and self._tries < READ_TRIES:
                raise
            self.incomplete = True
            _log.warning("log could not be read to its end", extra={"error": type(error).__name__})

    async def _copy(self, container_id: str, *, follow: bool) -> None:
        turns = Turns()
        frames = self._engine.output(container_id, after=self._frames, follow=follow)
        async with contextlib.aclosing(frames):  # type: ignore[type-var]
            async for frame in frames:
                self._frames[frame.stream] = frame.index
                if not self._take(frame.stream, frame.data):
                    return
                await turns.give()

    def _take(self, stream: Stream, data: bytes) -> bool:
        if stream is Stream.STDOUT:
            data = self._without_control(data)
        return self._store(stream, data)

    def _store(self, stream: Stream, data: bytes) -> bool:
        room = None
        if self._cap is not None:
            room = max(0, self._cap - sum(sink.stored for sink in self._sinks.values()))
        sink = self._sinks[stream]
        before = sink.stored
        if data and not sink.take(data, room):
            self.overflow = True
            self._wake()
            return False
        if stream is Stream.STDOUT and before < self._awaited <= sink.stored:
            self._wake()
        return True

    def _without_control(self, data: bytes) -> bytes:
        event, rest = self._control_lines.feed(data)
        if isinstance(event, control.StartFailed):
            self.control, self.control_detail = Control.START_FAILED, event.why.value
        elif event is not None:
            self.control = Control.STARTED
            self._wake()
        return rest

    def _finish_control(self) -> None:
        """At the end of the log: a failed exec, or the program's bytes that were held back."""
        failed, rest = self._control_lines.finish()
        if failed is not None:
            self.control, self.control_detail = Control.EXEC_FAILED, str(failed.code)
        elif rest:
            self._store(Stream.STDOUT, rest)

    def facts(self, tail_bytes: int) -> OutputFacts:
        """Counts, and the last bytes for the status."""
        sizes = {stream: self._sinks[stream].stored for stream in Stream}
        return OutputFacts(
            stdout_bytes=sizes[Stream.STDOUT],
            stderr_bytes=sizes[Stream.STDERR],
            truncated=self.overflow or any(self._files.was_cut(stream) for stream in Stream),
            incomplete=self.incomplete,
            stdout_tail=self.tail(Stream.STDOUT, tail_bytes),
            stderr_tail=self.tail(Stream.STDERR, tail_bytes),
        )

    def tail(self, stream: Stream, limit: int) -> bytes:
        """The last `limit` stored bytes."""
        return self._files.read(stream, -limit, limit)[1] if limit else b""


def with_cut_streams(context: Context, record: SandboxRecord) -> ProcessPart | None:
    """With the names of the streams of which only the end is kept."""
    if record.process is None:
        return None
    files = files_of(record, context.output_folder(record.uid))
    cut = tuple(stream.value for stream in Stream if files.was_cut(stream))
    return replace(record.process, truncated_streams=cut)
