"""The binding: which node an object belongs to, and everything that was decided with it.

It is written in one patch with the finalizer and `spec.nodeName`, before any agent is called. From
then on the class is never read again for this object: what the agent is told is computed from the
object, this record, and the values of the pinned Secrets and ConfigMaps.
"""

import json
from datetime import datetime
from typing import Literal

import pydantic

from isolet.api import meta, reasons
from isolet.plan.model import Fact, Known
from isolet.plan.objects import AnyRecord, ExecutionFacts, Facts, Work
from isolet.plan.values import PinnedInput
from isolet.wire.base import Wire
from isolet.wire.execution import Amendment, GitSource, Medium, Resources, State
from isolet.wire.node import Amounts
from isolet.wire.process import ProcessAmendment, ProcessState

ANNOTATION = f"{meta.GROUP}/binding"
"""Set by Isolet's own service accounts only."""


class Restored(Wire):
    """The Checkpoint that a workspace starts with."""

    name: str
    uid: str
    manifest_digest: str
    content_digest: str


class Pinned(Wire):
    """The effective spec: what the object asked for, completed from its class."""

    class_name: str
    class_uid: str = ""
    class_generation: int = 0
    image: str
    """As it was asked for."""
    run: str
    """The reference that the agent is given: pinned, or the id a tag stood for on the node."""
    runtime: str
    user: str
    resources: Resources
    medium: Medium
    workspace_executable: bool
    tmp_executable: bool
    retain_seconds: int
    default_deadline_seconds: int
    """Holds where the object gives none."""
    maximum_deadline_seconds: int
    idle_timeout_seconds: int | None = None
    restored: Restored | None = None
    git: GitSource | None = None
    """The revision as it was asked for; which commit it is, the agent finds out and keeps."""
    inputs: tuple[PinnedInput, ...] = ()


class Inside(Wire):
    """The effective spec of a Process that runs in an Execution, whose bounds hold for both."""

    execution_name: str
    execution_uid: str
    """One that is made later under the same name is another Execution."""
    class_name: str
    maximum_deadline_seconds: int
    inputs: tuple[PinnedInput, ...] = ()


Effective = Pinned | Inside


class Taking(Wire):
    """Whose workspace a Checkpoint holds."""

    execution_name: str
    execution_uid: str
    """One that is made later under the same name is another Execution."""
    image: str
    """As the Execution asked for it: its agent only knows the id that a tag stood for."""


class Binding(Wire):
    """The annotation's value."""

    version: Literal[1] = 1
    uid: str
    """Of the object: an annotation that was copied to another object means nothing there."""
    epoch: str
    """The agent's store at the time: in another one, the record of this object may be missing."""
    boot_id: str = ""
    bound_at: datetime
    pinned: Pinned | None = None
    inside: Inside | None = None
    """In place of `pinned`, of a Process that has no sandbox of its own. With neither the object
    was adopted from an agent that has it, and could not be resolved anew: the spec is then never
    sent."""
    taking: Taking | None = None
    """Of a Checkpoint."""

    @property
    def effective(self) -> Effective | None:
        """Whichever of the two there is."""
        return self.pinned or self.inside

    def annotation(self) -> str:
        """Compact JSON; the same binding always gives the same text."""
        return json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))


def read(object_: Facts) -> Binding | None:
    """The object's binding; None if it has none that can be read and is its own."""
    text = object_.metadata.annotations.get(ANNOTATION, "")
    try:
        found = Binding.model_validate_json(text)
    except pydantic.ValidationError:
        return None
    return found if found.uid == object_.uid and found.bound_at.tzinfo is not None else None


def demand(pinned: Pinned | None) -> Amounts:
    """What a node has to have free for it."""
    if pinned is None:
        return Amounts()
    return Amounts.of_sandbox(pinned.resources, pinned.medium)


def needs_values(record: Fact[AnyRecord]) -> bool:
    """Whether the spec may still have to be sent, so that Secrets and ConfigMaps must be read."""
    if not isinstance(record, Known):
        return True
    waiting, outcome = record.value.waiting, record.value.outcome
    return outcome is None and waiting is not None and waiting.reason == reasons.AWAITING_INPUTS


def deadline_seconds(object_: Work, pinned: Effective | None) -> int | None:
    """How long it may run: the object's word, up to what was pinned; None where nobody knows."""
    asked = object_.seconds
    if pinned is None:
        return asked
    most = pinned.maximum_deadline_seconds
    default = pinned.default_deadline_seconds if isinstance(pinned, Pinned) else most
    return min(asked or default, most)


def amendment(
    object_: Work,
    bound: Binding | None,
    stop_reason: str | None = None,
) -> Amendment | ProcessAmendment:
    """What is mutable, as it is now wanted. `stop_reason`: it is to end though nobody asked."""
    stopping = object_.ending or stop_reason is not None
    generation = object_.metadata.generation
    own_reason = None if object_.ending else stop_reason
    if not isinstance(object_, ExecutionFacts):
        state = ProcessState.CANCELLED if stopping else ProcessState.RUNNING
        return ProcessAmendment(generation=generation, state=state, stop_reason=own_reason)
    return Amendment(
        generation=generation,
        active_deadline_seconds=deadline_seconds(object_, bound.pinned if bound else None),
        state=State.TERMINATED if stopping else State.RUNNING,
        stop_reason=own_reason,
    )


def ending(object_: Work) -> Amendment | ProcessAmendment:
    """The end alone, of something whose outcome is written."""
    generation = object_.metadata.generation
    if isinstance(object_, ExecutionFacts):
        return Amendment(generation=generation, state=State.TERMINATED)
    return ProcessAmendment(generation=generation, state=ProcessState.CANCELLED)
