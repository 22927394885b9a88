"""An object that is being deleted: hold the finalizer until nothing is left. PURE.

Called by `execution.plan`; deletion wins over everything, also over a spec that cannot be read. The
finalizer goes on the agent's word that nothing is left, or on a fact about the node that somebody
stated, and then with a tombstone that outlives both. Silence is never such a fact.
"""

from datetime import timedelta

from isolet.api import meta, reasons
from isolet.api.conditions import Status
from isolet.plan import binding, publishing, status
from isolet.plan.actions import Action, Flag, Plan, Release, Remove, WriteTombstone
from isolet.plan.model import Absent, Cause, Known, NodeFacts, Observed, Tombstone, Unknown
from isolet.plan.objects import Record
from isolet.plan.standing import can_talk, removal, scheduled, silence, silence_is_worth_a_word
from isolet.plan.status import Mark, Picture

REMOVAL_PATIENCE = timedelta(seconds=10)
"""A removal is normally confirmed faster."""

LOOK = timedelta(seconds=30)

RELEASED = "ReleasedUnconfirmed"
"""Reason of the Event that tells that an object was given up."""

_MAX_DETAIL = 256

_CAUSES = {
    Cause.NODE_DELETED: "ExecutionNode {node} was deleted",
    Cause.OUT_OF_SERVICE: "node {node} was declared out of service",
    Cause.NODE_REPLACED: "node {node} is back with another boot or store, and without it",
    Cause.FORCED: "annotation " + meta.FORCE_RELEASE,
}


def plan(seen: Observed) -> Plan:
    """The next step towards letting the object go."""
    if meta.FINALIZER not in seen.object.metadata.finalizers:
        # Somebody else's finalizer holds it, or nobody's: nothing is ours to do or to say.
        return Plan(status=seen.object.status)
    forced = seen.object.metadata.annotations.get(meta.FORCE_RELEASE)
    name = seen.object.node_name
    if name is None:
        return _never_bound(seen)
    if forced is not None:
        return _give_up(seen, name, Cause.FORCED, forced.strip())
    facts = next((n for n in seen.nodes if n.name == name), None)
    if facts is None:
        if seen.nodes_complete:
            return _give_up(seen, name, Cause.NODE_DELETED)
        return _blocked(seen, None)
    return _on_node(seen, facts)


def _never_bound(seen: Observed) -> Plan:
    """Nothing was made for it, unless an agent knows better (etcd was restored)."""
    holder = next(
        (n for n in sorted(seen.nodes, key=lambda n: n.name) if isinstance(n.record, Known)), None
    )
    if holder is None:
        return _release(seen)
    return _on_node(seen, holder)


def _on_node(seen: Observed, facts: NodeFacts) -> Plan:
    record = facts.record.value if isinstance(facts.record, Known) else None
    if record is not None and record.nothing_left:
        return _release(seen, *_forget(seen, facts, record))
    off = facts.object.spec.out_of_service
    if off is not None:
        return _give_up(seen, facts.name, Cause.OUT_OF_SERVICE, off.reason)
    if isinstance(facts.record, Unknown) or not can_talk(facts):
        return _blocked(seen, facts)
    if _replaced(seen, facts):
        return _give_up(seen, facts.name, Cause.NODE_REPLACED)
    return _removing(seen, facts, record)


def _forget(seen: Observed, facts: NodeFacts, record: Record) -> tuple[Action, ...]:
    """What ended before it was deleted has a record and output on the node: they go with it.

    Nothing waits for that. An agent that cannot be asked now is told by the orphan loop.
    """
    asked = seen.failure is not None and seen.failure.action == Remove.__name__
    if record.removing or asked or not can_talk(facts):
        return ()
    return (removal(seen, facts),)


