"""What an agent is told about one Process, and what it answers.

A Process is one command with a durable record: in a sandbox of its own (`sandbox`), which ends with
it, or inside a running session (`execution_uid`). `ProcessWanted` is declarative: it may be sent
any number of times, its `spec` never changes for a uid. Values of env, stdin and files are passed
on and forgotten: an agent keeps names, sizes and a keyed digest of the whole request.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from isolet.base import names, times
from isolet.wire.base import Uid, Wire
from isolet.wire.execution import (
    EnvVar,
    GitObserved,
    Outcome,
    OutputFacts,
    Resources,
    Step,
    Waiting,
    Workspace,
)

MAX_FILES = 256
MAX_STAGED_BYTES = 16 << 20
"""Of all files of one Process together: they lie in the node's memory until the start."""
MAX_STDIN_BYTES = 16 << 20
MAX_GLOBS = 32
MAX_PATH = 4096
MAX_NAME = 255
"""Linux' NAME_MAX, in bytes."""
DEFAULT_TIMEOUT_SECONDS = 30
"""Of `shell` and `code` where no timeout is given."""

INTERPRETERS: dict[str, tuple[str, ...]] = {
    "python": ("python3", "-c"),
    "python3": ("python3", "-c"),
    "bash": ("bash", "-c"),
    "sh": ("sh", "-c"),
    "shell": ("sh", "-c"),
    "javascript": ("node", "-e"),
    "js": ("node", "-e"),
    "node": ("node", "-e"),
}
"""Language → what runs its source; the image must have it."""

SHELL = ("/bin/sh", "-c")


class ProcessState(StrEnum):
    """What the owner wants of a Process."""

    RUNNING = "Running"
    CANCELLED = "Cancelled"


class OnOverflow(StrEnum):
    """What more output than is kept means."""

    KEEP_TAIL = "KeepTail"
    FAIL = "Fail"


class Sandbox(Wire):
    """A sandbox of its own for one Process."""

    image: str
    """`name@sha256:<hex>` or a local id `sha256:<hex>`."""
    runtime: str = "runsc"
    user: str = "65532:65532"
    resources: Resources
    workspace: Workspace = Workspace()
    tmp_executable: bool = False


class StagedFile(Wire):
    """A file that is in the workspace before the start."""

    path: str = Field(min_length=1, max_length=MAX_PATH)
    """Normalised, relative to the workspace; folders above it are made."""
    content: bytes = Field(max_length=MAX_STAGED_BYTES)
    mode: int = Field(default=0o644, ge=0, le=0o777)


class Code(Wire):
    """Source and what it is written in."""

    language: str = Field(max_length=32)
    source: str = Field(min_length=1, max_length=131_071)


class OutputPolicy(Wire):
    """How much output is kept, and what more means."""

    on_overflow: OnOverflow = OnOverflow.KEEP_TAIL
    limit_bytes: int | None = Field(default=None, ge=1, le=64 << 20)
    """KeepTail: of each stream; Fail: of both together. Absent: the sandbox's output bound."""
    status_tail_bytes: int = Field(default=0, ge=0, le=4096)


class ProcessSpec(Wire):
    """All that is fixed when a Process is bound; the digest covers every field."""

    execution_uid: Uid | None = None
    """The session that it runs in. Exactly one of this and `sandbox`."""
    sandbox: Sandbox | None = None
    command: tuple[str, ...] = ()
    """Exactly one of `command`, `shell` and `code`."""
    shell: str | None = Field(default=None, min_length=1, max_length=131_071)
    code: Code | None = None
    env: tuple[EnvVar, ...] = ()
    files: tuple[StagedFile, ...] = Field(default=(), max_length=MAX_FILES)
    stdin: bytes | None = Field(default=None, max_length=MAX_STDIN_BYTES)
    """Delivered, then closed; None and empty are the same to the program."""
    cwd: str = Field(default="", max_length=MAX_PATH)
    """Relative to the workspace; empty: the workspace itself."""
    timeout_seconds: int | None = Field(default=None, ge=1, le=86_400)
    deadline_at: Annotated[datetime, BeforeValidator(times.read)] | None = None
    """Wall time; turned into the node's boot clock at the start."""
    artifacts: tuple[str, ...] = Field(default=(), max_length=MAX_GLOBS)
    """Globs: `*` and `?` within a folder, `**` across folders."""
    output: OutputPolicy = OutputPolicy()
    maximum_deadline_seconds: int = Field(default=86_400, ge=1, le=86_400)

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.execution_uid is None) == (self.sandbox is None):
            raise ValueError("exactly one of executionUid and sandbox")
        if sum((bool(self.command), self.shell is not None, self.code is not None)) != 1:
            raise ValueError("exactly one of command, shell and code")
        problem = files_problem(self.files)
        if problem is not None:
            raise ValueError(f"files: {problem}")
        if not all(is_path(path) for path in self.artifacts):
            raise ValueError("artifacts: paths must be normalised and relative")
        if self.cwd and not is_path(self.cwd):
            raise ValueError("cwd: must be a normalised path below the workspace")
        if sum(len(file.content) for file in self.files) > MAX_STAGED_BYTES:
            raise ValueError(f"files: more than {MAX_STAGED_BYTES} bytes in all")
        if self.code is not None and self.code.language not in INTERPRETERS:
            raise ValueError(f"code: language is none of {', '.join(INTERPRETERS)}")
        return self

    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        if self.shell is not None:
            return (*SHELL, self.shell)
        if self.code is not None:
            return (*INTERPRETERS[self.code.language], self.code.source)
        return self.command

    def lifetime_seconds(self) -> int:
        """How long it may run at most, `deadline_at` apart."""
        default = DEFAULT_TIMEOUT_SECONDS if not self.command else self.maximum_deadline_seconds
        return min(self.timeout_seconds or default, self.maximum_deadline_seconds)

    def digest(self, key: bytes) -> str:
        """The request digest, keyed so that no value can be guessed from it."""
        unused: dict[str, Any] = {"files": True, "stdin": True}
        if self.sandbox is not None and self.sandbox.workspace.git is None:
            unused["sandbox"] = {"workspace": {"git"}}
        body = self.model_dump(mode="json", exclude=unused)
        body["files"] = [(f.path, f.mode, names.digest(f.content)) for f in self.files]
        body["stdin"] = None if not self.stdin else hashlib.sha256(self.stdin).hexdigest()
        return names.keyed_digest(key, names.canonical_json(body))


