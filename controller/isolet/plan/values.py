"""The values that an object names: where each comes from, whether it can be had, what it is. PURE.

Values of Secrets and ConfigMaps are read for the one message that carries them to an agent, and
always at the versions that were pinned with the binding.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isolet.api import inputs, process, reasons
from isolet.base import envnames
from isolet.plan.model import Absent, Fact, Input, InputRef, Known, Unknown
from isolet.plan.objects import Spec
from isolet.wire.base import Wire
from isolet.wire.execution import EnvVar
from isolet.wire.process import MAX_STAGED_BYTES, StagedFile

Inputs = Mapping[InputRef, Fact[Input]]


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


@dataclass(frozen=True, slots=True)
class Use:
    """One place of an object that takes its value from a Secret or ConfigMap."""

    ref: InputRef
    key: str
    place: str
    """For messages: `env NAME`, `file PATH` or `stdin`."""
    most: int
    text: bool = False
    """It must hold no NUL byte."""


def uses(spec: Spec | None) -> Iterator[Use]:
    """Every such place, in the order of the spec."""
    for variable in (spec.env if spec is not None else None) or ():
        if (found := _of_variable(variable)) is not None:
            place, most = f"env {variable.name}", envnames.MAX_VALUE_BYTES
            yield Use(*found, place=place, most=most, text=True)
    if not isinstance(spec, process.ProcessSpec):
        return
    for file in spec.files or ():
        if (found := _referred(file.secret_key_ref, file.config_map_key_ref)) is not None:
            yield Use(*found, place=f"file {file.path}", most=MAX_STAGED_BYTES)
    if spec.stdin is not None:
        found = _referred(spec.stdin.secret_key_ref, None)
        if found is not None:
            yield Use(*found, place="stdin", most=MAX_STAGED_BYTES)


def from_secrets(spec: Spec | None) -> tuple[str, ...]:
    """The places whose values come from Secrets."""
    return tuple(use.place for use in uses(spec) if use.ref.kind == "Secret")


def inputs_of(spec: Spec | None) -> tuple[InputRef, ...]:
    """The Secrets and ConfigMaps to read before a pass, each once, in a fixed order."""
    return tuple(sorted({use.ref for use in uses(spec)}, key=lambda ref: (ref.kind, ref.name)))


def pin_inputs(spec: Spec, known: Inputs) -> tuple[PinnedInput, ...] | Wait:
    """The versions whose values are to be used, once every one of them is usable."""
    wait = unusable(spec, known)
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


def inputs_changed(pinned: tuple[PinnedInput, ...], known: Inputs) -> Wait | None:
    """Why the values that were pinned can not be sent now: never others in their place."""
    for item in pinned:
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


def unusable(spec: Spec, known: Inputs) -> Wait | None:
    """Why a value that is named cannot be had."""
    for use in uses(spec):
        fact = known.get(use.ref, Unknown())
        what = f"{use.ref.kind} {use.ref.name}"
        if isinstance(fact, Unknown):
            return Wait(reasons.AWAITING_INPUTS, f"{what} could not be read", sure=False)
        if isinstance(fact, Absent):
            return Wait(reasons.AWAITING_INPUTS, f"{what} is not there ({use.place})")
        problem = _bad_value(fact.value, use)
        if problem is not None:
            return Wait(reasons.AWAITING_INPUTS, f"key {use.key} of {what} {problem} ({use.place})")
    return None


def _bad_value(known: Input, use: Use) -> str | None:
    value = known.data.get(use.key)
    if value is None:
        return "is not there"
    if len(value) > use.most:
        return f"is longer than {use.most} bytes"
    return "holds a NUL byte, which no environment can" if use.text and b"\0" in value else None


def env(spec: Spec, known: Inputs) -> tuple[EnvVar, ...]:
    """The environment with its values. `unusable` has been asked before."""
    return tuple(
        EnvVar(
            name=variable.name,
            value=_value(found, known, (variable.value or "").encode()),
            secret=found is not None and found[0].kind == "Secret",
        )
        for variable in spec.env or ()
        for found in (_of_variable(variable),)
    )


def files(spec: process.ProcessSpec, known: Inputs) -> tuple[StagedFile, ...]:
    """The files with their contents. `unusable` has been asked before.

    Raises:
        ValueError: a content that says it is base64 and is not.
    """
    return tuple(
        StagedFile(
            path=file.path,
            content=_value(
                _referred(file.secret_key_ref, file.config_map_key_ref),
                known,
                _inline(file.content, file.content_base64),
            ),
            mode=file.mode,
        )
        for file in spec.files or ()
    )


def stdin(spec: process.ProcessSpec, known: Inputs) -> bytes | None:
    """What it reads. `unusable` has been asked before; raises as `files`."""
    given = spec.stdin
    if given is None:
        return None
    plain = _inline(given.value, given.value_base64)
    return _value(_referred(given.secret_key_ref, None), known, plain)


def _inline(text: str | None, encoded: str | None) -> bytes:
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    return (text or "").encode()


def _value(found: tuple[InputRef, str] | None, known: Inputs, plain: bytes) -> bytes:
    fact = known.get(found[0]) if found is not None else None
    return fact.value.data[found[1]] if found and isinstance(fact, Known) else plain


def _of_variable(variable: inputs.EnvVar) -> tuple[InputRef, str] | None:
    source = variable.value_from
    if source is None:
        return None
    return _referred(source.secret_key_ref, source.config_map_key_ref)


def _referred(
    secret: inputs.KeyReference | None, config_map: inputs.KeyReference | None
) -> tuple[InputRef, str] | None:
    """The object and key that a value is taken from."""
    if secret is not None:
        return InputRef("Secret", secret.name), secret.key
    return (InputRef("ConfigMap", config_map.name), config_map.key) if config_map else None
