"""What every kind shares: the model base, object metadata, references, time.

Models are frozen, speak camelCase outside and snake_case inside, and ignore fields they do not
know: a newer API server or a newer Isolet may have written them.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    StringConstraints,
)
from pydantic.alias_generators import to_camel

from isolet.api import rules
from isolet.base import times

GROUP = "isolet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "isolet"

RESERVED_PREFIX = f"{GROUP}/"
"""Labels and annotations under it are set by Isolet's own service accounts only."""

FINALIZER = f"{GROUP}/sandbox"
"""Held until the node's agent has confirmed that nothing of the object is left."""

FORCE_RELEASE = f"{GROUP}/force-release"
"""Annotation that gives an object up without the agent's word; an administrator's last resort."""

ORIGIN_LABEL = f"{GROUP}/origin"
"""Which part made the object (`cli`, `apiserver`, `bridge`); absent on applied objects."""

TIME_PATTERN = f"^{times.RFC3339.pattern.replace('(', '(?:')}$"
"""An absolute time with its zone; epoch numbers and zone-less times are refused."""

NAME_PATTERN = "^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$"


def format_time(time: datetime) -> str:
    """The time as Kubernetes writes it: UTC, whole seconds unless it has a fraction."""
    try:
        time = time.astimezone(UTC)
    except OverflowError:  # the very ends of the calendar: keep the zone it came with
        return time.isoformat()
    text = time.replace(tzinfo=None).isoformat(timespec="auto" if time.microsecond else "seconds")
    return f"{text}Z"


Time = Annotated[
    datetime,
    BeforeValidator(times.read),
    PlainSerializer(format_time, return_type=str, when_used="json"),
]
"""An absolute time."""

Int32 = Annotated[int, Strict(), rules.Keys({"format": "int32"}), Field(le=2**31 - 1)]
Int64 = Annotated[int, Strict(), rules.Keys({"format": "int64"})]
Bool = Annotated[bool, Strict()]

ObjectName = Annotated[str, StringConstraints(max_length=253, min_length=1, pattern=NAME_PATTERN)]
"""The name of an object: a lower-case DNS subdomain."""

LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[
    str,
    StringConstraints(max_length=63, pattern="^(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"),
]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32), rules.ATOMIC_MAP]
"""Labels to be matched exactly."""


class Model(BaseModel):
    """The base of all API types."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
    )

    def to_object(self) -> dict[str, Any]:
        """The value as JSON-ready data with the API's field names; absent fields are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed; the new values are taken as they are."""
        return self.model_copy(update=changes)


class OwnerReference(Model):
    """The object that owns this one."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model):
    """The part of Kubernetes' object metadata that Isolet reads."""

    name: str
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Resource(Model):
    """The base of the five kinds."""

    api_version: str = API_VERSION
    """Group and version."""
    metadata: ObjectMeta
    """Standard object metadata."""

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The object's namespace; empty for a cluster-scoped kind."""
        return self.metadata.namespace or ""

    @property
    def deleting(self) -> bool:
        """Whether deletion was asked for and the finalizer is what keeps the object."""
        return self.metadata.deletion_timestamp is not None


class LocalReference(Model):
    """Another object of the same namespace, by name."""

    name: ObjectName
    """Name of the object, in the same namespace."""
