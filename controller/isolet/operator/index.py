"""Objects by where they are, bound to which node or waiting for one, and by whom they speak of.

Kept up to date by the cache, key by key. What a pass has decided to bind counts from that moment
(`assume`), before the API server has answered: two passes never promise the same room.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pydantic

from isolet.api import conditions, meta
from isolet.operator.kube import CHECKPOINTS, EXECUTIONS, PROCESSES, Key, Object
from isolet.plan import binding
from isolet.plan.objects import Facts
from isolet.plan.placement import Pending

_EPOCH = "1970-01-01T00:00:00Z"


@dataclass(slots=True)
class Bound:
    """An object with a node."""

    uid: str
    node: str
    finished: bool
    binding: binding.Binding | None


@dataclass(slots=True)
class Waiting:
    """An object without one, that is to be placed: what goes to its Execution's node never is."""

    uid: str
    created_at: datetime


@dataclass
class Ties:
    """Which unfinished objects name which other one, and whether each has started."""

    _to: dict[Key, Key] = field(default_factory=dict)
    _from: dict[Key, dict[Key, bool]] = field(default_factory=dict)

    def join(self, key: Key, other: Key, *, started: bool) -> None:
        """`key` names `other`."""
        self._to[key] = other
        self._from.setdefault(other, {})[key] = started

    def leave(self, key: Key) -> None:
        """`key` names nothing any more."""
        other = self._to.pop(key, None)
        if other is None:
            return
        siblings = self._from[other]
        siblings.pop(key, None)
        if not siblings:
            del self._from[other]

    def named_by(self, key: Key) -> Key | None:
        """What `key` names."""
        return self._to.get(key)

    def naming(self, other: Key) -> Mapping[Key, bool]:
        """Those that name `other`, and whether each has started."""
        return self._from.get(other, {})


@dataclass
class Index:
    """All of them, by key and by node."""

    bound: dict[Key, Bound] = field(default_factory=dict)
    waiting: dict[Key, Waiting] = field(default_factory=dict)
    inside_of: Ties = field(default_factory=Ties)
    """Processes and their Executions."""
    taken_of: Ties = field(default_factory=Ties)
    """Checkpoints and the Executions that they are taken from."""
    restored_from: Ties = field(default_factory=Ties)
    """Executions and the Checkpoints that they start from."""
    _by_node: dict[str, set[Key]] = field(default_factory=dict)
    _assumed: dict[str, tuple[str, binding.Binding]] = field(default_factory=dict)

    def put(self, key: Key, obj: Object | None) -> None:
        """Take in the newest state of a key; None: it is gone."""
        old = self.bound.pop(key, None)
        if old is not None:
            self._by_node[old.node].discard(key)
        self.waiting.pop(key, None)
        for ties in (self.inside_of, self.taken_of, self.restored_from):
            ties.leave(key)
        if obj is None:
            return
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        node, finished = spec.get("nodeName") or "", is_finished(obj, key.kind)
        if not finished:
            self._join(key, spec, started=bool((obj.get("status") or {}).get("startTime")))
        if node:
            self._assumed.pop(metadata["uid"], None)
            found = None if finished else _binding(metadata)
            self.bound[key] = Bound(metadata["uid"], node, finished, found)
            self._by_node.setdefault(node, set()).add(key)
        elif not finished and "deletionTimestamp" not in metadata and self._is_placed(key):
            created = datetime.fromisoformat(metadata.get("creationTimestamp") or _EPOCH)
            self.waiting[key] = Waiting(metadata["uid"], created)

    def inside(self, host: Key) -> Iterator[Key]:
        """Processes that name this Execution and have not finished."""
        return iter(tuple(self.inside_of.naming(host)))

    def beside(self, key: Key) -> Iterator[Key]:
        """Processes of the same Execution that have not started."""
        siblings = self.inside_of.naming(self.inside_of.named_by(key) or key)
        return iter([k for k, started in siblings.items() if not started and k != key])

    def restoring(self, checkpoint: Key, uid: str) -> Iterator[Key]:
        """Executions that are bound to start from this Checkpoint and are not written as started.

        Those that a pass has decided to bind are among them.
        """
        for key, started in tuple(self.restored_from.naming(checkpoint).items()):
            bound = None if started else self._binding_of(key)
            pinned = bound.pinned.restored if bound is not None and bound.pinned else None
            if pinned is not None and pinned.uid == uid:
                yield key

    def _binding_of(self, key: Key) -> binding.Binding | None:
        bound, waiting = self.bound.get(key), self.waiting.get(key)
        if bound is not None:
            return bound.binding
        assumed = self._assumed.get(waiting.uid) if waiting is not None else None
        return assumed[1] if assumed is not None else None

    def _is_placed(self, key: Key) -> bool:
        return key.kind != CHECKPOINTS.kind and self.inside_of.named_by(key) is None

    def _join(self, key: Key, spec: Mapping[str, Any], *, started: bool) -> None:
        source = (spec.get("executionRef") or {}).get("name")
        origin = (spec.get("restoreFrom") or {}).get("checkpointName")
        if source:
            ties = self.inside_of if key.kind == PROCESSES.kind else self.taken_of
            ties.join(key, Key(EXECUTIONS.kind, key.namespace, source), started=started)
        if origin:
            other = Key(CHECKPOINTS.kind, key.namespace, origin)
            self.restored_from.join(key, other, started=started)

    def on(self, node: str) -> Iterator[Key]:
        """Objects bound to a node, finished ones included."""
        return iter(tuple(self._by_node.get(node, ())))

    def unfinished(self, node: str) -> dict[str, binding.Binding]:
        """Bindings of what holds or will hold room on a node, by uid."""
        found = {
            item.uid: item.binding
            for key in self._by_node.get(node, ())
            if not (item := self.bound[key]).finished and item.binding is not None
        }
        for uid, (where, assumed) in self._assumed.items():
            if where == node:
                found[uid] = assumed
        return found

    def remaining(self, node: str) -> int:
        """How many objects bound to a node have not finished."""
        return sum(not self.bound[key].finished for key in self._by_node.get(node, ()))

    def assume(self, uid: str, node: str, bound: binding.Binding) -> None:
        """A pass is about to bind; counts until the object shows it or `unassume`."""
        self._assumed[uid] = node, bound

    def unassume(self, uid: str) -> None:
        """It was not bound after all, or nobody knows: the object will show it."""
        self._assumed.pop(uid, None)

    def pending(self) -> list[Pending]:
        """What waits, for `placement.fair_order`."""
        return [
            Pending(uid=item.uid, namespace=key.namespace, created_at=item.created_at)
            for key, item in self.waiting.items()
        ]

    def in_use(self) -> Mapping[str, int]:
        """How many objects each namespace has bound and unfinished."""
        return Counter(
            key.namespace
            for key, item in self.bound.items()
            if not item.finished and key.kind != CHECKPOINTS.kind
        )


def is_finished(obj: Object, kind: str = EXECUTIONS.kind) -> bool:
    """Whether the outcome is written."""
    status = obj.get("status") or {}
    if kind == CHECKPOINTS.kind:
        return bool(status.get("completionTime"))
    listed = status.get("conditions") or ()
    return any(
        item.get("type") == conditions.FINISHED and item.get("status") == "True" for item in listed
    )


def _binding(metadata: Mapping[str, Any]) -> binding.Binding | None:
    try:
        facts = Facts(metadata=meta.ObjectMeta.model_validate(metadata))
    except pydantic.ValidationError:
        return None
    return binding.read(facts)
