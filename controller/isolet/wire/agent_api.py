"""The agent's interface: the same whether it is called in process, over HTTP or faked in a test.

Errors are those of `isolet.base.errors`; over HTTP they travel as `isolet.wire.faults`.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from isolet.wire.base import Fence, Wire
from isolet.wire.checkpoint import CheckpointObserved, CheckpointWanted, Grant, Part
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecResult,
    ExecutionObserved,
    ExecutionWanted,
)
from isolet.wire.node import NodeObserved, Stray
from isolet.wire.pool import PoolsObserved, PoolsWanted
from isolet.wire.process import (
    ArtifactChunk,
    FileEntry,
    ProcessAmendment,
    ProcessObserved,
    ProcessWanted,
)


class Snapshot(Wire):
    """Everything an agent holds at one sequence number."""

    epoch: str
    sequence: int
    executions: tuple[ExecutionObserved, ...]
    processes: tuple[ProcessObserved, ...] = ()
    checkpoints: tuple[CheckpointObserved, ...] = ()


class Change(Wire):
    """One line of the watch stream."""

    epoch: str
    sequence: int
    execution: ExecutionObserved | None = None
    """The Execution after the change; absent in a bookmark, sent while nothing changes."""
    process: ProcessObserved | None = None
    """The Process after the change."""
    checkpoint: CheckpointObserved | None = None
    """The Checkpoint after the change."""
    node_changed: bool = False
    """The node's own account changed: read it again."""


class OutputChunk(Wire):
    """A piece of one stored stream."""

    offset: int
    data: bytes
    total_bytes: int
    complete: bool
    """No more will come after `total_bytes`."""


class ProcessAPI(Protocol):
    """What an agent does about Processes, and about files of live sessions."""

    async def put_process(self, wanted: ProcessWanted, fence: Fence | None) -> ProcessObserved:
        """Want this Process; answers with what is. May be repeated.

        Raises:
            Fenced, Conflict, Refused, Unavailable: as `AgentAPI.put`.
            Invalid: an argument or value that cannot be passed on.
            NotFound: its Execution is not here.
            Conflict: its Execution is no running session (`NotRunning`, `NotASession`).
            Unavailable: too many Processes run in its Execution (`TooManyProcesses`).
        """
        ...

    async def amend_process(
        self, uid: str, change: ProcessAmendment, fence: Fence | None
    ) -> ProcessObserved:
        """Cancel or dispose. Raises NotFound, Fenced."""
        ...

    async def remove_process(self, uid: str, fence: Fence | None) -> ProcessObserved:
        """Want nothing left of `uid`, record, output and artifacts included; see `remove`."""
        ...

    async def forget_processes(self, uids: Sequence[str], fence: Fence | None) -> int:
        """Drop the tombstones of removed Processes, so that their uids may be used again.

        For an owner that reuses ids on purpose; returns how many were dropped.
        """
        ...

    async def get_process(self, uid: str) -> ProcessObserved:
        """One Process; see `get`. Raises NotFound."""
        ...

    async def process_output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """Stored bytes, live while it runs. With KeepTail, offsets count from the first kept byte.

        Raises:
            NotFound: no such Process.
        """
        ...

    async def read_artifact(self, uid: str, path: str, offset: int, limit: int) -> ArtifactChunk:
        """A piece of a kept artifact, or of any file of the workspace while that is retained.

        Raises:
            NotFound: no such Process or file.
            Conflict: it has not ended (`StillRunning`).
            Refused: `ArtifactRejected` (no plain file below the workspace), `ArtifactTooLarge`.
        """
        ...

    async def put_file(self, uid: str, path: str, content: bytes, mode: int) -> None:
        """Write a file into the workspace of a running session.

        Raises:
            NotFound, Conflict: no such session, or it does not run.
            Invalid: the path is not normalised and relative.
            Refused: a link or other thing in the path (`ArtifactRejected`), no room
                (`WorkspaceFull`).
        """
        ...

    async def get_file(self, uid: str, path: str) -> bytes:
        """Read a file of a running session, at most its output bound.

        Raises:
            NotFound: no such session or file.
            Refused: `ArtifactRejected`, `ArtifactTooLarge`.
        """
        ...

    async def list_files(self, uid: str, path: str) -> Sequence[FileEntry]:
        """Entries of a folder ("" is the workspace) of a running session."""
        ...


