"""What every kind that has a sandbox shares: workspace, network, output, what was resolved."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from isolet.api import bounds, fields, meta, rules
from isolet.api.inputs import PinnedInput

MAX_SECONDS = 86_400
Seconds = Annotated[meta.Int32, Field(ge=1, le=MAX_SECONDS)]
RetainSeconds = Annotated[meta.Int32, Field(ge=0, le=MAX_SECONDS)]
TtlSeconds = Annotated[meta.Int32, Field(ge=0)]
SchedulingSeconds = Annotated[meta.Int32, Field(ge=1, le=7 * MAX_SECONDS)]

Command = Annotated[
    tuple[fields.Argument, ...],
    Field(min_length=1, max_length=fields.MAX_ARGUMENTS),
    rules.ATOMIC,
    rules.on_field(
        rules.Rule(rule="self[0] != ''", message="the first item is the program and not empty")
    ),
]
"""A program and its arguments."""


class Medium(StrEnum):
    """Where a workspace lives."""

    DISK = "Disk"
    MEMORY = "Memory"


class NetworkMode(StrEnum):
    """What a sandbox can reach."""

    NONE = "None"


class Git(meta.Model):
    """One revision of a Git repository, without its history."""

    repository: fields.Repository
    """Name of a repository that the class allows and the node is configured to serve; not a path or
    URL."""
    revision: fields.Revision
    """A commit, branch or tag. It is resolved once; the commit is in status.resolved.commit."""


class Workspace(meta.Model):
    """The writable folder /workspace."""

    medium: Medium = Medium.DISK
    """Disk: a bounded disk, still readable after the command has ended. Memory: a tmpfs, faster,
    counted as memory, and gone with the command."""
    git: Git | None = None
    """Starts with the files of a Git revision; absent: empty."""
    retain_seconds: RetainSeconds | None = None
    """How long sandbox and workspace are kept after the end, for artifacts and checkpoints. Absent:
    as the class says."""


class Network(meta.Model):
    """What the sandbox can reach."""

    mode: NetworkMode = NetworkMode.NONE
    """None: the loopback interface and nothing else."""


class Output(meta.Model):
    """What the status shows of the output."""

    status_tail_bytes: Annotated[meta.Int32, Field(ge=0, le=4096)] = 0
    """How many of the last bytes of each stream the status shows once it has ended, for everyone
    who may read the object. At most 4096; 0 shows none."""


class OutputStatus(meta.Model):
    """What is known of the output."""

    stdout_bytes: meta.Int64 | None = None
    """Bytes of stdout that are kept."""
    stderr_bytes: meta.Int64 | None = None
    """Bytes of stderr that are kept."""
    truncated: bool | None = None
    """The output limit was passed: not all that was written is kept."""
    incomplete: bool | None = None
    """Some output was lost and never seen, for instance because the engine was down when the
    sandbox ended."""
    stdout_tail: str | None = None
    """The last bytes of stdout, as far as spec.output.statusTailBytes allows; what is not UTF-8 is
    replaced."""
    stderr_tail: str | None = None
    """The last bytes of stderr, as far as spec.output.statusTailBytes allows; what is not UTF-8 is
    replaced."""


class OOMEvidence(meta.Model):
    """What was seen of memory running out; engines differ in what they report. Absent: not seen."""

    engine_flag: bool | None = None
    """The engine's inspection said OOMKilled."""
    engine_event: bool | None = None
    """The engine sent an oom event."""


class RestoredFrom(meta.Model):
    """The Checkpoint that a workspace was restored from."""

    name: str
    """Name of the Checkpoint."""
    uid: str
    """UID of the Checkpoint."""
    content_digest: str
    """Digest of the content that was restored and checked."""


class Resolved(meta.Model):
    """The effective spec, pinned when a node was bound; later edits of the class change nothing."""

    class_name: str | None = None
    """The class."""
    class_uid: str | None = Field(default=None, alias="classUID")
    """UID of the class."""
    class_generation: meta.Int64 | None = None
    """Generation of the class."""
    image: str | None = None
    """The image as it was asked for, here or by the class."""
    image_id: str | None = Field(default=None, alias="imageID")
    """Id of the image that really runs."""
    runtime_handler: str | None = None
    """The runtime."""
    user: str | None = None
    """User and group inside the sandbox, as uid:gid."""
    resources: bounds.Resources | None = None
    """Every bound."""
    medium: str | None = None
    """Medium of the workspace."""
    active_deadline_seconds: meta.Int32 | None = None
    """How long it may run, counted from its start."""
    maximum_deadline_seconds: meta.Int32 | None = None
    """How far the deadline may be extended."""
    idle_timeout_seconds: meta.Int32 | None = None
    """How long a session may be idle."""
    retain_seconds: meta.Int32 | None = None
    """How long sandbox and workspace are kept after the end."""
    commit: str | None = None
    """The full id of the Git commit in the workspace."""
    checkpoint: RestoredFrom | None = None
    """The Checkpoint it was restored from."""
    inputs: Annotated[tuple[PinnedInput, ...], rules.ATOMIC] | None = None
    """Secrets and ConfigMaps whose values were used, at the version that was used."""


class CheckpointReference(meta.Model):
    """A Checkpoint to start from."""

    checkpoint_name: meta.ObjectName
    """Name of the Checkpoint, in the same namespace."""
