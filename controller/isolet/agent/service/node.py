"""The node's own account: kept fresh in the background, answered without waiting for the engine."""

import asyncio
from collections.abc import Callable, Sequence

import isolet
from isolet.agent.engine.base import Image as EngineImage
from isolet.agent.service.context import Context
from isolet.agent.service.qualify import Qualification, Qualifier, next_round_in, verdict
from isolet.base import errors, log, names
from isolet.plan import reasons
from isolet.plan.sandbox_model import Kind, SandboxRecord
from isolet.wire.execution import Medium
from isolet.wire.node import Amounts, Image, NodeCondition, NodeObserved, Stray
from isolet.wire.pool import PoolsObserved

REFRESH_SECONDS = 5.0
STRAY_PROBE_SECONDS = 120.0
"""A probe container older than this was left by a crash and is removed."""

_log = log.get("agent.node")


def allocated(records: Sequence[SandboxRecord]) -> Amounts:
    """What is promised to sandboxes that are not yet confirmed gone. Pure."""
    live = [r for r in records if not r.nothing_left and _has_room_of_its_own(r)]
    return Amounts(
        cpu_millis=sum(r.spec.resources.cpu_millis for r in live if r.outcome is None),
        memory_bytes=sum(r.spec.resources.memory_bytes for r in live if r.outcome is None),
        disk_bytes=sum(
            r.spec.resources.workspace_bytes for r in live if r.spec.medium is Medium.DISK
        ),
        executions=len(live),
    )


def is_quarantined(record: SandboxRecord) -> bool:
    """Whether it has ended and what is left of it resists. Pure."""
    resists = record.waiting is not None and record.waiting.reason == reasons.QUARANTINED
    return record.outcome is not None and resists and not record.nothing_left


def _has_room_of_its_own(record: SandboxRecord) -> bool:
    """Not what runs in a session; nor an unused slot, which makes room as soon as it is needed."""
    inside = record.process is not None and record.process.host_uid is not None
    return not inside and record.kind not in (Kind.SLOT, Kind.CHECKPOINT)


