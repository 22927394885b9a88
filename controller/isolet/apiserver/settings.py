"""What a front door is started with. The command line makes it, once."""

from dataclasses import dataclass, field
from pathlib import Path

from isolet.apiserver.admission import Contract
from isolet.base.tls import TLSFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What one front door bears; times in seconds."""

    capacity: int = 4
    """Runs at a time."""
    spare_connections: int = 32
    """Connections beyond `capacity`, for probes, cancellations and those who are refused."""
    headers: int = 64
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    write_seconds: float = 30.0
    """How long a reader may not read before it is cut off."""
    cancelled_ahead: int = 1000
    """Cancellations of unknown runs that are remembered at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that can be chosen."""

    namespace: str
    """Where Executions are made."""
    class_name: str
    """The class whose runner serves."""
    contract: Contract = field(default_factory=Contract)
    host: str = "127.0.0.1"
    port: int = 9000
    """0: any, which is logged."""
    serving_tls: TLSFiles | None = None
    """Certificate and key of this server; None: plain HTTP, for a private network."""
    token_file: Path | None = None
    """At least 32 characters; its holder may do anything here."""
    kubernetes_tokens: bool = False
    """Whether Kubernetes is asked about callers with a token of its own."""
    binding_key: Path | None = None
    """Public key over that of the class."""
    agent_tls: TLSFiles | None = None
    """Our certificate for agents, of identity `isolet:dispatch`."""
    kubeconfig: Path | None = None
    """None: the pod's service account."""
    context: str | None = None
    refresh_seconds: float = 5.0
    """How often nodes and class are read."""
    bounds: Bounds = field(default_factory=Bounds)
