"""Kinds whose CRD is installed and that no controller serves yet: said once, in a condition.

An object that was applied and stays silent looks like one that is slow.
"""

from datetime import datetime

import pydantic

from isolet.api import conditions as cond
from isolet.api import meta, reasons
from isolet.operator.kube import Kind, Object


class Status(meta.Model):
    """The part of these kinds' status that is written here."""

    observed_generation: meta.Int64 | None = None
    conditions: cond.Conditions = ()


def status_of(kind: Kind, obj: Object, now: datetime) -> Status:
    """The status that says that nothing will happen."""
    generation = int(obj["metadata"].get("generation") or 0)
    try:
        stored = Status.model_validate(obj.get("status") or {})
    except pydantic.ValidationError:
        stored = Status()
    return Status(
        observed_generation=generation,
        conditions=cond.put(
            stored.conditions,
            cond.STALLED,
            cond.Status.TRUE,
            reasons.UNSUPPORTED,
            f"this version of Isolet has no controller for {kind.kind} objects yet",
            generation=generation,
            now=now,
        ),
    )
