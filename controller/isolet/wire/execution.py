"""What an agent is told about one Execution, and what it answers.

`ExecutionWanted` is declarative: the same message may be sent any number of times. Its `spec` never
changes for a uid; the fields beside it do. Nothing here knows Kubernetes: a uid is any string that
the caller never uses twice.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from isolet.base import gitnames, names
from isolet.wire.base import Uid, Wire
from isolet.wire.restore import Restore, RestoreFrom


class Medium(StrEnum):
    """Where a workspace lives."""

    MEMORY = "Memory"
    DISK = "Disk"


class State(StrEnum):
    """What the owner wants of an Execution."""

    RUNNING = "Running"
    TERMINATED = "Terminated"


class Step(StrEnum):
    """How far an agent has come; each is durable before the next begins."""

    RECORDED = "Recorded"
    DISPATCHED = "Dispatched"
    RUNNING = "Running"
    ENDED = "Ended"
    DISPOSED = "Disposed"


class Resources(Wire):
    """Every bound of a sandbox; none is optional."""

    cpu_millis: int = Field(ge=10, le=128_000)
    memory_bytes: int = Field(ge=16 << 20, le=512 << 30)
    workspace_bytes: int = Field(ge=2 << 20, le=1 << 40)
    tmp_bytes: int = Field(ge=1 << 20, le=512 << 30)
    shm_bytes: int = Field(ge=64 << 10, le=512 << 30)
    pids: int = Field(ge=1, le=32_768)
    output_bytes: int = Field(ge=1, le=64 << 20)


def _revision(text: str) -> str:
    if not gitnames.is_revision(text):
        raise ValueError("must name a commit, branch or tag")
    return text


class GitSource(Wire):
    """One revision of a repository that the node's policy names."""

    repository: str = Field(pattern=gitnames.REPOSITORY_PATTERN, max_length=gitnames.MAX_REPOSITORY)
    revision: Annotated[str, AfterValidator(_revision)] = Field(
        min_length=1, max_length=gitnames.MAX_REVISION
    )
    """Resolved once; what it names later changes nothing."""


class Workspace(Wire):
    """The writable folder of the sandbox, mounted at /workspace."""

    medium: Medium = Medium.MEMORY
    executable: bool = True
    """Whether programs may be run from it. Only a tmpfs can forbid it under gVisor."""
    retain_seconds: int = Field(default=0, ge=0, le=86_400)
    """How long sandbox and workspace are kept after the end."""
    git: GitSource | None = None
    """What it begins with; None: nothing."""


class EnvVar(Wire):
    """One environment variable; the value may be any bytes but NUL."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)
    value: bytes = Field(max_length=32 << 10)
    secret: bool = False
    """Whether the value came from a Secret: such a name may look like a credential."""


class ExecutionSpec(Wire):
    """All that is fixed when an Execution is bound; the digest covers every field."""

    image: str
    """`name@sha256:<hex>` or a local id `sha256:<hex>`."""
    runtime: str = "runsc"
    user: str = "65532:65532"
    resources: Resources
    workspace: Workspace = Workspace()
    tmp_executable: bool = False
    command: tuple[str, ...] = ()
    """Run once and end with it; empty means a session."""
    env: tuple[EnvVar, ...] = ()
    maximum_deadline_seconds: int = Field(default=86_400, ge=1, le=86_400)
    """The longest life that any later extension may give."""
    idle_timeout_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Sessions only: end after this long without a command."""
    status_tail_bytes: int = Field(default=0, ge=0, le=4096)
    restore: Restore | None = None
    """The Checkpoint that the workspace starts with; empty otherwise."""

    def digest(self, key: bytes) -> str:
        """The request digest, keyed so that env values cannot be guessed from it.

        A field that came later is left out where it is not used: the digest of a spec that an older
        agent has recorded stays the same.
        """
        unused: dict[str, Any] = {} if self.restore is not None else {"restore": True}
        if self.workspace.git is None:
            unused["workspace"] = {"git"}
        fields = self.model_dump(mode="json", exclude=unused)
        return names.keyed_digest(key, names.canonical_json(fields))


class ExecutionWanted(Wire):
    """One Execution as its owner wants it now."""

    uid: Uid
    namespace: str = Field(default="default", max_length=253)
    name: str = Field(max_length=253)
    class_name: str = Field(default="", max_length=253)
    generation: int = 0
    spec: ExecutionSpec
    active_deadline_seconds: int = Field(ge=1, le=86_400)
    state: State = State.RUNNING
    stop_reason: str | None = None
    """Why `state` is Terminated when it is not the user's own wish, such as `Drained`."""
    restore_from: RestoreFrom | None = None
    """Where the content of `spec.restore` may come from if it is not on the node."""


class Amendment(Wire):
    """The mutable part of `ExecutionWanted` alone.

    Sent once the spec is no longer needed, so that a Secret that has vanished since the start never
    stands in the way of ending what it was used for.
    """

    generation: int = 0
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """None leaves it as it is."""
    state: State = State.RUNNING
    stop_reason: str | None = None


class OOMSeen(Wire):
    """What was seen of memory running out, where anything was; False is not seen, and no proof."""

    engine_flag: bool = False
    """The engine's inspection said OOMKilled."""
    engine_event: bool = False
    """An `oom` event of the engine was heard."""


class Outcome(Wire):
    """How an Execution ended. Recorded once and never changed."""

    succeeded: bool
    reason: str
    message: str
    exit_code: int | None = None
    oom: OOMSeen | None = None
    """Also where it ended for something else."""


class Waiting(Wire):
    """Why an Execution does not get on at the moment."""

    reason: str
    message: str


class OutputFacts(Wire):
    """What is known about the output. Bytes are counted after capping."""

    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    """The cap was passed: what is kept is the head, and the Execution was ended for it."""
    incomplete: bool = False
    """Some output was lost outside our reach (the engine was down when the sandbox ended)."""
    stdout_tail: bytes = b""
    stderr_tail: bytes = b""


class GitObserved(Wire):
    """What is known of the Git tree that a workspace began with."""

    commit: str
    """Full id of the commit, recorded before anything of it was read."""
    entries: int = 0
    """Files, folders and links; 0 until the tree has been read."""
    submodules: tuple[str, ...] = ()
    """Paths of submodules, which are empty folders; the first few."""
    more_submodules: int = 0
    lfs: int = 0
    """Files that are pointers to content that Git LFS keeps elsewhere."""


class ExecutionObserved(Wire):
    """One Execution as the agent knows it."""

    uid: str
    namespace: str
    name: str
    sequence: int
    """Grows with every change on this agent; see `/v1/watch`."""
    spec_digest: str
    generation: int = 0
    step: Step
    removing: bool = False
    outcome: Outcome | None = None
    waiting: Waiting | None = None
    image_id: str | None = None
    git: GitObserved | None = None
    """None without a Git workspace, and until the commit is known."""
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    output: OutputFacts = OutputFacts()
    nothing_left: bool = False
    """Container, volume and disk are confirmed gone (or never were)."""


class ExecRequest(Wire):
    """A command inside a session."""

    command: tuple[str, ...] = Field(min_length=1)
    cwd: str | None = None
    env: tuple[EnvVar, ...] = ()
    timeout_seconds: float = Field(default=30.0, gt=0, le=86_400)
    stdin: bytes = Field(default=b"", max_length=64 << 20)


class ExecResult(Wire):
    """What a command inside a session did. A non-zero exit is a result, not an error."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    started_at: datetime
    completed_at: datetime
