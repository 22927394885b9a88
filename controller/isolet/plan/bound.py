"""An object that is bound to a node, and whose end is not written: start it, follow it. PURE.

Called by `execution.plan`. The agent's word is the only one on what happened; where it cannot be
had, the object waits and says so. Once the agent has the work, only `amend` and `remove` are sent,
without the spec.
"""

from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.plan import binding, restoring, starting
from isolet.plan.actions import Action, Amend, Plan
from isolet.plan.binding import Binding
from isolet.plan.model import Known, NodeFacts, Observed, Unknown
from isolet.plan.objects import Record
from isolet.plan.pending import ended_unstarted
from isolet.plan.standing import can_talk, finish, going, lost, stop_reason, unreachable
from isolet.plan.status import Mark, Verdict, listed
from isolet.wire.execution import Step, Waiting

_NOT_WAITING = frozenset({reasons.PREPARING, reasons.RESTORING, reasons.RUNNING})


def plan(seen: Observed) -> Plan:
    """The next step of a bound object."""
    bound = binding.read(seen.object)
    facts = next((n for n in seen.nodes if n.name == seen.object.node_name), None)
    if facts is None:
        if seen.nodes_complete:
            return lost(seen, bound, f"ExecutionNode {seen.object.node_name} was deleted")
        return unreachable(seen, bound, None)
    record = facts.record.value if isinstance(facts.record, Known) else None
    if record is not None and record.outcome is not None:
        return ended(seen, bound, record)
    off = facts.object.spec.out_of_service
    if off is not None:
        why = f"node {facts.name} was declared out of service: {off.reason}"
        return lost(seen, bound, why, record)
    if record is not None:
        return _known(seen, bound, facts, record)
    if isinstance(facts.record, Unknown) or facts.report is None:
        return unreachable(seen, bound, facts)
    return starting.absent(seen, bound, facts)


def ended(seen: Observed, bound: Binding | None, record: Record) -> Plan:
    """The end as the agent tells it."""
    outcome = record.outcome
    assert outcome is not None
    reason = listed(
        outcome.reason, reasons.SUCCEEDED if outcome.succeeded else reasons.INTERNAL_ERROR
    )
    verdict = Verdict(
        succeeded=outcome.succeeded,
        reason=reason,
        # The word of a later version is for people only: programs know the listed ones.
        message=outcome.message
        if reason == outcome.reason
        else f"{outcome.reason}: {outcome.message}",
        exit_code=outcome.exit_code,
        ended_at=record.ended_at,
    )
    return finish(seen, bound, verdict, record)


def _known(seen: Observed, bound: Binding | None, facts: NodeFacts, record: Record) -> Plan:
    if record.nothing_left:
        return _gone(seen, bound, facts, record)
    if not facts.reachable:
        return unreachable(seen, bound, facts, record)
    stop = stop_reason(seen, facts)
    stopping = seen.object.ending or stop is not None
    if not can_talk(facts):
        return going(seen, bound, facts, record, _progress(seen, record, stopping))
    if not stopping and _needs_to_be_sent(seen, bound, record):
        return starting.again(seen, bound, facts, record)
    actions: tuple[Action, ...] = ()
    if record.generation < seen.object.metadata.generation or (stop and not is_ending(record)):
        change = binding.amendment(seen.object, bound, stop)
        actions = (Amend(node=facts.name, uid=seen.object.uid, change=change),)
    return going(seen, bound, facts, record, _progress(seen, record, stopping), actions)


def _gone(seen: Observed, bound: Binding | None, facts: NodeFacts, record: Record) -> Plan:
    """The agent confirms that nothing is left, and knows of no outcome."""
    if seen.object.ending:
        return finish(seen, bound, ended_unstarted(seen), record)
    if stop_reason(seen, facts):
        why = f"node {facts.name} was drained before it was started"
        return finish(
            seen, bound, Verdict(succeeded=False, reason=reasons.DRAINED, message=why), record
        )
    ran = seen.object.status.start_time is not None
    reason = reasons.CONTAINER_LOST if ran else reasons.START_UNCONFIRMED
    why = f"node {facts.name} was told to remove it, and how it ended is not known"
    return finish(seen, bound, Verdict(succeeded=False, reason=reason, message=why), record)


def _needs_to_be_sent(seen: Observed, bound: Binding | None, record: Record) -> bool:
    """The agent holds no values, since it restarted, or cannot get at the Checkpoint's content."""
    if record.waiting is None or record.step is not Step.RECORDED or record.removing:
        return False
    reason = record.waiting.reason
    needed = restoring.needed_again(seen, restoring.restored(bound), reason)
    return needed or reason == reasons.AWAITING_INPUTS


def is_ending(record: Record) -> bool:
    """Whether the agent says that it is already on it."""
    asked = (reasons.CANCEL_REQUESTED, reasons.CANCEL_UNVERIFIED)
    return record.removing or (record.waiting is not None and record.waiting.reason in asked)


def _progress(seen: Observed, record: Record, stopping: bool) -> Mark:
    waiting = record.waiting
    held = waiting if waiting is not None and waiting.reason not in _NOT_WAITING else None
    if stopping or record.removing:
        return _stopping(held)
    if held is not None:
        return Mark(Status.UNKNOWN, listed(held.reason, reasons.UNAVAILABLE), held.message)
    match record.step:
        case Step.RECORDED:
            return _made(seen)
        case Step.DISPATCHED:
            return Mark(Status.UNKNOWN, reasons.STARTING, "the start is not confirmed yet")
        case Step.RUNNING:
            return Mark(Status.TRUE, reasons.RUNNING, f"runs on node {seen.object.node_name}")
        case _:
            return Mark(Status.UNKNOWN, reasons.COLLECTING, "its output is being collected")


def _made(seen: Observed) -> Mark:
    if restoring.restored(binding.read(seen.object)) is not None:
        return Mark(Status.UNKNOWN, reasons.RESTORING, "the workspace is being restored")
    return Mark(Status.UNKNOWN, reasons.PREPARING, "the sandbox is being made")


def _stopping(held: Waiting | None) -> Mark:
    """The end is the thing waited for; what the agent says explains why it takes so long."""
    if held is None or held.reason == reasons.AWAITING_INPUTS:
        text = "the end was asked for and is not confirmed yet"
        return Mark(Status.UNKNOWN, reasons.CANCEL_REQUESTED, text)
    return Mark(Status.UNKNOWN, listed(held.reason, reasons.CANCEL_UNVERIFIED), held.message)
