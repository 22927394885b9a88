"""The bounds of a sandbox, and what can be said of them without knowing more than two sets.

A class's `maximum` is complete; its `default` and what an object asks for may be partial, and
together must be complete. The arithmetic here is what CEL says in the CRDs, for the binding and for
clients.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from isolet.api import fields, meta, rules
from isolet.base import quantity

Pids = Annotated[meta.Int32, Field(ge=1, le=32_768)]

NAMES = ("cpu", "memory", "workspace", "tmp", "shm", "pids", "output")
"""Every bound, in the order in which they are told to people."""


class Resources(meta.Model):
    """Bounds of a sandbox; those left out come from the class."""

    cpu: fields.Cpu | None = None
    """CPU time it may use, in CPUs: "1", "0.5" or "250m". From 10m to 128."""
    memory: fields.Memory | None = None
    """Memory of the whole sandbox, swap excluded; exceeding it kills the sandbox. From 16Mi to
    512Gi."""
    workspace: fields.WorkspaceSize | None = None
    """Size of /workspace; writing past it fails with ENOSPC. From 2Mi to 1Ti."""
    tmp: fields.TmpSize | None = None
    """Size of /tmp, which is memory. From 1Mi, at most the memory."""
    shm: fields.ShmSize | None = None
    """Size of /dev/shm, which is memory. From 64Ki, at most the memory."""
    pids: Pids | None = None
    """Processes and threads inside the sandbox; one more fails with EAGAIN. From 1 to 32768."""
    output: fields.OutputSize | None = None
    """Bytes of stdout and stderr together that are kept. From 1 to 64Mi."""


class Maximum(meta.Model):
    """The largest bounds that anyone may ask for; complete."""

    cpu: fields.Cpu
    """Most CPUs: from 10m to 128."""
    memory: fields.Memory
    """Most memory: from 16Mi to 512Gi."""
    workspace: fields.WorkspaceSize
    """Largest workspace: from 2Mi to 1Ti."""
    tmp: fields.TmpSize
    """Largest /tmp: from 1Mi."""
    shm: fields.ShmSize
    """Largest /dev/shm: from 64Ki."""
    pids: Pids
    """Most processes and threads: from 1 to 32768."""
    output: fields.OutputSize
    """Most output, both streams together: from 1 to 64Mi."""


def merged(own: Resources | None, *fallbacks: Resources | None) -> Resources:
    """What holds: each bound from the first set that has it."""
    sets = [s for s in (own, *fallbacks) if s is not None]
    values = {
        name: next((v for s in sets if (v := getattr(s, name)) is not None), None) for name in NAMES
    }
    return Resources.model_construct(**values)


def missing(asked: Resources) -> tuple[str, ...]:
    """Bounds that nobody gave; each one is mandatory."""
    return tuple(name for name in NAMES if getattr(asked, name) is None)


def exceeded(asked: Resources, maximum: Maximum) -> tuple[str, ...]:
    """Bounds that are over the maximum."""
    return tuple(_exceeded(asked, maximum))


def memory_backed(asked: Resources, *, memory_workspace: bool) -> int:
    """Bytes of memory that mounts can use up: /tmp, /dev/shm and a Memory workspace."""
    mounts = [asked.tmp, asked.shm, asked.workspace if memory_workspace else None]
    return sum(quantity.to_bytes(size) for size in mounts if size is not None)


def fits_memory(asked: Resources, *, memory_workspace: bool) -> bool:
    """Whether a full /tmp, /dev/shm and Memory workspace cannot alone kill the sandbox."""
    if asked.memory is None:
        return True
    mounts = memory_backed(asked, memory_workspace=memory_workspace)
    return mounts <= quantity.to_bytes(asked.memory)


def same(one: Resources, other: Resources) -> bool:
    """Whether two sets mean the same, however their quantities are written."""
    return all(_value(one, name) == _value(other, name) for name in NAMES)


def _value(asked: Resources | Maximum, name: str) -> object:
    value = getattr(asked, name)
    return quantity.parse(value) if isinstance(value, str) else value


def _exceeded(asked: Resources, maximum: Maximum) -> Iterator[str]:
    for name in NAMES:
        value, most = getattr(asked, name), getattr(maximum, name)
        if value is None:
            continue
        over = (
            quantity.parse(value) > quantity.parse(most) if isinstance(value, str) else value > most
        )
        if over:
            yield name


def memory_rule(at: str, workspace_in_memory: str) -> rules.Rule:
    """The CEL of `fits_memory`.

    Args:
        at: CEL path of the resources, such as `self.resources`; may be absent.
        workspace_in_memory: CEL that is true where the workspace is memory.
    """
    parts = " + ".join(
        f"({condition}has({at}.{name}) ? quantity({at}.{name}).asApproximateFloat() : 0.0)"
        for name, condition in (
            ("tmp", ""),
            ("shm", ""),
            ("workspace", f"{workspace_in_memory} && "),
        )
    )
    return rules.Rule(
        rule=(
            f"!has({at}) || !has({at}.memory)"
            f" || {parts} <= quantity({at}.memory).asApproximateFloat()"
        ),
        message=(
            "tmp, shm and a Memory workspace are memory: together they must fit into"
            " resources.memory"
        ),
        field=".resources",
    )
