"""Events about a node: when it stops taking work, and when a drain is over. PURE."""

from isolet.api import conditions as cond
from isolet.api import executionnode as api
from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.base import names
from isolet.plan.actions import Action, Emit, EventType
from isolet.plan.model import NodePass
from isolet.plan.objects import ObjectRef


def of(seen: NodePass, new: api.ExecutionNodeStatus) -> tuple[Action, ...]:
    """One Event when a node stops taking work, or a drain is over."""
    found = []
    for kind, wanted, type_ in (
        (cond.READY, Status.FALSE, EventType.WARNING),
        (cond.DRAINED, Status.TRUE, EventType.NORMAL),
    ):
        before = cond.get(seen.object.status.conditions, kind)
        now = cond.get(new.conditions, kind)
        if now is None or now.status is not wanted:
            continue
        if before is None or (before.status, before.reason) == (now.status, now.reason):
            continue
        found.append(_event(seen, now, type_))
    return tuple(found)


def _event(seen: NodePass, condition: cond.Condition, type_: EventType) -> Emit:
    metadata = seen.object.metadata
    reason = reasons.DRAINED if condition.type == cond.DRAINED else condition.reason
    return Emit(
        object=ObjectRef(
            kind=api.KIND,
            namespace="",
            name=metadata.name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        ),
        type=type_,
        reason=reason,
        message=condition.message,
        # Each time it happens is one story of its own.
        key=names.short_digest(
            metadata.uid, condition.type, reason, condition.last_transition_time.isoformat()
        ),
    )
