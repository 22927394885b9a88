"""One pass over one Checkpoint: everything observed goes in, a `Plan` comes out. PURE.

Called by `operator.reconcile`. As for an Execution, deletion wins, then what is written, then the
node it is bound to. It is bound to the node of its Execution, and outlives it. What cannot be taken
ends in seconds; what waits says for what, and until when.
"""

from datetime import datetime, timedelta

from isolet.api import meta, reasons
from isolet.api.conditions import Status
from isolet.plan import binding, checkpoint_gone, checkpoint_source, starting
from isolet.plan.actions import Action, Bind, DeleteObject, Plan, Put
from isolet.plan.binding import Binding, Taking
from isolet.plan.checkpoint_copies import copies
from isolet.plan.checkpoint_status import View, make
from isolet.plan.model import CheckpointPass, ErrorKind, Known, NodeFacts, Unknown, surely
from isolet.plan.standing import LOOK, can_talk, removal, silence, silence_is_worth_a_word
from isolet.plan.status import Mark, Verdict, listed
from isolet.plan.values import Refusal, Wait
from isolet.wire import http
from isolet.wire.checkpoint import CheckpointObserved, CheckpointSpec, CheckpointWanted

MISSING_PATIENCE = timedelta(seconds=5)
"""An Execution that is applied together with its Checkpoint may come a moment after it."""

START_PATIENCE = timedelta(seconds=60)
"""For so long an Execution that does not run yet, or whose node is silent, is waited for."""

_IN_THE_END = {
    reasons.AWAITING_EXECUTION: reasons.NOT_RUNNING,
    reasons.NODE_UNREACHABLE: reasons.CHECKPOINT_FAILED,
}
"""What waiting too long becomes."""

TAKING_PATIENCE = timedelta(seconds=5)
"""A Checkpoint that is taken faster is only written as ready."""


def plan(seen: CheckpointPass) -> Plan:
    """What to do about this Checkpoint now, and what to say of it."""
    if seen.object.deleting:
        return checkpoint_gone.plan(seen)
    repair = _finalizer_missing(seen)
    if repair is not None:
        return repair
    if seen.object.over:
        return _after_the_end(seen)
    if seen.object.node_name is None:
        return _pending(seen)
    return _bound(seen)


def _finalizer_missing(seen: CheckpointPass) -> Plan | None:
    """Somebody took our finalizer off a bound object: put it back before anything else."""
    node, metadata = seen.object.node_name, seen.object.metadata
    if node is None or meta.FINALIZER in metadata.finalizers:
        return None
    text = metadata.annotations.get(binding.ANNOTATION, "")
    return Plan(actions=(_bind_action(seen, node, text),), status=seen.object.status)


# Not bound yet.


def _pending(seen: CheckpointPass) -> Plan:
    holder = next(
        (
            n
            for n in sorted(seen.nodes, key=lambda n: n.name)
            if isinstance(n.checkpoint, Known) and not n.checkpoint.value.nothing_left
        ),
        None,
    )
    admitted = checkpoint_source.admit(seen)
    if holder is not None:
        # An agent has it already: etcd was set back to before the binding.
        taking = admitted if isinstance(admitted, Taking) else None
        return _bind(seen, holder, taking)
    if isinstance(admitted, Refusal):
        return _end(seen, admitted.reason, admitted.message)
    if isinstance(admitted, Wait):
        return _wait(seen, admitted)
    facts = checkpoint_source.node_of(seen)
    if facts is None or facts.report is None or not can_talk(facts):
        text = f"the node of Execution {admitted.execution_name} does not answer"
        return _wait(seen, Wait(reasons.NODE_UNREACHABLE, text))
    return _bind(seen, facts, admitted, start=True)


def _wait(seen: CheckpointPass, wait: Wait) -> Plan:
    created = seen.object.metadata.creation_timestamp or seen.now
    since = max(created, seen.leader_since)
    missing = wait.reason == reasons.NOT_FOUND
    patience = MISSING_PATIENCE if missing else START_PATIENCE
    if wait.sure and since + patience <= seen.now:
        final = _IN_THE_END.get(wait.reason, wait.reason)
        return _end(seen, final, f"{wait.message}, for {patience.total_seconds():.0f} s")
    reason = reasons.AWAITING_EXECUTION if missing else wait.reason
    return make(
        seen,
        View(progress=Mark(Status.UNKNOWN, reason, wait.message)),
        worth_from=since + TAKING_PATIENCE,
        looks=(since + patience, seen.now + LOOK),
    )


