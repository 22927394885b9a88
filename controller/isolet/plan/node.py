"""One node: what its agent says and our own watching of it, as the ExecutionNode's status. PURE.

Two machines' clocks are never compared: an agent is heard while something new keeps coming, on the
operator's monotonic clock. What changes all the time (room, images, heartbeat) is written rarely.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from isolet.api import conditions as cond
from isolet.api import executionnode as api
from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.base import quantity
from isolet.plan import amounts, node_events
from isolet.plan.actions import NodePlan
from isolet.plan.model import Contact, NodePass
from isolet.wire import http
from isolet.wire.base import WIRE_VERSIONS
from isolet.wire.node import Amounts, NodeCondition, NodeObserved
from isolet.wire.pool import PoolObserved

HEARD_SECONDS = 20.0
"""Silence after which an agent counts as unreachable; it sends a bookmark every few seconds."""

LOOK_SECONDS = 10.0
REWRITE_SECONDS = 60.0
"""What changes all the time is written at most this often."""
HEARTBEAT_SECONDS = 300.0
"""With nothing else to say, the heartbeat is written this often."""

MAX_IMAGES = 200
SMALL = Amounts(cpu_millis=100, memory_bytes=64 << 20, executions=1)
"""The small Execution that `CapacityLeft` speaks of."""

REQUIRED = (cond.ENGINE_READY, cond.RUNTIME_QUALIFIED)
"""Conditions that an agent has to give before it gets work."""

_FALLBACK_REASONS = {
    cond.ENGINE_READY: reasons.ENGINE_UNAVAILABLE,
    cond.RUNTIME_QUALIFIED: reasons.RUNTIME_UNQUALIFIED,
    cond.STATE_USABLE: reasons.STATE_UNUSABLE,
    cond.DISK_WORKSPACES: reasons.LOOP_DEVICES_MISSING,
    cond.GIT_REPOSITORIES: reasons.GIT_UNUSABLE,
    cond.CAPACITY_LEFT: reasons.NO_CAPACITY,
}


def is_heard(contact: Contact) -> bool:
    """Whether the agent can be taken to be there now."""
    heard = contact.heard_at
    return heard is not None and contact.now - heard < HEARD_SECONDS


def common_wire(report: NodeObserved) -> int | None:
    """The newest protocol version that both sides speak."""
    return max(set(WIRE_VERSIONS) & set(report.wire_versions), default=None)


def unfit(report: NodeObserved) -> NodeCondition | None:
    """The first of the agent's own conditions that keeps it from taking work."""
    given = {condition.type: condition for condition in report.conditions}
    for kind in REQUIRED:
        if kind not in given:
            return NodeCondition(
                type=kind, status="Unknown", reason=reasons.NOT_PROBED, message="not checked yet"
            )
    return next(
        (c for c in report.conditions if c.type not in cond.NODE_OPTIONAL and c.status != "True"),
        None,
    )


def stranger(node: api.ExecutionNode, report: NodeObserved, installation: str) -> str | None:
    """Why the agent that answers is not the one that the object stands for."""
    if report.name != node.metadata.name:
        return f"the agent at {node.spec.endpoint} says that it is node {report.name}"
    if installation and report.installation != installation:
        return (
            f"the agent belongs to installation {report.installation}, the operator to"
            f" {installation}"
        )
    return None


def drain_deadline(node: api.ExecutionNode) -> datetime | None:
    """When what still runs there is ended; None while no drain says so."""
    drain, seen = node.spec.drain, node.status.drain
    if drain is None or seen is None or drain.on_deadline is not api.OnDeadline.TERMINATE:
        return None
    return seen.start_time + timedelta(seconds=drain.deadline_seconds or 0)


def plan(seen: NodePass) -> NodePlan:
    """The status of one node."""
    new = compute(seen)
    stored = seen.object.status
    write = _firm(new) != _firm(stored) or (new != stored and _rewrite_due(seen))
    return NodePlan(
        status=new,
        write_status=write,
        look_again_in=_next_look(seen),
        actions=node_events.of(seen, new) if write else (),
    )


def compute(seen: NodePass) -> api.ExecutionNodeStatus:
    """The whole status from what is known; what an unreachable agent said last is kept."""
    stored = seen.object.status
    base = stored if seen.report is None else _account(seen.report)
    return base.with_(
        observed_generation=seen.object.metadata.generation,
        conditions=_conditions(seen),
        drain=_drain(seen),
    )


