"""A Process in an Execution: may it begin there now, or why not? PURE.

Called by `pending` before the binding and by `starting` before the spec is sent. The Execution has
to be a session that runs; what is missing may still come, what has ended does not come back. Its
node, its bounds and its deadline are the Process's too, and its end is the end of the Process.
"""

from datetime import datetime

from isolet.api import process, reasons
from isolet.plan import binding, values
from isolet.plan.binding import Inside
from isolet.plan.model import Absent, Host, Known, NodeFacts, Observed, Unknown
from isolet.plan.status import decided
from isolet.plan.values import Refusal, Wait
from isolet.wire.execution import Step


def admit(seen: Observed) -> Inside | Refusal | Wait:
    """What is pinned with the binding to the Execution's node."""
    spec = seen.object.spec
    if not isinstance(spec, process.ProcessSpec):
        return Refusal(reasons.INVALID_SPEC, seen.object.invalid)
    name = seen.object.host or ""
    host = _host(seen, name)
    if not isinstance(host, Host):
        return host
    refusal = _never_takes_it(host, name) or _over_its_deadline(seen, host, name)
    if refusal is not None:
        return refusal
    pinned = _pinned(host)
    secrets = _secrets(seen, pinned.class_name if pinned else "")
    if secrets is not None:
        return secrets
    if pinned is None or not _runs(host):
        return Wait(reasons.AWAITING_EXECUTION, f"Execution {name} does not run (yet)")
    inputs = values.pin_inputs(spec, seen.inputs)
    if isinstance(inputs, Wait):
        return inputs
    return pinned.model_copy(update={"inputs": inputs})


def node_of(seen: Observed) -> NodeFacts | None:
    """The node of the Execution that the object names."""
    host = seen.host.value if isinstance(seen.host, Known) else None
    where = host.object.node_name if host else None
    return next((facts for facts in seen.nodes if facts.name == where), None)


def over(seen: Observed, inside: Inside) -> str | None:
    """Why the Execution that it was bound to can start nothing any more; None while it may."""
    name = inside.execution_name
    if isinstance(seen.host, Absent):
        return f"Execution {name} is gone"
    if isinstance(seen.host, Unknown):
        return None
    host = seen.host.value
    if host.object.uid != inside.execution_uid:
        return f"Execution {name} is gone: the one of that name is another"
    refusal = _ended(host, name)
    return refusal.message if refusal else None


def deadline(seen: Observed) -> datetime | None:
    """When the Execution ends at the latest, and whatever runs in it."""
    host = seen.host.value if isinstance(seen.host, Known) else None
    if host is None:
        return None
    record = host.record.value if isinstance(host.record, Known) else None
    return record.deadline_at if record is not None else host.object.status.deadline


def _host(seen: Observed, name: str) -> Host | Wait:
    match seen.host:
        case Known(value=host):
            return host
        case Absent():
            return Wait(reasons.AWAITING_EXECUTION, f"Execution {name} is not there")
        case _:
            return Wait(
                reasons.AWAITING_EXECUTION, f"Execution {name} could not be read", sure=False
            )


def _never_takes_it(host: Host, name: str) -> Refusal | None:
    if host.object.spec is not None and host.object.spec.command is not None:
        return Refusal(
            reasons.INVALID_SPEC,
            f"executionRef: Execution {name} has a command: only a session takes Processes",
        )
    # One that is being deleted may be followed by another of its name.
    return None if host.object.deleting else _ended(host, name)


def _ended(host: Host, name: str) -> Refusal | None:
    status = host.object.status
    told = next((c for c in status.conditions if c.type == "Succeeded"), None)
    if decided(status) and told is not None:
        return Refusal(
            reasons.EXECUTION_ENDED,
            f"Execution {name} has ended ({told.reason}); nothing had run",
        )
    record = host.record.value if isinstance(host.record, Known) else None
    if record is not None and record.outcome is not None:
        return Refusal(
            reasons.EXECUTION_ENDED,
            f"Execution {name} has ended ({record.outcome.reason}); nothing had run",
        )
    return None


def _over_its_deadline(seen: Observed, host: Host, name: str) -> Refusal | None:
    pinned, asked = _pinned(host), seen.object.asked_seconds
    if pinned is None or asked is None or asked <= pinned.maximum_deadline_seconds:
        return None
    return Refusal(
        reasons.DEADLINE_NOT_ALLOWED,
        f"timeoutSeconds {asked} is over the maximum {pinned.maximum_deadline_seconds} of"
        f" Execution {name}",
    )


def _pinned(host: Host) -> Inside | None:
    bound = binding.read(host.object)
    if bound is None or bound.pinned is None:
        return None
    return Inside(
        execution_name=host.object.metadata.name,
        execution_uid=host.object.uid,
        class_name=bound.pinned.class_name,
        maximum_deadline_seconds=bound.pinned.maximum_deadline_seconds,
    )


def _secrets(seen: Observed, class_name: str) -> Refusal | Wait | None:
    """Values from Secrets need the leave of the Execution's class, as it and the namespace are now.

    A session that runs keeps what was pinned for it; new values do not come in by a grant that was
    taken back.
    """
    places = values.from_secrets(seen.object.spec)
    if not places or not class_name:
        return None
    if not isinstance(seen.classes, Known):
        return Wait(reasons.PENDING, "the classes could not be read", sure=False)
    found = next((c for c in seen.classes.value if c.metadata.name == class_name), None)
    if found is None:
        return Wait(reasons.CLASS_NOT_FOUND, f"there is no ExecutionClass {class_name}")
    labels = seen.namespace_labels
    if not isinstance(labels, Known):
        gone = isinstance(labels, Absent)
        return Wait(reasons.PENDING, "its namespace could not be read", sure=gone)
    if not found.spec.namespace_selector.matches(dict(labels.value)):
        return Refusal(
            reasons.CLASS_NOT_ALLOWED,
            f"ExecutionClass {class_name} is not granted to namespace {seen.object.namespace} any"
            f" more (spec.namespaceSelector), so no values from Secrets: {', '.join(places)}",
        )
    if found.spec.env.allow_secret_refs:
        return None
    return Refusal(
        reasons.SECRET_NOT_ALLOWED,
        f"ExecutionClass {class_name} allows no values from Secrets: {', '.join(places)}",
    )


def _runs(host: Host) -> bool:
    """Whether it takes Processes: its agent says that it runs, and nobody wants it ended."""
    record = host.record.value if isinstance(host.record, Known) else None
    if record is None or record.step is not Step.RUNNING or record.removing:
        return False
    return not host.object.ending and not host.object.deleting
