"""The node's policy: what its TOML file may say, and what holds where it says nothing. Pure.

    images = ["*"]                # any pinned image that is on the node
    runtimes = ["runsc"]
    media = ["Memory", "Disk"]
    maximumDeadlineSeconds = 86400
    maximumRetainSeconds = 86400

    [capacity]                    # of the node, for all sandboxes together
    cpu = "8"                     # absent: all of the node's
    memory = "14Gi"               # absent: the node's less a tenth, at least 512Mi
    disk = "80Gi"                 # absent: four fifths of what is free when the agent starts
    executions = 250

    [maximum]                     # of one sandbox
    cpu = "4"
    memory = "8Gi"
    workspace = "20Gi"
    tmp = "1Gi"
    shm = "256Mi"
    pids = 4096
    output = "64Mi"

    [checkpoints]                 # copies of workspaces that the node keeps
    bytes = "10Gi"                # absent: a tenth of what is free when the agent starts
    count = 1000                  # 0 forbids them
    namespaceCount = 50           # absent: no bound for one namespace
    retainSeconds = 604800        # absent: until they are removed

    [git]                         # see isolet.agent.policy.git

Every key may be absent; a key that is not in this list is refused, since a misspelt bound would
bound nothing. docs/agent-api.md explains each.
"""

import tomllib
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from isolet.agent.policy.git import GitPolicy
from isolet.base import errors, imageref, quantity
from isolet.wire.execution import Medium
from isolet.wire.node import Amounts

DEFAULT_EXECUTIONS = 250
DEFAULT_CHECKPOINTS = 1000
_HOST_RESERVE = 512 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """What the node has, as the agent saw it when it started."""

    cpus: int
    memory_bytes: int
    disk_bytes: int
    """What the state folder's file system could give to workspaces."""


def _bytes(value: Any) -> Any:
    """A size: a whole number of bytes, or a quantity as text."""
    return quantity.to_bytes(value) if isinstance(value, str) else value


def _millis(value: Any) -> Any:
    """CPUs: a number of them, or a quantity as text; kept in thousandths."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    return quantity.to_milli_cpu(str(value))


def _images(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if "@" in pattern and not imageref.is_pinned(pattern):
            raise ValueError(f"{pattern!r} has a digest and is not name@sha256:<64 hex digits>")
    return patterns


def _runtimes(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("at least one runtime is needed; absent means runsc alone")
    return names


_Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0, strict=True)]
_Millis = Annotated[int, BeforeValidator(_millis), Field(ge=0, strict=True)]
_Count = Annotated[int, Field(ge=0, strict=True)]
_Day = Annotated[int, Field(ge=0, le=86_400, strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
    )


class Capacity(_Table):
    """What all sandboxes of the node may have together."""

    cpu: _Millis
    memory: _Bytes
    disk: _Bytes
    executions: _Count = DEFAULT_EXECUTIONS


class Maximum(_Table):
    """What one sandbox may have; absent means the product's own bound."""

    cpu: _Millis = 128_000
    memory: _Bytes = 512 << 30
    workspace: _Bytes = 1 << 40
    tmp: _Bytes = 512 << 30
    shm: _Bytes = 512 << 30
    pids: _Count = 32_768
    output: _Bytes = 64 << 20


class Checkpoints(_Table):
    """What the node keeps of workspaces."""

    bytes: _Bytes = 1 << 40
    count: _Count = DEFAULT_CHECKPOINTS
    """0 forbids them."""
    namespace_count: _Count | None = None
    """Of one namespace; absent: no bound of its own."""
    retain_seconds: Annotated[int, Field(ge=1, strict=True)] | None = None
    """How long a copy is kept after it was taken; absent: until it is removed."""


class NodePolicy(_Table):
    """All that a node allows."""

    capacity: Capacity
    checkpoints: Checkpoints = Checkpoints()
    maximum: Maximum = Maximum()
    images: Annotated[tuple[str, ...], AfterValidator(_images)] = ("*",)
    """Pinned references, local ids, or patterns of names (`*`, `?`); none means no image at all."""
    runtimes: Annotated[tuple[str, ...], AfterValidator(_runtimes)] = ("runsc",)
    """Runtime handlers; another one than runsc is for trusted work and never a fallback."""
    media: tuple[Medium, ...] = (Medium.MEMORY, Medium.DISK)
    maximum_deadline_seconds: Annotated[int, Field(ge=1, le=86_400, strict=True)] = 86_400
    maximum_retain_seconds: _Day = 86_400
    git: GitPolicy = GitPolicy()
    """Repositories that workspaces may begin with; none unless the file names them."""

    def capacity_amounts(self) -> Amounts:
        """The capacity as it is told to the operator."""
        return Amounts(
            cpu_millis=self.capacity.cpu,
            memory_bytes=self.capacity.memory,
            disk_bytes=self.capacity.disk,
            executions=self.capacity.executions,
        )


def parse(text: str, facts: NodeFacts) -> NodePolicy:
    """The policy that a file says, completed by what the node has.

    Raises:
        Invalid: it is no TOML, has a key that does not exist, or a value that cannot be.
    """
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.Invalid(f"not TOML: {error}", reason="InvalidPolicy") from None
    for table, of_the_node in (("capacity", _capacity(facts)), ("checkpoints", _kept(facts))):
        given = said.get(table, {})
        if isinstance(given, dict):
            said = {**said, table: {**of_the_node, **given}}
    try:
        return NodePolicy.model_validate(said)
    except pydantic.ValidationError as error:
        raise errors.Invalid(_problems(error), reason="InvalidPolicy") from None


def default(facts: NodeFacts) -> NodePolicy:
    """The policy of a node without a file."""
    return parse("", facts)


def _capacity(facts: NodeFacts) -> dict[str, int]:
    reserve = max(_HOST_RESERVE, facts.memory_bytes // 10)
    return {
        "cpu": facts.cpus,
        "memory": max(0, facts.memory_bytes - reserve),
        "disk": facts.disk_bytes * 4 // 5,
    }


def _kept(facts: NodeFacts) -> dict[str, int]:
    return {"bytes": facts.disk_bytes // 10}


def _problems(error: pydantic.ValidationError) -> str:
    """Each wrong key with the rule it breaks."""
    found = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        unknown = problem["type"] == "extra_forbidden"
        found.append(f"{key}: {'there is no such key' if unknown else problem['msg']}")
    return "; ".join(found)
