"""Looking at Processes in running sessions: what they wrote, and whether they have ended.

An engine forgets its execs over a restart, and nobody reads what one prints while the agent is
away. So a supervising shell in the sandbox, which is launched once for each Process, sends output
and exit code to files of a folder in /tmp, and each look reads what is new:

    /tmp/.isolet-<digest>/out, err     the streams, whole; the control line leads in `out`
    /tmp/.isolet-<digest>/code         the exit code, there once it is known

All of it belongs to the sandbox's user; a tenant that tampers with it deceives only itself.

An engine that dies ends the stream of a look as the look's own end does, wherever it happens to be
(docs/measured.md, "Exec"). So each look has a mark of its own, which closes both streams: without
it, the last line of the program that had come so far would be read as its exit code.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from isolet.agent.engine.base import Stream
from isolet.agent.service.context import Context
from isolet.agent.service.output import HeadSink, cap_of, files_of
from isolet.agent.service.tail import TailSink
from isolet.agent.workspace.control import ControlLines, Started
from isolet.base import errors, log, names
from isolet.plan import reasons
from isolet.plan.inside import InsideFacts
from isolet.plan.sandbox_model import Control, SandboxRecord, Seen
from isolet.wire.execution import Outcome, OutputFacts, Step

MOST_A_LOOK = 4 << 20
LOOK_SECONDS = 20.0
MARK_BYTES = 8

# The code is read first: where it is there, all output is.
LOOK = """\
c=absent
cd "$1" 2>/dev/null && {
c=running; [ -f code ] && read -r c <code
[ ! -f out ] || tail -c +$(($2 + 1)) out | head -c "$4"
[ ! -f err ] || tail -c +$(($3 + 1)) err | head -c "$4" >&2
}
echo "$5 $c"; echo "$5" >&2
"""

_log = log.get("agent.inside")


def is_inside(record: SandboxRecord) -> bool:
    """Whether it runs in a session."""
    return record.process is not None and record.process.host_uid is not None


def host_of(record: SandboxRecord) -> str:
    """The uid of that session."""
    assert record.process is not None
    assert record.process.host_uid is not None
    return record.process.host_uid


def launch_name(uid: str) -> str:
    """The name of its launch script: a uid may hold what a file name here may not."""
    return f"p-{names.short_digest(uid)}"


def folder_of(uid: str) -> str:
    """Its folder in the sandbox."""
    return f"/tmp/.isolet-{names.short_digest(uid)}"


@dataclass(frozen=True, slots=True)
class Told:
    """What one look has told."""

    word: bytes
    """`absent`, `running` or the exit code."""
    out: bytes
    err: bytes


def told(mark: bytes, stdout: bytes, stderr: bytes) -> Told:
    """The answer that these streams of a look are. Pure.

    Raises:
        Unavailable: one of them was cut short; what has come of them is worth nothing.
    """
    out, found, word = stdout.removesuffix(b"\n").rpartition(mark + b" ")
    err = stderr.removesuffix(mark + b"\n")
    whole = found and stdout.endswith(b"\n") and len(err) < len(stderr)
    if not whole or (word not in (b"absent", b"running") and not word.isdigit()):
        raise errors.Unavailable("the look was cut short")
    return Told(word, out, err)


@dataclass
class Live:
    """What is known of one Process in this life of the agent."""

    lines: ControlLines
    sinks: dict[Stream, HeadSink | TailSink]
    read: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    control: Control | None = None
    detail: str = ""
    begun: Seen = Seen.UNKNOWN
    exit_code: int | None = None
    overflow: bool = False
    attending: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Let go of files and of the supervisor's stream."""
        for sink in self.sinks.values():
            sink.close()
        if self.attending is not None:
            self.attending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.attending