class CheckpointAPI(Protocol):
    """What an agent does about Checkpoints."""

    async def put_checkpoint(
        self, wanted: CheckpointWanted, fence: Fence | None
    ) -> CheckpointObserved:
        """Want this Checkpoint; answers with what is. May be repeated.

        A workspace that cannot be taken is an outcome of the Checkpoint, not an error here.

        Raises:
            Fenced, Unavailable: as `AgentAPI.put`.
            Conflict: the uid is known with another spec, or has ended here before.
            NotFound: its Execution is not here.
            Refused: the node's policy file forbids it (`CheckpointsNotAllowed`), or what the node
                keeps for Checkpoints is used up (`CheckpointQuota`).
        """
        ...

    async def remove_checkpoint(self, uid: str, fence: Fence | None) -> CheckpointObserved:
        """Want no copy of it left; see `AgentAPI.remove`. Waits for those who read it."""
        ...

    async def get_checkpoint(self, uid: str) -> CheckpointObserved:
        """One Checkpoint; see `AgentAPI.get`. Raises NotFound."""
        ...

    async def grant_checkpoint(
        self, uid: str, reader: str, seconds: int, fence: Fence | None
    ) -> Grant:
        """Let the agent of node `reader` read it, for at most `seconds` (to begin; ≤ 3600).

        Raises:
            NotFound: there is no such Checkpoint, or no whole copy of it on this node.
        """
        ...

    def read_checkpoint(
        self,
        uid: str,
        part: Part,
        *,
        offset: int = 0,
        reader: str | None = None,
        token: str | None = None,
    ) -> AsyncIterator[bytes]:
        """The bytes of one of its files; the reader checks them by digest.

        Args:
            uid: its uid.
            part: which file.
            offset: how many bytes to leave out at the beginning: what an earlier call brought.
            reader: the node whose certificate the caller showed; None for local callers.
            token: what `grant_checkpoint` gave for that node; local callers need none.

        Raises:
            NotFound: as `grant_checkpoint`.
            Refused: the token is for something else, or expired (`GrantRefused`).
        """
        ...


class AgentAPI(ProcessAPI, CheckpointAPI, Protocol):
    """What an agent does for its callers."""

    async def put(self, wanted: ExecutionWanted, fence: Fence | None) -> ExecutionObserved:
        """Want this Execution; answers with what is. May be repeated.

        Raises:
            Fenced: an older leader.
            Conflict: the uid is known with another spec, or has ended here before.
            Refused: the node's policy file forbids it.
            Unavailable: the node is full (`NodeFull`) or the engine is not qualified.
        """
        ...

    async def amend(self, uid: str, change: Amendment, fence: Fence | None) -> ExecutionObserved:
        """Change what is mutable. Raises NotFound, Fenced, Refused (deadline over the maximum)."""
        ...

    async def remove(self, uid: str, fence: Fence | None) -> ExecutionObserved:
        """Want nothing left of `uid`; `nothing_left` in the answer says when that is confirmed.

        A uid that was never here answers at once, and can not be started here afterwards.
        """
        ...

    async def get(self, uid: str) -> ExecutionObserved:
        """One Execution; one whose record is gone but whose tombstone is not has `nothing_left`.

        Raises:
            NotFound: this agent has never heard of it, or no longer remembers.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """All Executions."""
        ...

    def watch(self, after: int) -> AsyncIterator[Change]:
        """Changes after a sequence number, then live ones, with a bookmark every few seconds."""
        ...

    async def output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """Up to `limit` stored bytes from `offset` (negative: from the end). Raises NotFound."""
        ...

    async def exec(self, uid: str, request: ExecRequest) -> ExecResult:
        """Run a command in a running session.

        Raises:
            NotFound: no such session.
            Conflict: it is not running, or is being terminated (reason `NotRunning`).
            Refused: timeout (`CommandTimeout`) or overflow (`OutputLimitExceeded`); the whole
                sandbox is destroyed in both cases. Or the session was ended meanwhile, with the
                reason of its own end (`DeadlineExceeded`, `Cancelled` …).
        """
        ...

    async def node(self) -> NodeObserved:
        """The node's own account. Never waits for the engine."""
        ...

    async def put_pools(self, wanted: PoolsWanted, fence: Fence | None) -> PoolsObserved:
        """Want exactly these warm pools, from now on and after a restart. May be repeated.

        Unused slots of a pool that is not among them, or of another generation, go; what was given
        a slot is not touched. A pool that the node's policy forbids, or for which there is no room,
        is not an error here: its `message` says so.

        Raises:
            Fenced: an older leader.
        """
        ...

    async def remove_strays(self, names: Sequence[str], fence: Fence | None) -> Sequence[Stray]:
        """Remove these strays and return those that are still there."""
        ...
