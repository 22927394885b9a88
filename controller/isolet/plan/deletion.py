"""An object that is being deleted: hold the finalizer until nothing is left. PURE.

Called by `execution.plan` and `checkpoint.plan`; deletion wins over everything, also over a spec
that cannot be read. The finalizer goes on the agent's word that nothing is left, or on a fact about
the node that somebody stated, and then with a tombstone that outlives both. Silence is never such a
fact.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from isolet.api import meta, reasons
from isolet.api.conditions import Status
from isolet.plan import binding, publishing, status
from isolet.plan.actions import Action, Flag, Plan, Release, Remove, WriteTombstone
from isolet.plan.model import Absent, Cause, Known, NodeFacts, Observed, Pass, Tombstone, Unknown
from isolet.plan.objects import AnyRecord
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Go:
    """The object may go."""

    actions: tuple[Action, ...]
    """The last of them releases it."""
    gave_up: Cause | None = None
    """Why that is without the agent's word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """Something has to happen first."""

    text: str
    worth_from: datetime
    """From when on that is worth a word."""
    reason: str = reasons.AWAITING_NODE
    actions: tuple[Action, ...] = ()


def plan(seen: Observed) -> Plan:
    """The next step towards letting an Execution or a Process go."""
    match decide(seen):
        case None:
            return Plan(status=seen.object.status)
        case Go(actions=actions):
            # Its status goes with it and is not written any more.
            return Plan(actions=actions, status=status.compute(seen.object, Picture(), seen.now))
        case Stay() as stay:
            return publishing.make(
                seen,
                _picture(seen, stay),
                worth_from=stay.worth_from,
                actions=stay.actions,
                looks=(seen.now + LOOK,),
                flags=flags(seen, stay),
            )


def flags(seen: Pass, stay: Stay) -> tuple[Flag, ...]:
    """What metrics count the object by."""
    return (Flag.CLEANUP_BLOCKED,) if stay.worth_from <= seen.now else ()


def decide(seen: Pass) -> Go | Stay | None:
    """Whether an object of any kind may go; None: that is nothing of ours to decide."""
    if meta.FINALIZER not in seen.object.metadata.finalizers:
        # Somebody else's finalizer holds it, or nobody's: nothing is ours to do or to say.
        return None
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


def _never_bound(seen: Pass) -> Go | Stay:
    """Nothing was made for it, unless an agent knows better (etcd was restored)."""
    nodes = sorted(seen.nodes, key=lambda n: n.name)
    holder = next((n for n in nodes if isinstance(seen.record_of(n), Known)), None)
    if holder is None:
        return _release(seen)
    return _on_node(seen, holder)


def _on_node(seen: Pass, facts: NodeFacts) -> Go | Stay:
    found = seen.record_of(facts)
    record = found.value if isinstance(found, Known) else None
    if record is not None and record.nothing_left:
        return _release(seen, *_forget(seen, facts, record))
    off = facts.object.spec.out_of_service
    if off is not None:
        return _give_up(seen, facts.name, Cause.OUT_OF_SERVICE, off.reason)
    if isinstance(found, Unknown) or not can_talk(facts):
        return _blocked(seen, facts)
    if _replaced(seen, facts):
        return _give_up(seen, facts.name, Cause.NODE_REPLACED)
    return _removing(seen, facts, record)


def _forget(seen: Pass, facts: NodeFacts, record: AnyRecord) -> tuple[Action, ...]:
    """What ended before it was deleted has a record and output on the node: they go with it.

    Nothing waits for that. An agent that cannot be asked now is told by the orphan loop.
    """
    asked = seen.failure is not None and seen.failure.action == Remove.__name__
    if record.removing or asked or not can_talk(facts):
        return ()
    return (removal(seen, facts),)


def _replaced(seen: Pass, facts: NodeFacts) -> bool:
    """The agent that had it is gone, and the one that is there has nothing of it.

    It is asked all the same, which also keeps it from ever starting it; only where it cannot give
    its word (its engine is down, say) does its inventory count.
    """
    bound = binding.read(seen.object)
    if bound is None or facts.report is None or not isinstance(seen.record_of(facts), Absent):
        return False
    same = (facts.report.epoch, facts.report.boot_id) == (bound.epoch, bound.boot_id)
    asked = seen.failure is not None and seen.failure.action == Remove.__name__
    left = any(stray.uid == seen.object.uid for stray in facts.report.strays)
    return asked and not same and not left


def _removing(seen: Pass, facts: NodeFacts, record: AnyRecord | None) -> Stay:
    told = record is not None and record.removing
    return Stay(
        text=_still_there(seen, facts, record),
        worth_from=patient_until(seen),
        actions=() if told else (removal(seen, facts),),
    )


def patient_until(seen: Pass) -> datetime:
    """From when on a removal that is asked for and not confirmed is worth a word."""
    return (seen.object.metadata.deletion_timestamp or seen.now) + REMOVAL_PATIENCE


def _still_there(seen: Pass, facts: NodeFacts, record: AnyRecord | None) -> str:
    why = "it has not confirmed yet that nothing is left"
    if record is not None and record.waiting is not None:
        why = record.waiting.message
    elif seen.failure is not None:
        why = seen.failure.message
    return f"deletion waits for node {facts.name}: {why}"


def _blocked(seen: Pass, facts: NodeFacts | None) -> Stay:
    node = facts.name if facts else seen.object.node_name
    text = (
        f"deletion waits for node {node}: {silence(seen, facts)}. If the node is gone for good,"
        f" delete ExecutionNode {node}; if it is off, set its spec.outOfService; to give up this"
        f" object alone, annotate it with {meta.FORCE_RELEASE}=<reason>"
    )
    return Stay(text=text, worth_from=silence_is_worth_a_word(seen, facts))


def _picture(seen: Observed, stay: Stay) -> Picture:
    facts = next((n for n in seen.nodes if n.name == seen.object.node_name), None)
    return Picture(
        scheduled=scheduled(seen),
        progress=Mark(Status.UNKNOWN, stay.reason, stay.text),
        stalled=Mark(Status.TRUE, stay.reason, stay.text),
        binding=binding.read(seen.object),
        record=facts.record.value if facts and isinstance(facts.record, Known) else None,
    )


def _release(seen: Pass, *before: Action, gave_up: Cause | None = None) -> Go:
    finalizers = tuple(f for f in seen.object.metadata.finalizers if f != meta.FINALIZER)
    release = Release(object=seen.object.ref, finalizers=finalizers)
    return Go(actions=(*before, release), gave_up=gave_up)


def _give_up(seen: Pass, node: str, cause: Cause, detail: str = "") -> Go:
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
        gave_up=cause,
    )
