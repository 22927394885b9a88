"""What an operator process is started with. The command line makes it, once."""

from dataclasses import dataclass, field
from pathlib import Path

from isolet.base.tls import TLSFiles
from isolet.operator.leader import LeaseTimes
from isolet.operator.links import LinkTimes
from isolet.plan.model import OrphanPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that can be chosen; the defaults are those of the chart."""

    identity: str
    """Name of this process in the Lease; no two processes may share one, nor may a restarted one
    have its predecessor's (a random part is added by the command line)."""
    namespace: str
    """The operator's own namespace: its Lease and its tombstones."""
    installation: str
    """Name of the installation; agents of another one are not used."""
    agent_tls: TLSFiles | None
    """The operator's certificate, key and the agents' authority; None only where every agent is on
    a Unix socket of this machine."""

    kubeconfig: Path | None = None
    """None: the pod's service account."""
    context: str | None = None
    """Context of the kubeconfig; None: its current one."""
    connections: int = 32
    """Most connections to the API server at once, for the passes; the watch has as many again."""
    request_timeout: float = 30.0
    """Seconds for one read of the API server; a write has at most what is left of the lease."""

    workers: int = 32
    """Passes under way at once."""
    agent_calls: int = 8
    """Calls to one agent under way at once."""
    resync_seconds: float = 300.0
    """Everything is listed and looked at again after so long."""
    stall_grace_seconds: float = 60.0
    """A watch that owes an event for so long is dead: /healthz fails."""

    orphan_policy: OrphanPolicy = OrphanPolicy.REMOVE
    """Whether things on nodes whose object is gone are removed, or only reported."""

    metrics_host: str = "127.0.0.1"
    """Address of /metrics, /healthz and /readyz, which need no credential."""
    metrics_port: int = 8080
    """0: any free port, which is logged."""

    drain_seconds: float = 20.0
    """How long passes under way may take to end after SIGTERM."""
    lease: LeaseTimes = field(default_factory=LeaseTimes)
    links: LinkTimes = field(default_factory=LinkTimes)
