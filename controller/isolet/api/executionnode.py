"""ExecutionNode: one agent and its node."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from isolet.api import meta, rules, sandbox
from isolet.api.conditions import Conditions

KIND = "ExecutionNode"
PLURAL = "executionnodes"

ENDPOINT_PATTERN = (
    "^(?:https://(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}"
    "|unix:///[^\\x00]+)$"
)


class OnDeadline(StrEnum):
    """What happens to work that outlives a drain."""

    WAIT = "Wait"
    TERMINATE = "Terminate"


class Drain(meta.Model):
    """Empties the node: no new work, and an end to the old."""

    model_config = rules.on_model(
        rules.Rule(
            rule="self.onDeadline == 'Wait' || has(self.deadlineSeconds)",
            message="onDeadline: Terminate needs deadlineSeconds",
            field=".deadlineSeconds",
        )
    )

    deadline_seconds: Annotated[meta.Int32, Field(ge=0, le=7 * sandbox.MAX_SECONDS)] | None = None
    """How long work may go on, counted from when the drain was seen."""
    on_deadline: OnDeadline = OnDeadline.WAIT
    """Wait lets work end by itself; Terminate ends it at the deadline with reason Drained."""


class OutOfService(meta.Model):
    """Declares that the node is off and nothing on it runs any more."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """How that is known. Objects bound to the node are released on this word: if it is wrong, work
    that is placed again runs twice."""


class ExecutionNodeSpec(meta.Model):
    """Where the agent is, and what the node may be used for."""

    endpoint: Annotated[str, StringConstraints(max_length=512, pattern=ENDPOINT_PATTERN)]
    """Where the agent listens: https://host:port, or unix:///path on the operator's own machine."""
    server_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Name that the agent's certificate must carry. Absent: the name of this object."""
    unschedulable: meta.Bool = False
    """Takes no new work; what runs goes on."""
    drain: Drain | None = None
    """Empties the node."""
    out_of_service: OutOfService | None = None
    """Declares the node off, so that objects bound to it are released without its word."""


class NodeAmounts(meta.Model):
    """Room on a node."""

    cpu: str | None = None
    """CPUs."""
    memory: str | None = None
    """Memory."""
    workspace: str | None = None
    """Disk for workspaces."""
    executions: meta.Int32 | None = None
    """Sandboxes."""


class NodeImage(meta.Model):
    """An image on the node."""

    id: str
    """Local id, sha256:<hex>."""
    tags: Annotated[tuple[str, ...], rules.SET] | None = None
    """Names and tags."""
    digests: Annotated[tuple[str, ...], rules.SET] | None = None
    """Names pinned by the digest of the manifest."""


class DrainStatus(meta.Model):
    """How a drain goes."""

    start_time: meta.Time
    """When the drain was seen."""
    deadline: meta.Time | None = None
    """When work is ended, if it is."""
    remaining: meta.Int32 | None = None
    """Objects still bound to the node and not finished."""


class NodePool(meta.Model):
    """A warm pool on the node."""

    class_name: str
    """The class whose Executions it serves."""
    class_generation: meta.Int64 | None = None
    """The generation of the class that its slots are made for."""
    target: meta.Int32 | None = None
    """Slots that should be ready now."""
    ready: meta.Int32 | None = None
    """Slots that wait to be given an Execution."""
    creating: meta.Int32 | None = None
    """Slots that are being made."""
    assigned: meta.Int32 | None = None
    """Slots that were given an Execution which has not ended."""
    retiring: meta.Int32 | None = None
    """Unused slots that are being removed; they still hold their room."""
    message: str | None = None
    """Why there are fewer than wanted, where no more are being made."""


class ExecutionNodeStatus(meta.Model):
    """What was seen."""

    observed_generation: meta.Int64 | None = None
    """The generation of the spec that this status speaks of."""
    conditions: Conditions = ()
    """Ready sums up the others; each that is not True says what to do."""
    agent_version: str | None = None
    """Version of the agent."""
    wire_versions: Annotated[tuple[meta.Int32, ...], rules.SET] | None = None
    """Versions of the protocol that the agent speaks."""
    installation: str | None = None
    """Installation that the agent's containers are labelled with."""
    store_epoch: str | None = None
    """Identity of the agent's store; another one means that its old records are gone."""
    boot_id: str | None = Field(default=None, alias="bootID")
    """The node's boot."""
    architecture: str | None = None
    """CPU architecture of the node."""
    runtimes: Annotated[tuple[str, ...], rules.SET] | None = None
    """Runtimes that were qualified by starting a sandbox."""
    features: Annotated[tuple[str, ...], rules.SET] | None = None
    """What the node can do beyond running commands in Memory workspaces."""
    repositories: Annotated[tuple[str, ...], rules.SET] | None = None
    """Git repositories that workspaces can start from there; `team/*` stands for all below."""
    capacity: NodeAmounts | None = None
    """Room in all."""
    allocated: NodeAmounts | None = None
    """Room that is promised."""
    images: Annotated[tuple[NodeImage, ...], rules.list_map("id")] | None = None
    """Images on the node; only the first 200 are listed."""
    images_omitted: meta.Int32 | None = None
    """How many more images there are."""
    quarantined: meta.Int32 | None = None
    """Sandboxes whose removal could not be confirmed yet."""
    pools: Annotated[tuple[NodePool, ...], rules.list_map("className")] | None = None
    """Warm pools, as classes ask for them."""
    drain: DrainStatus | None = None
    """How a drain goes."""
    heartbeat_time: meta.Time | None = None
    """The agent's own clock when it last answered; rewritten rarely. Ready says whether it
    answers."""


class ExecutionNode(meta.Resource):
    """A node that runs sandboxes: one agent and its container engine."""

    kind: Literal["ExecutionNode"] = "ExecutionNode"
    """The kind."""
    spec: ExecutionNodeSpec
    """Where the agent is, and what the node may be used for."""
    status: ExecutionNodeStatus = Field(default_factory=ExecutionNodeStatus)
    """What was seen."""
