"""What the records of one kind have beside that of any sandbox; values of the sandbox plan.

Names, sizes and digests: no env value, no argument, no content.
"""

from dataclasses import dataclass
from datetime import datetime

from isolet.wire.checkpoint import Manifest, StoreCopy
from isolet.wire.process import Artifact, ArtifactProblem, OnOverflow


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPart:
    """What the record of a Process has beside that of any sandbox: names and sizes, no content."""

    host_uid: str | None = None
    """The Execution it runs in; None for a sandbox of its own."""
    on_overflow: OnOverflow = OnOverflow.KEEP_TAIL
    output_limit: int
    globs: tuple[str, ...] = ()
    deadline_at: datetime | None = None
    deadline_at_boottime: float | None = None
    """`deadline_at` on the clock of the boot in which it was dispatched."""
    file_sizes: tuple[tuple[str, int], ...] = ()
    stdin_bytes: int = 0
    truncated_streams: tuple[str, ...] = ()
    collected: bool = False
    artifacts: tuple[Artifact, ...] = ()
    artifact_problems: tuple[ArtifactProblem, ...] = ()
    disposed: bool = False
    """Its owner has ended the retention; in a session there is nothing left to remove by then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPart:
    """What the record of a Checkpoint has beside that of the Execution that it was taken from.

    Its `spec`, `container_name` and `image_id` are that Execution's, which may be gone by then.
    """

    execution_uid: str
    execution_namespace: str
    execution_name: str
    reason: str = ""
    attempts: int = 0
    """How often taking it was begun; durable before each."""
    manifest: Manifest | None = None
    manifest_digest: str | None = None
    in_store: StoreCopy | None = None
    """Where a whole copy was written to and read back from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotPart:
    """The warm slot that a record was given: its container, disk and labels are the slot's."""

    uid: str
    digest: str  # of its pool
