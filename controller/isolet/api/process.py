"""Process: one command with a durable record, in an Execution or in a sandbox of its own."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from isolet.api import bounds, fields, inputs, meta, rules, sandbox
from isolet.api.conditions import Conditions

KIND = "Process"
PLURAL = "processes"

MAX_INLINE_TEXT = 131_072
MAX_INLINE_BASE64 = 174_764  # the same number of bytes, encoded
_BASE64_PATTERN = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Text = Annotated[str, StringConstraints(max_length=MAX_INLINE_TEXT)]
Base64 = Annotated[str, StringConstraints(max_length=MAX_INLINE_BASE64, pattern=_BASE64_PATTERN)]


class DesiredState(StrEnum):
    """What the owner wants."""

    RUNNING = "Running"
    CANCELLED = "Cancelled"


class Language(StrEnum):
    """Interpreters that `code` knows."""

    PYTHON = "python"
    PYTHON3 = "python3"
    BASH = "bash"
    SH = "sh"
    SHELL = "shell"
    JAVASCRIPT = "javascript"
    JS = "js"
    NODE = "node"


class OnOverflow(StrEnum):
    """What more output than is kept means."""

    KEEP_TAIL = "KeepTail"
    FAIL = "Fail"


class Code(meta.Model):
    """Source code and what it is written in."""

    language: Language
    """python and python3 run python3 -c; bash, sh and shell their shell's -c; javascript, js and
    node run node -e. The image must have the interpreter."""
    source: Annotated[str, StringConstraints(min_length=1, max_length=fields.MAX_ARGUMENT_BYTES)]
    """The program."""


_FILE_SOURCES = ("content", "contentBase64", "configMapKeyRef", "secretKeyRef")


class File(meta.Model):
    """A file that is put into the workspace before the start."""

    model_config = rules.on_model(rules.exactly_one(*_FILE_SOURCES))

    path: fields.Path
    """Where: a normalised path relative to the workspace. Parent folders are made."""
    content: Text | None = None
    """Content as text, at most 131072 characters."""
    content_base64: Base64 | None = Field(default=None, alias="contentBase64")
    """Content as base64, for any bytes; at most 131072 bytes."""
    config_map_key_ref: inputs.KeyReference | None = None
    """Content from a key of a ConfigMap; binaryData too."""
    secret_key_ref: inputs.KeyReference | None = None
    """Content from a key of a Secret. Only where the class has env.allowSecretRefs."""
    mode: Annotated[meta.Int32, Field(ge=0, le=0o777)] = 0o644
    """Permission bits, from 0 to 0777 octal; JSON wants them in decimal (0644 is 420)."""


class Stdin(meta.Model):
    """What the command reads; delivered, then closed."""

    model_config = rules.on_model(rules.exactly_one("value", "valueBase64", "secretKeyRef"))

    value: Text | None = None
    """Input as text, at most 131072 characters; may be empty."""
    value_base64: Base64 | None = Field(default=None, alias="valueBase64")
    """Input as base64, for any bytes; at most 131072 bytes."""
    secret_key_ref: inputs.KeyReference | None = None
    """Input from a key of a Secret. Only where the class has env.allowSecretRefs."""


class ArtifactRule(meta.Model):
    """Files to keep after the end."""

    glob: fields.Path
    """A path relative to the workspace; * and ? match within a folder, ** across folders."""


class ProcessOutput(sandbox.Output):
    """How much output is kept, and what more means."""

    on_overflow: OnOverflow = OnOverflow.KEEP_TAIL
    """KeepTail keeps the end of each stream and says which was cut; Fail ends the process."""
    limit: fields.OutputSize | None = None
    """Bytes that are kept of each stream. Absent: the sandbox's output bound, both streams
    together."""


class ProcessTemplate(meta.Model):
    """A sandbox of its own for one Process."""

    model_config = rules.on_model(
        bounds.memory_rule(
            "self.resources", "has(self.workspace) && self.workspace.medium == 'Memory'"
        )
    )

    class_name: meta.ObjectName | None = None
    """Name of the ExecutionClass. Absent: the default class."""
    image: fields.Image | None = None
    """Image, pinned: name@sha256:<digest> or a local image id sha256:<id>; or name:tag where the
    class resolves tags. Absent: the class's."""
    resources: bounds.Resources | None = None
    """Bounds of the sandbox. Each is mandatory, here or from the class."""
    workspace: sandbox.Workspace = sandbox.Workspace()
    """The writable folder /workspace."""
    network: sandbox.Network = sandbox.Network()
    """What the sandbox can reach."""
    node_selector: meta.Labels | None = None
    """Labels that the ExecutionNode must have, beside those the class asks for."""
    scheduling_deadline_seconds: sandbox.SchedulingSeconds | None = None
    """How long it may wait for a node with room before it fails. Absent: as the class says, else
    for ever."""