def _end(
    seen: CheckpointPass,
    reason: str,
    message: str,
    *,
    record: CheckpointObserved | None = None,
    actions: tuple[Action, ...] = (),
) -> Plan:
    """It failed, and does not get better by waiting."""
    verdict = Verdict(
        succeeded=False,
        reason=reason,
        message=message,
        ended_at=record.ended_at if record else None,
    )
    return make(
        seen,
        View(verdict=verdict, taking=_taking(seen), record=record),
        worth_from=seen.now,
        actions=actions,
    )


def _bind(
    seen: CheckpointPass, facts: NodeFacts, taking: Taking | None, *, start: bool = False
) -> Plan:
    """The one patch; where nothing is known of it anywhere, the message goes right behind it."""
    bound = Binding(
        uid=seen.object.uid,
        epoch=facts.report.epoch if facts.report else "",
        boot_id=facts.report.boot_id if facts.report else "",
        bound_at=seen.now,
        taking=taking,
    )
    actions: list[Action] = [_bind_action(seen, facts.name, bound.annotation())]
    if start and taking is not None:
        # Writing spec.nodeName makes the next generation of the object.
        actions.append(_put(seen, facts, taking, seen.object.metadata.generation + 1))
    return make(
        seen,
        View(progress=_checkpointing(), taking=taking),
        worth_from=None,
        actions=actions,
        looks=(seen.now + TAKING_PATIENCE,),
    )


def _bind_action(seen: CheckpointPass, node: str, annotation: str) -> Bind:
    finalizers = seen.object.metadata.finalizers
    return Bind(
        object=seen.object.ref,
        node=node,
        annotation=annotation,
        finalizers=finalizers if meta.FINALIZER in finalizers else (*finalizers, meta.FINALIZER),
    )


def _put(seen: CheckpointPass, facts: NodeFacts, taking: Taking, generation: int) -> Put:
    spec = seen.object.spec
    wanted = CheckpointWanted(
        uid=seen.object.uid,
        namespace=seen.object.namespace,
        name=seen.object.metadata.name,
        generation=generation,
        spec=CheckpointSpec(
            execution_uid=taking.execution_uid, reason=(spec.reason or "") if spec else ""
        ),
    )
    return Put(node=facts.name, wanted=wanted)


def _checkpointing() -> Mark:
    return Mark(Status.UNKNOWN, reasons.CHECKPOINTING, "the workspace is being taken")


# Bound, and not over.


def _bound(seen: CheckpointPass) -> Plan:
    facts = next((n for n in seen.nodes if n.name == seen.object.node_name), None)
    if facts is None:
        if seen.nodes_complete:
            why = f"ExecutionNode {seen.object.node_name} was deleted"
            return _end(seen, reasons.NODE_LOST, why)
        return _unreachable(seen, None)
    record = facts.checkpoint.value if isinstance(facts.checkpoint, Known) else None
    if record is not None and record.outcome is not None:
        return _outcome(seen, record)
    off = facts.object.spec.out_of_service
    if off is not None:
        why = f"node {facts.name} was declared out of service: {off.reason}"
        return _end(seen, reasons.NODE_LOST, why, record=record)
    if record is not None:
        return _known(seen, facts, record)
    if isinstance(facts.checkpoint, Unknown) or facts.report is None:
        return _unreachable(seen, facts)
    return _absent(seen, facts)


def _outcome(seen: CheckpointPass, record: CheckpointObserved) -> Plan:
    outcome = record.outcome
    assert outcome is not None
    whole = outcome.succeeded and record.manifest is not None and record.manifest_digest is not None
    fallback = reasons.CHECKPOINT_READY if whole else reasons.CHECKPOINT_FAILED
    reason = listed(outcome.reason, fallback)
    said = outcome.message if reason == outcome.reason else f"{outcome.reason}: {outcome.message}"
    if not whole:
        reason = reasons.CHECKPOINT_FAILED if outcome.succeeded else reason
        return _end(seen, reason, said, record=record)
    verdict = Verdict(succeeded=True, reason=reason, message=said, ended_at=record.ended_at)
    found = copies(seen)
    return make(
        seen,
        View(
            verdict=verdict,
            taking=_taking(seen),
            record=record,
            locations=found.locations,
            left=found.lost,
            behind=found.behind,
        ),
        worth_from=seen.now,
    )


def _known(seen: CheckpointPass, facts: NodeFacts, record: CheckpointObserved) -> Plan:
    if record.nothing_left or record.removing:
        why = f"node {facts.name} was told to remove it"
        return _end(seen, reasons.CHECKPOINT_FAILED, why, record=record)
    if not facts.reachable:
        return _unreachable(seen, facts, record)
    waiting = record.waiting
    mark = _checkpointing()
    if waiting is not None and waiting.reason != reasons.CHECKPOINTING:
        reason = listed(waiting.reason, reasons.UNAVAILABLE)
        mark = Mark(Status.UNKNOWN, reason, waiting.message)
    return _going(seen, mark, record)


