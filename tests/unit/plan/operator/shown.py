"""A whole plan in a form that a table can hold and a person can read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from isolet.plan.actions import Action, Emit, Flag, Plan
from tests.unit.plan.operator import worlds


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Everything a plan says. Nothing is left out, so a table states whole plans."""

    actions: tuple[Action, ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)
    """Conditions: type → status, reason and message."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the status, without `resolved` where it is that of the healthy base."""
    write: bool = False
    look: float | None = None
    """Seconds after `worlds.NOW`."""
    flags: frozenset[Flag] = frozenset()


RESOLVED = {
    "className": "standard",
    "classUID": "class-standard",
    "classGeneration": 3,
    "image": worlds.IMAGE,
    "imageID": worlds.IMAGE_ID,
    "runtimeHandler": "runsc",
    "user": "65532:65532",
    "resources": {
        "cpu": "1",
        "memory": "512Mi",
        "workspace": "64Mi",
        "tmp": "16Mi",
        "shm": "4Mi",
        "pids": 128,
        "output": "8Mi",
    },
    "medium": "Memory",
    "activeDeadlineSeconds": 600,
    "maximumDeadlineSeconds": 3600,
    "retainSeconds": 0,
}


def show(plan: Plan) -> Shown:
    """The plan as a table has it."""
    status = plan.status.to_object()
    conditions = status.pop("conditions", ())
    resolved = status.pop("resolved", None)
    if resolved is not None and resolved | {"imageID": worlds.IMAGE_ID} != RESOLVED:
        status["resolved"] = {k: v for k, v in resolved.items() if RESOLVED.get(k) != v}
    status.pop("observedGeneration", None)
    look = plan.look_again_at
    return Shown(
        actions=plan.actions,
        told={c["type"]: f"{c['status']} {c['reason']}: {c['message']}" for c in conditions},
        fields=status,
        write=plan.write_status,
        look=None if look is None else (look - worlds.NOW) / timedelta(seconds=1),
        flags=plan.flags,
    )


def on_the_way(
    reason: str, message: str, scheduled: str = "True Bound: bound to node n1", **more: str
) -> dict[str, str]:
    """The conditions of something that is not at its end."""
    said = f"{reason}: {message}"
    return {
        "Scheduled": scheduled,
        "Finished": f"False {said}",
        "Succeeded": f"Unknown {said}",
        "Reconciling": f"True {said}",
        **more,
    }


def waiting(status: str, reason: str, message: str, **more: str) -> dict[str, str]:
    """The conditions of something that waits for a node."""
    return on_the_way(reason, message, scheduled=f"{status} {reason}: {message}", **more)


def running(where: str = "n1", **more: str) -> dict[str, str]:
    """The conditions of something that runs."""
    said = f"Running: runs on node {where}"
    return {
        "Scheduled": f"True Bound: bound to node {where}",
        "Finished": f"False {said}",
        "Succeeded": f"Unknown {said}",
        **more,
    }


def ended(
    reason: str,
    message: str,
    *,
    well: bool = False,
    scheduled: str | None = "True Bound: bound to node n1",
    stalled: bool = True,
    **more: str,
) -> dict[str, str]:
    """The conditions of something that has ended."""
    said = f"{reason}: {message}"
    found = {
        "Scheduled": scheduled or f"False {said}",
        "Finished": "True Finished: Succeeded says how",
        "Succeeded": f"{well} {said}",
    }
    if not well and stalled:
        found["Stalled"] = f"True {said}"
    return {**found, **more}


def emitted(plan: Plan) -> list[tuple[str, str, str]]:
    """Type, reason and message of the Events."""
    return [(a.type.value, a.reason, a.message) for a in plan.actions if isinstance(a, Emit)]