def _account(report: NodeObserved) -> api.ExecutionNodeStatus:
    shown = sorted(report.images, key=lambda image: image.id)[:MAX_IMAGES]
    omitted = len(report.images) - len(shown)
    return api.ExecutionNodeStatus(
        agent_version=report.agent_version,
        wire_versions=tuple(sorted(set(report.wire_versions))),
        installation=report.installation,
        store_epoch=report.epoch,
        boot_id=report.boot_id,
        architecture=report.architecture or None,
        runtimes=tuple(sorted(set(report.runtimes))),
        features=_features(report),
        repositories=tuple(sorted(set(report.repositories))) or None,
        capacity=_amounts(report.capacity),
        allocated=_amounts(report.allocated),
        images=tuple(
            api.NodeImage(
                id=image.id,
                tags=tuple(sorted(set(image.tags))) or None,
                digests=tuple(sorted(set(image.digests))) or None,
            )
            for image in shown
        ),
        images_omitted=omitted or None,
        quarantined=report.quarantined,
        pools=tuple(map(_pool, sorted(report.pools, key=lambda p: p.class_name))) or None,
        heartbeat_time=report.now.replace(microsecond=0),
    )


def _features(report: NodeObserved) -> tuple[str, ...]:
    media = {f"{medium}Workspaces" for medium in report.media}
    return tuple(sorted(media | {f"ObjectStore:{name}" for name in report.object_stores}))


def _pool(pool: PoolObserved) -> api.NodePool:
    return api.NodePool(
        class_name=pool.class_name,
        class_generation=pool.generation,
        target=pool.target,
        ready=pool.ready,
        creating=pool.creating,
        assigned=pool.assigned,
        retiring=pool.retiring,
        message=pool.message[:1024] or None,
    )


def _amounts(some: Amounts) -> api.NodeAmounts:
    return api.NodeAmounts(
        cpu=quantity.format_milli_cpu(some.cpu_millis),
        memory=quantity.format_bytes(some.memory_bytes),
        workspace=quantity.format_bytes(some.disk_bytes),
        executions=some.executions,
    )


def _drain(seen: NodePass) -> api.DrainStatus | None:
    wanted, known = seen.object.spec.drain, seen.object.status.drain
    if wanted is None:
        return None
    start = known.start_time if known else seen.now.replace(microsecond=0)
    ends = wanted.on_deadline is api.OnDeadline.TERMINATE
    seconds = timedelta(seconds=wanted.deadline_seconds or 0)
    return api.DrainStatus(
        start_time=start, deadline=start + seconds if ends else None, remaining=seen.remaining
    )


def _conditions(seen: NodePass) -> tuple[cond.Condition, ...]:
    marks = {mark.type: mark for mark in _own_marks(seen)}
    marks = {**{mark.type: mark for mark in _agent_marks(seen)}, **marks}
    marks[cond.READY] = _ready(seen, marks)
    order = {kind: place for place, kind in enumerate(cond.NODE_TYPES)}
    listed = tuple(c for c in seen.object.status.conditions if c.type in marks)
    for mark in marks.values():
        listed = cond.put(
            listed,
            mark.type,
            Status(mark.status),
            mark.reason,
            mark.message,
            generation=seen.object.metadata.generation,
            now=seen.now,
        )
    return tuple(sorted(listed, key=lambda c: (order.get(c.type, len(order)), c.type)))


def _mark(kind: str, status: Status, reason: str, message: str = "") -> NodeCondition:
    return NodeCondition(type=kind, status=status.value, reason=reason, message=message)


def _own_marks(seen: NodePass) -> Iterable[NodeCondition]:
    yield _reachable(seen.contact)
    report = seen.report
    if _is_turned_away(seen.contact):
        yield _incompatible(f"the agent answers: {seen.contact.problem}")
    elif report is None:
        yield _mark(cond.WIRE_COMPATIBLE, Status.UNKNOWN, reasons.NOT_PROBED)
    else:
        yield _wire_compatible(report)
    yield _capacity_left(report)
    if seen.object.spec.drain is not None:
        yield _drained(seen.remaining)


def _is_turned_away(contact: Contact) -> bool:
    """Whether the agent answers, and only that it speaks no version of ours."""
    return contact.reason == http.UNSUPPORTED_WIRE_VERSION


def _reachable(contact: Contact) -> NodeCondition:
    if is_heard(contact) or _is_turned_away(contact):
        return _mark(cond.REACHABLE, Status.TRUE, reasons.OK, "the agent answers")
    if contact.heard_at is None and contact.now - contact.watched_since < HEARD_SECONDS:
        return _mark(cond.REACHABLE, Status.UNKNOWN, reasons.NOT_PROBED, "not heard of yet")
    reason = contact.reason if contact.reason in reasons.REASONS else reasons.HEARTBEAT_STALE
    why = contact.problem or f"nothing was heard of the agent for {HEARD_SECONDS:.0f} s"
    return _mark(cond.REACHABLE, Status.FALSE, reason, why)


def _wire_compatible(report: NodeObserved) -> NodeCondition:
    common = common_wire(report)
    if common is not None:
        return _mark(cond.WIRE_COMPATIBLE, Status.TRUE, reasons.OK, f"version {common} is spoken")
    theirs, ours = (
        ", ".join(map(str, sorted(set(v)))) or "none" for v in (report.wire_versions, WIRE_VERSIONS)
    )
    return _incompatible(f"the agent speaks {theirs}, the operator {ours}")