class Node:
    """Images, qualification and strays of this node, as last seen."""

    def __init__(self, context: Context, changed: Callable[[], None]) -> None:
        self._context = context
        self._changed = changed
        self._qualifier = Qualifier(context)
        self._qualification = Qualification(conditions=())
        self._images: tuple[Image, ...] = ()
        self._strays: tuple[Stray, ...] = ()
        self._engine_problem: str | None = "not asked yet"
        self._requalify = asyncio.Event()
        self.first_round = asyncio.Event()
        """Set once the first qualification is over, however it went."""

    @property
    def qualification(self) -> Qualification:
        """The verdicts of the last round."""
        return self._qualification

    def engine_back(self) -> None:
        """The engine was restarted: qualify anew, its configuration may be another."""
        self._requalify.set()

    async def qualify_loop(self) -> None:
        """Qualify at once, then now and then; soon again while something fails."""
        failed = 0
        while True:
            self._requalify.clear()
            found = await self._qualifier.run()
            failed = failed + 1 if found.is_serving and not found.is_whole else 0
            if found != self._qualification:
                self._qualification = found
                self._changed()
            self.first_round.set()
            try:
                async with asyncio.timeout(next_round_in(found, failed)):
                    await self._requalify.wait()
                failed = 0
            except TimeoutError:
                continue

    async def refresh_loop(self) -> None:
        """Look at images and strays every few seconds."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """One look; a failed one leaves what was seen before and says so."""
        before = (self._images, self._strays, self._engine_problem)
        try:
            self._images = tuple(_image(i) for i in await self._context.engine.images())
            self._strays = tuple(await self._find_strays())
            self._engine_problem = None
        except errors.IsoletError as error:
            self._engine_problem = error.message
        if (self._images, self._strays, self._engine_problem) != before:
            self._changed()

    def names_of(self, reference: str) -> tuple[str, ...]:
        """Tags and repository digests of an image that is given by its id."""
        return next((i.tags + i.digests for i in self._images if i.id == reference), ())

    def account(
        self, sequence: int, records: Sequence[SandboxRecord], pools: PoolsObserved
    ) -> NodeObserved:
        """Everything, from what is known now."""
        context = self._context
        down = self._engine_problem is not None
        return NodeObserved(
            name=context.node,
            installation=context.installation,
            agent_version=isolet.__version__,
            object_stores=() if context.object_store is None else (context.object_store.name,),
            epoch=context.store.epoch,
            boot_id=context.boot_id,
            sequence=sequence,
            now=context.clock.now(),
            architecture=self._qualification.architecture,
            conditions=self._conditions(),
            runtimes=() if down else self._qualification.runtimes,
            media=self._qualification.media,
            repositories=self._qualification.repositories,
            images=self._images,
            capacity=context.policy.capacity_amounts(),
            allocated=allocated(records),
            quarantined=sum(1 for r in records if is_quarantined(r)),
            strays=self._strays,
            pools=pools.pools,
            pools_digest=pools.digest,
        )

    def _conditions(self) -> tuple[NodeCondition, ...]:
        others = [c for c in self._qualification.conditions if c.type != "EngineReady"]
        engine = verdict(
            "EngineReady", self._engine_problem, "EngineUnavailable", "the engine answers"
        )
        return (engine, *others)

    async def _find_strays(self) -> list[Stray]:
        context = self._context
        mine = {names.LABEL_INSTALLATION: context.installation}
        # What is made meanwhile has a record afterwards, and what goes meanwhile had one before.
        known = await self._places()
        containers = await context.engine.containers(mine)
        volumes = await context.engine.volumes(mine)
        disks = await context.disks.list()
        copies = context.checkpoints.list()
        known |= await self._places()
        now = context.clock.now()
        found = []
        for container in containers:
            age = (now - container.created_at).total_seconds()
            if container.labels.get(names.LABEL_KIND) == "probe":
                await self._clear_probe(container.id, age)
            elif container.labels.get(names.LABEL_UID) not in known:
                found.append(_stray("container", container.name, container.labels, age))
        for volume in volumes:
            if volume.labels.get(names.LABEL_UID) not in known:
                age = (now - volume.created_at).total_seconds() if volume.created_at else 0.0
                found.append(_stray("volume", volume.name, volume.labels, age))
        found.extend(
            Stray(
                kind="disk", name=disk.uid, uid=disk.uid, age_seconds=now.timestamp() - disk.made_at
            )
            for disk in disks
            if disk.uid not in known
        )
        for uid in copies:
            if uid not in known:
                age = now.timestamp() - context.checkpoints.made_at(uid)
                found.append(Stray(kind="checkpoint", name=uid, uid=uid, age_seconds=age))
        return found

    async def _places(self) -> set[str]:
        """The ids under which something may lie here."""
        return {record.place for record in await self._context.store.list()}

    async def _clear_probe(self, container_id: str, age: float) -> None:
        if age > STRAY_PROBE_SECONDS:
            await self._context.engine.remove(container_id)

    async def remove_strays(self, wanted: Sequence[str]) -> Sequence[Stray]:
        """Remove strays by name, containers before volumes before disks; those that stay."""
        context = self._context
        for stray in await self._find_strays():
            if stray.name not in wanted:
                continue
            try:
                if stray.kind == "container":
                    await context.engine.remove(stray.name)
                elif stray.kind == "volume":
                    await context.engine.remove_volume(stray.name)
                elif stray.kind == "checkpoint":
                    await asyncio.to_thread(context.checkpoints.remove, stray.uid)
                else:
                    await context.disks.release(stray.uid)
            except errors.IsoletError as error:
                _log.warning("stray stays", extra={"stray": stray.name, "why": error.message})
        await self.refresh()
        return [stray for stray in self._strays if stray.name in wanted]


def _stray(kind: str, name: str, labels: dict[str, str] | object, age: float) -> Stray:
    found = dict(labels) if isinstance(labels, dict) else {}
    return Stray(
        kind=kind,
        name=name,
        uid=found.get(names.LABEL_UID, ""),
        namespace=found.get(names.LABEL_NAMESPACE, ""),
        age_seconds=age,
    )


def _image(image: EngineImage) -> Image:
    return Image(id=image.id, tags=image.tags, digests=image.digests)
