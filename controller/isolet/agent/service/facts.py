"""Looking at one sandbox: engine, log, launch folder and events become `SandboxFacts`.

A read that fails is UNKNOWN. Reads that no decision needs at a step are not made.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime

from isolet.agent.engine.base import Container, Status, Stream
from isolet.agent.service import config
from isolet.agent.service.context import Context
from isolet.agent.service.ends import End, Ends
from isolet.agent.service.events import EventLog
from isolet.agent.service.images import Images
from isolet.agent.service.imports import Imports
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.output import Follower, OutputFiles, cap_of, files_of
from isolet.agent.service.restorer import Restorer
from isolet.base import errors
from isolet.plan import inside
from isolet.plan.sandbox_model import (
    ContainerFacts,
    Kind,
    Life,
    SandboxFacts,
    SandboxRecord,
    Seen,
    Stop,
)
from isolet.wire.execution import Medium, OOMSeen, OutputFacts, Step

_LIFE: Mapping[Status, Life] = {
    Status.CREATED: Life.CREATED,
    Status.RUNNING: Life.RUNNING,
    Status.RESTARTING: Life.RUNNING,
    Status.PAUSED: Life.PAUSED,
    Status.REMOVING: Life.REMOVING,
    Status.EXITED: Life.EXITED,
    Status.DEAD: Life.EXITED,
}


class Facts:
    """What is seen of each sandbox, and the followers of their output."""

    def __init__(
        self,
        context: Context,
        images: Images,
        inputs: Inputs,
        restorer: Restorer,
        events: EventLog,
        imports: Imports,
        wake: Callable[[str], None],
        outlook: Callable[[SandboxRecord], Seen],
    ) -> None:
        self._context = context
        self._outlook = outlook
        self._images = images
        self._inputs = inputs
        self._restorer = restorer
        self._events = events
        self.ends = Ends(context, events)
        self._imports = imports
        self._wake = wake
        self._followers: dict[str, Follower] = {}
        self._heard_since: dict[str, float] = {}
        self._pids: dict[str, int] = {}
        self._ended_by_watchdog: set[str] = set()

    async def gather(self, record: SandboxRecord) -> SandboxFacts:
        """Everything the next decision on `record` may need."""
        if record.outcome is not None:
            return SandboxFacts(container=Seen.UNKNOWN)
        if record.step is Step.RECORDED:
            return await self._before_start(record)
        container, state = await self._inspect(record)
        if container is None:
            return await self._without_container(record, state)
        end = await self._end(record, container)
        await self._attend_output(record, container, end)
        follower = self._followers.get(record.uid)
        return SandboxFacts(
            container=state,
            seen=self._container(container, record, end),
            control=follower.control if follower else None,
            control_detail=follower.control_detail if follower else "",
            output_done=follower.done if follower else True,
            output_incomplete=follower.incomplete if follower else True,
            heard_since=self._heard_since.get(record.uid),
            overflow=follower.overflow if follower else False,
            workspace_full=await self._workspace_full(record, container),
            ended_by_watchdog=record.uid in self._ended_by_watchdog,
            ended_for=await self._ended_for(record, container),
        )

    async def _end(self, record: SandboxRecord, container: Container) -> End:
        """Of a slot, or of what is not ours, nobody asks how it ended."""
        if record.kind is Kind.SLOT or not self.is_ours(container, record):
            return End(code=container.exit_code)
        return await self.ends.judge(record, container)

    async def _ended_for(self, record: SandboxRecord, container: Container) -> Stop | None:
        """The watchdog ends a session by the deadline of a Process in it, and tells nobody."""
        if not record.spec.session or record.stop or _LIFE[container.status] is not Life.EXITED:
            return None
        moment = self._context.moment()
        stops = (
            inside.ends_session(other, moment)
            for other in await self._context.store.list()
            if other.process and other.process.host_uid == record.uid
        )
        return next(filter(None, stops), None)

    async def _inspect(self, record: SandboxRecord) -> tuple[Container | None, Seen]:
        try:
            container = await self._context.engine.inspect(record.engine_name)
        except errors.NotFound:
            return None, Seen.ABSENT
        except errors.Unavailable:
            return None, Seen.UNKNOWN
        self._pids[record.uid] = container.pid
        return container, Seen.PRESENT

    async def _before_start(self, record: SandboxRecord) -> SandboxFacts:
        (container, state), (image, problem) = await asyncio.gather(
            self._inspect(record), self._images.check(record.spec.image)
        )
        return SandboxFacts(
            container=state,
            seen=self._container(container, record, End()) if container else None,
            image=image,
            image_problem=problem,
            inputs=self._inputs.at_hand(record.uid),
            source=self._restorer.is_known(record),
            tree=self._imports.look(record),
            slot=self._outlook(record) if record.awaits_slot else Seen.ABSENT,
        )

    async def _without_container(self, record: SandboxRecord, state: Seen) -> SandboxFacts:
        follower = self._followers.get(record.uid)
        self._heard_since.pop(record.uid, None)
        if state is Seen.ABSENT and follower is not None:
            await follower.stop()
            follower.give_up()
        return SandboxFacts(
            container=state,
            started_since_dispatch=await self._started_since_dispatch(record, state),
            overflow=follower.overflow if follower else False,
            ended_by_watchdog=record.uid in self._ended_by_watchdog,
        )

    def _container(self, container: Container, record: SandboxRecord, end: End) -> ContainerFacts:
        return ContainerFacts(
            id=container.id,
            ours=self.is_ours(container, record),
            life=_LIFE[container.status],
            exit_code=end.code,
            end_unknown=end.unknown,
            oom=self.oom(container),
            started_at=container.started_at,
            finished_at=container.finished_at,
        )

    def oom(self, container: Container) -> OOMSeen | None:
        """What was seen of memory running out; the engine's flag or its event may be missing."""
        heard = self._events.saw_oom(container.id)
        if not container.oom_killed and not heard:
            return None
        return OOMSeen(engine_flag=container.oom_killed, engine_event=heard)

    def is_ours(self, container: Container, record: SandboxRecord) -> bool:
        """Whether the container is this very record's, by every label."""
        return config.labels(record, self._context.installation).items() <= container.labels.items()

    async def _attend_output(self, record: SandboxRecord, container: Container, end: End) -> None:
        if not self.is_ours(container, record):
            return
        life = _LIFE[container.status]
        if life is Life.CREATED:
            return
        follower = self._follower(record)
        if life is Life.EXITED:
            await follower.finish(container.id, lost=end.output_lost)
        elif follower.ensure(container.id) or record.uid not in self._heard_since:
            self._heard_since[record.uid] = self._context.clock.boottime()
        if follower.control is not None:
            self._inputs.forget(record.uid)

    def _follower(self, record: SandboxRecord) -> Follower:
        follower = self._followers.get(record.uid)
        if follower is None:
            follower = Follower(
                self._context.engine,
                files_of(record, self._context.output_folder(record.uid)),
                cap=cap_of(record),
                nonce=self._context.nonce(record.uid, config.MAIN_SCRIPT),
                slot_nonce=self._slot_nonce(record),
                wake=lambda: self._wake(record.uid),
            )
            self._followers[record.uid] = follower
        return follower

    def await_stdout(self, uid: str, size: int) -> None:
        """Have `uid` looked at once so many bytes of its stdout are stored."""
        follower = self._followers.get(uid)
        if follower is not None:
            follower.await_stdout(size)

    def _slot_nonce(self, record: SandboxRecord) -> str | None:
        slot = record.slot
        return self._context.nonce(slot.uid, config.MAIN_SCRIPT) if slot else None

    async def _workspace_full(self, record: SandboxRecord, container: Container) -> bool:
        if record.spec.medium is not Medium.DISK or _LIFE[container.status] is not Life.EXITED:
            return False
        try:
            return await self._context.disks.is_full(record.place)
        except errors.IsoletError:
            return False

    async def _started_since_dispatch(self, record: SandboxRecord, state: Seen) -> Seen:
        """Whether the one start happened, once the container is gone; the events tell."""
        container = record.container_id
        if state is not Seen.ABSENT or record.step is not Step.DISPATCHED or container is None:
            return Seen.UNKNOWN
        if await self._events.never_started(container):
            return Seen.ABSENT
        return Seen.PRESENT if self._events.saw_start(container) else Seen.UNKNOWN

    def image_id(self, record: SandboxRecord) -> str | None:
        """The local id of the record's image, as last checked."""
        return self._images.id_of(record.spec.image)

    def pid(self, uid: str) -> int:
        """Host pid of the sandbox as last seen; 0 if unknown."""
        return self._pids.get(uid, 0)

    def watchdog_ended(self, uid: str) -> None:
        """The watchdog's journal says that it ended this sandbox for its deadline."""
        self._ended_by_watchdog.add(uid)

    def output(self, record: SandboxRecord) -> OutputFacts:
        """What is known of the output now."""
        follower = self._followers.get(record.uid)
        if follower is None:
            return record.output
        return follower.facts(record.spec.status_tail_bytes)

    async def drop(self, uid: str) -> None:
        """Forget a sandbox that has ended."""
        follower = self._followers.pop(uid, None)
        if follower is not None:
            await follower.close()
        self._heard_since.pop(uid, None)
        self._pids.pop(uid, None)
        self.ends.forget(uid)
        self._ended_by_watchdog.discard(uid)

    async def close(self) -> None:
        """Stop all followers; the sandboxes go on."""
        await asyncio.gather(*(follower.close() for follower in self._followers.values()))


def oldest(records: list[SandboxRecord], fallback: datetime) -> datetime:
    """From when on the engine's events matter."""
    return min((r.created_at for r in records if r.outcome is None), default=fallback)


def with_output(context: Context, facts: Facts, record: SandboxRecord) -> SandboxRecord:
    """The record with what is not in the store: live counts, and the tails, tenant data."""
    if record.outcome is None:
        return record.with_(output=facts.output(record))
    limit = record.spec.status_tail_bytes
    if not limit:
        return record
    files = OutputFiles(context.output_folder(record.uid))
    tails = {s: files.read(s, -limit, limit)[1] for s in Stream}
    return record.with_(
        output=record.output.model_copy(
            update={"stdout_tail": tails[Stream.STDOUT], "stderr_tail": tails[Stream.STDERR]}
        )
    )
