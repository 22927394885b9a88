"""Executions and Processes by where they are: bound to which node, or waiting for one.

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
from isolet.operator.kube import EXECUTIONS, PROCESSES, Key, Object
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
    """An object without one, that is to be placed: a Process in an Execution never is."""

    uid: str
    created_at: datetime


@dataclass
class Index:
    """The two, by key and by node."""

    bound: dict[Key, Bound] = field(default_factory=dict)
    waiting: dict[Key, Waiting] = field(default_factory=dict)
    _hosts: dict[Key, Key] = field(default_factory=dict)
    _inside: dict[Key, dict[Key, bool]] = field(default_factory=dict)
    """Processes by their Execution, and whether each has started."""
    _by_node: dict[str, set[Key]] = field(default_factory=dict)
    _assumed: dict[str, tuple[str, binding.Binding]] = field(default_factory=dict)

    def put(self, key: Key, obj: Object | None) -> None:
        """Take in the newest state of a key; None: it is gone."""
        old = self.bound.pop(key, None)
        if old is not None:
            self._by_node[old.node].discard(key)
        self.waiting.pop(key, None)
        self._unjoin(key)
        if obj is None:
            return
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        node, finished = spec.get("nodeName") or "", is_finished(obj)
        if key.kind == PROCESSES.kind and not finished:
            self._join(key, spec, started=bool((obj.get("status") or {}).get("startTime")))
        if node:
            self._assumed.pop(metadata["uid"], None)
            found = None if finished else _binding(metadata)
            self.bound[key] = Bound(metadata["uid"], node, finished, found)
            self._by_node.setdefault(node, set()).add(key)
        elif not finished and "deletionTimestamp" not in metadata and key not in self._hosts:
            created = datetime.fromisoformat(metadata.get("creationTimestamp") or _EPOCH)
            self.waiting[key] = Waiting(metadata["uid"], created)

    def inside(self, host: Key) -> Iterator[Key]:
        """Processes that name this Execution and have not finished."""
        return iter(tuple(self._inside.get(host, ())))

    def beside(self, key: Key) -> Iterator[Key]:
        """Processes of the same Execution that have not started."""
        siblings = self._inside.get(self._hosts.get(key, key), {})
        return iter([k for k, started in siblings.items() if not started and k != key])

    def _join(self, key: Key, spec: Mapping[str, Any], *, started: bool) -> None:
        name = (spec.get("executionRef") or {}).get("name")
        if name:
            host = Key(EXECUTIONS.kind, key.namespace, name)
            self._hosts[key] = host
            self._inside.setdefault(host, {})[key] = started

    def _unjoin(self, key: Key) -> None:
        host = self._hosts.pop(key, None)
        if host is not None:
            others = self._inside[host]
            others.pop(key, None)
            if not others:
                del self._inside[host]

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
        return Counter(key.namespace for key, item in self.bound.items() if not item.finished)


def is_finished(obj: Object) -> bool:
    """Whether the outcome is written."""
    listed = (obj.get("status") or {}).get("conditions") or ()
    return any(
        item.get("type") == conditions.FINISHED and item.get("status") == "True" for item in listed
    )


def _binding(metadata: Mapping[str, Any]) -> binding.Binding | None:
    try:
        facts = Facts(metadata=meta.ObjectMeta.model_validate(metadata))
    except pydantic.ValidationError:
        return None
    return binding.read(facts)
