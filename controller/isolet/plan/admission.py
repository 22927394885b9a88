"""May this object have the sandbox it asks for? The class's rules, judged at binding and only then.

The API server has judged what one object can state; this needs two. Each check is named after what
it finds and answers with a `Refusal`, which is final, or a `Wait`; they run in order and the first
answer stands. Nothing was made for an object that is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pydantic

from isolet.api import bounds, executionclass, reasons
from isolet.api.checkpoint import CheckpointStatus
from isolet.base import imageref, quantity
from isolet.plan import restoring, values
from isolet.plan.binding import Pinned
from isolet.plan.model import Absent, Known, Observed
from isolet.plan.objects import ExecutionFacts, Sought, Work
from isolet.plan.restoring import Origin
from isolet.plan.values import PinnedInput, Refusal, Wait
from isolet.wire.execution import GitSource, Medium, Resources


@dataclass(frozen=True, slots=True)
class Case:
    """One object against one class."""

    object: Work
    sought: Sought
    rules: executionclass.ExecutionClassSpec
    class_name: str
    namespace: str
    labels: Mapping[str, str]
    origin: Origin | None = None
    """The Checkpoint that it starts from."""

    @property
    def checkpoint(self) -> CheckpointStatus:
        """What that Checkpoint gives where the object gives nothing itself."""
        return self.origin.status if self.origin is not None else CheckpointStatus()

    @property
    def deadline(self) -> str:
        """The field that says how long it may run."""
        execution = isinstance(self.object, ExecutionFacts)
        return "activeDeadlineSeconds" if execution else "timeoutSeconds"


Check = Callable[[Case], Refusal | None]


def admit(seen: Observed) -> Pinned | Refusal | Wait:
    """The effective spec, without the reference that only a node can give (`Pinned.run`)."""
    spec, sought = seen.object.spec, seen.object.sought
    if spec is None or sought is None:
        return Refusal(reasons.INVALID_SPEC, seen.object.invalid)
    found = resolve_class(sought, seen)
    if isinstance(found, Wait):
        return found
    origin = restoring.origin(seen, sought.restore_from) if sought.restore_from else None
    if isinstance(origin, Refusal | Wait):
        return origin
    labels = seen.namespace_labels
    if not isinstance(labels, Known):
        gone = isinstance(labels, Absent)
        return Wait(reasons.PENDING, "its namespace could not be read", sure=gone)
    case = Case(
        object=seen.object,
        sought=sought,
        rules=found.spec,
        class_name=found.metadata.name,
        namespace=seen.object.metadata.namespace or "",
        labels=labels.value,
        origin=origin,
    )
    for check in CHECKS:
        refusal = check(case)
        if refusal is not None:
            return refusal
    inputs = values.pin_inputs(spec, seen.inputs)
    return inputs if isinstance(inputs, Wait) else _pin(case, found, inputs)


def resolve_class(sought: Sought, seen: Observed) -> executionclass.ExecutionClass | Wait:
    """The class that the object names, or the default one. What is not there may still come."""
    if not isinstance(seen.classes, Known):
        return Wait(reasons.PENDING, "the classes could not be read", sure=False)
    classes = seen.classes.value
    if sought.class_name is not None:
        named = next((c for c in classes if c.metadata.name == sought.class_name), None)
        return named or Wait(
            reasons.CLASS_NOT_FOUND, f"there is no ExecutionClass {sought.class_name}"
        )
    defaults = sorted((c for c in classes if c.spec.is_default), key=lambda c: c.metadata.name)
    if len(defaults) > 1:
        found = ", ".join(c.metadata.name for c in defaults)
        return Wait(
            reasons.CLASS_AMBIGUOUS, f"className is absent and {found} all say isDefault: true"
        )
    if not defaults:
        return Wait(
            reasons.CLASS_NOT_FOUND, "className is absent and no ExecutionClass is the default"
        )
    return defaults[0]


def image_of(case: Case) -> str | None:
    """The image as the object names it, or else its Checkpoint, or else the class."""
    return case.sought.image or case.checkpoint.image or case.rules.images.default


def runs_as(case: Case, image: str) -> str:
    """What a node is asked to have: of a Checkpoint's tag, the image that stood for it then."""
    taken = case.checkpoint.image_id
    if case.sought.image is None and taken is not None and not imageref.is_pinned(image):
        return taken
    return image


