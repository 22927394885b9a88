"""What an agent says about itself and its node."""

from datetime import datetime

from isolet.wire.base import WIRE_VERSIONS, Wire
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
