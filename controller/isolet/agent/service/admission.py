"""The first time a uid is heard of: policy, qualification, room, then a durable record."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from isolet.agent.policy import checks
from isolet.agent.service.checkpoint_records import held_bytes
from isolet.agent.service.context import Context
from isolet.agent.service.node import Node, allocated
from isolet.agent.steps import AgentStep
from isolet.base import errors, steps
from isolet.plan import reasons
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.execution import ExecutionSpec
from isolet.wire.node import Amounts

_EXISTS = "AlreadyExists"
"""What the store says of a uid that has a record."""

MAX_INSIDE = 16
"""Processes at a time in one session."""


def kept_checkpoints(records: Sequence[SandboxRecord], namespace: str) -> checks.KeptCheckpoints:
    """What is held, or about to be. Pure."""
    live = [r for r in records if r.checkpoint is not None and _holds(r)]
    return checks.KeptCheckpoints(
        count=len(live),
        of_namespace=sum(1 for r in live if r.namespace == namespace),
        bytes=sum(held_bytes(r.checkpoint.manifest) for r in live if r.checkpoint),
    )


def _holds(record: SandboxRecord) -> bool:
    return not record.nothing_left and (record.outcome is None or record.outcome.succeeded)


class Admission:
    """Lets work in, and counts what it lets in at once, so that no room is given twice."""

    def __init__(self, context: Context, node: Node) -> None:
        self._context = context
        self._node = node
        self._lock = asyncio.Lock()
        self._coming: dict[int, SandboxRecord] = {}
        self.stopped = False

    def stop(self) -> None:
        """Let nothing new in from now on."""
        self.stopped = True

    def image_names(self, image: str) -> Sequence[str]:
        """Names under which the node has an image, for the policy."""
        return self._node.names_of(image)

    async def sandbox(
        self,
        spec: ExecutionSpec,
        problems: Sequence[checks.Violation],
        keep: Callable[[], None],
        record: Callable[[], SandboxRecord],
        begin: Callable[[SandboxRecord], Awaitable[SandboxRecord]] | None = None,
    ) -> SandboxRecord:
        """Make the record of something with a sandbox of its own.

        `keep` has its inputs at hand: in memory before the record is durable, since the worker that
        finds the record needs them. `begin` makes it durable where that is more than to add it.

        Raises:
            Refused: the node's policy (`NodePolicy`).
            Unavailable: the node has no room or cannot take work.
        """
        self._require_open(problems)
        new = record()
        await self.hold(spec, new)
        try:
            return await self._add(keep, lambda: new, begin)
        finally:
            self.let_go(new)

    async def hold(self, spec: ExecutionSpec, record: SandboxRecord) -> None:
        """Keep room for a record that is on its way into the store, until `let_go`.

        Raises:
            Unavailable: the node has no room or cannot take work.
        """
        self._check_qualified(spec)
        async with self._lock:
            lack = checks.room(self._context.policy, await self._promised(), spec)
            if lack:
                raise errors.Unavailable(lack, reason=reasons.NODE_FULL, retry_after=5.0)
            self._coming[id(record)] = record

    def let_go(self, record: SandboxRecord) -> None:
        """It is in the store now, or will not come."""
        del self._coming[id(record)]

    async def _promised(self) -> Amounts:
        """What records hold, and those that are on their way into the store.

        They are not waited for: what comes at once shares one sync of the disk.
        """
        records = await self._context.store.list()
        known = {record.uid for record in records}
        coming = [record for record in self._coming.values() if record.uid not in known]
        return allocated([*records, *coming])

    async def inside(
        self,
        host_uid: str,
        problems: Sequence[checks.Violation],
        keep: Callable[[], None],
        record: Callable[[], SandboxRecord],
    ) -> SandboxRecord:
        """Make the record of a Process in a session, which has its room already."""
        self._require_open(problems)
        async with self._lock:
            others = [
                r
                for r in await self._context.store.list()
                if r.process and r.process.host_uid == host_uid and r.outcome is None
            ]
            if len(others) >= MAX_INSIDE:
                raise errors.Unavailable(
                    f"{MAX_INSIDE} Processes run in this Execution already",
                    reason="TooManyProcesses",
                    retry_after=5.0,
                )
            return await self._add(keep, record)

    async def checkpoint(self, record: SandboxRecord) -> SandboxRecord:
        """Make the record of a Checkpoint.

        Raises:
            Refused: the node's policy forbids it (`CheckpointsNotAllowed`), or what it keeps is
                used up (`CheckpointQuota`).
        """
        self._require_open(())
        policy = self._context.policy
        if not policy.checkpoints.count:
            raise errors.Refused(
                "this node's policy file allows no Checkpoints",
                reason=reasons.CHECKPOINTS_NOT_ALLOWED,
            )
        async with self._lock:
            kept = kept_checkpoints(await self._context.store.list(), record.namespace)
            lack = checks.checkpoint_quota(policy, kept)
            if lack:
                raise errors.Refused(lack, reason=reasons.CHECKPOINT_QUOTA)
            return await self._add(lambda: None, lambda: record)

    async def _add(
        self,
        keep: Callable[[], None],
        record: Callable[[], SandboxRecord],
        begin: Callable[[SandboxRecord], Awaitable[SandboxRecord]] | None = None,
    ) -> SandboxRecord:
        keep()
        new, store = record(), self._context.store
        steps.reach(AgentStep.RECORD_BEFORE)
        try:
            added = await (begin or store.add)(new)
        except errors.Conflict as error:
            # Whoever repeats what is not answered yet may be second: the record is there.
            first = await store.get(new.uid) if error.reason == _EXISTS else None
            if first is None:
                raise
            return first
        steps.reach(AgentStep.RECORD_AFTER)
        return added

    def _require_open(self, problems: Sequence[checks.Violation]) -> None:
        if self.stopped:
            raise errors.Unavailable("the agent is shutting down", reason="ShuttingDown")
        if problems:
            raise errors.Refused("; ".join(map(str, problems)), reason="NodePolicy")

    def _check_qualified(self, spec: ExecutionSpec) -> None:
        qualified = self._node.qualification
        if spec.runtime not in qualified.runtimes:
            why = next((c.message for c in qualified.conditions if c.status != "True"), "not yet")
            raise errors.Unavailable(
                f"runtime {spec.runtime} is not qualified on this node: {why}",
                reason="RuntimeUnqualified",
            )
        if spec.workspace.medium.value not in qualified.media:
            raise errors.Unavailable(
                "Disk workspaces cannot be made on this node", reason="DiskUnqualified"
            )