def class_is_not_granted(case: Case) -> Refusal | None:
    """The namespace is checked again here: its labels may have changed since the admission."""
    if case.rules.namespace_selector.matches(dict(case.labels)):
        return None
    return Refusal(
        reasons.CLASS_NOT_ALLOWED,
        f"ExecutionClass {case.class_name} is not granted to namespace {case.namespace}"
        " (spec.namespaceSelector)",
    )


def image_is_not_allowed(case: Case) -> Refusal | None:
    """Images are compared as they are written: equal text is the only claim of equal bytes."""
    image = image_of(case)
    if image is None:
        return Refusal(
            reasons.INVALID_SPEC,
            f"{case.sought.where}image is mandatory: ExecutionClass {case.class_name} has no"
            " default image",
        )
    if image not in case.rules.images.allowed:
        return Refusal(
            reasons.IMAGE_NOT_ALLOWED,
            f"image {image} is not among those that ExecutionClass {case.class_name} allows",
        )
    if not imageref.is_pinned(image) and not case.rules.images.resolve_tags:
        return Refusal(
            reasons.IMAGE_NOT_ALLOWED,
            f"image {image} is not pinned and ExecutionClass {case.class_name} resolves no tags",
        )
    return None


def resources_of(case: Case) -> bounds.Resources:
    """The object's own bounds, completed from its Checkpoint and then from the class."""
    return bounds.merged(
        case.sought.resources, case.checkpoint.resources, case.rules.resources.default
    )


def resources_are_incomplete(case: Case) -> Refusal | None:
    """Each bound is mandatory: an absent one would mean no limit to an engine."""
    missing = bounds.missing(resources_of(case))
    if not missing:
        return None
    return Refusal(
        reasons.INCOMPLETE_RESOURCES,
        f"{case.sought.where}resources.{', '.join(missing)}: given neither here nor by"
        f" ExecutionClass {case.class_name}",
    )


def resources_are_over_the_maximum(case: Case) -> Refusal | None:
    """What the class lets nobody have."""
    asked, most = resources_of(case), case.rules.resources.maximum
    over = bounds.exceeded(asked, most)
    if not over:
        return None
    parts = (f"{name} {getattr(asked, name)} (at most {getattr(most, name)})" for name in over)
    return Refusal(
        reasons.RESOURCES_NOT_ALLOWED,
        f"over the maximum of ExecutionClass {case.class_name}: {', '.join(parts)}",
    )


def mounts_do_not_fit_memory(case: Case) -> Refusal | None:
    """A tmpfs is memory: a full one must be ENOSPC inside, not the end of the sandbox."""
    in_memory = case.sought.workspace.medium.value == Medium.MEMORY.value
    if bounds.fits_memory(resources_of(case), memory_workspace=in_memory):
        return None
    return Refusal(
        reasons.INVALID_SPEC,
        f"{case.sought.where}resources: tmp, shm and a Memory workspace are memory: together they"
        " must fit into resources.memory",
    )


def content_does_not_fit(case: Case) -> Refusal | None:
    """What is in the Checkpoint must find room in the workspace."""
    size, room = case.checkpoint.size_bytes, resources_of(case).workspace
    if case.origin is None or size is None or room is None or size <= quantity.to_bytes(room):
        return None
    return Refusal(
        reasons.CHECKPOINT_TOO_LARGE,
        f"{case.sought.where}resources.workspace {room} is smaller than Checkpoint"
        f" {case.origin.restored.name}, which holds {size} bytes",
    )


def medium_is_not_allowed(case: Case) -> Refusal | None:
    """The workspace's medium."""
    medium = case.sought.workspace.medium
    if medium in case.rules.workspace.media:
        return None
    return Refusal(
        reasons.MEDIUM_NOT_ALLOWED,
        f"ExecutionClass {case.class_name} allows no {medium.value} workspace",
    )


def git_of(case: Case) -> GitSource | None:
    """The revision that the workspace begins with."""
    git = case.sought.workspace.git
    return None if git is None else GitSource(repository=git.repository, revision=git.revision)


def repository_is_not_allowed(case: Case) -> Refusal | None:
    """The repository that the workspace begins with."""
    git = case.sought.workspace.git
    if git is None or git.repository in (case.rules.workspace.git_repositories or ()):
        return None
    return Refusal(
        reasons.REPOSITORY_NOT_ALLOWED,
        f"ExecutionClass {case.class_name} does not allow Git repository {git.repository}"
        " (spec.workspace.gitRepositories)",
    )


def retention_of(case: Case) -> int:
    """The object's own retention, or the class's."""
    own = case.sought.workspace.retain_seconds
    return case.rules.workspace.default_retain_seconds if own is None else own


