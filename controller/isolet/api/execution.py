"""Execution: a sandbox. With a command it runs once; without, it is a session."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from isolet.api import bounds, fields, inputs, meta, rules, sandbox
from isolet.api.conditions import Conditions
from isolet.api.runner import Dispatch

KIND = "Execution"
PLURAL = "executions"


class DesiredState(StrEnum):
    """What the owner wants."""

    RUNNING = "Running"
    TERMINATED = "Terminated"


_RULES = (
    *rules.immutable(
        "className",
        "image",
        "resources",
        "idleTimeoutSeconds",
        "schedulingDeadlineSeconds",
        "workspace",
        "restoreFrom",
        "command",
        "env",
        "output",
        "network",
        "nodeSelector",
        "dispatch",
    ),
    rules.write_once("nodeName"),
    rules.one_way("desiredState", DesiredState.TERMINATED),
    rules.Rule(
        rule="!has(self.idleTimeoutSeconds) || !has(self.command)",
        message="only a session can be idle: leave it out where there is a command",
        field=".idleTimeoutSeconds",
    ),
    rules.Rule(
        rule=(
            "!has(self.dispatch) || !(has(self.command) || has(self.env) || has(self.image)"
            " || has(self.resources) || has(self.restoreFrom) || has(self.idleTimeoutSeconds))"
        ),
        message="a dispatch runs its class's runner: it takes no command, env, image or resources",
        field=".dispatch",
    ),
    rules.Rule(
        rule="!has(self.restoreFrom) || !has(self.workspace) || !has(self.workspace.git)",
        message="a workspace comes from a Checkpoint or from Git, not from both",
        field=".restoreFrom",
    ),
    bounds.memory_rule(
        "self.resources", "has(self.workspace) && self.workspace.medium == 'Memory'"
    ),
    rules.Rule(
        rule=(
            "(has(self.command) ? self.command.map(a, size(a)).sum() : 0)"
            " + (has(self.env) ? self.env.map(e, has(e.value) ? size(e.value) : 0).sum() : 0)"
            f" <= {fields.MAX_INLINE}"
        ),
        message=(
            f"command and env values together must be at most {fields.MAX_INLINE} characters long"
        ),
    ),
)


class ExecutionSpec(meta.Model):
    """What is asked for."""

    model_config = rules.on_model(*_RULES)

    class_name: meta.ObjectName | None = None
    """Name of the ExecutionClass. Absent: the default class."""
    image: fields.Image | None = None
    """Image, pinned: name@sha256:<digest> or a local image id sha256:<id>; or name:tag where the
    class resolves tags. It must be on the node: images are never pulled. Absent: the Checkpoint's
    or the class's."""
    resources: bounds.Resources | None = None
    """Bounds of the sandbox. Each is mandatory, here or from the class (or from the Checkpoint)."""
    active_deadline_seconds: sandbox.Seconds | None = None
    """How long it may run, counted from its start, at most what the class allows. May be changed
    later. Absent: as the class says."""
    idle_timeout_seconds: sandbox.Seconds | None = None
    """Ends a session after this long without a command. Absent: as the class says."""
    scheduling_deadline_seconds: sandbox.SchedulingSeconds | None = None
    """How long it may wait for a node with room before it fails. Absent: as the class says, else
    for ever."""
    workspace: sandbox.Workspace = sandbox.Workspace()
    """The writable folder /workspace."""
    restore_from: sandbox.CheckpointReference | None = None
    """Starts with the workspace of a Checkpoint."""
    command: sandbox.Command | None = None
    """Program and arguments, run once and without a shell; the Execution ends with it. Absent: a
    session that lives until it is terminated, deleted, idle or past its deadline."""
    env: inputs.Env | None = None
    """Environment variables."""
    output: sandbox.Output | None = None
    """What the status shows of the output. Absent: only how much there was."""
    network: sandbox.Network = sandbox.Network()
    """What the sandbox can reach."""
    dispatch: Dispatch | None = None
    """One document for the runner of the class, in a sandbox that was started before. Made by the
    front door, which hands the document to the node; an object that says so by itself runs
    nothing."""
    node_selector: meta.Labels | None = None
    """Labels that the ExecutionNode must have, beside those the class asks for."""
    desired_state: DesiredState = DesiredState.RUNNING
    """Running, or Terminated to end it and keep its record; this cannot be taken back."""
    ttl_seconds_after_finished: sandbox.TtlSeconds | None = None
    """Deletes the object this long after its end. Absent: it is kept. Leave it out where the
    manifest is applied again and again, as GitOps does: once the object is gone, it is run anew."""
    node_name: meta.ObjectName | None = None
    """Node that it is bound to. Written once, by Isolet's own service accounts only."""


class ExecutionStatus(meta.Model):
    """What was seen."""

    observed_generation: meta.Int64 | None = None
    """The generation of the spec that this status speaks of."""
    conditions: Conditions = ()
    """Scheduled, Ready (sessions only), Finished, Succeeded, WorkspaceComplete (only where it is
    not), Reconciling, Stalled."""
    start_time: meta.Time | None = None
    """When the sandbox started."""
    deadline: meta.Time | None = None
    """When it will be ended at the latest."""
    completion_time: meta.Time | None = None
    """When it ended."""
    exit_code: meta.Int32 | None = None
    """Exit code of the command; absent where there is none or nobody saw it."""
    resolved: sandbox.Resolved | None = None
    """What it runs with, pinned when it was bound."""
    output: sandbox.OutputStatus | None = None
    """What is known of the output."""
    retained_until: meta.Time | None = None
    """Until when sandbox and workspace are kept after the end."""


class Execution(meta.Resource):
    """A sandbox on a node: a command that runs once, or a session that takes commands."""

    kind: Literal["Execution"] = "Execution"
    """The kind."""
    spec: ExecutionSpec
    """What is asked for. Only desiredState, activeDeadlineSeconds and ttlSecondsAfterFinished can
    be changed later."""
    status: ExecutionStatus = Field(default_factory=ExecutionStatus)
    """What was seen."""

    @property
    def is_session(self) -> bool:
        """Whether it takes commands instead of running its own."""
        return self.spec.command is None and self.spec.dispatch is None
