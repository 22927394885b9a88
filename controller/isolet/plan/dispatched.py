"""A dispatch: an Execution that a front door made, bound, and handed to an agent itself. PURE.

Called by `execution.plan`. The operator starts none: it tells the outcome, ends what its owner or a
drain wants ended, and sees to it that a run whose front door died before handing it over can not be
begun any more. The object has no finalizer and no binding, and nothing is written while it runs, so
that its whole life is three writes: made, ended, deleted.
"""

from datetime import timedelta

from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.plan import binding, bound, pending, publishing
from isolet.plan.actions import Action, Amend, Plan
from isolet.plan.model import Known, NodeFacts, Observed, Unknown
from isolet.plan.objects import ExecutionFacts, Record, Work
from isolet.plan.standing import (
    LOOK,
    can_talk,
    finish,
    lost,
    removal,
    scheduled,
    stop_reason,
    unreachable,
)
from isolet.plan.status import Mark, Picture, Verdict

HANDOVER_PATIENCE = timedelta(seconds=60)
"""A front door hands a run over in milliseconds; its call ends in less than this."""


def is_one(object_: Work) -> bool:
    """Whether the object is a dispatch."""
    spec = object_.spec if isinstance(object_, ExecutionFacts) else None
    return spec is not None and spec.dispatch is not None


def plan(seen: Observed) -> Plan:
    """The next step of a dispatch whose end is not written."""
    if seen.object.node_name is None:
        return pending.finish(seen, _unbound(seen))
    facts = next((n for n in seen.nodes if n.name == seen.object.node_name), None)
    if facts is None:
        if seen.nodes_complete:
            return lost(seen, None, f"ExecutionNode {seen.object.node_name} was deleted")
        return unreachable(seen, None, None)
    record = facts.record.value if isinstance(facts.record, Known) else None
    if record is not None and record.outcome is not None:
        return bound.ended(seen, None, record)
    off = facts.object.spec.out_of_service
    if off is not None:
        return lost(seen, None, f"node {facts.name} was declared out of service: {off.reason}")
    if record is not None:
        return _known(seen, facts, record)
    if isinstance(facts.record, Unknown) or not can_talk(facts):
        return unreachable(seen, None, facts)
    return _absent(seen, facts)


def forgotten(seen: Observed) -> tuple[Action, ...]:
    """Once the outcome is written, the agent need not keep the record; its tombstone stays."""
    return tuple(
        removal(seen, facts)
        for facts in seen.nodes
        if facts.name == seen.object.node_name
        and isinstance(facts.record, Known)
        and not (facts.record.value.removing or facts.record.value.nothing_left)
        and can_talk(facts)
    )


def _unbound(seen: Observed) -> Verdict:
    if seen.object.ending:
        return pending.ended_unstarted(seen)
    return Verdict(
        succeeded=False,
        reason=reasons.UNSUPPORTED,
        message="a dispatch is made by the front door, which has its document; this one has none",
    )


def _known(seen: Observed, facts: NodeFacts, record: Record) -> Plan:
    if record.nothing_left:
        if seen.object.ending:
            return finish(seen, None, pending.ended_unstarted(seen), record)
        why = "nothing of it is on its node, and it will not be begun there any more"
        verdict = Verdict(succeeded=False, reason=reasons.START_UNCONFIRMED, message=why)
        return finish(seen, None, verdict, record)
    if not can_talk(facts):
        return unreachable(seen, None, facts, record)
    stop = stop_reason(seen, facts)
    behind = seen.object.ending and record.generation < seen.object.metadata.generation
    if not behind and (stop is None or bound.is_ending(record)):
        return _quiet(seen)
    change = binding.amendment(seen.object, None, stop)
    return _quiet(seen, Amend(node=facts.name, uid=seen.object.uid, change=change))


def _absent(seen: Observed, facts: NodeFacts) -> Plan:
    """Nobody has handed it over; after a while nobody will, and the agent is told so."""
    created = seen.object.metadata.creation_timestamp or seen.now
    due = created + HANDOVER_PATIENCE
    if due > seen.now and not seen.object.ending:
        picture = Picture(scheduled=scheduled(seen))
        return publishing.make(seen, picture, worth_from=None, looks=(due,))
    return _quiet(seen, removal(seen, facts))


def _quiet(seen: Observed, *actions: Action) -> Plan:
    where = Mark(Status.UNKNOWN, reasons.RUNNING, f"runs on node {seen.object.node_name}")
    picture = Picture(scheduled=scheduled(seen), progress=where)
    return publishing.make(
        seen, picture, worth_from=None, actions=actions, looks=(seen.now + LOOK,)
    )
