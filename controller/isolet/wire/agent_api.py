"""The agent's interface: the same whether it is called in process, over HTTP or faked in a test.

Errors are those of `isolet.base.errors`; over HTTP they travel as `isolet.wire.faults`.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from isolet.wire.base import Fence, Wire
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecResult,
    ExecutionObserved,
    ExecutionWanted,
)
from isolet.wire.node import NodeObserved, Stray


class Snapshot(Wire):
    """Everything an agent holds at one sequence number."""

    epoch: str
    sequence: int
    executions: tuple[ExecutionObserved, ...]


class Change(Wire):
    """One line of the watch stream."""

    epoch: str
    sequence: int
    execution: ExecutionObserved | None = None
    """The Execution after the change; absent in a bookmark, sent while nothing changes."""
    node_changed: bool = False
    """The node's own account changed: read it again."""


class OutputChunk(Wire):
    """A piece of one stored stream."""

    offset: int
    data: bytes
    total_bytes: int
    complete: bool
    """No more will come after `total_bytes`."""


class AgentAPI(Protocol):
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

    async def remove_strays(self, names: Sequence[str], fence: Fence | None) -> Sequence[Stray]:
        """Remove these strays and return those that are still there."""
        ...
