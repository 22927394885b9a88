"""From a picture to a `Plan`: is the status worth a write now, which Events, when to look again.

The happy path has four writes in all, so a state that will be over in a moment is not written:
each picture comes with the time from which it is worth one.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from isolet.api import conditions as cond
from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.base import names
from isolet.plan import hosted, status
from isolet.plan.actions import Action, Emit, EventType, Flag, Plan
from isolet.plan.model import CheckpointPass, Observed
from isolet.plan.objects import AnyStatus, Facts, Work
from isolet.plan.objects import Status as ObjectStatus
from isolet.plan.status import Picture

EVENTFUL = frozenset(
    {
        reasons.UNSCHEDULABLE,
        reasons.CLASS_NOT_FOUND,
        reasons.CLASS_AMBIGUOUS,
        reasons.AWAITING_INPUTS,
        reasons.CHECKPOINT_UNAVAILABLE,
        reasons.AWAITING_NODE,
        reasons.DEADLINE_NOT_ALLOWED,
    }
)
"""Waiting that somebody may have to end: one Event when it begins."""


def make(
    seen: Observed,
    picture: Picture,
    *,
    worth_from: datetime | None,
    actions: Iterable[Action] = (),
    looks: Iterable[datetime | None] = (),
    flags: Iterable[Flag] = (),
) -> Plan:
    """The plan that goes with a picture.

    Args:
        seen: what the pass knows.
        picture: where things stand.
        worth_from: from when on this picture is worth a write; None: it never is by itself.
        actions: what to do.
        looks: when to look again; times that have passed are left out.
        flags: what metrics count the object by.
    """
    picture = replace(picture, limit=hosted.deadline(seen))
    new = status.compute(seen.object, picture, seen.now)
    return saying(
        seen,
        new,
        lambda: _events(seen.object, new),
        worth_from=worth_from,
        actions=actions,
        looks=looks,
        flags=flags,
    )


def saying(
    seen: Observed | CheckpointPass,
    new: AnyStatus,
    events: Callable[[], tuple[Action, ...]],
    *,
    worth_from: datetime | None,
    actions: Iterable[Action],
    looks: Iterable[datetime | None],
    flags: Iterable[Flag],
) -> Plan:
    """The plan that says `new` once it differs and is worth a write; `events` go with the write."""
    differs = new != seen.object.status
    write = differs and worth_from is not None and worth_from <= seen.now
    times = [*looks, worth_from if differs else None]
    return Plan(
        actions=(*actions, *(events() if write else ())),
        status=new,
        write_status=write,
        look_again_at=min((t for t in times if t is not None and t > seen.now), default=None),
        flags=frozenset(flags),
    )


def _events(object_: Work, new: ObjectStatus) -> tuple[Action, ...]:
    """Events for what is new; the written status is the memory of what was told before."""
    if not status.decided(object_.status) and status.decided(new):
        return _failure(object_, new)
    told = {condition.reason for condition in object_.status.conditions}
    found = {c.reason: c.message for c in new.conditions if c.reason in EVENTFUL - told}
    return tuple(warning(object_, reason, text) for reason, text in found.items())


def _failure(object_: Work, new: ObjectStatus) -> tuple[Action, ...]:
    outcome = cond.get(new.conditions, cond.SUCCEEDED)
    if outcome is None or outcome.status is not Status.FALSE:
        return ()
    if outcome.reason == reasons.CANCELLED:
        return ()  # Whoever asked for it knows.
    return (warning(object_, outcome.reason, outcome.message),)


def warning(object_: Facts, reason: str, message: str) -> Emit:
    """A warning, told once for each object and reason."""
    return Emit(
        object=object_.ref,
        type=EventType.WARNING,
        reason=reason,
        message=message,
        key=names.short_digest(object_.uid, reason),
    )
