"""A bound object of which its agent has no record: may it be started? PURE.

Called by `bound.plan`. Work is sent only while it is certain that the agent never had it: the store
is the one of the binding, nothing was ever seen to run, and the values are those that were pinned.
"""

from isolet.api import reasons
from isolet.api.conditions import Status
from isolet.plan import hosted, messages, publishing, restoring, values
from isolet.plan.actions import Flag, Plan, Put
from isolet.plan.binding import Binding, Inside
from isolet.plan.model import ErrorKind, Failure, NodeFacts, Observed, Pass
from isolet.plan.objects import Record
from isolet.plan.standing import (
    LOOK,
    can_talk,
    finish,
    going,
    removal,
    scheduled,
    stop_reason,
    unreachable,
)
from isolet.plan.status import Mark, Picture, Verdict, listed
from isolet.plan.values import Wait

ALREADY_ENDED = "AlreadyEnded"
"""An agent's reason: the uid is one of its tombstones."""

_ABOUT_THE_REQUEST = {"NodePolicy": reasons.NOT_ALLOWED}
"""Refusals by their reason on the wire. One that is not listed (a certificate's identity, for
instance) is about the caller, and tried again."""

_ABOUT_THE_EXECUTION = {"NotRunning": None, "NotASession": reasons.INVALID_SPEC}
"""Conflicts with the Execution that a Process is to run in. One that does not run (yet, or any
more) is waited for: what becomes of it is told by its own record."""

_WAITING = {
    "NotRunning": reasons.AWAITING_EXECUTION,
    "NotFound": reasons.AWAITING_EXECUTION,
    "TooManyProcesses": reasons.AWAITING_TURN,
}
"""What the agent says of a Process's Execution, as a reason to wait."""


def absent(seen: Observed, bound: Binding | None, facts: NodeFacts) -> Plan:
    """The agent was asked, and has neither record nor tombstone."""
    assert facts.report is not None
    if bound is None:
        why = "its binding cannot be read and the node has no record: it is not run again"
        return fenced(seen, bound, facts, reasons.START_UNCONFIRMED, why)
    ran = seen.object.status.start_time is not None
    if facts.report.epoch != bound.epoch:
        why = f"the agent of node {facts.name} has lost the records it had when this was bound"
        reason = reasons.CONTAINER_LOST if ran else reasons.START_UNCONFIRMED
        return fenced(seen, bound, facts, reason, why)
    if ran:
        why = f"it ran, and node {facts.name} has no record of it any more"
        return fenced(seen, bound, facts, reasons.CONTAINER_LOST, why)
    refused = refusal_of(seen, facts)
    if refused is not None:
        return finish(seen, bound, refused)
    if not can_talk(facts):
        return unreachable(seen, bound, facts)
    if seen.object.ending or stop_reason(seen, facts):
        return _end_unstarted(seen, bound, facts)
    return start(seen, bound, facts, None)


def again(seen: Observed, bound: Binding | None, facts: NodeFacts, record: Record) -> Plan:
    """The agent has a record and no values: it restarted before it had started anything."""
    refused = refusal_of(seen, facts)
    if refused is not None:
        return finish(seen, bound, refused, record)
    if bound is None:
        why = "its binding cannot be read, so it cannot be started"
        return fenced(seen, bound, facts, reasons.CORRUPT, why)
    return start(seen, bound, facts, record)


def fenced(seen: Observed, bound: Binding | None, facts: NodeFacts, reason: str, why: str) -> Plan:
    """The end without the agent's word; whatever may still come is kept from starting."""
    verdict = Verdict(succeeded=False, reason=reason, message=why)
    fence = (removal(seen, facts),) if can_talk(facts) else ()
    return finish(seen, bound, verdict, actions=fence)


