"""The execution host as a library, without Kubernetes: the embedded default.

    host = ExecutionHost(agent)
    session = await host.provision(spec)
    result = await host.exec(session.uid, ExecRequest(command=("python3", "-c", "print(42)")))
    await host.terminate(session.uid)

It drives any `AgentAPI`: a `Service` in the same process (`isolet.agent.run.embedded`) or an agent
over its Unix socket (`isolet.client.http`). Ids are the caller's, or made here.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from isolet.agent.changes import Changes
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.agent_api import AgentAPI
from isolet.wire.checkpoint import (
    CheckpointObserved,
    CheckpointSpec,
    CheckpointWanted,
    Manifest,
)
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecResult,
    ExecutionObserved,
    ExecutionSpec,
    ExecutionWanted,
    GitSource,
    Outcome,
    State,
    Step,
    Workspace,
)
from isolet.wire.restore import Restore

_NEVER_RAN = frozenset(
    {
        reasons.IMAGE_MISSING,
        reasons.IMAGE_UNSUITABLE,
        reasons.START_FAILED,
        reasons.START_UNCONFIRMED,
        reasons.CONTAINER_CONFLICT,
        reasons.CONTAINER_LOST,
        reasons.ISOLATION_MISMATCH,
        reasons.NODE_LOST,
        reasons.CHECKPOINT_INVALID,
        reasons.CHECKPOINT_NOT_FOUND,
        reasons.CHECKPOINT_TOO_LARGE,
        reasons.CHECKPOINT_UNAVAILABLE,
        reasons.NODE_STORAGE_FULL,
        reasons.GIT_IMPORT_FAILED,
        reasons.REPOSITORY_UNAVAILABLE,
    }
)

_REFUSED = frozenset(
    {
        reasons.REVISION_NOT_FOUND,
        reasons.REVISION_AMBIGUOUS,
        reasons.TREE_TOO_LARGE,
        reasons.TREE_UNSUPPORTED,
    }
)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run-to-completion Execution ended, with its stored output."""

    outcome: Outcome
    stdout: bytes
    stderr: bytes
    truncated: bool
    incomplete: bool


