"""An Execution that starts from a Checkpoint: which one, and from where its content can come. PURE.

The Checkpoint is looked up by name until the binding pins its uid and digests. From then on those
hold, and only where the content comes from is looked at anew, since nodes come and go.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from isolet.api import conditions as cond
from isolet.api import reasons
from isolet.api.checkpoint import CheckpointStatus, LocationType
from isolet.plan.actions import Source
from isolet.plan.binding import Binding, Restored
from isolet.plan.model import Absent, Known, NodeFacts, Observed
from isolet.plan.objects import CheckpointFacts
from isolet.plan.standing import CONTENT_MISSING, RENEW, can_talk
from isolet.plan.values import Refusal, Wait
from isolet.wire.checkpoint import CheckpointObserved, StoreCopy

GRANT_SECONDS = 600
"""For so long a grant may be used to begin to read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The Checkpoint that an object starts from, once it is ready."""

    restored: Restored
    status: CheckpointStatus


def origin(seen: Observed, name: str) -> Origin | Refusal | Wait:
    """The Checkpoint of that name, or why nothing can start from it (yet)."""
    if isinstance(seen.checkpoint, Absent):
        return Wait(reasons.AWAITING_CHECKPOINT, f"Checkpoint {name} is not there")
    if not isinstance(seen.checkpoint, Known):
        text = f"Checkpoint {name} could not be read"
        return Wait(reasons.AWAITING_CHECKPOINT, text, sure=False)
    found = seen.checkpoint.value
    if found.deleting:
        # Another of its name may follow.
        return Wait(reasons.AWAITING_CHECKPOINT, f"Checkpoint {name} is being deleted")
    if not found.over:
        return Wait(reasons.AWAITING_CHECKPOINT, f"Checkpoint {name} is not ready yet")
    digests = found.status.manifest_digest, found.status.content_digest
    if digests[0] is None or digests[1] is None:
        return Refusal(reasons.CHECKPOINT_UNAVAILABLE, f"Checkpoint {name} failed: {_why(found)}")
    restored = Restored(
        name=name, uid=found.uid, manifest_digest=digests[0], content_digest=digests[1]
    )
    return Origin(restored=restored, status=found.status)


def _why(found: CheckpointFacts) -> str:
    ready = cond.get(found.status.conditions, cond.READY)
    return f"{ready.reason}: {ready.message}" if ready else "nothing is known of the cause"


def restored(bound: Binding | None) -> Restored | None:
    """What was pinned."""
    return bound.pinned.restored if bound is not None and bound.pinned is not None else None


def holders(nodes: Iterable[NodeFacts]) -> tuple[NodeFacts, ...]:
    """Nodes with a whole copy that is not on its way out."""
    return tuple(
        facts
        for facts in sorted(nodes, key=lambda n: n.name)
        if (record := _record(facts)) is not None and record.on_node and not record.removing
    )


def stored(seen: Observed, uid: str) -> StoreCopy | None:
    """A copy in an object store."""
    for facts in sorted(seen.nodes, key=lambda n: n.name):
        record = _record(facts)
        if record is not None and record.in_store is not None and not record.removing:
            return record.in_store
    found = seen.checkpoint.value if isinstance(seen.checkpoint, Known) else None
    if found is None or found.uid != uid:
        return None
    for item in found.status.locations or ():
        if item.type is LocationType.OBJECT_STORE and item.key:
            return StoreCopy(store=item.name, key=item.key)
    return None


def _record(facts: NodeFacts) -> CheckpointObserved | None:
    return facts.checkpoint.value if isinstance(facts.checkpoint, Known) else None


def source(seen: Observed, target: NodeFacts, what: Restored) -> Source | None:
    """Where this node can have the content from; None: from nowhere at the moment."""
    copy = stored(seen, what.uid)
    if copy is not None and not _has_store(target, copy):
        copy = None
    having = holders(seen.nodes)
    if any(facts.name == target.name for facts in having):
        return Source(checkpoint_uid=what.uid, in_store=copy)
    peer = next((facts for facts in having if _serves(facts)), None)
    if peer is None:
        return Source(checkpoint_uid=what.uid, in_store=copy) if copy is not None else None
    return Source(
        checkpoint_uid=what.uid,
        reader=_certified(target),
        peer=peer.name,
        peer_name=_certified(peer),
        endpoint=peer.object.spec.endpoint,
        in_store=copy,
    )


def _certified(facts: NodeFacts) -> str:
    return facts.object.spec.server_name or facts.name


def _has_store(facts: NodeFacts, copy: StoreCopy) -> bool:
    return facts.report is not None and copy.store in facts.report.object_stores


def _serves(facts: NodeFacts) -> bool:
    """Whether other agents can read from it now. A node that is drained still serves."""
    off = facts.object.spec.out_of_service is not None
    return can_talk(facts) and not off and facts.object.spec.endpoint.startswith("https://")


def nowhere(seen: Observed, what: Restored) -> str:
    """Why no copy can be reached, for people."""
    having = [f"{facts.name} ({_not_serving(facts)})" for facts in holders(seen.nodes)]
    copy = stored(seen, what.uid)
    if copy is not None:
        having.append(f"object store {copy.store} (which the node does not have)")
    if having:
        return f"copies are on {', '.join(having)}"
    found = seen.checkpoint.value if isinstance(seen.checkpoint, Known) else None
    places = ", ".join(item.name for item in (found.status.locations or ())) if found else ""
    return f"a copy was last seen on {places}" if places else "no copy of it is left"


def _not_serving(facts: NodeFacts) -> str:
    if facts.object.spec.out_of_service is not None:
        return "out of service"
    if not can_talk(facts):
        return "does not answer"
    return "reached only from its own machine"


def needed_again(seen: Observed, what: Restored | None, reason: str) -> bool:
    """Whether a node that waits for the content for this reason is to be told anew where it is."""
    if what is None or reason not in CONTENT_MISSING:
        return False
    return seen.granted_at is None or seen.granted_at + RENEW <= seen.now