_SIZES = (
    "(has(self.command) ? self.command.map(a, size(a)).sum() : 0)",
    "(has(self.shell) ? size(self.shell) : 0)",
    "(has(self.code) ? size(self.code.source) : 0)",
    "(has(self.env) ? self.env.map(e, has(e.value) ? size(e.value) : 0).sum() : 0)",
    "(has(self.files) ? self.files.map(f, (has(f.content) ? size(f.content) : 0)"
    " + (has(f.contentBase64) ? size(f.contentBase64) : 0)).sum() : 0)",
    "(has(self.stdin) && has(self.stdin.value) ? size(self.stdin.value) : 0)",
    "(has(self.stdin) && has(self.stdin.valueBase64) ? size(self.stdin.valueBase64) : 0)",
)

_RULES = (
    rules.exactly_one("executionRef", "template"),
    rules.exactly_one("command", "shell", "code"),
    *rules.immutable(
        "executionRef",
        "template",
        "command",
        "shell",
        "code",
        "files",
        "env",
        "stdin",
        "cwd",
        "timeoutSeconds",
        "deadlineAt",
        "artifacts",
        "output",
    ),
    rules.write_once("nodeName"),
    rules.one_way("desiredState", DesiredState.CANCELLED),
    rules.Rule(
        rule=(
            "!has(self.artifacts) || !has(self.template) || !has(self.template.workspace)"
            " || self.template.workspace.medium == 'Disk'"
        ),
        message=(
            "artifacts need template.workspace.medium: Disk: a Memory workspace is gone when the"
            " command has ended"
        ),
        field=".artifacts",
    ),
    rules.Rule(
        rule=f"{' + '.join(_SIZES)} <= {fields.MAX_INLINE}",
        message=(
            "command, shell, code, env values, files and stdin together must be at most"
            f" {fields.MAX_INLINE} characters long; put more into a ConfigMap or Secret"
        ),
    ),
)


class ProcessSpec(meta.Model):
    """What is asked for."""

    model_config = rules.on_model(*_RULES)

    execution_ref: meta.LocalReference | None = None
    """The Execution, a session, that it runs in. Exactly one of executionRef and template."""
    template: ProcessTemplate | None = None
    """A sandbox of its own. Exactly one of executionRef and template."""
    command: sandbox.Command | None = None
    """Program and arguments, without a shell. Exactly one of command, shell and code."""
    shell: (
        Annotated[str, StringConstraints(min_length=1, max_length=fields.MAX_ARGUMENT_BYTES)] | None
    ) = None
    """A command line for /bin/sh -c. Exactly one of command, shell and code."""
    code: Code | None = None
    """A program as source. Exactly one of command, shell and code."""
    files: (
        Annotated[
            tuple[File, ...],
            Field(max_length=64),
            rules.list_map("path"),
            rules.on_field(fields.NO_FILE_BELOW_A_FILE),
        ]
        | None
    ) = None
    """Files that are put into the workspace before the start; none below the path of another."""
    env: inputs.Env | None = None
    """Environment variables."""
    stdin: Stdin | None = None
    """What it reads. Absent: nothing, the input is closed from the start."""
    cwd: fields.Folder | None = None
    """Folder it starts in, relative to the workspace. Absent or empty: the workspace itself."""
    timeout_seconds: sandbox.Seconds | None = None
    """How long it may run. Absent: 30 for shell and code, otherwise as long as its sandbox."""
    deadline_at: Annotated[meta.Time, rules.Keys({"pattern": meta.TIME_PATTERN})] | None = None
    """When it must have ended, as RFC 3339 with a zone. One that has passed starts nothing."""
    artifacts: (
        Annotated[
            tuple[ArtifactRule, ...], Field(min_length=1, max_length=32), rules.list_map("glob")
        ]
        | None
    ) = None
    """Files to digest and keep after the end. A sandbox of its own needs a Disk workspace for
    it."""
    output: ProcessOutput | None = None
    """How much output is kept and shown. Absent: the end of each stream is kept, none of it shown
    here."""
    desired_state: DesiredState = DesiredState.RUNNING
    """Running, or Cancelled to end it and keep its record; this cannot be taken back."""
    ttl_seconds_after_finished: sandbox.TtlSeconds | None = None
    """Deletes the object this long after its end. Absent: it is kept."""
    node_name: meta.ObjectName | None = None
    """Node that it is bound to. Written once, by Isolet's own service accounts only."""


