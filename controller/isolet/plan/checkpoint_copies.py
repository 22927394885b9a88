"""Where whole copies of a Checkpoint lie. PURE.

A copy is told of as long as nothing speaks against it: the silence of a node does not, its deletion
and its agent's word do.
"""

from dataclasses import dataclass

from isolet.api.checkpoint import Location, LocationType
from isolet.plan.model import Absent, CheckpointPass, Known, NodeFacts
from isolet.plan.status import plausible
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.execution import Waiting


@dataclass(frozen=True, slots=True)
class Copies:
    """What is left of a Checkpoint."""

    locations: tuple[Location, ...]
    lost: str = ""
    """Why the node's copy is gone, if it is."""
    behind: Waiting | None = None
    """Why the agent cannot do what it still wants to, as to write a copy to a store."""


def copies(seen: CheckpointPass) -> Copies:
    """The copies as they are known now."""
    stored = seen.object.status.locations or ()
    in_store = tuple(item for item in stored if item.type is LocationType.OBJECT_STORE)
    name = seen.object.node_name
    facts = next((n for n in seen.nodes if n.name == name), None)
    if facts is None:
        if not seen.nodes_complete:
            return Copies(stored)
        return Copies(in_store, f"ExecutionNode {name}, which had the copy, was deleted")
    off = facts.object.spec.out_of_service
    if off is not None:
        why = f"node {name}, which has the copy, was declared out of service: {off.reason}"
        return Copies(in_store, why)
    match facts.checkpoint:
        case Known(value=record):
            return _of_record(seen, facts, record)
        case Absent():
            return Copies(in_store, f"the agent of node {name} has no record of it any more")
        case _:
            return Copies(stored)


def _of_record(seen: CheckpointPass, facts: NodeFacts, record: CheckpointObserved) -> Copies:
    found = []
    if record.on_node and not record.removing:
        found.append(_located(seen, record, facts.name, LocationType.NODE))
    if record.in_store is not None and not record.removing:
        copy = record.in_store
        found.append(_located(seen, record, copy.store, LocationType.OBJECT_STORE, copy.key))
    lost = f"node {facts.name} says that it has no copy any more"
    behind = record.waiting if found and not record.removing else None
    return Copies(tuple(found), lost, behind)


def _located(
    seen: CheckpointPass,
    record: CheckpointObserved,
    name: str,
    type_: LocationType,
    key: str | None = None,
) -> Location:
    """A copy, with the time at which it was first told of."""
    known = next(
        (
            item
            for item in seen.object.status.locations or ()
            if (item.type, item.name, item.key) == (type_, name, key)
        ),
        None,
    )
    if known is not None:
        return known
    earliest = seen.object.metadata.creation_timestamp or seen.now
    verified = plausible(record.ended_at, earliest, seen.now).replace(microsecond=0)
    return Location(name=name, type=type_, key=key, verified_time=verified)