def retention_is_over_the_maximum(case: Case) -> Refusal | None:
    """How long sandbox and workspace are kept."""
    most = case.rules.workspace.maximum_retain_seconds
    if retention_of(case) <= most:
        return None
    return Refusal(
        reasons.RETENTION_NOT_ALLOWED,
        f"{case.sought.where}workspace.retainSeconds {retention_of(case)} is over the maximum"
        f" {most} of ExecutionClass {case.class_name}",
    )


def idle_timeout_of(case: Case) -> int | None:
    """The object's own idle timeout, or the class's; commands have none."""
    if not case.sought.session:
        return None
    return case.sought.idle_timeout_seconds or case.rules.deadlines.idle_timeout_seconds


def deadlines_are_over_the_maximum(case: Case) -> Refusal | None:
    """How long it may run, and be idle."""
    limits = case.rules.deadlines
    asked = case.object.asked_seconds
    if asked is not None and asked > limits.maximum_seconds:
        return Refusal(
            reasons.DEADLINE_NOT_ALLOWED,
            f"{case.deadline} {asked} is over the maximum {limits.maximum_seconds} of"
            f" ExecutionClass {case.class_name}",
        )
    idle, most = idle_timeout_of(case), limits.maximum_idle_timeout_seconds
    if idle is not None and most is not None and idle > most:
        return Refusal(
            reasons.DEADLINE_NOT_ALLOWED,
            f"idleTimeoutSeconds {idle} is over the maximum {most} of ExecutionClass"
            f" {case.class_name}",
        )
    return None


def secrets_are_not_allowed(case: Case) -> Refusal | None:
    """Values from Secrets."""
    if case.rules.env.allow_secret_refs:
        return None
    places = values.from_secrets(case.object.spec)
    if not places:
        return None
    return Refusal(
        reasons.SECRET_NOT_ALLOWED,
        f"ExecutionClass {case.class_name} allows no values from Secrets: {', '.join(places)}",
    )


CHECKS: tuple[Check, ...] = (
    class_is_not_granted,
    image_is_not_allowed,
    resources_are_incomplete,
    resources_are_over_the_maximum,
    mounts_do_not_fit_memory,
    content_does_not_fit,
    medium_is_not_allowed,
    repository_is_not_allowed,
    retention_is_over_the_maximum,
    deadlines_are_over_the_maximum,
    secrets_are_not_allowed,
)
"""In the order in which they are told. A class that is not granted says nothing of itself."""


def scheduling_deadline(seen: Observed) -> int | None:
    """How long the object may wait for its binding, where that is known."""
    sought = seen.object.sought
    if sought is None or sought.scheduling_deadline_seconds is not None:
        return sought.scheduling_deadline_seconds if sought else None
    found = resolve_class(sought, seen)
    return None if isinstance(found, Wait) else found.spec.deadlines.scheduling_deadline_seconds


def _pin(
    case: Case, found: executionclass.ExecutionClass, inputs: tuple[PinnedInput, ...]
) -> Pinned | Refusal:
    rules, sought = case.rules, case.sought
    image = image_of(case) or ""
    try:
        return Pinned(
            class_name=case.class_name,
            class_uid=found.metadata.uid,
            class_generation=found.metadata.generation,
            image=image,
            run=runs_as(case, image),
            runtime=rules.runtime_handler,
            user=str(rules.user),
            resources=to_wire(resources_of(case)),
            medium=Medium(sought.workspace.medium.value),
            workspace_executable=rules.workspace.exec,
            tmp_executable=rules.tmp.exec,
            retain_seconds=retention_of(case),
            default_deadline_seconds=rules.deadlines.default_seconds,
            maximum_deadline_seconds=rules.deadlines.maximum_seconds,
            idle_timeout_seconds=idle_timeout_of(case),
            restored=case.origin.restored if case.origin else None,
            git=git_of(case),
            inputs=inputs,
        )
    except (pydantic.ValidationError, ValueError):
        return Refusal(
            reasons.INVALID_SPEC,
            f"ExecutionClass {case.class_name} and the object give no bounds an agent could hold",
        )


def to_wire(asked: bounds.Resources) -> Resources:
    """Complete bounds in the units that agents use.

    Raises:
        ValueError: a bound is missing or out of an agent's range.
    """
    sizes = {
        f"{name}_bytes": quantity.to_bytes(getattr(asked, name) or "")
        for name in ("memory", "workspace", "tmp", "shm", "output")
    }
    return Resources(
        cpu_millis=quantity.to_milli_cpu(asked.cpu or ""), pids=asked.pids or 0, **sizes
    )
