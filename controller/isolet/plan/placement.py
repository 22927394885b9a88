"""Where a sandbox goes: a pure function of its demand and the nodes.

Each node either can take it or lacks something, and the first thing it lacks is told. The texts
name what is asked for and not what is left, so that a full cluster does not rewrite every waiting
object each time something ends.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from isolet.base import names, quantity
from isolet.plan import amounts as room
from isolet.plan import binding, node
from isolet.plan.model import NodeFacts
from isolet.plan.objects import AnyRecord
from isolet.wire.node import Amounts, NodeObserved

ARCHITECTURE_LABEL = "kubernetes.io/arch"
HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Labels that every ExecutionNode has from its agent, unless the object says otherwise."""

_HUB = ("docker.io/", "index.docker.io/", "registry-1.docker.io/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What one sandbox asks of a node."""

    uid: str
    image: str
    runtime: str
    medium: str
    amounts: Amounts
    repository: str | None = None
    """The Git repository that its workspace begins with."""
    selectors: tuple[Mapping[str, str], ...] = ()
    """Labels that the node must have, the class's and the object's own."""
    content: Mapping[str, str] | None = None
    """Of a sandbox that starts from a Checkpoint: by node, what keeps its content from getting
    there; empty for a node that can have it. None for all others."""
    near: frozenset[str] = frozenset()
    """Nodes that have the content already. They come first."""
    warm: frozenset[str] = frozenset()
    """Nodes where a warm slot waits that it could be given. They come next."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A node, and the reference by which it knows the image."""

    node: NodeFacts
    run: str


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No node can take it now."""

    message: str
    image_missing: bool = False
    """Every node was read, some are fit, and none of all has the image."""
    content_missing: bool = False
    """Some node lacks nothing but a way to the Checkpoint's content."""
    repository_missing: bool = False
    """The same of the Git repository."""


def place(demand: Demand, nodes: Sequence[NodeFacts], installation: str = "") -> Chosen | Nowhere:
    """The node with most room left that lacks nothing; the order of `nodes` does not matter.

    One that has the Checkpoint's content already is preferred to any other, then one with a slot.
    """
    lacks = {facts.name: lack(demand, facts, installation) for facts in nodes}
    far = {
        name: text
        for name, text in (demand.content or {}).items()
        if text and name in lacks and lacks[name] is None
    }
    lacks |= far
    able = [facts for facts in nodes if lacks[facts.name] is None]
    if able:
        best = min(able, key=lambda facts: _rank(demand, facts))
        assert best.report is not None
        return Chosen(best, run_reference(best.report, demand.image) or demand.image)
    return Nowhere(
        message=_summary([text for text in lacks.values() if text is not None]),
        content_missing=bool(far),
        image_missing=_is_nowhere(
            nodes, installation, lambda report: run_reference(report, demand.image) is not None
        ),
        repository_missing=_is_nowhere(
            nodes, installation, lambda report: serves(report, demand.repository)
        ),
    )


def lack(demand: Demand, facts: NodeFacts, installation: str = "") -> str | None:
    """The first thing that keeps this node from taking it."""
    problem = closed(facts, installation)
    if problem is not None or facts.report is None:
        return problem or "not heard of yet"
    report = facts.report
    labels = labels_of(facts)
    for selector in demand.selectors:
        for key, value in sorted(selector.items()):
            if labels.get(key) != value:
                return f"without label {key}={value}"
    if demand.runtime not in report.runtimes:
        return f"without runtime {demand.runtime} qualified"
    if demand.medium not in report.media:
        return f"without {demand.medium} workspaces"
    if not serves(report, demand.repository):
        return f"without Git repository {demand.repository}"
    if run_reference(report, demand.image) is None:
        return f"without image {demand.image}"
    return _room(demand, facts)


def closed(facts: NodeFacts, installation: str = "") -> str | None:
    """Why the node takes no new work at all."""
    spec = facts.object.spec
    if spec.out_of_service is not None:
        return "out of service"
    if spec.drain is not None:
        return "draining"
    if spec.unschedulable:
        return "unschedulable"
    if not facts.reachable:
        return "unreachable"
    if facts.report is None or not facts.synced:
        return "not heard of yet"
    if node.common_wire(facts.report) is None:
        return "of an incompatible version"
    if node.stranger(facts.object, facts.report, installation) is not None:
        return "with an agent that is not the node's"
    bad = node.unfit(facts.report)
    return f"not ready ({bad.type})" if bad is not None else None


def labels_of(facts: NodeFacts) -> Mapping[str, str]:
    """The ExecutionNode's labels, with those that go without saying."""
    implied = {HOSTNAME_LABEL: facts.name}
    if facts.report is not None and facts.report.architecture:
        implied[ARCHITECTURE_LABEL] = facts.report.architecture
    return implied | facts.object.metadata.labels


def run_reference(report: NodeObserved, image: str) -> str | None:
    """How the agent is to be asked for the image: as it is if pinned, by id for a tag."""
    if image.startswith("sha256:"):
        return image if any(found.id == image for found in report.images) else None
    wanted = _short(image)
    if "@" in image:
        known = any(_short(d) == wanted for found in report.images for d in found.digests)
        return image if known else None
    return next((found.id for found in report.images if wanted in map(_short, found.tags)), None)


def serves(report: NodeObserved, repository: str | None) -> bool:
    """Whether workspaces can start from this Git repository there."""
    if repository is None or repository in report.repositories:
        return True
    root, slash, _ = repository.partition("/")
    return bool(slash) and f"{root}/*" in report.repositories


def _short(image: str) -> str:
    """Engines list Docker Hub's images without its name."""
    for host in _HUB:
        if image.startswith(host):
            return image.removeprefix(host).removeprefix("library/")
    return image.removeprefix("library/")


def _room(demand: Demand, facts: NodeFacts) -> str | None:
    assert facts.report is not None
    capacity = facts.report.capacity
    never = room.lacking(demand.amounts, Amounts(), capacity)
    if never:
        return f"too small for {_told(demand.amounts, never)}"
    used = facts.report.allocated.plus(facts.promised)
    return None if room.fits(demand.amounts, used, capacity) else "full"


def _told(amounts: Amounts, which: Iterable[str]) -> str:
    shown = {
        "cpu": quantity.format_milli_cpu(amounts.cpu_millis),
        "memory": quantity.format_bytes(amounts.memory_bytes),
        "workspace disk": quantity.format_bytes(amounts.disk_bytes),
        "executions": str(amounts.executions),
    }
    return ", ".join(f"{name} {shown[name]}" for name in which)


def _rank(demand: Demand, facts: NodeFacts) -> tuple[bool, bool, float, str]:
    """Content at hand, then a slot that waits, then least share of memory promised.

    Equals are drawn by hash, not name.
    """
    assert facts.report is not None
    used = facts.report.allocated.plus(facts.promised).plus(demand.amounts)
    share = used.memory_bytes / max(facts.report.capacity.memory_bytes, 1)
    drawn = names.short_digest(demand.uid, facts.name)
    return facts.name not in demand.near, facts.name not in demand.warm, share, drawn


def _summary(lacks: Sequence[str]) -> str:
    if not lacks:
        return "0/0 nodes: there is no ExecutionNode"
    counted = ", ".join(f"{count} {text}" for text, count in sorted(Counter(lacks).items()))
    return f"0/{len(lacks)} nodes can take it: {counted}"


def _is_nowhere(
    nodes: Sequence[NodeFacts], installation: str, has: Callable[[NodeObserved], bool]
) -> bool:
    """Final only if no node that could ever take it may have what it needs.

    A node that is out of service is no hope; one that was never read may be.
    """
    hopes = [facts for facts in nodes if facts.object.spec.out_of_service is None]
    if not all(facts.synced and facts.report is not None for facts in hopes):
        return False
    fit = any(closed(facts, installation) is None for facts in hopes)
    return fit and not any(facts.report is not None and has(facts.report) for facts in hopes)


def promised(
    bound: Mapping[str, binding.Binding],
    records: Mapping[str, AnyRecord],
    report: NodeObserved | None,
) -> Amounts:
    """What is bound to a node and not yet in its agent's `allocated`.

    Args:
        bound: bindings of the unfinished objects of this node, by uid.
        records: the agent's records as the operator follows them.
        report: the agent's account; it counts records up to its own sequence number.
    """
    total = Amounts()
    for uid, item in bound.items():
        record = records.get(uid)
        counted = record is not None and report is not None and record.sequence <= report.sequence
        if not counted:
            total = total.plus(binding.demand(item.pinned))
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """An object that waits for a node."""

    uid: str
    namespace: str
    created_at: datetime
    amounts: Amounts = field(default_factory=Amounts)


def fair_order(pending: Iterable[Pending], in_use: Mapping[str, int]) -> tuple[Pending, ...]:
    """The order in which waiting objects should be tried when room appears.

    Again and again the namespace that has least, counting what it has running and what it was just
    given; in each namespace the oldest first. So one namespace's thousand objects do not stand in
    front of another's one.

    Args:
        pending: the waiting objects.
        in_use: how many objects each namespace has bound and unfinished.
    """
    queues: dict[str, list[Pending]] = {}
    for item in sorted(pending, key=lambda p: (p.created_at, p.uid), reverse=True):
        queues.setdefault(item.namespace, []).append(item)
    heap = [(in_use.get(name, 0), queue[-1].created_at, name) for name, queue in queues.items()]
    heapq.heapify(heap)
    ordered = []
    while heap:
        has, _, name = heapq.heappop(heap)
        ordered.append(queues[name].pop())
        if queues[name]:
            heapq.heappush(heap, (has + 1, queues[name][-1].created_at, name))
    return tuple(ordered)