class InsideLook:
    """What is seen of each Process in a session. `started` is called once its launch was read."""

    def __init__(self, context: Context, started: Callable[[SandboxRecord], None]) -> None:
        self._context = context
        self._started = started
        self._lives: dict[str, Live] = {}
        self._overdue: set[str] = set()

    def uids(self) -> list[str]:
        """Those that have not ended, as far as they were looked at."""
        return list(self._lives)

    def watchdog_ended(self, uid: str) -> None:
        """The watchdog's journal says that it ended the session for this one's deadline."""
        self._overdue.add(uid)

    async def gather(self, record: SandboxRecord, *, inputs: bool) -> InsideFacts:
        """Everything the next decision on `record` may need."""
        host = await self._context.store.get(host_of(record))
        outcome = host.outcome if host else _gone()
        running = host is not None and host.step is Step.RUNNING and host.outcome is None
        live = self.of(record)
        if running and record.step in (Step.DISPATCHED, Step.RUNNING):
            await self._look(record, live, host)
        return InsideFacts(
            host_running=running and host is not None and host.stop is None,
            host_outcome=outcome,
            inputs=inputs,
            begun=live.begun,
            control=live.control,
            control_detail=live.detail,
            exit_code=live.exit_code,
            overflow=live.overflow,
            ended_by_watchdog=record.uid in self._overdue,
        )

    def of(self, record: SandboxRecord) -> Live:
        """What is known of it, begun with nothing."""
        live = self._lives.get(record.uid)
        if live is None:
            files = files_of(record, self._context.output_folder(record.uid))
            nonce = self._context.nonce(record.uid, launch_name(record.uid))
            live = Live(ControlLines(nonce), {s: files.sink(s) for s in Stream})
            self._lives[record.uid] = live
        return live

    async def _look(self, record: SandboxRecord, live: Live, host: SandboxRecord | None) -> None:
        """Read what is new; a failed look leaves everything as it was."""
        assert host is not None
        more = True
        while more and live.exit_code is None and not live.overflow:
            try:
                seen = await self._read(record, live, host)
            except (errors.IsoletError, TimeoutError) as error:
                _log.info("look failed", extra={"uid": record.uid, "why": type(error).__name__})
                live.begun = Seen.UNKNOWN
                return
            live.begun = Seen.ABSENT if seen.word == b"absent" else Seen.PRESENT
            self._take(record, live, seen.out, seen.err)
            more = MOST_A_LOOK in (len(seen.out), len(seen.err))
            if not more and seen.word.isdigit():
                self._finish(record, live, int(seen.word))

    async def _read(self, record: SandboxRecord, live: Live, host: SandboxRecord) -> Told:
        """What is new. Raises Unavailable."""
        mark = secrets.token_hex(MARK_BYTES)
        at = [str(live.read[stream]) for stream in Stream]
        words = (folder_of(record.uid), *at, str(MOST_A_LOOK), mark)
        argv = ("/bin/sh", "-c", LOOK, "isolet", *words)
        found = {stream: bytearray() for stream in Stream}
        user = record.spec.user
        async with (
            asyncio.timeout(LOOK_SECONDS),
            self._context.engine.exec(
                host.engine_name, argv, user=user, working_dir="/", stdin=False
            ) as stream,
        ):
            async for source, data in stream.output():
                found[source] += data
        return told(mark.encode(), bytes(found[Stream.STDOUT]), bytes(found[Stream.STDERR]))

    def _take(self, record: SandboxRecord, live: Live, out: bytes, err: bytes) -> None:
        live.read[Stream.STDOUT] += len(out)
        live.read[Stream.STDERR] += len(err)
        event, rest = live.lines.feed(out)
        if isinstance(event, Started):
            live.control = Control.STARTED
            self._started(record)
        elif event is not None:
            live.control, live.detail = Control.START_FAILED, event.why.value
        self._store(record, live, Stream.STDOUT, rest)
        self._store(record, live, Stream.STDERR, err)

    def _store(self, record: SandboxRecord, live: Live, stream: Stream, data: bytes) -> None:
        cap = cap_of(record)
        room = None if cap is None else max(0, cap - sum(s.stored for s in live.sinks.values()))
        if data and not live.sinks[stream].take(data, room):
            live.overflow = True

    def _finish(self, record: SandboxRecord, live: Live, code: int) -> None:
        failed, rest = live.lines.finish()
        if failed is not None:
            live.control, live.detail = Control.EXEC_FAILED, str(failed.code)
        self._store(record, live, Stream.STDOUT, rest)
        if not live.overflow:
            live.exit_code = code

    def output(self, record: SandboxRecord) -> OutputFacts:
        """What is known of the output now."""
        live = self.of(record)
        files = files_of(record, self._context.output_folder(record.uid))
        tail = record.spec.status_tail_bytes
        ended = record.outcome is not None or live.exit_code is not None
        return OutputFacts(
            stdout_bytes=live.sinks[Stream.STDOUT].stored,
            stderr_bytes=live.sinks[Stream.STDERR].stored,
            truncated=live.overflow or any(files.was_cut(stream) for stream in Stream),
            incomplete=ended and live.exit_code is None,
            stdout_tail=files.read(Stream.STDOUT, -tail, tail)[1] if tail else b"",
            stderr_tail=files.read(Stream.STDERR, -tail, tail)[1] if tail else b"",
        )

    async def drop(self, uid: str) -> None:
        """Forget one that has ended."""
        live = self._lives.pop(uid, None)
        self._overdue.discard(uid)
        if live is not None:
            await live.close()

    async def close(self) -> None:
        """Let go; what runs in the sandboxes goes on."""
        for live in self._lives.values():
            await live.close()


def _gone() -> Outcome:
    return Outcome(succeeded=True, reason=reasons.TERMINATED, message="its Execution is gone")
