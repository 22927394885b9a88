"""From facts to the whole status of an object, each pass anew. PURE.

A plan draws a `Picture` of where things stand; this turns it into conditions and fields. What was
decided once is copied from the stored status and never computed again, also when the facts behind
it have vanished. Messages hold no times and no counts that move, so the same truth is the same
bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from isolet.api import bounds, inputs, process, reasons, sandbox
from isolet.api import conditions as cond
from isolet.api.conditions import Condition, Status
from isolet.base import quantity
from isolet.plan import git_status, process_status
from isolet.plan.binding import Binding, Pinned, deadline_seconds
from isolet.plan.objects import ProcessFacts, Record, Work
from isolet.plan.objects import Status as ObjectStatus
from isolet.wire.execution import Resources
from isolet.wire.process import ProcessObserved

_JITTER = timedelta(seconds=1)
"""An agent may compute its deadline from another clock; this much is no change."""

_NEVER_STALLED = frozenset({reasons.CANCELLED})
"""Failures that are what somebody asked for."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A condition without its history."""

    status: Status
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How it ended."""

    succeeded: bool
    reason: str
    message: str
    exit_code: int | None = None
    ended_at: datetime | None = None
    """None: when nobody can say; the moment it was found out is written instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """Where one object stands."""

    scheduled: Mark | None = None
    """None: as it was."""
    progress: Mark | None = None
    """Why it is not at its end: reason and message of Succeeded and Finished while they are open.
    Its status is that of Ready, for a session. None: as it was."""
    verdict: Verdict | None = None
    reconciling: bool = False
    """Isolet is on it; reason and message are those of `progress`."""
    stalled: Mark | None = None
    """Someone's help is needed."""
    binding: Binding | None = None
    record: Record | None = None
    limit: datetime | None = None
    """When the Execution that it runs in ends at the latest."""


def decided(status: ObjectStatus) -> bool:
    """Whether the outcome is written."""
    return cond.is_decided(status.conditions, cond.SUCCEEDED)


def listed(reason: str, fallback: str) -> str:
    """A reason from an agent, if it is one that is documented."""
    return reason if reason in reasons.REASONS else fallback


def compute(object_: Work, picture: Picture, now: datetime) -> ObjectStatus:
    """The whole status. Total: whatever the facts, a status comes out."""
    stored = object_.status
    if decided(stored):
        new = _after_the_end(object_, picture)
    elif picture.verdict is not None:
        new = _at_the_end(object_, picture, picture.verdict, now)
    else:
        new = _on_the_way(stored, picture)
    return new.with_(
        observed_generation=object_.metadata.generation,
        conditions=_conditions(object_, picture, now),
        resolved=_resolved(object_, picture),
        **_of_a_process(object_, picture, now),
    )


def _of_a_process(object_: Work, picture: Picture, now: datetime) -> dict[str, Any]:
    """The fields that only a Process has."""
    if not isinstance(object_, ProcessFacts):
        return {}
    record = picture.record if isinstance(picture.record, ProcessObserved) else None
    inside = picture.binding.inside if picture.binding else None
    uid = inside.execution_uid if inside else None
    found = process_status.identity(object_, record, uid)
    if record is not None and record.outcome is not None:
        found |= process_status.kept(record)
    if decided(object_.status):
        found["disposal_time"] = process_status.disposal(object_, record, now)
    return found


def _on_the_way(stored: ObjectStatus, picture: Picture) -> ObjectStatus:
    record = picture.record
    if record is None:
        return stored
    return stored.with_(
        start_time=stored.start_time or _whole(record.started_at),
        deadline=_steady(stored.deadline, _whole(_earlier(record.deadline_at, picture.limit))),
    )


def _at_the_end(object_: Work, picture: Picture, verdict: Verdict, now: datetime) -> ObjectStatus:
    base = _on_the_way(object_.status, picture)
    earliest = object_.metadata.creation_timestamp or now
    ended = _whole(plausible(verdict.ended_at, earliest, now)) or _whole(now)
    return base.with_(
        completion_time=ended,
        exit_code=verdict.exit_code,
        output=output(object_, picture.record),
        retained_until=_retained_until(picture, ended),
    )