def _replaced(seen: Observed, facts: NodeFacts) -> bool:
    """The agent that had it is gone, and the one that is there has nothing of it.

    It is asked all the same, which also keeps it from ever starting it; only where it cannot give
    its word (its engine is down, say) does its inventory count.
    """
    bound = binding.read(seen.object)
    if bound is None or facts.report is None or not isinstance(facts.record, Absent):
        return False
    same = (facts.report.epoch, facts.report.boot_id) == (bound.epoch, bound.boot_id)
    asked = seen.failure is not None and seen.failure.action == Remove.__name__
    left = any(stray.uid == seen.object.uid for stray in facts.report.strays)
    return asked and not same and not left


def _removing(seen: Observed, facts: NodeFacts, record: Record | None) -> Plan:
    told = record is not None and record.removing
    actions = () if told else (removal(seen, facts),)
    since = seen.object.metadata.deletion_timestamp or seen.now
    return publishing.make(
        seen,
        _picture(seen, record, reasons.AWAITING_NODE, _still_there(seen, facts, record)),
        worth_from=since + REMOVAL_PATIENCE,
        actions=actions,
        looks=(seen.now + LOOK,),
        flags=(Flag.CLEANUP_BLOCKED,) if since + REMOVAL_PATIENCE <= seen.now else (),
    )


def _still_there(seen: Observed, facts: NodeFacts, record: Record | None) -> str:
    why = "it has not confirmed yet that nothing is left"
    if record is not None and record.waiting is not None:
        why = record.waiting.message
    elif seen.failure is not None:
        why = seen.failure.message
    return f"deletion waits for node {facts.name}: {why}"


def _blocked(seen: Observed, facts: NodeFacts | None) -> Plan:
    node = facts.name if facts else seen.object.node_name
    text = (
        f"deletion waits for node {node}: {silence(seen, facts)}. If the node is gone for good,"
        f" delete ExecutionNode {node}; if it is off, set its spec.outOfService; to give up this"
        f" object alone, annotate it with {meta.FORCE_RELEASE}=<reason>"
    )
    record = facts.record.value if facts and isinstance(facts.record, Known) else None
    worth_from = silence_is_worth_a_word(seen, facts)
    return publishing.make(
        seen,
        _picture(seen, record, reasons.AWAITING_NODE, text),
        worth_from=worth_from,
        looks=(seen.now + LOOK,),
        flags=(Flag.CLEANUP_BLOCKED,) if worth_from <= seen.now else (),
    )


def _picture(seen: Observed, record: Record | None, reason: str, text: str) -> Picture:
    stalled = Mark(Status.TRUE, reason, text)
    progress = Mark(Status.UNKNOWN, reason, text)
    return Picture(
        scheduled=scheduled(seen),
        progress=progress,
        stalled=stalled,
        binding=binding.read(seen.object),
        record=record,
    )


def _release(seen: Observed, *before: Action) -> Plan:
    """The object may go. Its status goes with it and is not written any more."""
    finalizers = tuple(f for f in seen.object.metadata.finalizers if f != meta.FINALIZER)
    release = Release(object=seen.object.ref, finalizers=finalizers)
    final = status.compute(seen.object, Picture(), seen.now)
    return Plan(actions=(*before, release), status=final)


def _give_up(seen: Observed, node: str, cause: Cause, detail: str = "") -> Plan:
    """Without the agent's word; the tombstone is stored before the object can vanish."""
    meta_ = seen.object.metadata
    why = _CAUSES[cause].format(node=node) + (f" ({detail[:_MAX_DETAIL]})" if detail else "")
    tombstone = Tombstone(
        uid=seen.object.uid,
        namespace=meta_.namespace or "",
        name=meta_.name,
        node=node,
        cause=cause,
        detail=detail[:_MAX_DETAIL],
        written_at=seen.now,
    )
    text = f"released without the word of node {node} that nothing is left: {why}"
    return _release(
        seen,
        WriteTombstone(tombstone=tombstone),
        publishing.warning(seen.object, RELEASED, text),
    )
