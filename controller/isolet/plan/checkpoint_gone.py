"""The deletion of a Checkpoint: not under a restore, not before its copies are gone. PURE.

Called by `checkpoint_object`. Its own node's agent removes both copies, on the node and in an
object store. Where that node is gone for good, the copy in the store is removed through any other
agent that has that store.
"""

from isolet.api import meta, reasons
from isolet.api.checkpoint import LocationType
from isolet.api.conditions import Status
from isolet.plan import deletion
from isolet.plan.actions import Plan
from isolet.plan.checkpoint_status import View, compute, make
from isolet.plan.deletion import Go, Stay
from isolet.plan.model import Cause, CheckpointPass, Known, NodeFacts
from isolet.plan.standing import can_talk, removal
from isolet.plan.status import Mark


def plan(seen: CheckpointPass) -> Plan:
    """The next step towards letting it go."""
    step = _in_use(seen) or _stored(seen, deletion.decide(seen))
    match step:
        case None:
            return Plan(status=seen.object.status)
        case Go(actions=actions):
            return Plan(actions=actions, status=compute(seen.object, View(), seen.now))
        case Stay() as stay:
            return make(
                seen,
                View(
                    progress=Mark(Status.FALSE, stay.reason, stay.text),
                    stalled=Mark(Status.TRUE, stay.reason, stay.text),
                ),
                worth_from=stay.worth_from,
                actions=stay.actions,
                looks=(seen.now + deletion.LOOK,),
                flags=deletion.flags(seen, stay),
            )


def _in_use(seen: CheckpointPass) -> Stay | None:
    """An Execution that is bound to start from it was promised its content."""
    metadata = seen.object.metadata
    ours = meta.FINALIZER in metadata.finalizers
    if not ours or not seen.restoring or meta.FORCE_RELEASE in metadata.annotations:
        return None
    names = ", ".join(sorted(seen.restoring)[:5])
    return Stay(
        reason=reasons.CHECKPOINT_IN_USE,
        text=f"deletion waits for Executions that start from it: {names}",
        worth_from=deletion.patient_until(seen),
    )


def _stored(seen: CheckpointPass, step: Go | Stay | None) -> Go | Stay | None:
    """Where the node cannot remove the copy in a store, another one does, before it may go.

    A node may have written one that nobody was told of before it was lost: every store that some
    node has is emptied of it.
    """
    if not isinstance(step, Go) or step.gave_up in (None, Cause.FORCED):
        return step
    stores = {
        item.name
        for item in seen.object.status.locations or ()
        if item.type is LocationType.OBJECT_STORE
    }
    for facts in seen.nodes:
        if _helps(seen, facts) and facts.report is not None:
            stores |= set(facts.report.object_stores)
    for store in sorted(stores):
        stay = _empty(seen, store)
        if stay is not None:
            return stay
    return step


def _empty(seen: CheckpointPass, store: str) -> Stay | None:
    able = sorted(
        (
            n
            for n in seen.nodes
            if _helps(seen, n) and n.report is not None and store in n.report.object_stores
        ),
        key=lambda n: n.name,
    )
    if any(isinstance(n.checkpoint, Known) and n.checkpoint.value.nothing_left for n in able):
        return None
    worth_from = deletion.patient_until(seen)
    if not able:
        text = (
            f"a copy is left in object store {store}, and no node that answers has that store;"
            f" to give it up, annotate the Checkpoint with {meta.FORCE_RELEASE}=<reason>"
        )
        return Stay(text=text, worth_from=worth_from)
    helper = able[0]
    text = f"node {helper.name} has not confirmed yet that the copy in object store {store} is gone"
    told = isinstance(helper.checkpoint, Known) and helper.checkpoint.value.removing
    actions = () if told else (removal(seen, helper),)
    return Stay(text=text, worth_from=worth_from, actions=actions)


def _helps(seen: CheckpointPass, facts: NodeFacts) -> bool:
    """Whether this node's agent can be asked in place of the one that is gone."""
    other = facts.name != seen.object.node_name
    return other and can_talk(facts) and facts.object.spec.out_of_service is None
