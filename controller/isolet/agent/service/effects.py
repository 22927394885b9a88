"""The actions of the sandbox plan, performed: intent is on disk before, the result after.

Each method may be cut off anywhere and repeated: names are deterministic, "already exists" with our
labels is adopted, and the store changes by compare-and-set.
"""

import asyncio

from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.engine import config as engine_config
from isolet.agent.engine.base import Container, SandboxConfig, Status
from isolet.agent.service import collect, config
from isolet.agent.service.assign import Assigner
from isolet.agent.service.context import Context
from isolet.agent.service.due import deadline_entry, on_boot_clock
from isolet.agent.service.facts import Facts
from isolet.agent.service.git_effects import GitEffects, Performer
from isolet.agent.service.imports import Imports
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.output import files_of, with_cut_streams
from isolet.agent.service.restorer import CannotRestore, Restorer
from isolet.agent.steps import AgentStep
from isolet.agent.workspace.disk import volume_options
from isolet.base import errors, names, steps
from isolet.plan import reasons, sandbox_model
from isolet.plan.sandbox_model import Kind, SandboxRecord
from isolet.wire.execution import Medium, Outcome, Step

DEATH_SECONDS = 5.0
DEATH_LOOK_SECONDS = 0.02
_ALIVE = frozenset({Status.RUNNING, Status.PAUSED, Status.RESTARTING})


