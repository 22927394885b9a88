"""What an agent says about itself and its node."""

from datetime import datetime
from typing import Self

from isolet.wire.base import WIRE_VERSIONS, Wire
from isolet.wire.execution import Medium, Resources
from isolet.wire.pool import PoolObserved


class NodeCondition(Wire):
    """One fact about the node; `status` is "True", "False" or "Unknown" as in Kubernetes."""

    type: str
    status: str
    reason: str
    message: str


class Image(Wire):
    """An image that is on the node."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


class Amounts(Wire):
    """Capacity of a node, or the part of it that is promised."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    executions: int = 0

    @classmethod
    def of_sandbox(cls, bounds: Resources, medium: Medium) -> Self:
        """What one sandbox with these bounds takes."""
        return cls(
            cpu_millis=bounds.cpu_millis,
            memory_bytes=bounds.memory_bytes,
            disk_bytes=bounds.workspace_bytes if medium is Medium.DISK else 0,
            executions=1,
        )

    def plus(self, more: "Amounts", times: int = 1) -> "Amounts":
        """Both together; with negative `times`, what is left without it."""
        return Amounts(
            cpu_millis=self.cpu_millis + times * more.cpu_millis,
            memory_bytes=self.memory_bytes + times * more.memory_bytes,
            disk_bytes=self.disk_bytes + times * more.disk_bytes,
            executions=self.executions + times * more.executions,
        )


class Stray(Wire):
    """Something with our labels that no record owns."""

    kind: str
    """container, volume or disk."""
    name: str
    uid: str
    namespace: str = ""
    age_seconds: float


class NodeObserved(Wire):
    """An agent's whole account of its node."""

    name: str
    installation: str
    agent_version: str
    wire_versions: tuple[int, ...] = WIRE_VERSIONS
    epoch: str
    """Identity of the agent's store; a new one means the old records are gone."""
    boot_id: str
    sequence: int
    now: datetime
    architecture: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    runtimes: tuple[str, ...] = ()
    """Runtimes that were qualified by starting a sandbox with them."""
    media: tuple[str, ...] = ()
    """Workspace media this node can give."""
    object_stores: tuple[str, ...] = ()
    """Names of the object stores that it can read and write."""
    repositories: tuple[str, ...] = ()
    """Names of Git repositories that workspaces can start from; `team/*`: all below `team/`."""
    images: tuple[Image, ...] = ()
    capacity: Amounts = Amounts()
    allocated: Amounts = Amounts()
    quarantined: int = 0
    strays: tuple[Stray, ...] = ()
    pools: tuple[PoolObserved, ...] = ()
    pools_digest: str | None = None
    """Digest of the wish for warm pools that is obeyed; None: this agent knows of no pools."""