def _after_the_end(object_: Work, picture: Picture) -> ObjectStatus:
    """Only what is known better of the same end may be added: a tail that came late."""
    stored = object_.status
    record, outcome = picture.record, cond.get(stored.conditions, cond.SUCCEEDED)
    if record is None or record.outcome is None or outcome is None:
        return stored
    if record.outcome.succeeded is not (outcome.status is Status.TRUE):
        return stored
    return stored.with_(output=output(object_, record) or stored.output)


def plausible(when: datetime | None, earliest: datetime, now: datetime) -> datetime:
    """An agent's time, kept between two of our own: its clock may be off by any amount."""
    return now if when is None else max(min(when, now), min(earliest, now))


def _whole(when: datetime | None) -> datetime | None:
    return None if when is None else when.replace(microsecond=0)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((when for when in (one, other) if when is not None), default=None)


def _steady(stored: datetime | None, new: datetime | None) -> datetime | None:
    if stored is None or new is None:
        return new or stored
    return stored if abs(new - stored) <= _JITTER else new


def _retained_until(picture: Picture, ended: datetime | None) -> datetime | None:
    pinned = picture.binding.pinned if picture.binding else None
    ran = picture.record is not None and picture.record.started_at is not None
    if pinned is None or not pinned.retain_seconds or ended is None or not ran:
        return None
    return ended + timedelta(seconds=pinned.retain_seconds)


def output(object_: Work, record: Record | None) -> sandbox.OutputStatus | None:
    """What is known of an ended object's output; nothing where nothing ever ran."""
    if record is None or record.outcome is None or record.started_at is None:
        return None
    facts, spec = record.output, object_.spec
    limit = spec.output.status_tail_bytes if spec and spec.output else 0
    told: dict[str, Any] = {
        "stdout_bytes": facts.stdout_bytes,
        "stderr_bytes": facts.stderr_bytes,
        "truncated": facts.truncated,
        "incomplete": facts.incomplete,
        "stdout_tail": tail(facts.stdout_tail, limit),
        "stderr_tail": tail(facts.stderr_tail, limit),
    }
    if isinstance(record, ProcessObserved):
        cut = process_status.cut(record)
        return process.ProcessOutputStatus(**told, truncated_streams=cut)
    return sandbox.OutputStatus(**told)


def tail(data: bytes, limit: int) -> str | None:
    """The last bytes as text of at most `limit` bytes of UTF-8; None if there is none.

    The cut that made the tail may have gone through a character: what is left of it is dropped.
    Broken bytes become U+FFFD, which is longer, so the front is cut once more, between characters.
    """
    last = data[-limit:] if limit > 0 else b""
    start = next((i for i, byte in enumerate(last[:4]) if byte & 0xC0 != 0x80), 0)
    raw = last[start:].decode("utf-8", "replace").encode()
    return raw[max(0, len(raw) - limit) :].decode("utf-8", "ignore") or None


def _resolved(object_: Work, picture: Picture) -> sandbox.Resolved | None:
    stored = object_.status.resolved
    pinned = picture.binding.pinned if picture.binding else None
    if pinned is None:
        return stored
    record = picture.record
    known = record.image_id if record else None
    commit = record.git.commit if record and record.git else None
    resolved = _of_pinned(pinned, known or (stored.image_id if stored else None))
    return resolved.with_(
        active_deadline_seconds=deadline_seconds(object_, pinned),
        commit=(stored.commit if stored else None) or commit,
    )


def _of_pinned(pinned: Pinned, image_id: str | None) -> sandbox.Resolved:
    return sandbox.Resolved(
        class_name=pinned.class_name,
        class_uid=pinned.class_uid,
        class_generation=pinned.class_generation,
        image=pinned.image,
        image_id=image_id or (pinned.run if pinned.run.startswith("sha256:") else None),
        runtime_handler=pinned.runtime,
        user=pinned.user,
        resources=to_api(pinned.resources),
        medium=pinned.medium.value,
        maximum_deadline_seconds=pinned.maximum_deadline_seconds,
        idle_timeout_seconds=pinned.idle_timeout_seconds,
        retain_seconds=pinned.retain_seconds,
        checkpoint=None
        if pinned.restored is None
        else sandbox.RestoredFrom(
            name=pinned.restored.name,
            uid=pinned.restored.uid,
            content_digest=pinned.restored.content_digest,
        ),
        inputs=tuple(
            inputs.PinnedInput(
                kind=item.kind,
                name=item.name,
                uid=item.uid,
                resource_version=item.resource_version,
            )
            for item in pinned.inputs
        )
        or None,
    )


