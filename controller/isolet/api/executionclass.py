"""ExecutionClass: what an administrator reviewed, and for whom."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from isolet.api import bounds, fields, meta, rules, sandbox
from isolet.api.conditions import Conditions
from isolet.api.runner import Runner
from isolet.base import imageref

KIND = "ExecutionClass"
PLURAL = "executionclasses"


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(meta.Model):
    """One requirement on a label."""

    model_config = rules.on_model(
        rules.Rule(
            rule=(
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                " : !has(self.values) || size(self.values) == 0"
            ),
            message="In and NotIn need values; Exists and DoesNotExist take none",
        )
    )

    key: meta.LabelKey
    """Key of the label."""
    operator: SelectorOperator
    """In, NotIn, Exists or DoesNotExist."""
    values: Annotated[tuple[meta.LabelValue, ...], Field(max_length=64), rules.ATOMIC] | None = None
    """Values for In and NotIn."""


class LabelSelector(meta.Model):
    """Which labels something must have; empty means any."""

    match_labels: meta.Labels | None = None
    """Labels with exactly these values."""
    match_expressions: (
        Annotated[tuple[SelectorRequirement, ...], Field(max_length=32), rules.ATOMIC] | None
    ) = None
    """Further requirements; all must hold."""

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether these labels satisfy every requirement."""
        exact = (self.match_labels or {}).items()
        return all(labels.get(key) == value for key, value in exact) and all(
            _holds(requirement, labels) for requirement in self.match_expressions or ()
        )