def _incompatible(why: str) -> NodeCondition:
    return _mark(
        cond.WIRE_COMPATIBLE,
        Status.FALSE,
        reasons.WIRE_INCOMPATIBLE,
        f"{why}: what runs is left alone and no new work is given; update the older of the two",
    )


def _capacity_left(report: NodeObserved | None) -> NodeCondition:
    if report is None:
        return _mark(cond.CAPACITY_LEFT, Status.UNKNOWN, reasons.NOT_PROBED)
    if amounts.fits(SMALL, report.allocated, report.capacity):
        return _mark(cond.CAPACITY_LEFT, Status.TRUE, reasons.OK, "there is room")
    return _mark(cond.CAPACITY_LEFT, Status.FALSE, reasons.NO_CAPACITY, "everything is promised")


def _drained(remaining: int | None) -> NodeCondition:
    if remaining == 0:
        return _mark(cond.DRAINED, Status.TRUE, reasons.OK, "no work is left")
    known = Status.UNKNOWN if remaining is None else Status.FALSE
    return _mark(cond.DRAINED, known, reasons.DRAINING, "work is left; status.drain counts it")


def _agent_marks(seen: NodePass) -> Iterable[NodeCondition]:
    given = seen.report.conditions if seen.report else ()
    for kind in REQUIRED:
        if all(condition.type != kind for condition in given):
            yield _mark(kind, Status.UNKNOWN, reasons.NOT_PROBED, "not checked yet")
    for condition in given:
        if condition.type in (cond.READY, cond.DRAINED):
            continue  # The operator sums up for itself.
        if not is_heard(seen.contact):
            yield _mark(
                condition.type,
                Status.UNKNOWN,
                reasons.HEARTBEAT_STALE,
                f"when last heard of: {condition.status}. {condition.message}".strip(),
            )
        else:
            yield condition.model_copy(
                update={"status": _status(condition.status), "reason": _reason(condition)}
            )


def _status(text: str) -> str:
    return text if text in tuple(Status) else Status.UNKNOWN.value


def _reason(condition: NodeCondition) -> str:
    """The agent's reason where it is a listed one; another version's word is not passed on."""
    if condition.status == "True":
        return reasons.OK
    if condition.reason in reasons.REASONS:
        return condition.reason
    if condition.status == "Unknown":
        return reasons.NOT_PROBED
    return _FALLBACK_REASONS.get(condition.type, reasons.UNAVAILABLE)


def _ready(seen: NodePass, marks: dict[str, NodeCondition]) -> NodeCondition:
    """The sum: the first thing that is in the way, with what to do about it."""
    spec = seen.object.spec
    if spec.out_of_service is not None:
        why = f"declared off: {spec.out_of_service.reason}"
        return _mark(cond.READY, Status.FALSE, reasons.OUT_OF_SERVICE, why)
    for kind in (cond.REACHABLE, cond.WIRE_COMPATIBLE):
        if marks[kind].status != "True":
            return marks[kind].model_copy(update={"type": cond.READY})
    if seen.report is not None:
        strange = stranger(seen.object, seen.report, seen.installation)
        if strange is not None:
            return _mark(cond.READY, Status.FALSE, reasons.CONFLICT, strange)
        bad = unfit(seen.report)
        if bad is not None:
            return marks[bad.type].model_copy(update={"type": cond.READY})
    if spec.drain is not None:
        return _mark(cond.READY, Status.FALSE, reasons.DRAINING, "no new work: spec.drain is set")
    if spec.unschedulable:
        why = "no new work: spec.unschedulable is set"
        return _mark(cond.READY, Status.FALSE, reasons.CORDONED, why)
    return _mark(cond.READY, Status.TRUE, reasons.NODE_READY, "takes work")


def _firm(status: api.ExecutionNodeStatus) -> api.ExecutionNodeStatus:
    """The status without what changes as work comes and goes."""
    drain = status.drain
    return status.with_(
        conditions=tuple(c for c in status.conditions if c.type != cond.CAPACITY_LEFT),
        allocated=None,
        images=None,
        images_omitted=None,
        quarantined=None,
        pools=None,
        heartbeat_time=None,
        drain=drain.with_(remaining=None) if drain else None,
    )


def _rewrite_due(seen: NodePass) -> bool:
    """Both times are of the agent's own clock, so no two clocks are compared."""
    written, report = seen.object.status.heartbeat_time, seen.report
    if written is None or report is None:
        return True
    passed = abs((report.now - written).total_seconds())
    only_heartbeat = compute(seen).with_(heartbeat_time=written) == seen.object.status
    return passed >= (HEARTBEAT_SECONDS if only_heartbeat else REWRITE_SECONDS)


def _next_look(seen: NodePass) -> float:
    heard = seen.contact.heard_at
    base = seen.contact.watched_since if heard is None else heard
    left = base + HEARD_SECONDS - seen.contact.now
    return min(left, LOOK_SECONDS) if left > 0 else LOOK_SECONDS