def to_api(given: Resources) -> bounds.Resources:
    """Bounds as they are shown to people."""
    size = quantity.format_bytes
    return bounds.Resources.model_construct(
        cpu=quantity.format_milli_cpu(given.cpu_millis),
        memory=size(given.memory_bytes),
        workspace=size(given.workspace_bytes),
        tmp=size(given.tmp_bytes),
        shm=size(given.shm_bytes),
        pids=given.pids,
        output=size(given.output_bytes),
    )


def _conditions(object_: Work, picture: Picture, now: datetime) -> tuple[Condition, ...]:
    generation = object_.metadata.generation
    found = object_.status.conditions
    marks = _marks(object_, picture)
    for kind, mark in marks.items():
        when = _since(kind, picture, now)
        found = cond.put(
            found, kind, mark.status, mark.reason, mark.message, generation=generation, now=when
        )
    # An outcome is not decided anew for a later generation, but it does hold for it: `kubectl wait`
    # passes over a condition that speaks of an older one.
    found = tuple(
        c.with_(observed_generation=generation) if c.type in cond.EXECUTION_TYPES else c
        for c in found
    )
    for kind in (cond.RECONCILING, cond.STALLED):
        if kind not in marks:
            found = cond.drop(found, kind)
    return _ordered(found)


def _since(kind: str, picture: Picture, now: datetime) -> datetime:
    """A binding is written down with its time, mostly before there is a status."""
    bound = picture.scheduled is not None and picture.scheduled.status is Status.TRUE
    if kind == cond.SCHEDULED and bound and picture.binding is not None:
        return min(picture.binding.bound_at, now)
    return now


def _marks(object_: Work, picture: Picture) -> dict[str, Mark]:
    """What is to be set; a type that is not here stays as it was (or goes, if it is passing)."""
    marks: dict[str, Mark] = {}
    if picture.scheduled is not None:
        marks[cond.SCHEDULED] = picture.scheduled
    end = _end(object_.status, picture.verdict)
    if end is not None:
        finished = Mark(Status.TRUE, reasons.FINISHED, "Succeeded says how")
        marks |= {cond.SUCCEEDED: end, cond.FINISHED: finished}
    elif picture.progress is not None:
        at = picture.progress
        marks[cond.SUCCEEDED] = Mark(Status.UNKNOWN, at.reason, at.message)
        marks[cond.FINISHED] = Mark(Status.FALSE, at.reason, at.message)
        if picture.reconciling:
            marks[cond.RECONCILING] = Mark(Status.TRUE, at.reason, at.message)
    if object_.is_session:
        ready = Mark(Status.FALSE, end.reason, end.message) if end else picture.progress
        if ready is not None:
            marks[cond.READY] = ready
    git = picture.record.git if picture.record else None
    elsewhere = git_status.elsewhere(git) if git else ""
    if elsewhere:
        marks[cond.WORKSPACE_COMPLETE] = Mark(Status.FALSE, reasons.CONTENT_ELSEWHERE, elsewhere)
    stalled = picture.stalled or _stalled_for_good(end)
    if stalled is not None:
        marks[cond.STALLED] = stalled
    return marks


def _end(stored: ObjectStatus, verdict: Verdict | None) -> Mark | None:
    """The outcome: the one that is written, or else the new one."""
    outcome = cond.get(stored.conditions, cond.SUCCEEDED)
    if outcome is not None and decided(stored):
        return Mark(outcome.status, outcome.reason, outcome.message)
    if verdict is None:
        return None
    status = Status.TRUE if verdict.succeeded else Status.FALSE
    return Mark(status, verdict.reason, verdict.message)


def _stalled_for_good(end: Mark | None) -> Mark | None:
    """A failed end does not get better by waiting: Failed to kstatus, as a failed Job is."""
    if end is None or end.status is not Status.FALSE or end.reason in _NEVER_STALLED:
        return None
    return Mark(Status.TRUE, end.reason, end.message)


def _ordered(found: Iterable[Condition]) -> tuple[Condition, ...]:
    order = {kind: place for place, kind in enumerate(cond.EXECUTION_TYPES)}
    return tuple(sorted(found, key=lambda c: (order.get(c.type, len(order)), c.type)))
