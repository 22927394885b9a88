"""Checkpoint: the workspace of an Execution at one moment."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from isolet.api import bounds, meta, rules, sandbox
from isolet.api.conditions import Conditions

KIND = "Checkpoint"
PLURAL = "checkpoints"


class CheckpointSpec(meta.Model):
    """What is asked for."""

    model_config = rules.on_model(
        *rules.immutable("executionRef", "reason"), rules.write_once("nodeName")
    )

    execution_ref: meta.LocalReference
    """The Execution whose workspace is taken: a running session, or one with a Disk workspace that
    has ended and is still retained."""
    reason: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Why it is taken, for people."""
    ttl_seconds_after_finished: sandbox.TtlSeconds | None = None
    """Deletes the Checkpoint this long after it became ready or failed. Absent: it is kept."""
    node_name: meta.ObjectName | None = None
    """Node that takes it. Written once, by Isolet's own service accounts only."""


class LocationType(StrEnum):
    """Where a copy can lie."""

    NODE = "Node"
    OBJECT_STORE = "ObjectStore"


class Location(meta.Model):
    """One whole copy of the content."""

    name: str
    """Name of the ExecutionNode, or of the object store."""
    type: LocationType
    """Node or ObjectStore."""
    key: str | None = None
    """Key in the object store."""
    verified_time: meta.Time | None = None
    """When its digests were last checked."""


class CheckpointStatus(meta.Model):
    """What was seen."""

    observed_generation: meta.Int64 | None = None
    """The generation of the spec that this status speaks of."""
    conditions: Conditions = ()
    """Ready, Reconciling, Stalled."""
    execution_uid: str | None = Field(default=None, alias="executionUID")
    """UID of the Execution it was taken from."""
    start_time: meta.Time | None = None
    """When taking it began."""
    completion_time: meta.Time | None = None
    """When it was whole on the node, or had failed."""
    manifest_version: meta.Int32 | None = None
    """Version of the manifest's form."""
    manifest_digest: str | None = None
    """sha256:<hex> of the manifest, which names every file and its digest."""
    content_digest: str | None = None
    """sha256:<hex> over the content of the workspace."""
    size_bytes: meta.Int64 | None = None
    """Bytes of all files together."""
    entries: meta.Int64 | None = None
    """Files, folders and links."""
    image: str | None = None
    """Image of the Execution, as it was asked for; a restore uses it unless it names its own."""
    image_id: str | None = Field(default=None, alias="imageID")
    """Id of the image that really ran."""
    resources: bounds.Resources | None = None
    """Bounds of the Execution; a restore uses them unless it gives its own."""
    medium: str | None = None
    """Medium of the workspace."""
    commit: str | None = None
    """Git commit that the workspace began with, if it did."""
    locations: Annotated[tuple[Location, ...], rules.list_map("type", "name")] | None = None
    """Where whole copies lie."""


class Checkpoint(meta.Resource):
    """The workspace of an Execution at one moment; an Execution can start from it on any node."""

    kind: Literal["Checkpoint"] = "Checkpoint"
    """The kind."""
    spec: CheckpointSpec
    """What is asked for. Only ttlSecondsAfterFinished can be changed later."""
    status: CheckpointStatus = Field(default_factory=CheckpointStatus)
    """What was seen."""
