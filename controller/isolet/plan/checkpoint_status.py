"""From facts to the whole status of a Checkpoint, and to its `Plan`. PURE.

What was decided once (that it was taken, of what, or that it failed) is copied from the stored
status and never computed again. Where whole copies lie is looked at anew each time: a Checkpoint
without a copy that is left is not ready, however well it was taken.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from isolet.api import conditions as cond
from isolet.api import reasons
from isolet.api.checkpoint import CheckpointStatus, Location, LocationType
from isolet.api.conditions import Condition, Status
from isolet.plan import publishing
from isolet.plan.actions import Action, Flag, Plan
from isolet.plan.binding import Taking
from isolet.plan.model import CheckpointPass
from isolet.plan.objects import CheckpointFacts
from isolet.plan.status import Mark, Verdict, listed, plausible, to_api
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.execution import Waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Where one Checkpoint stands."""

    progress: Mark | None = None
    """Why it is not at its end; None: it is."""
    verdict: Verdict | None = None
    """How it ended, where that is new."""
    stalled: Mark | None = None
    taking: Taking | None = None
    record: CheckpointObserved | None = None
    locations: tuple[Location, ...] | None = None
    """Where copies are; None: as it was."""
    left: str = ""
    """Why there is no copy, where there is none."""
    behind: Waiting | None = None
    """What its agent still has to do with a whole one and cannot, such as a copy in a store."""


def make(
    seen: CheckpointPass,
    view: View,
    *,
    worth_from: datetime | None,
    actions: Iterable[Action] = (),
    looks: Iterable[datetime | None] = (),
    flags: Iterable[Flag] = (),
) -> Plan:
    """The plan that goes with a view; see `publishing.make`."""
    new = compute(seen.object, view, seen.now)
    return publishing.saying(
        seen,
        new,
        lambda: _events(seen.object, new),
        worth_from=worth_from,
        actions=actions,
        looks=looks,
        flags=flags,
    )


def compute(object_: CheckpointFacts, view: View, now: datetime) -> CheckpointStatus:
    """The whole status. Total: whatever the facts, a status comes out."""
    new = _fields(object_, view, now)
    generation = object_.metadata.generation
    found = object_.status.conditions
    marks = _marks(new, view)
    for kind in cond.CHECKPOINT_TYPES:
        mark = marks.get(kind)
        if mark is None:
            found = cond.drop(found, kind)
            continue
        found = cond.put(
            found, kind, mark.status, mark.reason, mark.message, generation=generation, now=now
        )
    return new.with_(observed_generation=generation, conditions=_ordered(found))


def _fields(object_: CheckpointFacts, view: View, now: datetime) -> CheckpointStatus:
    stored, record = object_.status, view.record
    changes: dict[str, Any] = {}
    if view.taking is not None:
        changes["execution_uid"] = view.taking.execution_uid
    if record is not None and record.started_at is not None and stored.start_time is None:
        changes["start_time"] = _between(record.started_at, object_, now)
    if view.verdict is not None and not object_.over:
        changes["completion_time"] = _between(view.verdict.ended_at, object_, now)
        if view.verdict.succeeded:
            changes |= _content(record, view.taking)
    if view.locations is not None:
        changes["locations"] = view.locations or None
    return stored.with_(**changes)


def _between(when: datetime | None, object_: CheckpointFacts, now: datetime) -> datetime:
    """An agent's time between two of our own, in whole seconds."""
    earliest = object_.metadata.creation_timestamp or now
    return plausible(when, earliest, now).replace(microsecond=0)


def _content(record: CheckpointObserved | None, taking: Taking | None) -> dict[str, Any]:
    """What the manifest says, for people and for whoever restores it."""
    if record is None or record.manifest is None:
        return {}
    manifest, source = record.manifest, record.manifest.source
    return {
        "manifest_version": manifest.version,
        "manifest_digest": record.manifest_digest,
        "content_digest": manifest.content_digest,
        "size_bytes": manifest.size_bytes,
        "entries": manifest.entries,
        "image": taking.image if taking is not None else source.image,
        "image_id": source.image_id,
        "resources": to_api(source.resources),
        "medium": source.medium.value,
        "commit": source.commit,
    }


def _marks(new: CheckpointStatus, view: View) -> dict[str, Mark]:
    """What is to be set; a type that is not here goes."""
    if new.completion_time is None:
        ready = view.progress or Mark(Status.UNKNOWN, reasons.PENDING, "nothing is known yet")
        marks = {cond.READY: ready}
        marks[cond.RECONCILING] = Mark(Status.TRUE, ready.reason, ready.message)
    else:
        marks = {cond.READY: _ready(new, view)}
        if view.behind is not None:
            reason = listed(view.behind.reason, reasons.UNAVAILABLE)
            marks[cond.RECONCILING] = Mark(Status.TRUE, reason, view.behind.message)
    stalled = view.stalled
    if stalled is None and marks[cond.READY].status is Status.FALSE:
        stalled = Mark(Status.TRUE, marks[cond.READY].reason, marks[cond.READY].message)
    if stalled is not None:
        marks[cond.STALLED] = stalled
    return marks


def _ready(new: CheckpointStatus, view: View) -> Mark:
    """Of one that has been taken, or has failed."""
    if view.progress is not None:
        return view.progress
    if new.manifest_digest is None:
        if view.verdict is not None:
            return Mark(Status.FALSE, view.verdict.reason, view.verdict.message)
        written = cond.get(new.conditions, cond.READY)
        if written is None:
            return Mark(Status.FALSE, reasons.CHECKPOINT_FAILED, "it could not be taken")
        return Mark(Status.FALSE, written.reason, written.message)
    if new.locations:
        return Mark(Status.TRUE, reasons.CHECKPOINT_READY, f"whole {told(new.locations)}")
    why = view.left or "no copy of it is left"
    return Mark(Status.FALSE, reasons.CHECKPOINT_UNAVAILABLE, why)


def told(locations: Iterable[Location]) -> str:
    """Where copies are, for people."""
    places = {
        LocationType.NODE: "on node {}",
        LocationType.OBJECT_STORE: "in object store {}",
    }
    return " and ".join(places[item.type].format(item.name) for item in locations)


def _ordered(found: Iterable[Condition]) -> tuple[Condition, ...]:
    order = {kind: place for place, kind in enumerate(cond.CHECKPOINT_TYPES)}
    return tuple(sorted(found, key=lambda c: order[c.type]))


def _events(object_: CheckpointFacts, new: CheckpointStatus) -> tuple[Action, ...]:
    """One for what went wrong or needs someone; the written status remembers what was told."""
    told_before = {c.reason for c in object_.status.conditions if c.type == cond.STALLED}
    stalled = cond.get(new.conditions, cond.STALLED)
    if stalled is None or stalled.reason in told_before:
        return ()
    return (publishing.warning(object_, stalled.reason, stalled.message),)