def _going(
    seen: CheckpointPass,
    mark: Mark,
    record: CheckpointObserved | None = None,
    actions: tuple[Action, ...] = (),
) -> Plan:
    bound = binding.read(seen.object)
    since = bound.bound_at if bound is not None else seen.now
    return make(
        seen,
        View(progress=mark, taking=_taking(seen), record=record),
        worth_from=since + TAKING_PATIENCE,
        actions=actions,
        looks=(seen.now + LOOK,),
    )


def _unreachable(
    seen: CheckpointPass, facts: NodeFacts | None, record: CheckpointObserved | None = None
) -> Plan:
    """It may have been taken: nothing is said to have failed before somebody knows."""
    mark = Mark(Status.UNKNOWN, reasons.NODE_UNREACHABLE, silence(seen, facts))
    return make(
        seen,
        View(progress=mark, taking=_taking(seen), record=record),
        worth_from=silence_is_worth_a_word(seen, facts),
        looks=(seen.now + LOOK,),
    )


def _absent(seen: CheckpointPass, facts: NodeFacts) -> Plan:
    """The agent was asked, and has no record: tell it, unless it was told before."""
    bound, report = binding.read(seen.object), facts.report
    if bound is None or bound.taking is None:
        why = "its binding cannot be read and the node has no record of it"
        return _fenced(seen, facts, reasons.CORRUPT, why)
    if report is None or report.epoch != bound.epoch:
        why = f"the agent of node {facts.name} has lost the records it had when this was bound"
        return _fenced(seen, facts, reasons.CHECKPOINT_FAILED, why)
    refused = _refused(seen, facts, bound.taking)
    if refused is not None:
        return _end(seen, refused.reason, refused.message)
    if not can_talk(facts):
        return _unreachable(seen, facts)
    put = _put(seen, facts, bound.taking, seen.object.metadata.generation)
    return _going(seen, _checkpointing(), actions=(put,))


def _fenced(seen: CheckpointPass, facts: NodeFacts, reason: str, why: str) -> Plan:
    """The end without the agent's word; whatever may still come is kept from being taken."""
    fence = (removal(seen, facts),) if can_talk(facts) else ()
    return _end(seen, reason, why, actions=fence)


def _refused(seen: CheckpointPass, facts: NodeFacts, taking: Taking) -> Verdict | None:
    """What the agent said to the last attempt, where repeating it cannot help."""
    failure = seen.failure
    if failure is None or failure.action != Put.__name__ or failure.node != facts.name:
        return None
    if failure.reason == http.NO_SUCH_PATH:
        text = f"the agent of node {facts.name} is older and takes no Checkpoints: update it"
        return Verdict(succeeded=False, reason=reasons.UNSUPPORTED, message=text)
    if failure.kind is ErrorKind.NOT_FOUND:
        text = f"Execution {taking.execution_name} is not on node {facts.name} any more"
        return Verdict(succeeded=False, reason=reasons.NOT_RETAINED, message=text)
    if failure.reason == starting.ALREADY_ENDED:
        text = f"node {facts.name} had it before and has removed it"
        return Verdict(succeeded=False, reason=reasons.CHECKPOINT_FAILED, message=text)
    return starting.refusal_of(seen, facts)


def _taking(seen: CheckpointPass) -> Taking | None:
    bound = binding.read(seen.object)
    return bound.taking if bound is not None else None


# Over.


def _after_the_end(seen: CheckpointPass) -> Plan:
    """Say where copies are, and delete the object when its time is up."""
    expires = _expiry(seen)
    due = expires is not None and expires <= seen.now
    actions = (DeleteObject(object=seen.object.ref),) if due else ()
    found = copies(seen) if seen.object.taken else None
    return make(
        seen,
        View(
            taking=_taking(seen),
            locations=found.locations if found else None,
            left=found.lost if found else "",
            behind=found.behind if found else None,
        ),
        worth_from=None if due else seen.now,
        actions=actions,
        looks=(expires, seen.now + LOOK if actions else None),
    )


def _expiry(seen: CheckpointPass) -> datetime | None:
    """When the object is deleted, as the wall clock is now; None where it is kept.

    Reached exactly at that moment, and only once both clocks say so.
    """
    spec, completed = seen.object.spec, seen.object.status.completion_time
    if spec is None or spec.ttl_seconds_after_finished is None or completed is None:
        return None
    left = completed + timedelta(seconds=spec.ttl_seconds_after_finished) - surely(seen)
    return seen.now + left