class ProcessWanted(Wire):
    """One Process as its owner wants it now."""

    uid: Uid
    namespace: str = Field(default="default", max_length=253)
    name: str = Field(max_length=253)
    class_name: str = Field(default="", max_length=253)
    generation: int = 0
    spec: ProcessSpec
    state: ProcessState = ProcessState.RUNNING
    stop_reason: str | None = None
    """Why `state` is Cancelled when that is not the user's own wish, such as `Drained`."""


class ProcessAmendment(Wire):
    """The mutable part of `ProcessWanted` alone."""

    generation: int = 0
    state: ProcessState = ProcessState.RUNNING
    stop_reason: str | None = None
    dispose: bool = False
    """End the retention of an ended Process now: its sandbox and workspace go, its record, output
    and kept artifacts stay. Ignored while it runs."""


class Artifact(Wire):
    """A file that was found after the end and is kept."""

    path: str
    size: int
    digest: str
    """`sha256:<hex>` of the content."""


class ArtifactProblem(Wire):
    """A file that matched and is not kept."""

    path: str
    reason: str
    """`ArtifactRejected` or `ArtifactTooLarge`."""
    message: str


class ArtifactChunk(Wire):
    """A piece of one artifact."""

    artifact: Artifact
    offset: int
    data: bytes


class ProcessOutputFacts(OutputFacts):
    """What is known about the output. With KeepTail, `*_bytes` count what is stored."""

    truncated_streams: tuple[str, ...] = ()
    """Streams of which only the end is kept."""


class ProcessObserved(Wire):
    """One Process as the agent knows it."""

    uid: str
    namespace: str
    name: str
    sequence: int
    spec_digest: str
    generation: int = 0
    step: Step
    removing: bool = False
    cancel_requested: bool = False
    """A wish to end it is recorded and not yet confirmed."""
    outcome: Outcome | None = None
    waiting: Waiting | None = None
    execution_uid: str | None = None
    image_id: str | None = None
    git: GitObserved | None = None
    """As `ExecutionObserved.git`."""
    container_id: str | None = None
    boot_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    retained_until: datetime | None = None
    output: ProcessOutputFacts = ProcessOutputFacts()
    artifacts: tuple[Artifact, ...] = ()
    artifact_problems: tuple[ArtifactProblem, ...] = ()
    nothing_left: bool = False
    """Sandbox and workspace are confirmed gone (or never were); the record stays."""
    disposed: bool = False
    """Its owner has asked for that."""


class FileEntry(Wire):
    """One entry of a folder in a session's workspace."""

    path: str
    kind: str
    """`file`, `folder`, `link` or `other`."""
    size: int
    mode: int


def is_path(text: str) -> bool:
    """Whether `text` is a normalised relative path: no empty, `.` or `..` part, no NUL."""
    parts = text.split("/")
    return "\0" not in text and all(part not in ("", ".", "..") for part in parts)


def files_problem(files: Sequence[StagedFile]) -> str | None:
    """Why these files cannot all lie in one workspace; None if they can."""
    if not all(is_path(file.path) for file in files):
        return "paths must be normalised and relative"
    if any(len(name.encode()) > MAX_NAME for file in files for name in file.path.split("/")):
        return f"a name in a path is longer than the {MAX_NAME} bytes that a file system takes"
    paths = sorted((file.path for file in files), key=lambda path: path.split("/"))
    for path, following in pairwise(paths):  # What lies below a path comes right after it.
        if path == following:
            return "a path is given twice"
        if following.startswith(f"{path}/"):
            return "a path lies below another file's path: what is a file cannot be a folder too"
    return None
