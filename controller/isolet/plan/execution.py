"""One pass over one Execution or Process: everything observed goes in, a `Plan` comes out. PURE.

Called by `operator.reconcile`. The order of questions is the order of strength: deletion wins, then
an outcome that is written, then the node it is bound to; only what has none of these is placed.
Total and repeatable: it never raises on data, and the same facts give the same plan.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from isolet.api import meta
from isolet.plan import binding, bound, deletion, dispatched, pending, publishing, status
from isolet.plan.actions import Action, Amend, DeleteObject, Plan
from isolet.plan.model import Known, NodeFacts, Observed, surely
from isolet.plan.objects import Record
from isolet.plan.standing import LOOK, can_talk, removal
from isolet.plan.status import Picture


def plan(seen: Observed) -> Plan:
    """What to do about this object now, and what to say of it."""
    if seen.object.deleting:
        return deletion.plan(seen)
    if dispatched.is_one(seen.object):
        return _alone(seen, _dispatched(seen))
    repair = _finalizer_missing(seen)
    if repair is not None:
        return repair
    if status.decided(seen.object.status):
        return _alone(seen, _after_the_end(seen))
    if seen.object.node_name is None:
        return pending.plan(seen)
    return _alone(seen, bound.plan(seen))


def _dispatched(seen: Observed) -> Plan:
    if not status.decided(seen.object.status):
        return dispatched.plan(seen)
    found = _after_the_end(seen)
    return replace(found, actions=(*dispatched.forgotten(seen), *found.actions))


def _alone(seen: Observed, found: Plan) -> Plan:
    """Remove the uid from agents that it is not bound to: an earlier state of etcd put it there."""
    elsewhere = [
        removal(seen, facts)
        for facts in sorted(seen.nodes, key=lambda n: n.name)
        if facts.name != seen.object.node_name and _holds(facts) and can_talk(facts)
    ]
    return replace(found, actions=(*found.actions, *elsewhere)) if elsewhere else found


def _holds(facts: NodeFacts) -> bool:
    record = facts.record.value if isinstance(facts.record, Known) else None
    return record is not None and not record.removing and not record.nothing_left


def _finalizer_missing(seen: Observed) -> Plan | None:
    """Somebody took our finalizer off a bound object: put it back before anything else."""
    node, metadata = seen.object.node_name, seen.object.metadata
    if node is None or meta.FINALIZER in metadata.finalizers:
        return None
    text = metadata.annotations.get(binding.ANNOTATION, "")
    again = pending.bind_action(seen, node, text)
    return publishing.make(seen, Picture(), worth_from=None, actions=(again,))


def _after_the_end(seen: Observed) -> Plan:
    """The outcome stands: end what runs on against it, delete the object when its time is up."""
    own = binding.read(seen.object)
    facts = next((n for n in seen.nodes if n.name == seen.object.node_name), None)
    record = facts.record.value if facts and isinstance(facts.record, Known) else None
    actions: list[Action] = []
    if facts is not None and record is not None and _runs_on(facts, record):
        actions.append(_end_it(seen, facts))
    expires = _expiry(seen)
    due = expires is not None and expires <= seen.now
    if due:
        actions.append(DeleteObject(object=seen.object.ref))
    return publishing.make(
        seen,
        Picture(binding=own, record=record),
        worth_from=None if due else seen.now,
        actions=actions,
        looks=(expires, seen.now + LOOK if actions else None),
    )


def _runs_on(facts: NodeFacts, record: Record) -> bool:
    """Whether a node that was given up for lost is back with the work still going on."""
    return _holds(facts) and record.outcome is None and can_talk(facts)


def _end_it(seen: Observed, facts: NodeFacts) -> Amend:
    change = binding.ending(seen.object)
    return Amend(node=facts.name, uid=seen.object.uid, change=change)


def _expiry(seen: Observed) -> datetime | None:
    """When the object is deleted, as the wall clock is now; None where it is kept.

    Reached exactly at that moment, and only once both clocks say so.
    """
    spec, completed = seen.object.spec, seen.object.status.completion_time
    if spec is None or spec.ttl_seconds_after_finished is None or completed is None:
        return None
    left = completed + timedelta(seconds=spec.ttl_seconds_after_finished) - surely(seen)
    return seen.now + left