class ExecutionHost:
    """Provision, exec, wait, terminate, reclaim; take, restore, list and delete Checkpoints."""

    def __init__(self, agent: AgentAPI) -> None:
        self._agent = agent
        self._changes = Changes(agent)

    async def provision(
        self,
        spec: ExecutionSpec,
        *,
        uid: str | None = None,
        deadline_seconds: int | None = None,
        timeout_seconds: float = 60.0,
        git: GitSource | None = None,
    ) -> ExecutionObserved:
        """Have a sandbox; returns once it runs (or, for a command, has run).

        The same uid with the same spec continues what is there; it is never started twice.

        Args:
            spec: what is to run.
            uid: one that was never used for anything else; absent: a new one.
            deadline_seconds: how long it may live; absent: as long as the spec allows.
            timeout_seconds: for the start, a Git tree's reading included.
            git: what the workspace begins with, in place of the spec's own. The commit is in `git`
                of what is returned.

        Raises:
            Invalid, Refused: the spec breaks a rule or the node's policy.
            Conflict: the uid stands for another spec, or has ended here before.
            Unavailable: the node has no room or cannot start sandboxes now, or did not within
                `timeout_seconds`; or the start failed (reasons `ImageMissing`, `StartFailed` …).
        """
        if git is not None:
            workspace = spec.workspace.model_copy(update={"git": git})
            spec = spec.model_copy(update={"workspace": workspace})
        wanted = ExecutionWanted(
            uid=uid or f"exec-{uuid.uuid4()}",
            name=uid or "embedded",
            spec=spec,
            active_deadline_seconds=deadline_seconds or spec.maximum_deadline_seconds,
        )
        seen = await self._agent.put(wanted, None)
        try:
            async with asyncio.timeout(timeout_seconds):
                seen = await self._until(wanted.uid, _has_started)
        except TimeoutError:
            waiting = f": {seen.waiting.message}" if seen.waiting else ""
            raise errors.Unavailable(
                f"{wanted.uid} did not start in {timeout_seconds:.0f} s{waiting}"
            ) from None
        if seen.outcome is not None and seen.outcome.reason in _NEVER_RAN:
            raise errors.Unavailable(seen.outcome.message, reason=seen.outcome.reason)
        if seen.outcome is not None and seen.outcome.reason in _REFUSED:
            raise errors.Refused(seen.outcome.message, reason=seen.outcome.reason)
        return seen

    async def exec(self, uid: str, request: ExecRequest) -> ExecResult:
        """Run a command in a session. A non-zero exit is a result.

        Raises:
            NotFound, Conflict: no such session, or it does not run.
            Refused: the command passed its time (`CommandTimeout`) or the output limit
                (`OutputLimitExceeded`): the session is destroyed; or its program cannot be started
                (`StartFailed`): the session lives.
        """
        return await self._agent.exec(uid, request)

    async def wait(self, uid: str) -> RunResult:
        """Wait for the end of an Execution and read its output."""
        seen = await self._until(uid, lambda observed: observed.outcome is not None)
        assert seen.outcome is not None
        return RunResult(
            outcome=seen.outcome,
            stdout=await self._read(uid, "stdout"),
            stderr=await self._read(uid, "stderr"),
            truncated=seen.output.truncated,
            incomplete=seen.output.incomplete,
        )

    async def terminate(self, uid: str) -> ExecutionObserved:
        """End it, also while a command runs; its record and output stay. May be repeated."""
        seen = await self._agent.get(uid)
        if seen.outcome is None:
            await self._agent.amend(uid, Amendment(state=State.TERMINATED), None)
        return await self._until(uid, lambda observed: observed.nothing_left)

    async def reclaim(self, uid: str) -> None:
        """Have nothing left of `uid`, known or not: sandbox, workspace, record and output."""
        if not _is_buried(await self._agent.remove(uid, None)):
            await self._until(uid, _is_buried)

    async def list(self) -> tuple[ExecutionObserved, ...]:
        """Everything this host holds."""
        return (await self._agent.snapshot()).executions

    async def checkpoint(
        self,
        execution_uid: str,
        *,
        uid: str | None = None,
        reason: str = "",
        timeout_seconds: float = 300.0,
    ) -> CheckpointObserved:
        """Take the workspace of a session, or of an ended Execution whose disk is still kept.

        Waits for commands in the session to end. The same uid again answers with what is.

        Raises:
            NotFound: no such Execution.
            Conflict: the uid stands for another Checkpoint, or has ended here before.
            Refused: the node's policy, or its quota.
            Unavailable: it could not be taken (`CheckpointFailed`; the session is as it was), or
                was not within `timeout_seconds`.
        """
        wanted = CheckpointWanted(
            uid=uid or f"checkpoint-{uuid.uuid4()}",
            name=uid or "embedded",
            spec=CheckpointSpec(execution_uid=execution_uid, reason=reason),
        )
        seen = await self._agent.put_checkpoint(wanted, None)
        try:
            async with asyncio.timeout(timeout_seconds):
                seen = await self._until_checkpoint(wanted.uid, lambda at: at.outcome is not None)
        except TimeoutError:
            waiting = f": {seen.waiting.message}" if seen.waiting else ""
            raise errors.Unavailable(
                f"{wanted.uid} was not taken in {timeout_seconds:.0f} s{waiting}"
            ) from None
        assert seen.outcome is not None
        if not seen.outcome.succeeded:
            raise errors.Unavailable(seen.outcome.message, reason=seen.outcome.reason)
        return seen

    async def restore(
        self,
        checkpoint_uid: str,
        *,
        spec: ExecutionSpec | None = None,
        uid: str | None = None,
        deadline_seconds: int | None = None,
        timeout_seconds: float = 300.0,
    ) -> ExecutionObserved:
        """Have a sandbox whose workspace is as it was; see `provision`.

        Args:
            checkpoint_uid: what its workspace starts with.
            spec: what it is to be; without it a session with image, user, bounds and medium of the
                Execution that the Checkpoint was taken from.
            uid: its uid.
            deadline_seconds: its life.
            timeout_seconds: how long to wait for it.

        Raises:
            NotFound: no such Checkpoint on this node.
            Unavailable: as `provision`; or it could not be restored, and nothing is left
                (`CheckpointInvalid`, `CheckpointTooLarge`, `CheckpointUnavailable`).
        """
        seen = await self._agent.get_checkpoint(checkpoint_uid)
        manifest = seen.manifest
        if manifest is None or seen.manifest_digest is None:
            raise errors.NotFound(f"there is no copy of Checkpoint {checkpoint_uid}")
        restored = spec or restored_spec(manifest)
        source = Restore(
            checkpoint_uid=checkpoint_uid,
            manifest_digest=seen.manifest_digest,
            content_digest=manifest.content_digest,
        )
        return await self.provision(
            restored.model_copy(update={"restore": source}),
            uid=uid,
            deadline_seconds=deadline_seconds,
            timeout_seconds=timeout_seconds,
        )

    async def checkpoints(self) -> tuple[CheckpointObserved, ...]:
        """All Checkpoints that this host holds."""
        return (await self._agent.snapshot()).checkpoints

    async def delete_checkpoint(self, uid: str) -> None:
        """Have nothing left of it; waits for restores that read it. May be repeated."""
        await self._agent.remove_checkpoint(uid, None)
        await self._until_checkpoint(uid, lambda at: at.nothing_left and at.outcome is None)

    async def _until(
        self, uid: str, reached: Callable[[ExecutionObserved], bool]
    ) -> ExecutionObserved:
        return await self._changes.until(uid, self._agent.get, ExecutionObserved, reached)

    async def _until_checkpoint(
        self, uid: str, reached: Callable[[CheckpointObserved], bool]
    ) -> CheckpointObserved:
        get = self._agent.get_checkpoint
        return await self._changes.until(uid, get, CheckpointObserved, reached)

    async def _read(self, uid: str, stream: Literal["stdout", "stderr"]) -> bytes:
        data = bytearray()
        while True:
            chunk = await self._agent.output(uid, stream, len(data), 1 << 20)
            data += chunk.data
            if len(data) >= chunk.total_bytes:
                return bytes(data)


def _is_buried(seen: ExecutionObserved) -> bool:
    """Whether the record is gone too; a tombstone has no outcome."""
    return seen.nothing_left and seen.outcome is None


def _has_started(seen: ExecutionObserved) -> bool:
    return seen.step is Step.RUNNING or seen.outcome is not None


def restored_spec(manifest: Manifest) -> ExecutionSpec:
    """A session as the manifest's Execution was."""
    source = manifest.source
    return ExecutionSpec(
        image=source.image,
        user=source.user,
        resources=source.resources,
        workspace=Workspace(medium=source.medium),
    )
