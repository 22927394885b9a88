"""The binding: which node an Execution belongs to, and everything that was decided with it.

It is written in one patch with the finalizer and `spec.nodeName`, before any agent is called. From
then on the class is never read again for this object: what the agent is told is computed from the
object, this record, and the values of the pinned Secrets and ConfigMaps.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import pydantic

from isolet.api import execution as api
from isolet.api import inputs, meta, reasons
from isolet.base import envnames
from isolet.plan.model import (
    Absent,
    ExecutionFacts,
    Fact,
    Input,
    InputRef,
    Known,
    Unknown,
    explain,
)
from isolet.wire.base import Wire
from isolet.wire.execution import (
    Amendment,
    EnvVar,
    ExecutionObserved,
    ExecutionSpec,
    ExecutionWanted,
    Medium,
    Resources,
    State,
    Workspace,
)
from isolet.wire.node import Amounts

ANNOTATION = f"{meta.GROUP}/binding"
"""Set by Isolet's own service accounts only."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Something outside has to happen first. `sure`: nothing that matters is unread."""

    reason: str
    message: str
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request cannot or may not be served; nothing was made for it."""

    reason: str
    message: str


class PinnedInput(Wire):
    """A Secret or ConfigMap at the version that was seen."""

    kind: str
    name: str
    uid: str
    resource_version: str

    @property
    def ref(self) -> InputRef:
        """The object, at whatever version."""
        return InputRef(self.kind, self.name)


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
    inputs: tuple[PinnedInput, ...] = ()


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
    """None: the object was adopted from an agent that has it, and could not be resolved anew. The
    spec is then never sent."""

    def annotation(self) -> str:
        """Compact JSON; the same binding always gives the same text."""
        return json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))


def read(object_: ExecutionFacts) -> Binding | None:
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
    bounds = pinned.resources
    return Amounts(
        cpu_millis=bounds.cpu_millis,
        memory_bytes=bounds.memory_bytes,
        disk_bytes=bounds.workspace_bytes if pinned.medium is Medium.DISK else 0,
        executions=1,
    )


def needs_values(record: Fact[ExecutionObserved]) -> bool:
    """Whether the spec may still have to be sent, so that Secrets and ConfigMaps must be read."""
    if not isinstance(record, Known):
        return True
    waiting, outcome = record.value.waiting, record.value.outcome
    return outcome is None and waiting is not None and waiting.reason == reasons.AWAITING_INPUTS


def inputs_of(spec: api.ExecutionSpec | None) -> tuple[InputRef, ...]:
    """The Secrets and ConfigMaps to read before a pass, each once, in a fixed order."""
    found = {ref for variable in _env(spec) if (ref := _source(variable)[0]) is not None}
    return tuple(sorted(found, key=lambda ref: (ref.kind, ref.name)))


def pin_inputs(
    spec: api.ExecutionSpec, known: Mapping[InputRef, Fact[Input]]
) -> tuple[PinnedInput, ...] | Wait:
    """The versions whose values are to be used, once every one of them is usable."""
    wait = _unusable(spec, known)
    if wait is not None:
        return wait
    return tuple(
        PinnedInput(
            kind=ref.kind,
            name=ref.name,
            uid=fact.value.uid,
            resource_version=fact.value.resource_version,
        )
        for ref in inputs_of(spec)
        if isinstance(fact := known.get(ref, Unknown()), Known)
    )


def inputs_changed(pinned: Pinned, known: Mapping[InputRef, Fact[Input]]) -> Wait | None:
    """Why the values that were pinned can not be sent now: never others in their place."""
    for item in pinned.inputs:
        fact = known.get(item.ref, Unknown())
        what = f"{item.kind} {item.name}"
        if isinstance(fact, Unknown):
            return Wait(reasons.AWAITING_INPUTS, f"{what} could not be read", sure=False)
        if isinstance(fact, Absent):
            return Wait(
                reasons.AWAITING_INPUTS,
                f"{what} has vanished since the object was bound, before its values were used",
            )
        if (fact.value.uid, fact.value.resource_version) != (item.uid, item.resource_version):
            return Wait(
                reasons.AWAITING_INPUTS,
                f"{what} was changed after the object was bound, before its values were used:"
                " make a new object to use the new ones",
            )
    return None


def _unusable(spec: api.ExecutionSpec, known: Mapping[InputRef, Fact[Input]]) -> Wait | None:
    for variable in _env(spec):
        ref, key = _source(variable)
        if ref is None:
            continue
        fact = known.get(ref, Unknown())
        what = f"{ref.kind} {ref.name}"
        if isinstance(fact, Unknown):
            return Wait(reasons.AWAITING_INPUTS, f"{what} could not be read", sure=False)
        if isinstance(fact, Absent):
            return Wait(reasons.AWAITING_INPUTS, f"{what} is not there (env {variable.name})")
        problem = _bad_value(fact.value, key)
        if problem is not None:
            return Wait(
                reasons.AWAITING_INPUTS, f"key {key} of {what} {problem} (env {variable.name})"
            )
    return None


def _bad_value(known: Input, key: str) -> str | None:
    value = known.data.get(key)
    if value is None:
        return "is not there"
    if len(value) > envnames.MAX_VALUE_BYTES:
        return f"is longer than {envnames.MAX_VALUE_BYTES} bytes"
    return "holds a NUL byte, which no environment can" if b"\0" in value else None


def _env(spec: api.ExecutionSpec | None) -> tuple[inputs.EnvVar, ...]:
    return (spec.env if spec is not None else None) or ()


def _source(variable: inputs.EnvVar) -> tuple[InputRef | None, str]:
    """The object and key that a variable takes its value from."""
    source = variable.value_from
    if source is None:
        return None, ""
    if source.secret_key_ref is not None:
        return InputRef("Secret", source.secret_key_ref.name), source.secret_key_ref.key
    if source.config_map_key_ref is not None:
        return InputRef("ConfigMap", source.config_map_key_ref.name), source.config_map_key_ref.key
    return None, ""


def _values(spec: api.ExecutionSpec, known: Mapping[InputRef, Fact[Input]]) -> Iterator[EnvVar]:
    for variable in _env(spec):
        ref, key = _source(variable)
        fact = known.get(ref) if ref is not None else None
        value = fact.value.data[key] if isinstance(fact, Known) else (variable.value or "").encode()
        yield EnvVar(
            name=variable.name, value=value, secret=ref is not None and ref.kind == "Secret"
        )


def deadline_seconds(object_: ExecutionFacts, pinned: Pinned | None) -> int | None:
    """How long it may run: the object's word, up to what was pinned; None where nobody knows."""
    asked = object_.spec.active_deadline_seconds if object_.spec is not None else None
    if pinned is None:
        return asked
    return min(asked or pinned.default_deadline_seconds, pinned.maximum_deadline_seconds)


