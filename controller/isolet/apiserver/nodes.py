"""The nodes as the front door knows them: read every few seconds, and asked in a good order.

Counts of ready slots are seconds old and other front doors take slots too, so they only say whom to
ask first. Whether there is a slot is what the agent answers.
"""

from collections import Counter
from dataclasses import dataclass

import pydantic

from isolet.api import conditions as cond
from isolet.api.conditions import Status
from isolet.api.executionnode import ExecutionNode
from isolet.base import log
from isolet.operator.kube import NODES, Cluster, ListOptions, Object

_log = log.get("apiserver")


@dataclass(frozen=True, slots=True)
class Node:
    """One agent, and what its object said when it was last read."""

    name: str
    endpoint: str
    is_open: bool = True
    """Takes new runs. What runs on one that does not can still be followed and ended."""
    ready: int = 0
    """Slots of the class that waited; 0 where the agent is not heard."""


class Nodes:
    """All nodes of the cluster."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._taken: Counter[str] = Counter()
        self._turn = 0

    def take_in(self, nodes: tuple[Node, ...]) -> None:
        """What was read just now."""
        self._nodes, self._taken = nodes, Counter()

    def any_open(self) -> bool:
        """Whether a node takes new runs."""
        return any(node.is_open for node in self._nodes)

    def find(self, name: str) -> Node | None:
        """The node of this name, whether or not it takes new runs."""
        return next((node for node in self._nodes if node.name == name), None)

    def in_order(self) -> list[Node]:
        """Whom to ask for a slot: most ready slots first, equals in turns."""
        self._turn += 1
        able = [node for node in self._nodes if node.is_open]
        at = self._turn % max(len(able), 1)
        turned = able[at:] + able[:at]
        return sorted(turned, key=lambda node: -self._left(node))

    def took(self, node: Node) -> None:
        """It gave a slot."""
        self._taken[node.name] += 1

    def had_none(self, node: Node) -> None:
        """It had none: it is asked last until it is read again."""
        self._taken[node.name] = max(self._taken[node.name], node.ready)

    def _left(self, node: Node) -> int:
        return max(node.ready - self._taken[node.name], 0)


async def read(cluster: Cluster, class_name: str) -> tuple[Node, ...]:
    """Every node that can be read, in the order of their names.

    One whose object is none of this version's is passed over: it closes itself and no other.

    Raises:
        Unavailable: the API server does not answer.
    """
    found, token = [], None
    while True:
        page = await cluster.list(NODES, ListOptions(token=token))
        found += [node for item in page.items if (node := _read(item, class_name)) is not None]
        token = page.token
        if token is None:
            return tuple(sorted(found, key=lambda node: node.name))


def _read(item: Object, class_name: str) -> Node | None:
    try:
        return _node(ExecutionNode.model_validate(item), class_name)
    except pydantic.ValidationError as error:
        name = item.get("metadata", {}).get("name")
        _log.warning("a node cannot be read", extra={"node": name, "errors": error.error_count()})
        return None


def _node(node: ExecutionNode, class_name: str) -> Node:
    spec, status = node.spec, node.status
    heard = cond.get(status.conditions, cond.READY)
    pools = status.pools if heard is not None and heard.status is Status.TRUE else None
    return Node(
        name=node.metadata.name,
        endpoint=spec.endpoint,
        is_open=not spec.unschedulable and spec.drain is None and spec.out_of_service is None,
        ready=sum(pool.ready or 0 for pool in pools or () if pool.class_name == class_name),
    )
