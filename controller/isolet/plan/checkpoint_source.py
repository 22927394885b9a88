"""Whose workspace a Checkpoint takes: may it be taken now, or why not? PURE.

Called by `checkpoint_object` before the binding. What may still come is waited for, but not for
ever; what cannot come any more is refused at once. The agent has the last word: what it cannot take
is an outcome that it records.
"""

from isolet.api import reasons
from isolet.plan import binding
from isolet.plan.binding import Taking
from isolet.plan.model import Absent, CheckpointPass, Host, Known, NodeFacts, Unknown
from isolet.plan.status import decided
from isolet.plan.values import Refusal, Wait
from isolet.wire.execution import ExecutionObserved, Medium, Step


def admit(seen: CheckpointPass) -> Taking | Refusal | Wait:
    """What is pinned with the binding to the Execution's node."""
    name = seen.object.source
    if seen.object.spec is None:
        return Refusal(reasons.INVALID_SPEC, seen.object.invalid)
    match seen.source:
        case Absent():
            return Wait(reasons.NOT_FOUND, f"Execution {name} is not there")
        case Unknown():
            text = f"Execution {name} could not be read"
            return Wait(reasons.AWAITING_EXECUTION, text, sure=False)
        case Known(value=host):
            return _of(seen, host, name)


def node_of(seen: CheckpointPass) -> NodeFacts | None:
    """The node of the Execution that the object names."""
    host = seen.source.value if isinstance(seen.source, Known) else None
    where = host.object.node_name if host else None
    return next((facts for facts in seen.nodes if facts.name == where), None)


def _of(seen: CheckpointPass, host: Host, name: str) -> Taking | Refusal | Wait:
    if host.object.deleting:
        return Refusal(reasons.EXECUTION_ENDED, f"Execution {name} is being deleted")
    if host.object.node_name is None:
        if decided(host.object.status):
            return Refusal(reasons.EXECUTION_ENDED, f"Execution {name} ended before it ran")
        return Wait(reasons.AWAITING_EXECUTION, f"Execution {name} is bound to no node yet")
    gone = _node_is_gone(seen, host, name)
    if gone is not None:
        return gone
    bound = binding.read(host.object)
    if bound is None or bound.pinned is None:
        return Refusal(reasons.CORRUPT, f"the binding of Execution {name} cannot be read")
    record = _record(host, name)
    if not isinstance(record, ExecutionObserved):
        return record
    refused = _too_late(record, bound.pinned.medium, name) or _too_early(record, name)
    return refused or Taking(
        execution_name=name, execution_uid=host.object.uid, image=bound.pinned.image
    )


def _node_is_gone(seen: CheckpointPass, host: Host, name: str) -> Refusal | None:
    facts = node_of(seen)
    where = host.object.node_name
    if facts is None and seen.nodes_complete:
        return Refusal(reasons.NODE_LOST, f"ExecutionNode {where} of Execution {name} was deleted")
    off = facts.object.spec.out_of_service if facts is not None else None
    if off is None:
        return None
    why = f"node {where} of Execution {name} was declared out of service: {off.reason}"
    return Refusal(reasons.NODE_LOST, why)


def _record(host: Host, name: str) -> ExecutionObserved | Refusal | Wait:
    match host.record:
        case Known(value=ExecutionObserved() as record):
            return record
        case Absent():
            if decided(host.object.status):
                return Refusal(reasons.NOT_RETAINED, f"Execution {name} has ended and is disposed")
            return Wait(reasons.AWAITING_EXECUTION, f"Execution {name} does not run yet")
        case _:
            where = host.object.node_name
            text = f"node {where} of Execution {name} does not answer"
            return Wait(reasons.NODE_UNREACHABLE, text)


def _too_late(record: ExecutionObserved, medium: Medium, name: str) -> Refusal | None:
    if record.outcome is None and not record.removing:
        return None
    if medium is Medium.MEMORY:
        why = "its Memory workspace went with it; a Disk workspace can be taken after the end"
        return Refusal(reasons.NOT_RETAINED, f"Execution {name} has ended: {why}")
    if record.nothing_left or record.removing or record.step is Step.DISPOSED:
        why = "its workspace is gone (workspace.retainSeconds keeps it for a while)"
        return Refusal(reasons.NOT_RETAINED, f"Execution {name} has ended: {why}")
    return None


def _too_early(record: ExecutionObserved, name: str) -> Wait | None:
    if record.step in (Step.RUNNING, Step.ENDED):
        return None
    return Wait(reasons.AWAITING_EXECUTION, f"Execution {name} does not run yet")