def wanted(
    object_: ExecutionFacts,
    pinned: Pinned,
    known: Mapping[InputRef, Fact[Input]],
    generation: int,
) -> ExecutionWanted | Wait:
    """The message that starts it. `pin_inputs` or `inputs_changed` has been asked before."""
    spec = object_.spec
    if spec is None:
        return Wait(reasons.INVALID_SPEC, object_.invalid)
    wait = _unusable(spec, known)
    if wait is not None:
        return wait
    try:
        return ExecutionWanted(
            uid=object_.uid,
            namespace=object_.metadata.namespace or "",
            name=object_.metadata.name,
            class_name=pinned.class_name,
            generation=generation,
            spec=_effective(spec, pinned, known),
            active_deadline_seconds=deadline_seconds(object_, pinned)
            or pinned.default_deadline_seconds,
        )
    except pydantic.ValidationError as error:
        # The API's rules are at least as strict, so only an object from elsewhere comes here.
        return Wait(reasons.INVALID_SPEC, explain(error))


def _effective(
    spec: api.ExecutionSpec, pinned: Pinned, known: Mapping[InputRef, Fact[Input]]
) -> ExecutionSpec:
    return ExecutionSpec(
        image=pinned.run,
        runtime=pinned.runtime,
        user=pinned.user,
        resources=pinned.resources,
        workspace=Workspace(
            medium=pinned.medium,
            executable=pinned.workspace_executable,
            retain_seconds=pinned.retain_seconds,
        ),
        tmp_executable=pinned.tmp_executable,
        command=spec.command or (),
        env=tuple(_values(spec, known)),
        maximum_deadline_seconds=pinned.maximum_deadline_seconds,
        idle_timeout_seconds=pinned.idle_timeout_seconds,
        status_tail_bytes=spec.output.status_tail_bytes if spec.output else 0,
    )


def amendment(
    object_: ExecutionFacts,
    bound: Binding | None,
    stop_reason: str | None = None,
) -> Amendment:
    """What is mutable, as it is now wanted. `stop_reason`: it is to end though nobody asked."""
    asked_to_end = terminated(object_)
    stopping = asked_to_end or stop_reason is not None
    return Amendment(
        generation=object_.metadata.generation,
        active_deadline_seconds=deadline_seconds(object_, bound.pinned if bound else None),
        state=State.TERMINATED if stopping else State.RUNNING,
        stop_reason=None if asked_to_end else stop_reason,
    )


def terminated(object_: ExecutionFacts) -> bool:
    """Whether its owner wants it ended."""
    spec = object_.spec
    return spec is not None and spec.desired_state is api.DesiredState.TERMINATED
