"""An object that no node is bound to yet: adopt, refuse, wait, or bind. PURE.

Called by `execution.plan`. Before anything is bound, every agent is searched for the uid: if etcd
was restored to an older state, the object may look new while it runs.
"""

from datetime import datetime, timedelta

from isolet.api import meta, reasons
from isolet.api.conditions import Status
from isolet.api.executionclass import ExecutionClass
from isolet.plan import (
    admission,
    binding,
    hosted,
    messages,
    placement,
    pools,
    publishing,
    restoring,
)
from isolet.plan.actions import Action, Bind, Flag, Plan, Put
from isolet.plan.binding import Binding, Effective, Inside, Pinned, Restored
from isolet.plan.messages import Wanted
from isolet.plan.model import Known, NodeFacts, Observed, Unknown
from isolet.plan.objects import ProcessFacts, Record
from isolet.plan.standing import can_talk
from isolet.plan.status import Mark, Picture, Verdict
from isolet.plan.values import Refusal, Wait

SETTLE = timedelta(seconds=2)
"""A class, Secret or image applied together with the object may come a moment after it."""

IMAGE_PATIENCE = timedelta(seconds=5)
"""An agent lists its images every few seconds; one that was just loaded may not be told yet."""

READ_PATIENCE = timedelta(seconds=10)
"""What could not be read is mostly readable a moment later."""

LEADER_MARGIN = timedelta(seconds=30)
"""How far the API server's clock and ours may differ when telling whether an object is older than
this leader. On the safe side: one that is only maybe older is taken to be."""

LOOK = timedelta(seconds=60)
"""Changes of classes, inputs and nodes ring the queue; this is for a bell that was not heard."""


def plan(seen: Observed) -> Plan:
    """The next step towards a node."""
    holder = _holder(seen)
    if holder is not None:
        return _adopt(seen, *holder)
    doubt = _may_run_unseen(seen)
    if doubt is not None:
        return _wait(seen, doubt)
    if seen.object.ending:
        return finish(seen, ended_unstarted(seen))
    late = _too_late(seen)
    if late is not None:
        return finish(seen, late)
    admitted = _admit(seen)
    if isinstance(admitted, Refusal):
        return finish(
            seen, Verdict(succeeded=False, reason=admitted.reason, message=admitted.message)
        )
    if isinstance(admitted, Wait):
        return _wait(seen, admitted)
    return _join(seen, admitted) if isinstance(admitted, Inside) else _place(seen, admitted)


def _admit(seen: Observed) -> Effective | Refusal | Wait:
    return admission.admit(seen) if seen.object.host is None else hosted.admit(seen)


def _ends_by(seen: Observed) -> datetime | None:
    """The moment after which nothing is started any more."""
    object_ = seen.object
    return object_.spec.deadline_at if isinstance(object_, ProcessFacts) and object_.spec else None


def _too_late(seen: Observed) -> Verdict | None:
    ends = _ends_by(seen)
    if ends is None or ends > seen.now:
        return None
    return Verdict(
        succeeded=False,
        reason=reasons.DEADLINE_EXCEEDED,
        message="deadlineAt passed before a node was bound; nothing had run",
    )


def finish(seen: Observed, verdict: Verdict) -> Plan:
    """The end, without a node."""
    scheduled = Mark(Status.FALSE, verdict.reason, verdict.message)
    picture = Picture(scheduled=scheduled, verdict=verdict)
    return publishing.make(seen, picture, worth_from=seen.now)


def ended_unstarted(seen: Observed) -> Verdict:
    """Its owner took it back, and nothing of it is left."""
    ran = seen.object.status.start_time is not None
    when = "nothing of it is left" if ran else "nothing had run"
    if seen.object.is_session:
        return Verdict(
            succeeded=True, reason=reasons.TERMINATED, message=f"terminated as asked; {when}"
        )
    return Verdict(succeeded=False, reason=reasons.CANCELLED, message=f"cancelled; {when}")


def _holder(seen: Observed) -> tuple[NodeFacts, Record] | None:
    """The node whose agent knows the uid; one that has something of it before one that had."""
    found = [(facts, facts.record.value) for facts in seen.nodes if isinstance(facts.record, Known)]
    return min(found, key=lambda f: (f[1].nothing_left, f[0].name), default=None)