def _holds(requirement: SelectorRequirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case SelectorOperator.IN:
            return value is not None and value in (requirement.values or ())
        case SelectorOperator.NOT_IN:
            return value is None or value not in (requirement.values or ())
        case SelectorOperator.EXISTS:
            return value is not None
        case SelectorOperator.DOES_NOT_EXIST:
            return value is None


class Images(meta.Model):
    """Images that may run."""

    model_config = rules.on_model(
        rules.Rule(
            rule=(
                "self.resolveTags || self.allowed.all(i,"
                f" i.matches({rules.quote(imageref.PINNED_PATTERN)}))"
            ),
            message="a tag is allowed only where resolveTags is true",
            field=".allowed",
        ),
        rules.Rule(
            rule="!has(self.default) || self.default in self.allowed",
            message="the default image must be one of the allowed ones",
            field=".default",
        ),
    )

    allowed: Annotated[tuple[fields.Image, ...], Field(min_length=1, max_length=128), rules.SET]
    """Images that may run, each written exactly as it will be asked for."""
    default: fields.Image | None = None
    """Image of whoever names none."""
    resolve_tags: meta.Bool = False
    """Allows name:tag. A tag is resolved to the id of a local image when a node is bound, and the
    id is recorded; nothing is pulled."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.resolve_tags and not all(map(imageref.is_pinned, self.allowed)):
            raise ValueError("a tag is allowed only where resolveTags is true")
        if self.default is not None and self.default not in self.allowed:
            raise ValueError("the default image must be one of the allowed ones")
        return self


UserId = Annotated[meta.Int64, Field(ge=1, le=4_294_967_294)]


class User(meta.Model):
    """Who the sandbox's processes are; never root."""

    uid: UserId = 65532
    """User id, from 1 to 4294967294."""
    gid: UserId = 65532
    """Group id, from 1 to 4294967294."""

    def __str__(self) -> str:
        """As engines want it: `uid:gid`."""
        return f"{self.uid}:{self.gid}"


class ClassResources(meta.Model):
    """Bounds of a sandbox."""

    model_config = rules.on_model(
        *(
            rules.Rule(
                rule=(
                    f"!has(self.default) || !has(self.default.{name}) || "
                    + (
                        f"self.default.{name} <= self.maximum.{name}"
                        if name == "pids"
                        else f"quantity(self.default.{name})"
                        f".compareTo(quantity(self.maximum.{name})) <= 0"
                    )
                ),
                message=f"the default {name} is over the maximum",
                field=".default",
            )
            for name in bounds.NAMES
        )
    )

    default: bounds.Resources | None = None
    """Bounds of whoever gives none of their own. One that is absent here must be given by each
    object."""
    maximum: bounds.Maximum
    """The most that can be asked for."""


class Tmp(meta.Model):
    """How /tmp is mounted."""

    exec: meta.Bool = False
    """Whether programs may be run from /tmp."""


class ClassWorkspace(meta.Model):
    """What workspaces may be."""

    model_config = rules.on_model(
        rules.Rule(
            rule="self.exec || !self.media.exists(m, m == 'Disk')",
            message="exec: false needs media: [Memory]: gVisor does not enforce it on a disk",
            field=".exec",
        )
    )

    media: Annotated[tuple[sandbox.Medium, ...], Field(min_length=1, max_length=2), rules.SET] = (
        sandbox.Medium.DISK,
        sandbox.Medium.MEMORY,
    )
    """Media that may be asked for."""
    exec: meta.Bool = True
    """Whether programs may be run from the workspace."""
    git_repositories: (
        Annotated[tuple[fields.Repository, ...], Field(max_length=256), rules.SET] | None
    ) = None
    """Names of Git repositories that a workspace may start from. Absent: none."""
    default_retain_seconds: sandbox.RetainSeconds = 0
    """How long sandbox and workspace are kept after the end where the object does not say."""
    maximum_retain_seconds: sandbox.RetainSeconds = 3600
    """The longest that an object may ask for."""


class ClassEnv(meta.Model):
    """What the environment may hold."""

    allow_secret_refs: meta.Bool = False
    """Whether values may be taken from Secrets of the object's namespace."""


class Deadlines(meta.Model):
    """How long things may take."""

    model_config = rules.on_model(
        rules.Rule(
            rule="self.defaultSeconds <= self.maximumSeconds",
            message="the default deadline is over the maximum",
            field=".defaultSeconds",
        )
    )

    default_seconds: sandbox.Seconds = 600
    """Deadline of whoever gives none, counted from the start."""
    maximum_seconds: sandbox.Seconds = 3600
    """The longest deadline, extensions included."""
    idle_timeout_seconds: sandbox.Seconds | None = None
    """Idle timeout of sessions that give none. Absent: they may be idle up to their deadline."""
    maximum_idle_timeout_seconds: sandbox.Seconds | None = None
    """The longest idle timeout of a session. Absent: any."""
    scheduling_deadline_seconds: sandbox.SchedulingSeconds | None = None
    """How long an object that does not say may wait for room. Absent: for ever."""


class WhenEmpty(StrEnum):
    """What becomes of an Execution that finds no slot ready."""

    WAIT = "Wait"
    COLD = "Cold"
    REFUSE = "Refuse"


PoolSize = Annotated[meta.Int32, Field(ge=1, le=1024)]


class WarmPool(meta.Model):
    """Sandboxes that are kept started on every node that can run the class."""

    model_config = rules.on_model(
        rules.Rule(
            rule="has(self.size) != has(self.maximum)",
            message="give either size, or maximum and perhaps minimum",
        ),
        rules.Rule(
            rule="!has(self.minimum) || has(self.maximum) && self.minimum <= self.maximum",
            message="minimum needs a maximum and may not be over it",
            field=".minimum",
        ),
    )

    size: PoolSize | None = None
    """Slots that are kept ready on each node."""
    minimum: Annotated[meta.Int32, Field(ge=0, le=1024)] | None = None
    """With maximum: slots that are kept ready on each node in any case. Absent: none."""
    maximum: PoolSize | None = None
    """Instead of size: as many slots as Executions came in the last minute, but at most so many."""
    medium: sandbox.Medium = sandbox.Medium.DISK
    """Medium of the slots' workspaces, by default that of an Execution that names none. Executions
    that ask for the other one start cold."""
    create_concurrency: Annotated[meta.Int32, Field(ge=1, le=32)] = 2
    """Slots that a node makes at a time."""
    idle_timeout_seconds: Annotated[meta.Int32, Field(ge=10, le=sandbox.MAX_SECONDS)] = 600
    """A slot that nobody used for so long is replaced."""
    when_empty: WhenEmpty = WhenEmpty.COLD
    """What becomes of an Execution that a slot could serve and that finds none ready: Cold starts
    it without, Wait has it wait for one, Refuse ends it with reason NoWarmSlot. A dispatch that
    finds none is always refused by the front door."""

    @property
    def least(self) -> int:
        """Slots that are kept in any case."""
        return self.size if self.size is not None else self.minimum or 0

    @property
    def most(self) -> int:
        """Slots that there may be."""
        return self.size if self.size is not None else self.maximum or 1


class ExecutionClassSpec(meta.Model):
    """What may run, how, and for whom."""

    model_config = rules.on_model(
        rules.Rule(
            rule="!has(self.warmPool) || has(self.images.default)",
            message="a warm pool is of the default image: give images.default",
            field=".warmPool",
        ),
        rules.Rule(
            rule="!has(self.warmPool) || has(self.resources.default) && "
            + " && ".join(f"has(self.resources.default.{name})" for name in bounds.NAMES),
            message="a warm pool is of the default resources: give every one of resources.default",
            field=".warmPool",
        ),
        rules.Rule(
            rule="!has(self.warmPool) || self.warmPool.medium in self.workspace.media",
            message="the warm pool's medium is none of workspace.media",
            field=".warmPool",
        ),
        rules.Rule(
            rule=("self.workspace.defaultRetainSeconds <= self.workspace.maximumRetainSeconds"),
            message="the default retention is over the maximum",
            field=".workspace",
        ),
    )

    images: Images
    """Images that may run."""
    namespace_selector: LabelSelector
    """Namespaces that may use the class, by their labels; {} means all. Checked when an object is
    created and again when it is bound."""
    resources: ClassResources
    """Bounds of a sandbox."""
    runtime_handler: fields.RuntimeHandler = "runsc"
    """Runtime in the node's engine. Anything but runsc is less isolated, meant for trusted work,
    and runs only where the node's own policy names it. There is no fallback."""
    user: User = User()
    """User and group of the sandbox's processes."""
    tmp: Tmp = Tmp()
    """How /tmp is mounted."""
    workspace: ClassWorkspace = ClassWorkspace()
    """What workspaces may be."""
    env: ClassEnv = ClassEnv()
    """What the environment may hold."""
    deadlines: Deadlines = Deadlines()
    """How long things may take."""
    warm_pool: WarmPool | None = None
    """Sandboxes kept started, of the default image, the default resources and this class's options.
    An Execution that asks for exactly these is given one in milliseconds. Absent: none."""
    runner: Runner | None = None
    """The program that serves dispatches. Absent: the class takes none."""
    node_selector: meta.Labels | None = None
    """Labels that an ExecutionNode must have to run this class."""
    is_default: meta.Bool = False
    """Whether objects that name no class get this one. At most one class may say so."""


class ExecutionClassStatus(meta.Model):
    """What was seen."""

    observed_generation: meta.Int64 | None = None
    """The generation of the spec that this status speaks of."""
    conditions: Conditions = ()
    """Reserved: nothing is said of a class yet."""


class ExecutionClass(meta.Resource):
    """What an administrator reviewed: images, bounds, runtime and options, and for whom."""

    kind: Literal["ExecutionClass"] = "ExecutionClass"
    """The kind."""
    spec: ExecutionClassSpec
    """What may run, how, and for whom. An edit never touches what is already bound."""
    status: ExecutionClassStatus = Field(default_factory=ExecutionClassStatus)
    """What was seen."""