def _end_unstarted(seen: Observed, bound: Binding, facts: NodeFacts) -> Plan:
    """It is to end and never began. A start may still be on its way, so the agent has to say so."""
    picture = Picture(
        scheduled=scheduled(seen),
        progress=Mark(
            Status.UNKNOWN,
            reasons.CANCEL_REQUESTED,
            f"waiting for node {facts.name} to confirm that it will not start",
        ),
        reconciling=True,
        binding=bound,
    )
    return publishing.make(
        seen,
        picture,
        # The answer to the first attempt is the end; only a failed one is worth a word.
        worth_from=seen.now if seen.failure is not None else None,
        actions=(removal(seen, facts),),
        looks=(seen.now + LOOK,),
    )


def refusal_of(seen: Pass, facts: NodeFacts) -> Verdict | None:
    """What the agent said to the last attempt to start it, where repeating it cannot help."""
    failure = seen.failure
    if failure is None or failure.action != Put.__name__ or failure.node != facts.name:
        return None
    reason = _final_reason(failure)
    if reason is None:
        return None
    said = f"node {facts.name}: {failure.message}"
    return Verdict(succeeded=False, reason=reason, message=said)


def _final_reason(failure: Failure) -> str | None:
    match failure.kind:
        case ErrorKind.INVALID:
            return listed(failure.reason, reasons.INVALID_REQUEST)
        case ErrorKind.REFUSED:
            known = _ABOUT_THE_REQUEST.get(failure.reason, failure.reason)
            return known if reasons.family(known) is reasons.Family.REFUSED else None
        case ErrorKind.CONFLICT:
            if failure.reason in _ABOUT_THE_EXECUTION:
                return _ABOUT_THE_EXECUTION[failure.reason]
            ended = failure.reason == ALREADY_ENDED
            return reasons.START_UNCONFIRMED if ended else reasons.CONFLICT
        case _:
            return None


def start(seen: Observed, bound: Binding, facts: NodeFacts, record: Record | None) -> Plan:
    """Send the spec, with exactly the values that were pinned."""
    pinned = bound.effective
    if pinned is None:
        why = "its spec could not be pinned when it was adopted, so it cannot be started"
        return fenced(seen, bound, facts, reasons.CORRUPT, why)
    late = hosted.over(seen, pinned) if isinstance(pinned, Inside) else None
    if late is not None and record is None:
        return fenced(seen, bound, facts, reasons.EXECUTION_ENDED, late)
    changed = values.inputs_changed(pinned.inputs, seen.inputs)
    wanted = changed or messages.wanted(
        seen.object, pinned, seen.inputs, seen.object.metadata.generation
    )
    if not isinstance(wanted, Wait):
        return _send(seen, bound, facts, record, wanted)
    if wanted.reason == reasons.INVALID_SPEC:
        return fenced(seen, bound, facts, reasons.INVALID_SPEC, wanted.message)
    progress = Mark(Status.UNKNOWN, wanted.reason, wanted.message)
    return going(seen, bound, facts, record, progress, flags=(Flag.AWAITING_INPUTS,))


def _send(
    seen: Observed, bound: Binding, facts: NodeFacts, record: Record | None, wanted: messages.Wanted
) -> Plan:
    what, source = restoring.restored(bound), None
    if what is not None:
        source = restoring.source(seen, facts, what)
        if source is None:
            text = f"Checkpoint {what.name}: {restoring.nowhere(seen, what)}"
            waits = Mark(Status.UNKNOWN, reasons.CHECKPOINT_UNAVAILABLE, text)
            return going(seen, bound, facts, record, waits)
    put = Put(node=facts.name, wanted=wanted, source=source)
    return going(seen, bound, facts, record, _put_progress(seen, facts), (put,))


def _put_progress(seen: Observed, facts: NodeFacts) -> Mark:
    failure = seen.failure
    if failure is None or failure.action != Put.__name__:
        return Mark(Status.UNKNOWN, reasons.PREPARING, "the sandbox is being made")
    known = _WAITING if seen.object.host is not None else {}
    reason = listed(known.get(failure.reason, failure.reason), reasons.UNAVAILABLE)
    return Mark(Status.UNKNOWN, reason, f"node {facts.name}: {failure.message}")