def _adopt(seen: Observed, facts: NodeFacts, record: Record) -> Plan:
    if record.nothing_left and record.outcome is None:
        return finish(
            seen,
            Verdict(
                succeeded=False,
                reason=reasons.START_UNCONFIRMED,
                message=f"node {facts.name} had it before and has removed it; it is not run again",
            ),
        )
    admitted = _admit(seen)
    # What the class says now is only good for what the object itself leaves open. Whether it may
    # run was decided when it was first bound.
    pinned = admitted if isinstance(admitted, Pinned | Inside) else None
    return _bind(seen, facts, pinned)


def _may_run_unseen(seen: Observed) -> Wait | None:
    """Whether an agent that was not read yet could have the object already."""
    if not seen.nodes_complete:
        return Wait(reasons.PENDING, "the nodes could not be read", sure=False)
    created = seen.object.metadata.creation_timestamp
    if created is not None and created >= seen.leader_since + LEADER_MARGIN:
        return None
    unread = sorted(facts.name for facts in seen.nodes if _unread(facts))
    if not unread:
        return None
    return Wait(
        reasons.UNSCHEDULABLE,
        f"it may already run on {', '.join(unread)}, which this operator has not reached since it"
        " began: bring the agent back, or set spec.outOfService on a node that is off",
        sure=False,
    )


def _unread(facts: NodeFacts) -> bool:
    known = facts.synced and not isinstance(facts.record, Unknown)
    return not known and facts.object.spec.out_of_service is None


def _wait(seen: Observed, wait: Wait, worth_from: datetime | None = None) -> Plan:
    created = seen.object.metadata.creation_timestamp or seen.now
    limit = admission.scheduling_deadline(seen) if wait.sure else None
    expires = None if limit is None else created + timedelta(seconds=limit)
    if expires is not None and expires <= seen.now:
        return finish(
            seen,
            Verdict(
                succeeded=False,
                reason=reasons.UNSCHEDULABLE_IN_TIME,
                message=f"no node was bound within {limit} s: {wait.message}",
            ),
        )
    found = Status.FALSE if wait.sure or wait.reason == reasons.UNSCHEDULABLE else Status.UNKNOWN
    picture = Picture(
        scheduled=Mark(found, wait.reason, wait.message),
        progress=Mark(Status.UNKNOWN, wait.reason, wait.message),
        reconciling=True,
    )
    return publishing.make(
        seen,
        picture,
        worth_from=worth_from or _worth_from(seen, created, wait),
        looks=(seen.now + LOOK, expires, _ends_by(seen)),
        flags=_flags(wait),
    )


def _worth_from(seen: Observed, created: datetime, wait: Wait) -> datetime:
    return created + SETTLE if wait.sure else max(created, seen.leader_since) + READ_PATIENCE


def _flags(wait: Wait) -> tuple[Flag, ...]:
    if wait.reason == reasons.AWAITING_INPUTS:
        return (Flag.AWAITING_INPUTS,)
    return (Flag.UNSCHEDULABLE,) if wait.reason == reasons.UNSCHEDULABLE else ()


def _place(seen: Observed, pinned: Pinned) -> Plan:
    found = placement.place(_demand(seen, pinned), seen.nodes, seen.installation)
    if isinstance(found, placement.Chosen):
        return _bind(seen, found.node, pinned.model_copy(update={"run": found.run}), start=True)
    if found.content_missing:
        return _wait(seen, Wait(reasons.CHECKPOINT_UNAVAILABLE, found.message))
    wait = Wait(reasons.UNSCHEDULABLE, found.message)
    never = _never(found, pinned)
    if never is None:
        return _wait(seen, wait)
    final = (seen.object.metadata.creation_timestamp or seen.now) + IMAGE_PATIENCE
    if seen.now < final:
        return _wait(seen, wait, worth_from=final)
    return finish(seen, never)


def _never(found: placement.Nowhere, pinned: Pinned) -> Verdict | None:
    """The end of what no node can ever take as they are."""
    if found.repository_missing and pinned.git is not None:
        reason = reasons.REPOSITORY_UNAVAILABLE
        what = f"Git repository {pinned.git.repository} is in no node's policy"
    elif found.image_missing:
        reason = reasons.IMAGE_MISSING
        what = f"image {pinned.image} is on no node, and images are never pulled"
    else:
        return None
    return Verdict(succeeded=False, reason=reason, message=f"{what}: {found.message}")


