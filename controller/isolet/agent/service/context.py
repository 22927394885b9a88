"""What every part of the service works with, put together once by `agent.run`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from isolet.agent.engine.base import Engine
from isolet.agent.policy.model import NodePolicy
from isolet.agent.service.calm import Calm
from isolet.agent.service.ports import Disks, Launches, Mirrors, Trees
from isolet.agent.store.base import Store
from isolet.agent.transfer.objectstore import ObjectStore
from isolet.agent.workspace.artifacts import ArtifactFolders
from isolet.agent.workspace.checkpoints import CheckpointFolders
from isolet.base import names, tls
from isolet.base.clock import Clock
from isolet.plan.sandbox_model import Moment

ARCHIVES_AT_ONCE = 4
"""Workspaces being taken or loaded at one time: the helper of each may take gigabytes of memory."""

CREATES_AT_ONCE = 8
"""Sandboxes being created or started at one time; more only wait for the same two cores."""


@dataclass(kw_only=True)
class Context:
    """The agent's facilities and identity."""

    node: str
    installation: str
    boot_id: str
    kernel: str
    """The host's `/proc/version`: a gVisor sandbox sees another one."""
    key: bytes
    """The node's own key: digests of guessable values and launch nonces are keyed with it."""
    state: Path
    engine: Engine
    store: Store
    disks: Disks
    launches: Launches
    trees: Trees
    mirrors: Mirrors
    clock: Clock
    policy: NodePolicy
    proof_of_runtime: Callable[[int], bool]
    """Whether the host process of a sandbox is the sandboxing runtime's (its pid is given)."""
    certificate: tls.TLSFiles | None = None
    """This node's own, with which it reads Checkpoints from others; None: it does not."""
    object_store: ObjectStore | None = None
    """Where copies of Checkpoints are kept beside the node, if anywhere."""
    calm: Calm = field(default_factory=Calm)
    starts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CREATES_AT_ONCE))
    archives: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ARCHIVES_AT_ONCE))

    @property
    def artifacts(self) -> ArtifactFolders:
        """Where kept files of Processes lie."""
        return ArtifactFolders(self.state / "artifacts")

    @cached_property
    def checkpoints(self) -> CheckpointFolders:
        """Where copies of workspaces lie; it counts who reads them."""
        return CheckpointFolders(self.state / "checkpoints")

    def moment(self) -> Moment:
        """Now."""
        return Moment(wall=self.clock.now(), boottime=self.clock.boottime(), boot_id=self.boot_id)

    def nonce(self, uid: str, launch: str) -> str:
        """The word that only our launch script knows; the same after a restart."""
        return names.keyed_digest(self.key, f"nonce:{uid}:{launch}".encode())[12:44]

    def output_folder(self, uid: str) -> Path:
        """Where the output of `uid` is kept."""
        return self.state / "output" / uid
