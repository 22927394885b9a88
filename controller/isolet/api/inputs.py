"""What enters a sandbox from its object: environment, references to Secrets and ConfigMaps."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from isolet.api import fields, meta, rules
from isolet.base import envnames

DATA_KEY_PATTERN = "^[-._a-zA-Z0-9]+$"
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)]


def _check_value(value: str) -> str:
    if len(value.encode()) > envnames.MAX_VALUE_BYTES:
        raise ValueError("must be at most 32 KiB long")
    return fields.check_no_nul(value)


EnvName = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=envnames.MAX_NAME_LENGTH, pattern=envnames.NAME_PATTERN
    ),
]
EnvValue = Annotated[
    str,
    StringConstraints(max_length=envnames.MAX_VALUE_BYTES),
    AfterValidator(_check_value),
    rules.on_field(
        fields.NO_NUL,
        rules.Rule(
            rule=f"size(bytes(self)) <= {envnames.MAX_VALUE_BYTES}",
            message="must be at most 32 KiB long",
        ),
    ),
]


class KeyReference(meta.Model):
    """One key of a Secret or ConfigMap in the same namespace."""

    name: meta.ObjectName
    """Name of the Secret or ConfigMap, in the same namespace."""
    key: DataKey
    """Key in its data."""


class ValueSource(meta.Model):
    """Where a value comes from; exactly one."""

    model_config = rules.on_model(rules.exactly_one("secretKeyRef", "configMapKeyRef"))

    secret_key_ref: KeyReference | None = None
    """A key of a Secret. Only where the class has `env.allowSecretRefs`."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""


_PLAIN_CREDENTIAL = rules.Rule(
    rule=(f"!has(self.value) || !self.name.matches({rules.quote(envnames.CREDENTIAL_PATTERN)})"),
    message=(
        "the name looks like a credential's: take the value from a Secret with"
        " valueFrom.secretKeyRef"
    ),
    message_expression=(
        "'the name ' + self.name + ' looks like a credential: take its value from a Secret with"
        " valueFrom.secretKeyRef'"
    ),
)


class EnvVar(meta.Model):
    """One environment variable: a plain value or a reference."""

    model_config = rules.on_model(rules.exactly_one("value", "valueFrom"), _PLAIN_CREDENTIAL)

    name: EnvName
    """Name: a letter or underscore, then letters, digits and underscores."""
    value: EnvValue | None = None
    """The value, as it is: nothing is expanded. At most 32 KiB. Refused under a name that looks
    like a credential's."""
    value_from: ValueSource | None = None
    """Takes the value from a Secret or ConfigMap when the object is bound."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.value is None) == (self.value_from is None):
            raise ValueError("exactly one of value, valueFrom must be set")
        if self.value is not None and envnames.looks_like_credential(self.name):
            raise ValueError(
                f"the name {self.name} looks like a credential: take its value from a Secret with"
                " valueFrom.secretKeyRef"
            )
        return self


Env = Annotated[tuple[EnvVar, ...], Field(max_length=128), rules.list_map("name")]
"""Environment variables, each name once."""


class PinnedInput(meta.Model):
    """A Secret or ConfigMap as it was when the object was bound."""

    kind: str
    """Secret or ConfigMap."""
    name: str
    """Name of the object."""
    uid: str
    """UID of the object."""
    resource_version: str
    """Its resource version; a later one is not used."""