def _join(seen: Observed, inside: Inside) -> Plan:
    """To the node of the Execution, once its agent can be asked."""
    facts = hosted.node_of(seen)
    if facts is None or facts.report is None or not can_talk(facts):
        where = "its node" if facts is None else f"node {facts.name}"
        text = f"{where} of Execution {inside.execution_name} does not answer"
        return _wait(seen, Wait(reasons.AWAITING_EXECUTION, text, sure=False))
    return _bind(seen, facts, inside, start=True)


def _demand(seen: Observed, pinned: Pinned) -> placement.Demand:
    sought = seen.object.sought
    found = admission.resolve_class(sought, seen) if sought else None
    selectors = [
        sought.node_selector if sought else None,
        None if found is None or isinstance(found, Wait) else found.spec.node_selector,
    ]
    return placement.Demand(
        uid=seen.object.uid,
        image=pinned.run,
        runtime=pinned.runtime,
        medium=pinned.medium.value,
        amounts=binding.demand(pinned),
        repository=pinned.git.repository if pinned.git else None,
        selectors=tuple(selector for selector in selectors if selector),
        content=_content(seen, pinned),
        near=_near(seen, pinned),
        warm=frozenset() if isinstance(found, Wait | None) else _warm(seen, found, pinned),
    )


def _warm(seen: Observed, rules: ExecutionClass, pinned: Pinned) -> frozenset[str]:
    """Nodes with a slot for it; a Process is always started cold."""
    if isinstance(seen.object, ProcessFacts):
        return frozenset()
    return frozenset(facts.name for facts in seen.nodes if pools.ready(rules, pinned, facts))


def _content(seen: Observed, pinned: Pinned) -> dict[str, str] | None:
    """By node, what keeps the Checkpoint's content from getting there."""
    what = pinned.restored
    if what is None:
        return None
    lost = f"without a way to Checkpoint {what.name}: {restoring.nowhere(seen, what)}"
    return {
        facts.name: "" if restoring.source(seen, facts, what) is not None else lost
        for facts in seen.nodes
    }


def _near(seen: Observed, pinned: Pinned) -> frozenset[str]:
    having = restoring.holders(seen.nodes) if pinned.restored is not None else ()
    return frozenset(facts.name for facts in having)


def _bind(
    seen: Observed, facts: NodeFacts, pinned: Effective | None, *, start: bool = False
) -> Plan:
    """The one patch; where nothing is known of it anywhere, the start goes right behind it."""
    bound = Binding(
        uid=seen.object.uid,
        epoch=facts.report.epoch if facts.report else "",
        boot_id=facts.report.boot_id if facts.report else "",
        bound_at=seen.now,
        pinned=pinned if isinstance(pinned, Pinned) else None,
        inside=pinned if isinstance(pinned, Inside) else None,
    )
    actions: list[Action] = [bind_action(seen, facts.name, bound.annotation())]
    if start and pinned is not None:
        # Writing spec.nodeName makes the next generation of the object.
        generation = seen.object.metadata.generation + 1
        wanted = messages.wanted(seen.object, pinned, seen.inputs, generation)
        if not isinstance(wanted, Wait):
            actions.append(_put(seen, facts, wanted, restoring.restored(bound)))
    picture = Picture(
        scheduled=Mark(Status.TRUE, reasons.BOUND, f"bound to node {facts.name}"),
        progress=Mark(Status.UNKNOWN, reasons.PREPARING, "the sandbox is being made"),
        reconciling=True,
        binding=bound,
    )
    return publishing.make(
        seen, picture, worth_from=None, actions=actions, looks=(seen.now + SETTLE,)
    )


def _put(seen: Observed, facts: NodeFacts, wanted: Wanted, what: Restored | None) -> Put:
    source = restoring.source(seen, facts, what) if what is not None else None
    return Put(node=facts.name, wanted=wanted, source=source)


def bind_action(seen: Observed, node: str, annotation: str) -> Bind:
    """The patch that binds, or that puts back what somebody took off."""
    finalizers = seen.object.metadata.finalizers
    return Bind(
        object=seen.object.ref,
        node=node,
        annotation=annotation,
        finalizers=finalizers if meta.FINALIZER in finalizers else (*finalizers, meta.FINALIZER),
    )