class Artifact(meta.Model):
    """A file that was found and digested."""

    path: str
    """Path relative to the workspace."""
    size: meta.Int64
    """Size in bytes."""
    digest: str
    """sha256:<hex> of the content."""


class ArtifactProblem(meta.Model):
    """A file that was to be kept and is not."""

    path: str
    """Path, or the glob, relative to the workspace."""
    reason: str
    """ArtifactRejected, ArtifactTooLarge or ArtifactMissing."""
    message: str
    """The same for people."""


class ProcessOutputStatus(sandbox.OutputStatus):
    """What is known of the output."""

    truncated_streams: Annotated[tuple[str, ...], rules.SET] | None = None
    """Streams of which only the end is kept: stdout, stderr."""


class ProcessStatus(meta.Model):
    """What was seen."""

    observed_generation: meta.Int64 | None = None
    """The generation of the spec that this status speaks of."""
    conditions: Conditions = ()
    """Scheduled, Finished, Succeeded, WorkspaceComplete (only where it is not), Reconciling,
    Stalled."""
    start_time: meta.Time | None = None
    """When the command started."""
    deadline: meta.Time | None = None
    """When it will be ended at the latest."""
    completion_time: meta.Time | None = None
    """When it ended."""
    exit_code: meta.Int32 | None = None
    """Exit code; absent where nobody saw one, for instance when it never started. A signal shows as
    128 plus its number, which a program may also exit with itself."""
    execution_uid: str | None = Field(default=None, alias="executionUID")
    """UID of the Execution it runs in; one made later under the same name is not it."""
    request_digest: str | None = None
    """Digest of everything that was asked for; the same Process with another digest is a
    Conflict."""
    resolved: sandbox.Resolved | None = None
    """What a sandbox of its own runs with, pinned when it was bound."""
    container_id: str | None = Field(default=None, alias="containerID")
    """Id of the sandbox in the node's engine."""
    boot_id: str | None = Field(default=None, alias="bootID")
    """The node's boot in which it was started."""
    output: ProcessOutputStatus | None = None
    """What is known of the output."""
    artifacts: Annotated[tuple[Artifact, ...], rules.list_map("path")] | None = None
    """Files that were found and are kept."""
    artifact_problems: Annotated[tuple[ArtifactProblem, ...], rules.ATOMIC] | None = None
    """Files that were to be kept and are not, at most 64 of them."""
    oom_evidence: sandbox.OOMEvidence | None = None
    """What was seen of memory running out, where anything was; also of the session's."""
    retained_until: meta.Time | None = None
    """Until when sandbox and workspace are kept after the end."""
    disposal_time: meta.Time | None = None
    """When they were confirmed gone, of one that has retainedUntil; output and artifacts that were
    kept stay until the object goes."""


class Process(meta.Resource):
    """A command with a durable record: started once, never repeated, its outcome never lost."""

    kind: Literal["Process"] = "Process"
    """The kind."""
    spec: ProcessSpec
    """What is asked for. Only desiredState and ttlSecondsAfterFinished can be changed later."""
    status: ProcessStatus = Field(default_factory=ProcessStatus)
    """What was seen."""
