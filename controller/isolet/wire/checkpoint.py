"""What an agent is told about one Checkpoint, what it answers, and how a copy is asked for.

A Checkpoint is the workspace of one Execution at one moment. It lies on its node as three files
that only appear together: the manifest (small JSON), the entries (one line of JSON for each file,
folder and link, in the order of the content) and the content (a plain archive). Each names the next
by digest: the manifest has the digest of the entries, which have one for each file. So whoever
knows the digest of the manifest can check all of it, wherever the bytes came from.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from isolet.wire.base import Digest, Uid, Wire
from isolet.wire.execution import Medium, Outcome, Resources, Waiting
from isolet.wire.restore import Grant as Grant
from isolet.wire.restore import Peer as Peer
from isolet.wire.restore import Restore as Restore
from isolet.wire.restore import RestoreFrom as RestoreFrom
from isolet.wire.restore import StoreCopy as StoreCopy

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 64 << 10


class Part(StrEnum):
    """The three files of a Checkpoint, in the order in which they are read."""

    MANIFEST = "manifest"
    ENTRIES = "entries"
    CONTENT = "content"


class CheckpointStep(StrEnum):
    """How far an agent has come; each is durable before the next begins."""

    RECORDED = "Recorded"
    TAKING = "Taking"
    """The workspace may be frozen and a copy lies aside; after a crash it is thawed, the copy is
    removed and it is taken anew."""
    ENDED = "Ended"
    """Whole under its name, or failed; `outcome` tells which."""
    DISPOSED = "Disposed"


class Source(Wire):
    """What the workspace belonged to; a restore needs no more than this."""

    execution_uid: str
    namespace: str
    name: str
    class_name: str = ""
    image: str
    """As the Execution asked for it."""
    image_id: str
    """`sha256:<hex>` of the image that really ran."""
    user: str
    resources: Resources
    medium: Medium
    commit: str | None = None
    """Git commit that the workspace began with, if it did."""


class Manifest(Wire):
    """The first file of a Checkpoint. Holds no value of the environment and no file's content."""

    version: int = Field(default=MANIFEST_VERSION, ge=MANIFEST_VERSION, le=MANIFEST_VERSION)
    checkpoint_uid: Uid
    namespace: str
    name: str
    reason: str = Field(default="", max_length=1024)
    taken_at: datetime
    """Wall time at which the workspace stood still."""
    source: Source
    entries: int = Field(ge=0)
    """Lines of the second file."""
    entries_bytes: int = Field(ge=0)
    content_digest: Digest
    """Of the second file, and so of all names, modes, times, sizes and contents."""
    content_bytes: int = Field(ge=0)
    """Size of the third file."""
    size_bytes: int = Field(ge=0)
    """Bytes of all files together, without padding."""


class CheckpointSpec(Wire):
    """All that is fixed when a Checkpoint is bound."""

    execution_uid: Uid
    reason: str = Field(default="", max_length=1024)


class CheckpointWanted(Wire):
    """One Checkpoint as its owner wants it now."""

    uid: Uid
    namespace: str = Field(default="default", max_length=253)
    name: str = Field(max_length=253)
    generation: int = 0
    spec: CheckpointSpec


class CheckpointObserved(Wire):
    """One Checkpoint as the agent knows it."""

    uid: str
    namespace: str
    name: str
    sequence: int
    generation: int = 0
    execution_uid: str
    step: CheckpointStep
    removing: bool = False
    outcome: Outcome | None = None
    """Reason `CheckpointReady`, or why there is none. Recorded once and never changed."""
    waiting: Waiting | None = None
    manifest: Manifest | None = None
    manifest_digest: str | None = None
    on_node: bool = False
    """A whole copy lies on this node."""
    in_store: StoreCopy | None = None
    """A whole copy was written to the object store and read back."""
    readers: int = 0
    """Restores and transfers that read it just now; it is not removed before they end."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    nothing_left: bool = False
    """Copies on the node and in the store are confirmed gone (or never were)."""
