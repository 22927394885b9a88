"""Processes in running sessions: launched by exec, followed through files in the sandbox.

An engine forgets its execs over a restart, and nobody reads what one prints while the agent is
away. So a supervising shell in the sandbox, which is launched once for each Process, sends output
and exit code to files of a folder in /tmp, and each look reads what is new:

    /tmp/.isolet-<digest>/out, err     the streams, whole; the control line leads in `out`
    /tmp/.isolet-<digest>/code         the exit code, there once it is known

The folder is made by the supervisor and only by the first one: a start whose fate is unknown is
asked for again, and the second supervisor ends without having done a thing. All of it belongs to
the sandbox's user; a tenant that tampers with it deceives only itself.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from isolet.agent import deadlines
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.engine.base import Stream
from isolet.agent.service import collect, config
from isolet.agent.service.context import Context
from isolet.agent.service.effects import on_boot_clock, with_cut_streams
from isolet.agent.service.inputs import process_launch
from isolet.agent.service.output import HeadSink, cap_of, files_of
from isolet.agent.service.tail import TailSink
from isolet.agent.steps import AgentStep
from isolet.agent.workspace import script
from isolet.agent.workspace.artifacts import Kept, Problem
from isolet.agent.workspace.control import ControlLines, Started
from isolet.base import errors, log, names, steps
from isolet.plan import inside, reasons, sandbox_model
from isolet.plan.inside import InsideFacts
from isolet.plan.sandbox_model import Action, Control, Decision, SandboxRecord, Seen, Stop
from isolet.wire.execution import Outcome, OutputFacts, Step
from isolet.wire.process import ProcessSpec

MOST_A_LOOK = 4 << 20
LOOK_SECONDS = 20.0
NO_ROOM = 97

_SUPERVISE = f"""\
umask 077; mkdir "$1" 2>/dev/null || {{ [ -d "$1" ] && exit 0; exit {NO_ROOM}; }}
/bin/sh "$2" >"$1/out" 2>"$1/err" </dev/null
echo $? >"$1/c"; mv "$1/c" "$1/code"
"""

# The code is read first: where it is there, all output is.
_LOOK = """\
cd "$1" 2>/dev/null || { echo; echo absent; exit 0; }
c=running; [ -f code ] && read -r c <code
[ ! -f out ] || tail -c +$(($2 + 1)) out | head -c "$4"
[ ! -f err ] || tail -c +$(($3 + 1)) err | head -c "$4" >&2
echo; echo "$c"
"""

EndHost = Callable[[str, Stop], Awaitable[None]]
_log = log.get("agent.inside")


def is_inside(record: SandboxRecord) -> bool:
    """Whether it runs in a session."""
    return record.process is not None and record.process.host_uid is not None


@dataclass
class _Live:
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


class InsideDriver:
    """Looks, decides and performs for Processes in sessions."""

    def __init__(
        self,
        context: Context,
        book: DeadlineBook,
        wake: Callable[[str], None],
        end_host: EndHost,
    ) -> None:
        self._context = context
        self._book = book
        self._wake = wake
        self._end_host = end_host
        self._held: dict[str, dict[str, bytes]] = {}
        self._lives: dict[str, _Live] = {}
        self._overdue: set[str] = set()

    def keep(self, uid: str, spec: ProcessSpec, user: str) -> None:
        """Have the launch at hand. Raises Invalid."""
        nonce = self._context.nonce(uid, _name(uid))
        triple = (_name(uid), _name(uid) + "-files", _name(uid) + "-stdin")
        self._held[uid] = process_launch(spec, user, nonce, triple, guard_seconds=None)

    def live(self) -> list[str]:
        """Uids that have not ended, as far as they were looked at."""
        return list(self._lives)

    def watchdog_ended(self, record: SandboxRecord) -> None:
        """The watchdog's journal says that it ended the session for this one's deadline."""
        if is_inside(record):
            self._overdue.add(record.uid)

    async def decide(self, record: SandboxRecord) -> Decision:
        """Look, then ask the plan."""
        if record.outcome is not None:
            return inside.decide(record, InsideFacts(host_running=False), self._context.moment())
        facts = await self._gather(record)
        return inside.decide(record, facts, self._context.moment())

    async def _gather(self, record: SandboxRecord) -> InsideFacts:
        host = await self._context.store.get(_host(record))
        outcome = host.outcome if host else _gone()
        running = host is not None and host.step is Step.RUNNING and host.outcome is None
        live = self._live(record)
        if running and record.step in (Step.DISPATCHED, Step.RUNNING):
            await self._look(record, live, host)
        return InsideFacts(
            host_running=running and host is not None and host.stop is None,
            host_outcome=outcome,
            inputs=self._at_hand(record),
            begun=live.begun,
            control=live.control,
            control_detail=live.detail,
            exit_code=live.exit_code,
            overflow=live.overflow,
            ended_by_watchdog=record.uid in self._overdue,
        )

    def _live(self, record: SandboxRecord) -> _Live:
        live = self._lives.get(record.uid)
        if live is None:
            files = files_of(record, self._context.output_folder(record.uid))
            nonce = self._context.nonce(record.uid, _name(record.uid))
            live = _Live(ControlLines(nonce), {s: files.sink(s) for s in Stream})
            self._lives[record.uid] = live
        return live

    async def _look(self, record: SandboxRecord, live: _Live, host: SandboxRecord | None) -> None:
        """Read what is new; a failed look leaves everything as it was."""
        assert host is not None
        more = True
        while more and live.exit_code is None and not live.overflow:
            try:
                word, out, err = await self._read(record, live, host)
            except (errors.IsoletError, TimeoutError) as error:
                _log.info("look failed", extra={"uid": record.uid, "why": type(error).__name__})
                live.begun = Seen.UNKNOWN
                return
            live.begun = Seen.ABSENT if word == b"absent" else Seen.PRESENT
            self._take(record, live, out, err)
            more = len(out) == MOST_A_LOOK or len(err) == MOST_A_LOOK
            if not more and word.isdigit():
                self._finish(record, live, int(word))

    async def _read(
        self, record: SandboxRecord, live: _Live, host: SandboxRecord
    ) -> tuple[bytes, bytes, bytes]:
        """(`absent`, `running` or the code; new stdout; new stderr)."""
        at = [str(live.read[stream]) for stream in Stream]
        argv = ("/bin/sh", "-c", _LOOK, "isolet", _folder(record.uid), *at, str(MOST_A_LOOK))
        found = {stream: bytearray() for stream in Stream}
        user = record.spec.user
        async with (
            asyncio.timeout(LOOK_SECONDS),
            self._context.engine.exec(
                host.container_name, argv, user=user, working_dir="/", stdin=False
            ) as stream,
        ):
            async for source, data in stream.output():
                found[source] += data
        body, _, word = bytes(found[Stream.STDOUT]).removesuffix(b"\n").rpartition(b"\n")
        if word not in (b"absent", b"running") and not word.isdigit():
            raise errors.Unavailable("the look was cut short")
        return word, body, bytes(found[Stream.STDERR])

    def _take(self, record: SandboxRecord, live: _Live, out: bytes, err: bytes) -> None:
        live.read[Stream.STDOUT] += len(out)
        live.read[Stream.STDERR] += len(err)
        event, rest = live.lines.feed(out)
        if isinstance(event, Started):
            live.control = Control.STARTED
            self._forget(record)
        elif event is not None:
            live.control, live.detail = Control.START_FAILED, event.why.value
        self._store(record, live, Stream.STDOUT, rest)
        self._store(record, live, Stream.STDERR, err)

    def _store(self, record: SandboxRecord, live: _Live, stream: Stream, data: bytes) -> None:
        cap = cap_of(record)
        room = None if cap is None else max(0, cap - sum(s.stored for s in live.sinks.values()))
        if data and not live.sinks[stream].take(data, room):
            live.overflow = True

    def _finish(self, record: SandboxRecord, live: _Live, code: int) -> None:
        failed, rest = live.lines.finish()
        if failed is not None:
            live.control, live.detail = Control.EXEC_FAILED, str(failed.code)
        self._store(record, live, Stream.STDOUT, rest)
        if not live.overflow:
            live.exit_code = code

    def output(self, record: SandboxRecord) -> OutputFacts:
        """What is known of the output now."""
        live = self._live(record)
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

    # Effects.

    async def perform(self, action: Action, record: SandboxRecord) -> SandboxRecord | None:
        """Do one action; returns the record afterwards, None once it is buried."""
        match action:
            case sandbox_model.Create():
                self._lay_down(record)
            case sandbox_model.Dispatch():
                return await self._dispatch(record)
            case sandbox_model.Start():
                await self._start(record)
            case sandbox_model.Undispatch():
                return await self._update(record.with_(step=Step.RECORDED, dispatched_at=None))
            case sandbox_model.RecordRunning():
                return await self._record_running(record, action)
            case sandbox_model.RecordStop():
                stored = await self._update(record.with_(stop=action.stop))
                steps.reach(AgentStep.STOP_RECORDED)
                return stored
            case sandbox_model.End():
                await self._end(record)
            case sandbox_model.Collect():
                return await self._collect(record)
            case sandbox_model.RecordEnd():
                return await self._record_end(record, action.outcome)
            case sandbox_model.Dispose():
                return await self._dispose(record)
            case sandbox_model.Bury():
                return await self._bury(record)
            case _:
                raise AssertionError(action)
        return record

    async def _update(self, record: SandboxRecord) -> SandboxRecord:
        return await self._context.store.update(record)

    def _at_hand(self, record: SandboxRecord) -> bool:
        folder = self._context.launches.folder(_host(record))
        return record.uid in self._held or (folder / _name(record.uid)).exists()

    def _lay_down(self, record: SandboxRecord) -> None:
        held = self._held.get(record.uid, {})
        steps.reach(AgentStep.LAUNCH_BEFORE)
        for name in sorted(held, key=len, reverse=True):  # the script, with the shortest name, last
            self._context.launches.write(_host(record), name, held[name])
        steps.reach(AgentStep.LAUNCH_AFTER)

    def _forget(self, record: SandboxRecord) -> None:
        self._held.pop(record.uid, None)
        for end in ("", "-files", "-stdin"):
            self._context.launches.remove_file(_host(record), _name(record.uid) + end)

    async def _dispatch(self, record: SandboxRecord) -> SandboxRecord:
        now = self._context.moment()
        host = await self._context.store.get(_host(record))
        dispatched = record.with_(
            step=Step.DISPATCHED,
            boot_id=now.boot_id,
            dispatched_at=now.wall,
            dispatched_boottime=now.boottime,
            container_id=host.container_id if host else None,
            image_id=host.image_id if host else None,
            process=on_boot_clock(record.process, now),
            waiting=None,
        )
        await self._guard(dispatched)
        steps.reach(AgentStep.DISPATCH_BEFORE)
        stored = await self._update(dispatched)
        steps.reach(AgentStep.DISPATCH_AFTER)
        return stored

    async def _guard(self, record: SandboxRecord) -> None:
        """The watchdog ends the session by this Process's deadline too."""
        deadline = record.deadline_boottime()
        if deadline is None or record.boot_id is None or not record.container_id:
            return
        await self._book.put(
            deadlines.Deadline(
                name=record.container_name,
                deadline_boottime=deadline,
                boot_id=record.boot_id,
                container_id=record.container_id,
            )
        )

    async def _start(self, record: SandboxRecord) -> None:
        """Launch a supervisor; returns once the engine has taken it."""
        live = self._live(record)
        if live.attending is not None and not live.attending.done():
            return
        steps.reach(AgentStep.INSIDE_START_BEFORE)
        taken = asyncio.Event()
        live.attending = asyncio.create_task(self._attend(record, live, taken))
        waiting = asyncio.create_task(taken.wait())
        await asyncio.wait((live.attending, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        steps.reach(AgentStep.INSIDE_START_AFTER)

    async def _attend(self, record: SandboxRecord, live: _Live, taken: asyncio.Event) -> None:
        """Wait for the supervisor's end, which is news; nothing hangs on hearing of it."""
        folder, launch = _folder(record.uid), f"{script.MOUNT_POINT}/{_name(record.uid)}"
        argv = ("/bin/sh", "-c", _SUPERVISE, "isolet", folder, launch)
        engine = self._context.engine
        host = await self._context.store.get(_host(record))
        if host is None:
            return
        try:
            async with engine.exec(
                host.container_name, argv, user=record.spec.user, working_dir="/", stdin=False
            ) as stream:
                taken.set()
                async for _ in stream.output():
                    pass
            if (await engine.inspect_exec(stream.id)).exit_code == NO_ROOM:
                live.control, live.detail, live.exit_code = Control.START_FAILED, "no-files", 126
        except errors.IsoletError as error:
            _log.info("supervisor not heard", extra={"uid": record.uid, "reason": error.reason})
        self._wake(record.uid)

    async def _record_running(
        self, record: SandboxRecord, action: sandbox_model.RecordRunning
    ) -> SandboxRecord:
        stored = await self._update(
            record.with_(
                step=Step.RUNNING,
                started_at=record.dispatched_at or action.started_at,
                started_boottime=record.dispatched_boottime,
                waiting=None,
            )
        )
        steps.reach(AgentStep.RUNNING_AFTER)
        return stored

    async def _end(self, record: SandboxRecord) -> None:
        assert record.stop is not None
        steps.reach(AgentStep.END_BEFORE)
        message = f"Process {record.name}: {record.stop.message}; its session is destroyed"
        await self._end_host(_host(record), Stop(reason=record.stop.reason, message=message))
        steps.reach(AgentStep.END_AFTER)

    async def _collect(self, record: SandboxRecord) -> SandboxRecord:
        # Files of a live session are asked for one by one (`get_file`): no glob runs in it.
        assert record.process is not None
        problem = Problem("", reasons.NOT_RETAINED, "the session lives on: read its files there")
        kept: tuple[Kept, ...] = ()
        part = collect.merged(record.process, kept, (problem,))
        return await self._update(record.with_(process=_collected(part)))

    async def _record_end(self, record: SandboxRecord, outcome: Outcome) -> SandboxRecord:
        now = self._context.moment()
        live = self._live(record)
        for sink in live.sinks.values():
            sink.close()
        await asyncio.to_thread(files_of(record, self._context.output_folder(record.uid)).sync)
        steps.reach(AgentStep.OUTCOME_BEFORE)
        stored = await self._update(
            record.with_(
                step=Step.ENDED,
                outcome=outcome,
                waiting=None,
                output=self.output(record.with_(outcome=outcome)),
                process=with_cut_streams(self._context, record),
                updated_at=now.wall,
                boot_id=now.boot_id,
                ended_at=now.wall,
                ended_boottime=now.boottime,
            )
        )
        steps.reach(AgentStep.OUTCOME_AFTER)
        await self._book.drop(record.container_name)
        self._forget(record)
        return stored

    async def _dispose(self, record: SandboxRecord) -> SandboxRecord:
        """Give the sandbox its room back, if it is still there."""
        host = await self._context.store.get(_host(record))
        if host is not None and host.step is Step.RUNNING and host.outcome is None:
            argv = ("/bin/sh", "-c", 'rm -rf -- "$1"', "isolet", _folder(record.uid))
            with contextlib.suppress(errors.IsoletError, TimeoutError):
                async with (
                    asyncio.timeout(LOOK_SECONDS),
                    self._context.engine.exec(
                        host.container_name,
                        argv,
                        user=record.spec.user,
                        working_dir="/",
                        stdin=False,
                    ) as stream,
                ):
                    async for _ in stream.output():
                        pass
        await self.drop(record.uid)
        return await self._update(record.with_(step=Step.DISPOSED, nothing_left=True))

    async def _bury(self, record: SandboxRecord) -> None:
        context = self._context
        files_of(record, context.output_folder(record.uid)).delete()
        context.artifacts.remove(record.uid)
        await context.store.bury(record.uid, at=context.clock.now())
        steps.reach(AgentStep.BURY_AFTER)

    async def drop(self, uid: str) -> None:
        """Forget one that has ended."""
        live = self._lives.pop(uid, None)
        self._overdue.discard(uid)
        if live is not None:
            await _stop(live)

    async def close(self) -> None:
        """Let go; what runs in the sandboxes goes on."""
        for live in self._lives.values():
            await _stop(live)


async def _stop(live: _Live) -> None:
    for sink in live.sinks.values():
        sink.close()
    if live.attending is not None:
        live.attending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await live.attending


def _collected(part: sandbox_model.ProcessPart) -> sandbox_model.ProcessPart:
    return sandbox_model.replace(part, collected=True)


def _host(record: SandboxRecord) -> str:
    assert record.process is not None
    assert record.process.host_uid is not None
    return record.process.host_uid


def _gone() -> Outcome:
    return Outcome(succeeded=False, reason=reasons.CONTAINER_LOST, message="its Execution is gone")


def _name(uid: str) -> str:
    """The name of its launch script: a uid may hold what a file name here may not."""
    return f"p-{names.short_digest(uid)}"


def _folder(uid: str) -> str:
    return f"/tmp/.isolet-{names.short_digest(uid)}"
