"""One operator, put together: every part of the main loop and how they hang together.

Nothing here does I/O before `run`. The threads (kopf, the elector) and the choice of real
implementations are `run.py`'s.
"""

import asyncio
import contextlib

from isolet.base import log
from isolet.base.clock import Clock
from isolet.operator.apply import Applier
from isolet.operator.bells import Bells, Sweep
from isolet.operator.cache import ObjectCache
from isolet.operator.events import Recorder
from isolet.operator.guard import GuardedCluster
from isolet.operator.handlers import Event
from isolet.operator.index import Index
from isolet.operator.kube import NODES, OURS, Cluster, Key, Kind, Object, version_of
from isolet.operator.leader import Leadership
from isolet.operator.metrics import PassTimes, StateCollector, new_registry
from isolet.operator.nodes import Connect, Nodes
from isolet.operator.observe import ClassShelf, Namespaces, Observer
from isolet.operator.orphans import OrphanLoop
from isolet.operator.queue import Again, WorkQueue
from isolet.operator.reconcile import Reconciler
from isolet.operator.relist import Relist
from isolet.operator.settings import Settings
from isolet.operator.tombstones import Tombstones
from isolet.plan.actions import Alert, EventType
from isolet.plan.objects import AnyRecord, ObjectRef

_log = log.get("operator")

HEARTBEAT = 1.0


class Operator:
    """The parts of one operator process that live on its main loop."""

    def __init__(
        self, settings: Settings, cluster: Cluster, connect: Connect, clock: Clock
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.leadership = Leadership(clock, settings.lease)
        self.cluster = GuardedCluster(cluster, self.leadership)
        self.queue: WorkQueue[Key] = WorkQueue(clock)
        self.index = Index()
        self.cache = ObjectCache(OURS, self._object_changed)
        self.classes = ClassShelf(self.cache)
        self.sweep = Sweep(self.index, self.queue.add)
        self.nodes = Nodes(
            connect,
            clock,
            self.index,
            changed=self._record_changed,
            accounted=self._node_accounted,
            times=settings.links,
            calls=settings.agent_calls,
        )
        self.bells = Bells(self.queue, self.index, self.nodes, self.classes, self.sweep)
        self.relist = Relist(
            self.cluster, self.cache, OURS, self.bells.resync, clock, settings.resync_seconds
        )
        self.recorder = Recorder(self.cluster, clock, identity=settings.identity)
        self.tombstones = Tombstones(self.cluster, settings.namespace)
        self._assemble_passes()
        self.registry = new_registry(StateCollector(self))
        self.times = PassTimes(self.registry)
        self._led = asyncio.Event()

    def _assemble_passes(self) -> None:
        settings, clock = self.settings, self.clock
        self.applier = Applier(
            self.cluster,
            self.cache,
            self.nodes,
            self.leadership,
            self.recorder,
            self.tombstones,
            self._alert,
        )
        self.observer = Observer(
            self.cluster,
            self.cache,
            self.index,
            self.nodes,
            self.classes,
            Namespaces(self.cluster, clock),
            clock,
            settings.installation,
            leader_since=clock.now(),
            leader_boottime=clock.boottime(),
        )
        self.reconciler = Reconciler(
            self.cluster,
            self.cache,
            self.index,
            self.nodes,
            self.observer,
            self.applier,
            clock,
            settings.installation,
            contact=self.bells.node_contact,
        )
        self.orphans = OrphanLoop(
            self.applier,
            self.cache,
            self.nodes,
            self.relist,
            self.tombstones,
            clock,
            settings.orphan_policy,
        )
        self.bells.contact_changed = self.bells.use_changed = self.orphans.wake

    # What comes in.

    def take(self, event: Event) -> None:
        """A watch event. Called on the main loop."""
        account = self.relist.accounts[event.kind.kind]
        account.deliver(version_of(event.obj))
        if event.deleted:
            self.cache.drop(event.kind, event.obj)
        else:
            self.cache.put(event.kind, event.obj)

    def win(self) -> None:
        """The lease is ours. Called on the main loop, once."""
        self._led.set()

    def unhealthy(self) -> list[str]:
        """Why this process should be started anew; empty while it is well."""
        limit = self.settings.stall_grace_seconds
        problems = [f"the watch of {kind} has stalled" for kind in self.relist.stalled(limit)]
        last, now = self.relist.last, self.clock.monotonic()
        if last is not None and now - last > 3 * self.settings.resync_seconds:
            problems.append("nothing could be listed for a long time")
        return problems

    def unready(self) -> list[str]:
        """Why this process cannot serve yet, or as a standby could not take over."""
        missing = [kind.plural for kind in OURS if not self.cache.complete(kind)]
        return [f"not listed yet: {', '.join(missing)}"] if missing else []

    # What runs.

    async def run(self) -> None:
        """Everything on the main loop, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat(), name="heartbeat")
            group.create_task(self.relist.run(), name="relist")
            group.create_task(self._lead(), name="lead")

    async def drain(self) -> None:
        """Let the passes under way end, begin no new ones, and let go of the agents."""
        self.queue.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.queue.quiet()

    async def close(self) -> None:
        """Close the connections to agents."""
        await self.nodes.close()

    async def _beat(self) -> None:
        while True:
            self.leadership.beat()
            await asyncio.sleep(HEARTBEAT)

    async def _lead(self) -> None:
        await self._led.wait()
        self.observer.lead()
        self.bells.leading = True
        self.nodes.lead()
        self.relist.begin_leading()
        for kind in OURS:
            for key in self.cache.keys(kind):
                self.bells.resync(key)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.recorder.run(), name="events")
            group.create_task(self.sweep.run(), name="sweep")
            group.create_task(self.orphans.run(), name="orphans")
            group.create_task(self.queue.run(self.settings.workers, self._work), name="passes")

    async def _work(self, key: Key) -> Again:
        began = self.clock.monotonic()
        failed = True
        try:
            again = await self.reconciler.work(key)
            failed = again.failed
            return again
        finally:
            self.times.observe(key.kind, failed, self.clock.monotonic() - began)

    # What hangs together in a circle: these are called only once all parts exist.

    def _object_changed(self, kind: Kind, key: Key, obj: Object | None, own: bool) -> None:
        self.bells.object_changed(kind, key, obj, own)

    def _record_changed(self, record: AnyRecord) -> None:
        self.bells.record_changed(record)

    def _node_accounted(self, name: str) -> None:
        self.bells.node_accounted(name)

    def _alert(self, alert: Alert) -> None:
        _log.error(
            "someone must look",
            extra={"node": alert.node, "reason": alert.reason, "detail": alert.message},
        )
        obj = self.nodes.object(alert.node)
        if obj is None:
            return
        ref = ObjectRef(kind=NODES.kind, namespace="", name=alert.node, uid=obj.metadata.uid)
        self.recorder.record(ref, EventType.WARNING, alert.reason, alert.message, alert.key)
