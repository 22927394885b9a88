"""Processes in running sessions, driven: launched by exec, once, and ended with their sandbox.

The supervising shell makes the folder of its Process (see `inside_look`) before anything else, and
goes no further if that is there: a start whose fate is unknown is asked for again, and the second
supervisor ends without having done a thing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from isolet.agent import deadlines
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.service import collect
from isolet.agent.service.context import Context
from isolet.agent.service.due import on_boot_clock
from isolet.agent.service.inputs import process_launch
from isolet.agent.service.inside_look import (
    LOOK_SECONDS,
    InsideLook,
    Live,
    folder_of,
    host_of,
    is_inside,
    launch_name,
)
from isolet.agent.service.live_files import LiveFiles
from isolet.agent.service.output import files_of, with_cut_streams
from isolet.agent.service.turns import Turns
from isolet.agent.steps import AgentStep
from isolet.agent.workspace import script
from isolet.base import errors, log, steps
from isolet.plan import inside, sandbox_model
from isolet.plan.inside import InsideFacts
from isolet.plan.sandbox_model import (
    Action,
    CheckpointAction,
    Control,
    Decision,
    Kind,
    SandboxRecord,
    Stop,
)
from isolet.wire.execution import Outcome, OutputFacts, Step
from isolet.wire.process import ProcessSpec

NO_ROOM = 97

_SUPERVISE = f"""\
umask 077; mkdir "$1" 2>/dev/null || {{ [ -d "$1" ] && exit 0; exit {NO_ROOM}; }}
/bin/sh "$2" >"$1/out" 2>"$1/err" </dev/null
echo $? >"$1/c"; mv "$1/c" "$1/code"
"""

EndHost = Callable[[str, Stop], Awaitable[None]]
Performer = Callable[[SandboxRecord, Any], Awaitable[SandboxRecord | None]]
_log = log.get("agent.inside")


class InsideDriver:
    """Looks, decides and performs for Processes in sessions."""

    def __init__(
        self,
        context: Context,
        book: DeadlineBook,
        turns: Turns,
        wake: Callable[[str], None],
        end_host: EndHost,
        touch_host: Callable[[str], Awaitable[None]],
    ) -> None:
        self._context = context
        self._book = book
        self._turns = turns
        self._wake = wake
        self._end_host = end_host
        self._touch_host = touch_host
        self._touched: dict[str, float] = {}
        self._look = InsideLook(context, self._forget)
        self._files = LiveFiles(context)
        self._held: dict[str, dict[str, bytes]] = {}
        self.live = self._look.uids
        self.drop = self._look.drop
        self.close = self._look.close
        self._performers: dict[type[Action], Performer] = {
            sandbox_model.Create: self._lay_down,
            sandbox_model.Dispatch: self._dispatch,
            sandbox_model.Start: self._start,
            sandbox_model.Undispatch: self._undispatch,
            sandbox_model.RecordRunning: self._record_running,
            sandbox_model.RecordStop: self._record_stop,
            sandbox_model.End: self._end,
            sandbox_model.Collect: self._collect,
            sandbox_model.RecordEnd: self._record_end,
            sandbox_model.Dispose: self._dispose,
            sandbox_model.Bury: self._bury,
        }

    def keep(self, uid: str, spec: ProcessSpec, user: str) -> None:
        """Have the launch at hand. Raises Invalid."""
        name = launch_name(uid)
        triple = (name, name + "-files", name + "-stdin")
        nonce = self._context.nonce(uid, name)
        self._held[uid] = process_launch(spec, user, nonce, triple, guard_seconds=None)

    def watchdog_ended(self, record: SandboxRecord) -> None:
        """The watchdog's journal says that it ended the session for this one's deadline."""
        if is_inside(record):
            self._look.watchdog_ended(record.uid)

    def output(self, record: SandboxRecord) -> OutputFacts:
        """What is known of the output now."""
        return self._look.output(record)

    async def decide(self, record: SandboxRecord) -> Decision:
        """Look, then ask the plan."""
        facts = InsideFacts(host_running=False)
        if record.outcome is None:
            facts = await self._look.gather(record, inputs=self._at_hand(record))
            facts = replace(facts, host_taken=self._turns.is_claimed(host_of(record)))
            await self._keep_awake(record)
        return inside.decide(record, facts, self._context.moment())

    async def _keep_awake(self, record: SandboxRecord) -> None:
        """A session with a Process in it is not idle."""
        host = await self._context.store.get(host_of(record))
        if host is None or host.spec.idle_timeout_seconds is None or host.stop is not None:
            return
        now = self._context.clock.boottime()
        if now - self._touched.get(host.uid, 0.0) >= host.spec.idle_timeout_seconds / 4:
            self._touched[host.uid] = now
            await self._touch_host(host.uid)

    async def perform(
        self, action: Action | CheckpointAction, record: SandboxRecord
    ) -> SandboxRecord | None:
        """Do one action; returns the record afterwards, None once it is buried."""
        performer = self._performers[type(action)]  # type: ignore[index]
        return await performer(record, action)

    async def _update(self, record: SandboxRecord) -> SandboxRecord:
        return await self._context.store.update(record)

    def _at_hand(self, record: SandboxRecord) -> bool:
        if record.uid in self._held:
            return True
        launches, host = self._context.launches, host_of(record)
        waits = record.step in (Step.RECORDED, Step.DISPATCHED)
        # Asking for the folder would make it again.
        return (
            waits
            and host in launches.list()
            and (launches.folder(host) / launch_name(record.uid)).exists()
        )

    async def _lay_down(self, record: SandboxRecord, _: object) -> SandboxRecord:
        held = self._held.get(record.uid, {})
        steps.reach(AgentStep.LAUNCH_BEFORE)
        for name in sorted(held, key=len, reverse=True):  # the script, with the shortest name, last
            self._context.launches.write(host_of(record), name, held[name])
        steps.reach(AgentStep.LAUNCH_AFTER)
        return record

    async def _undispatch(self, record: SandboxRecord, _: object) -> SandboxRecord:
        await self._book.drop(record.container_name)
        return await self._update(
            record.with_(step=Step.RECORDED, dispatched_at=None, dispatched_boottime=None)
        )

    async def _record_stop(
        self, record: SandboxRecord, action: sandbox_model.RecordStop
    ) -> SandboxRecord:
        stored = await self._update(record.with_(stop=action.stop))
        steps.reach(AgentStep.STOP_RECORDED)
        return stored

    def _forget(self, record: SandboxRecord) -> None:
        self._held.pop(record.uid, None)
        for end in ("", "-files", "-stdin"):
            self._context.launches.remove_file(host_of(record), launch_name(record.uid) + end)

    async def _dispatch(self, record: SandboxRecord, _: object) -> SandboxRecord:
        now = self._context.moment()
        host = await self._context.store.get(host_of(record))
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
        # From its record on, a Checkpoint sees that it runs; until then this says so.
        with self._turns.begun(host_of(record)):
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

    async def _start(self, record: SandboxRecord, _: object) -> SandboxRecord:
        """Launch a supervisor; returns once the engine has taken it."""
        live = self._look.of(record)
        if live.attending is not None and not live.attending.done():
            return record
        steps.reach(AgentStep.INSIDE_START_BEFORE)
        taken = asyncio.Event()
        live.attending = asyncio.create_task(self._attend(record, live, taken))
        waiting = asyncio.create_task(taken.wait())
        await asyncio.wait((live.attending, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        steps.reach(AgentStep.INSIDE_START_AFTER)
        return record

    async def _attend(self, record: SandboxRecord, live: Live, taken: asyncio.Event) -> None:
        """Wait for the supervisor's end, which is news; nothing hangs on hearing of it."""
        folder, launch = folder_of(record.uid), f"{script.MOUNT_POINT}/{launch_name(record.uid)}"
        argv = ("/bin/sh", "-c", _SUPERVISE, "isolet", folder, launch)
        engine = self._context.engine
        host = await self._context.store.get(host_of(record))
        if host is None:
            return
        try:
            async with engine.exec(
                host.engine_name, argv, user=record.spec.user, working_dir="/", stdin=False
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

    async def _end(self, record: SandboxRecord, _: object) -> SandboxRecord:
        stop = inside.ends_session(record, self._context.moment())
        assert stop is not None
        steps.reach(AgentStep.END_BEFORE)
        await self._end_host(host_of(record), stop)
        steps.reach(AgentStep.END_AFTER)
        return record

    async def _collect(self, record: SandboxRecord, _: object) -> SandboxRecord:
        host = await self._context.store.get(host_of(record))
        part = await collect.from_live(self._context, self._files, record, host)
        return await self._update(record.with_(process=part))

    async def _record_end(
        self, record: SandboxRecord, action: sandbox_model.RecordEnd
    ) -> SandboxRecord:
        outcome: Outcome = action.outcome
        now = self._context.moment()
        live = self._look.of(record)
        for sink in live.sinks.values():
            sink.close()
        await asyncio.to_thread(files_of(record, self._context.output_folder(record.uid)).sync)
        steps.reach(AgentStep.OUTCOME_BEFORE)
        stored = await self._update(
            record.with_(
                step=Step.ENDED,
                outcome=outcome,
                waiting=None,
                output=self._look.output(record.with_(outcome=outcome)),
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
        self._touched.pop(host_of(record), None)
        await self._touch_host(host_of(record))
        return stored

    async def _dispose(self, record: SandboxRecord, _: object) -> SandboxRecord:
        """Give the sandbox its room back, if it is still there."""
        host = await self._context.store.get(host_of(record))
        if host is not None and host.step is Step.RUNNING and host.outcome is None:
            argv = ("/bin/sh", "-c", 'rm -rf -- "$1"', "isolet", folder_of(record.uid))
            with contextlib.suppress(errors.IsoletError, TimeoutError):
                async with (
                    asyncio.timeout(LOOK_SECONDS),
                    self._context.engine.exec(
                        host.engine_name,
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

    async def _bury(self, record: SandboxRecord, _: object) -> None:
        context = self._context
        files_of(record, context.output_folder(record.uid)).delete()
        context.artifacts.remove(record.uid)
        await context.store.bury(record.uid, at=context.moment(), kind=Kind.PROCESS)
        steps.reach(AgentStep.BURY_AFTER)
