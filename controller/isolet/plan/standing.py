"""What the plans of a bound object share: its end, its silence, its going on. PURE."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.plan import node, publishing
from isolet.plan.actions import Action, Flag, Plan, Remove
from isolet.plan.binding import Binding
from isolet.plan.model import NodeFacts, Observed, Pass
from isolet.plan.objects import Record
from isolet.plan.status import Mark, Picture, Verdict, plausible

PREPARING_PATIENCE = timedelta(seconds=5)
"""A sandbox is normally made faster; `Preparing` is then never written."""

COMMAND_PATIENCE = timedelta(seconds=1)
"""A command that is over sooner is only written as ended."""

REACH_PATIENCE = timedelta(seconds=30)
"""A new leader takes a moment to reach every agent."""

LOOK = timedelta(seconds=60)
"""Changes come from the agent's stream; this is for one that was not heard."""

CONTENT_MISSING = frozenset({reasons.AWAITING_CHECKPOINT, reasons.CHECKPOINT_UNAVAILABLE})
"""What an agent says that cannot get at the Checkpoint it needs."""

RENEW = timedelta(seconds=10)
"""A node that cannot get at the Checkpoint it needs is told anew where it is, no more often."""

_SHORT = frozenset({reasons.PREPARING, reasons.RESTORING, reasons.STARTING, reasons.COLLECTING})


def can_talk(facts: NodeFacts) -> bool:
    """Whether the agent can be asked for something now."""
    return (
        facts.reachable and facts.report is not None and node.common_wire(facts.report) is not None
    )


def removal(seen: Pass, facts: NodeFacts) -> Remove:
    """Have nothing left of the object on a node, whether it is there or not."""
    return Remove(node=facts.name, uid=seen.object.uid, kind=seen.object.ref.kind)


def stop_reason(seen: Observed, facts: NodeFacts) -> str | None:
    """Why it is to end though its owner did not ask for it."""
    if seen.object.host is not None:
        return None  # Its Execution is ended, and it with that.
    ends = node.drain_deadline(facts.object)
    return reasons.DRAINED if ends is not None and ends <= seen.now else None


def scheduled(seen: Observed) -> Mark:
    """The condition of everything that is bound."""
    if seen.object.node_name is None:
        return Mark(Status.UNKNOWN, reasons.PENDING, "no node was bound")
    return Mark(Status.TRUE, reasons.BOUND, f"bound to node {seen.object.node_name}")


def finish(
    seen: Observed,
    bound: Binding | None,
    verdict: Verdict,
    record: Record | None = None,
    actions: Iterable[Action] = (),
) -> Plan:
    """The end."""
    picture = Picture(scheduled=scheduled(seen), verdict=verdict, binding=bound, record=record)
    return publishing.make(seen, picture, worth_from=seen.now, actions=actions)


def lost(seen: Observed, bound: Binding | None, why: str, record: Record | None = None) -> Plan:
    """The node is gone, by someone's word."""
    verdict = Verdict(succeeded=False, reason=reasons.NODE_LOST, message=why)
    return finish(seen, bound, verdict, record)


def unreachable(
    seen: Observed,
    bound: Binding | None,
    facts: NodeFacts | None,
    record: Record | None = None,
) -> Plan:
    """Silence alone proves nothing: what runs there goes on, and nothing is said to have ended."""
    reason, text = reasons.NODE_UNREACHABLE, silence(seen, facts)
    if seen.object.ending:
        reason, text = reasons.CANCEL_REQUESTED, f"the end is not confirmed: {text}"
    picture = Picture(
        scheduled=scheduled(seen),
        progress=Mark(Status.UNKNOWN, reason, text),
        reconciling=True,
        binding=bound,
        record=record,
    )
    return publishing.make(
        seen,
        picture,
        worth_from=silence_is_worth_a_word(seen, facts),
        looks=(seen.now + LOOK,),
        flags=(Flag.NODE_UNREACHABLE,),
    )


def silence(seen: Pass, facts: NodeFacts | None) -> str:
    """What is in the way of asking the agent."""
    where = seen.object.node_name
    if facts is None:
        return f"node {where} could not be read: what runs there may still run"
    if facts.reachable and facts.report is not None and node.common_wire(facts.report) is None:
        return f"the agent of node {where} speaks no version that the operator knows"
    if facts.reachable:
        return f"the agent of node {where} has not told yet what it has"
    return f"the agent of node {where} does not answer: what runs there may still run"


def silence_is_worth_a_word(seen: Pass, facts: NodeFacts | None) -> datetime:
    """At once for an agent that was heard before; a new leader first tries to reach each."""
    heard = facts is not None and facts.synced
    return seen.now if heard else seen.leader_since + REACH_PATIENCE


def going(
    seen: Observed,
    bound: Binding | None,
    facts: NodeFacts,
    record: Record | None,
    progress: Mark,
    actions: tuple[Action, ...] = (),
    flags: tuple[Flag, ...] = (),
) -> Plan:
    """It is not at its end; `progress` says where it is."""
    picture = Picture(
        scheduled=scheduled(seen),
        progress=progress,
        reconciling=progress.reason != reasons.RUNNING,
        stalled=_stalled(seen, bound, progress),
        binding=bound,
        record=record,
    )
    return publishing.make(
        seen,
        picture,
        worth_from=_worth_from(seen, bound, record, progress),
        actions=actions,
        looks=(seen.now + LOOK, node.drain_deadline(facts.object), _renewal(seen, progress)),
        flags=flags,
    )


def _renewal(seen: Observed, progress: Mark) -> datetime | None:
    if seen.granted_at is None or progress.reason not in CONTENT_MISSING:
        return None
    return seen.granted_at + RENEW


def _stalled(seen: Observed, bound: Binding | None, progress: Mark) -> Mark | None:
    """What only somebody else can set right."""
    pinned, asked = bound.pinned if bound else None, seen.object.changeable_seconds
    if pinned is not None and asked is not None and asked > pinned.maximum_deadline_seconds:
        return Mark(
            Status.TRUE,
            reasons.DEADLINE_NOT_ALLOWED,
            f"activeDeadlineSeconds {asked} is over the maximum {pinned.maximum_deadline_seconds}"
            f" of ExecutionClass {pinned.class_name} when it was bound, which holds",
        )
    if progress.reason == reasons.AWAITING_INPUTS:
        return Mark(Status.TRUE, progress.reason, progress.message)
    return None


def _worth_from(
    seen: Observed, bound: Binding | None, record: Record | None, progress: Mark
) -> datetime | None:
    """From when on where it stands is worth a write."""
    since = bound.bound_at if bound is not None else seen.now
    if progress.reason == reasons.RUNNING and record is not None:
        # An agent's clock that makes no sense beside ours is not believed.
        started = record.started_at
        began = (
            since if started is None or started > seen.now else plausible(started, since, seen.now)
        )
        return began if seen.object.is_session else began + COMMAND_PATIENCE
    if progress.reason in _SHORT:
        return since + PREPARING_PATIENCE
    if progress.reason == reasons.CANCEL_REQUESTED:
        return None  # Over in a moment, unless the agent or its silence gives another reason.
    return seen.now