class Effects:
    """Performs actions on one sandbox at a time; holds nothing of a sandbox itself."""

    def __init__(
        self,
        context: Context,
        facts: Facts,
        inputs: Inputs,
        restorer: Restorer,
        book: DeadlineBook,
        imports: Imports,
        assigner: Assigner,
    ) -> None:
        self._context = context
        self._facts = facts
        self._inputs = inputs
        self._restorer = restorer
        self._book = book
        self._imports = imports
        self._performers: dict[type[sandbox_model.Action], Performer] = {
            sandbox_model.Fetch: self._fetch,
            sandbox_model.Fill: self._fill,
            **GitEffects(context, imports).performers(),
            sandbox_model.Create: self._create,
            sandbox_model.Dispatch: self._dispatch,
            sandbox_model.Start: self._start,
            sandbox_model.Undispatch: self._undispatch,
            sandbox_model.Assign: assigner.assign,
            sandbox_model.Unassign: assigner.unassign,
            sandbox_model.RecordRunning: self._record_running,
            sandbox_model.RecordStop: self._record_stop,
            sandbox_model.End: self._end,
            sandbox_model.RemoveContainer: self._remove_unstarted,
            sandbox_model.Collect: self._collect,
            sandbox_model.RecordEnd: self._record_outcome,
            sandbox_model.Dispose: self._dispose,
            sandbox_model.Bury: self._bury,
        }

    async def perform(
        self,
        action: sandbox_model.Action | sandbox_model.CheckpointAction,
        record: SandboxRecord,
    ) -> SandboxRecord | None:
        """Do one action; returns the record afterwards, None once it is buried."""
        performer = self._performers[type(action)]  # type: ignore[index]
        return await performer(record, action)

    async def _fetch(self, record: SandboxRecord, _: object) -> SandboxRecord:
        try:
            await self._restorer.fetch(record)
        except CannotRestore as error:
            return await self._record_end(record, error.outcome)
        return record

    async def _fill(self, record: SandboxRecord, _: object) -> SandboxRecord:
        steps.reach(AgentStep.RESTORE_FILL_BEFORE)
        try:
            await self._restorer.fill(record)
        except CannotRestore as error:
            if record.container_id is not None:
                await self._end(record, sandbox_model.End(0))
            return await self._record_end(record, error.outcome)
        steps.reach(AgentStep.RESTORE_FILL_AFTER)
        boot = self._context.boot_id
        stored = await self._context.store.update(record.with_(restored=True, boot_id=boot))
        steps.reach(AgentStep.RESTORED_AFTER)
        await self._restorer.drop(record.uid)
        return stored

    async def _create(self, record: SandboxRecord, _: object) -> SandboxRecord | None:
        context = self._context
        steps.reach(AgentStep.LAUNCH_BEFORE)
        self._inputs.lay_down(record.uid)
        steps.reach(AgentStep.LAUNCH_AFTER)
        if record.spec.medium is Medium.DISK:
            await self._make_volume(record)
        wanted = config.sandbox(
            record.with_(image_id=self._facts.image_id(record)),
            installation=context.installation,
            launch_folder=str(context.launches.folder(record.uid)),
            tree_folder=str(context.trees.folder(record.uid)) if record.git else None,
        )
        async with context.starts:
            steps.reach(AgentStep.CREATE_BEFORE)
            made = await self._create_or_adopt(record, wanted)
            steps.reach(AgentStep.CREATE_AFTER)
        differences = engine_config.differences(engine_config.bounds(wanted), made.seen)
        if differences:
            return await self._record_end(record, _mismatch(differences))
        return record.with_(container_id=made.id, image_id=made.image_id)

    async def _make_volume(self, record: SandboxRecord) -> None:
        """Disk, then volume. A volume that names another device is left of an older boot."""
        context = self._context
        uid, gid = config.user_ids(record.spec.user)
        steps.reach(AgentStep.DISK_BEFORE)
        device = await context.disks.make(
            record.uid, record.spec.resources.workspace_bytes, uid, gid
        )
        steps.reach(AgentStep.DISK_AFTER)
        name = config.volume_name(record)
        options = volume_options(device)
        labels = config.labels(record, context.installation)
        volume = await context.engine.create_volume(name, labels, options)
        if volume.labels != labels:
            raise errors.Conflict(
                f"a volume named {name} exists that is not this record's; it was left alone",
                reason=reasons.CONTAINER_CONFLICT,
            )
        if volume.options != options:
            await context.engine.remove_volume(name)
            await context.engine.create_volume(name, labels, options)
        steps.reach(AgentStep.VOLUME_AFTER)

    async def _create_or_adopt(self, record: SandboxRecord, wanted: SandboxConfig) -> Container:
        engine = self._context.engine
        try:
            return await engine.inspect(await engine.create(wanted))
        except errors.Conflict:
            made = await engine.inspect(record.container_name)
            if made.labels.items() >= wanted.labels.items() and made.status is Status.CREATED:
                return made
            raise

    async def _dispatch(self, record: SandboxRecord, _: object) -> SandboxRecord:
        now = self._context.moment()
        dispatched = record.with_(
            step=Step.DISPATCHED,
            boot_id=now.boot_id,
            dispatched_at=now.wall,
            dispatched_boottime=now.boottime,
            process=on_boot_clock(record.process, now),
            waiting=None,
        )
        steps.reach(AgentStep.DISPATCH_BEFORE)
        # Both before the start: the watchdog must know the deadline before there is anything to
        # end. They are two files on two file systems, so neither waits for the other.
        _, stored = await asyncio.gather(
            self._guard(dispatched, pid=0), self._context.store.update(dispatched)
        )
        steps.reach(AgentStep.DISPATCH_AFTER)
        return stored

    async def _start(self, record: SandboxRecord, _: object) -> SandboxRecord:
        assert record.container_id is not None
        context = self._context
        await self._check_device(record)
        try:
            async with context.starts:
                await context.engine.start(record.container_id)
        except errors.Refused as error:
            return await self._record_end(
                record,
                Outcome(succeeded=False, reason=reasons.START_FAILED, message=error.message),
            )
        steps.reach(AgentStep.START_AFTER)
        return record

    async def _check_device(self, record: SandboxRecord) -> None:
        """The kernel reuses loop numbers: the volume must still name this uid's own image."""
        if record.spec.medium is not Medium.DISK:
            return
        context = self._context
        device = await context.disks.device_of(record.place)
        named = [
            volume.options.get("device")
            for volume in await context.engine.volumes(config.labels(record, context.installation))
        ]
        if device is None or named != [device]:
            raise errors.Unavailable(
                f"workspace volume names {named}, its image is at {device}",
                reason=reasons.ENGINE_UNAVAILABLE,
            )

    async def _undispatch(self, record: SandboxRecord, _: object) -> SandboxRecord:
        await self._book.drop(record.container_name)
        return await self._context.store.update(
            record.with_(
                step=Step.RECORDED, dispatched_at=None, dispatched_boottime=None, container_id=None
            )
        )

    async def _record_running(
        self, record: SandboxRecord, action: sandbox_model.RecordRunning
    ) -> SandboxRecord:
        if record.slot is not None and record.container_id is not None:
            # For people: its name says whose it is now.
            await self._context.engine.rename(record.container_id, record.container_name)
        now = self._context.moment()
        if record.restored and record.spec.medium is Medium.MEMORY:
            self._context.launches.write(record.uid, config.MAIN_GO, b"")
        # Where this boot's clock and the engine's wall clock disagree (a step), the dispatch bounds
        # the start from below: the deadline never moves past dispatch + what it took.
        since = max(0.0, (now.wall - action.started_at).total_seconds())
        earliest = record.dispatched_boottime or now.boottime
        running = record.with_(
            step=Step.RUNNING,
            started_at=action.started_at,
            started_boottime=max(earliest, now.boottime - since),
            waiting=None,
        )
        _, stored = await asyncio.gather(
            self._guard(running, pid=self._facts.pid(record.uid)),
            self._context.store.update(running),
        )
        if record.git is not None:
            self._imports.forget(record.uid)
        steps.reach(AgentStep.RUNNING_AFTER)
        return stored

    async def _record_stop(
        self, record: SandboxRecord, action: sandbox_model.RecordStop
    ) -> SandboxRecord:
        stored = await self._context.store.update(record.with_(stop=action.stop))
        steps.reach(AgentStep.STOP_RECORDED)
        return stored

    async def _end(self, record: SandboxRecord, action: sandbox_model.End) -> SandboxRecord:
        steps.reach(AgentStep.END_BEFORE)
        engine = self._context.engine
        if action.grace_seconds:
            await engine.stop(record.engine_name, grace_seconds=action.grace_seconds)
        else:
            await engine.kill(record.engine_name)
        await self._confirm_dead(record.engine_name)
        steps.reach(AgentStep.END_AFTER)
        return record

    async def _confirm_dead(self, container: str) -> None:
        """Look until the engine shows it dead.

        Raises:
            Unconfirmed: it still runs after `DEATH_SECONDS`; the worker tries again, ever slower.
        """
        clock = self._context.clock
        deadline = clock.monotonic() + DEATH_SECONDS
        while clock.monotonic() < deadline:
            try:
                seen = await self._context.engine.inspect(container)
            except errors.NotFound:
                return
            if seen.status not in _ALIVE:
                return
            await asyncio.sleep(DEATH_LOOK_SECONDS)
        raise errors.Unconfirmed(
            f"container {container} still runs after it was killed",
            reason=reasons.CANCEL_UNVERIFIED,
        )

    async def _remove_unstarted(self, record: SandboxRecord, _: object) -> SandboxRecord:
        await self._context.engine.remove(record.container_name)
        return record

    async def _collect(self, record: SandboxRecord, _: object) -> SandboxRecord:
        steps.reach(AgentStep.COLLECT_BEFORE)
        part = await collect.from_stopped(self._context, record)
        stored = await self._context.store.update(record.with_(process=part))
        steps.reach(AgentStep.COLLECT_AFTER)
        return stored

    async def _record_outcome(
        self, record: SandboxRecord, action: sandbox_model.RecordEnd
    ) -> SandboxRecord:
        return await self._record_end(record, action.outcome)

    async def _record_end(self, record: SandboxRecord, outcome: Outcome) -> SandboxRecord:
        now = self._context.moment()
        steps.reach(AgentStep.OUTCOME_BEFORE)
        stored = await self._context.store.update(
            record.with_(
                step=Step.ENDED,
                outcome=outcome,
                waiting=None,
                output=self._facts.output(record),
                process=with_cut_streams(self._context, record),
                updated_at=now.wall,
                boot_id=now.boot_id,
                ended_at=now.wall,
                ended_boottime=now.boottime,
            )
        )
        steps.reach(AgentStep.OUTCOME_AFTER)
        await self._book.drop(record.container_name)
        self._inputs.forget(record.uid)
        await self._restorer.drop(record.uid)
        if record.git is not None:
            self._imports.forget(record.uid)
        return stored

    async def _dispose(self, record: SandboxRecord, _: object) -> SandboxRecord:
        context = self._context
        steps.reach(AgentStep.DISPOSE_BEFORE)
        await self._remove_ours(record)
        steps.reach(AgentStep.DISPOSE_CONTAINER_AFTER)
        if record.spec.medium is Medium.DISK:
            await self._remove_volume(record)
            steps.reach(AgentStep.DISPOSE_VOLUME_AFTER)
            await context.disks.release(record.place)
            steps.reach(AgentStep.DISPOSE_DISK_AFTER)
        context.trees.remove(record.uid)
        for place in (record.uid, record.place):
            context.launches.remove(place)
        stored = await context.store.update(
            record.with_(
                step=Step.DISPOSED,
                nothing_left=True,
                waiting=None,
                updated_at=context.clock.now(),
            )
        )
        steps.reach(AgentStep.DISPOSED_AFTER)
        return stored

    async def _remove_ours(self, record: SandboxRecord) -> None:
        engine = self._context.engine
        if record.container_id is not None:
            # An id is never given twice: this is the one that was made for this record.
            await engine.remove(record.container_id)
            return
        try:
            seen = await engine.inspect(record.container_name)
        except errors.NotFound:
            return
        # An older sandbox of the same Process id, whose record is gone, goes with it.
        is_old = record.kind is Kind.PROCESS and names.labels_match(
            seen.labels, self._context.installation, record.uid
        )
        if is_old or self._facts.is_ours(seen, record):
            await engine.remove(seen.id)

    async def _remove_volume(self, record: SandboxRecord) -> None:
        context = self._context
        mine = await context.engine.volumes(config.labels(record, context.installation))
        for volume in mine:
            await context.engine.remove_volume(volume.name)

    async def _bury(self, record: SandboxRecord, _: object) -> None:
        context = self._context
        files_of(record, context.output_folder(record.uid)).delete()
        context.artifacts.remove(record.uid)
        await context.store.bury(record.uid, at=context.moment())
        if record.kind is Kind.SLOT:
            await context.store.forget((record.uid,), Kind.SLOT)
        steps.reach(AgentStep.BURY_AFTER)

    async def guard_again(self, record: SandboxRecord) -> None:
        """Tell the watchdog a deadline that has been moved."""
        if record.outcome is None:
            await self._guard(record, pid=self._facts.pid(record.uid))

    async def _guard(self, record: SandboxRecord, *, pid: int) -> None:
        """Tell the watchdog what must be dead by when."""
        entry = deadline_entry(record, pid)
        if entry is not None:
            await self._book.put(entry)


def _mismatch(differences: list[str]) -> Outcome:
    return Outcome(
        succeeded=False,
        reason=reasons.ISOLATION_MISMATCH,
        message="the engine made the sandbox otherwise than asked, so it was never started: "
        + "; ".join(differences),
    )
