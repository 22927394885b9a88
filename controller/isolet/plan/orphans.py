"""Things on nodes whose object is gone: report them, and remove them when that is certain. PURE.

Called now and then by the operator's orphan loop. An object exists before any agent hears of it, so
a complete list that was begun after a record was seen and does not hold its uid proves that the
object is gone. That is still not enough to kill: a restored etcd says the same of live tenants. So
two lists have to agree, a grace has to pass, and where many things of one node are affected at once
the circuit breaker leaves them all alone until a person has looked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from isolet.api import meta
from isolet.base import names
from isolet.plan import node
from isolet.plan.actions import Action, Alert, DropTombstone, OrphanPlan, Remove, RemoveStrays
from isolet.plan.model import Held, OrphanNode, OrphanPass, OrphanPolicy, Tombstone
from isolet.plan.objects import kind_of

GRACE_SECONDS = 60.0
BREAKER_LEAST = 3
BREAKER_SHARE = 0.2
LOOK_SECONDS = 60.0

APPROVAL = f"{meta.GROUP}/remove-orphans"
"""Annotation on an ExecutionNode whose value is the agent's store epoch: somebody looked, and what
the circuit breaker kept may be removed."""

STOPPED = "OrphanRemovalStopped"
"""Reason of the alert."""

TOMBSTONE_LEAST = timedelta(minutes=10)
"""An agent's list of strays is a few seconds old; a node that comes back needs time to make it."""

TOMBSTONE_MOST = timedelta(days=30)
"""A node that has not come back by then will not, under this name."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One node's orphans that are certain."""

    facts: OrphanNode
    held: tuple[Held, ...]

    @property
    def alive(self) -> tuple[Held, ...]:
        """Those that are more than the record and output of something that has ended."""
        ended = {record.uid for record in self.facts.records if record.nothing_left}
        return tuple(held for held in self.held if held.name or held.uid not in ended)


def plan(seen: OrphanPass) -> OrphanPlan:
    """One pass over all nodes."""
    usable = [facts for facts in sorted(seen.nodes, key=_name) if _is_usable(facts)]
    buried = {(stone.node, stone.uid) for stone in seen.tombstones}
    suspects: dict[Held, float] = {}
    for facts in usable:
        for held in _without_object(seen, facts):
            if (held.node, held.uid) not in buried:
                suspects[held] = seen.suspects.get(held, seen.monotonic)
    certain = [
        _Verdict(
            facts, tuple(h for h in suspects if h.node == _name(facts) and _sure(seen, suspects, h))
        )
        for facts in usable
    ]
    stopped = {_name(v.facts) for v in certain if _is_too_much(v)}
    actions = [*_bury(seen, usable), *_tombstones_done(seen)]
    for verdict in certain:
        actions += _judge(seen, verdict, stopped=_name(verdict.facts) in stopped)
    return OrphanPlan(
        actions=(*actions, *_too_early(seen, suspects)),
        suspects=suspects,
        orphans={_name(v.facts): len(v.alive) for v in certain if v.alive},
        stopped=frozenset(stopped),
        look_again_in=GRACE_SECONDS / 2 if suspects else LOOK_SECONDS,
    )


def _name(facts: OrphanNode) -> str:
    return facts.object.metadata.name


def _is_usable(facts: OrphanNode) -> bool:
    """Whether what the agent holds is known now, and it can be asked to remove some."""
    report = facts.report
    if report is None or not facts.reachable or not facts.synced:
        return False
    off = facts.object.spec.out_of_service is not None
    return not off and node.common_wire(report) is not None and report.name == _name(facts)


def _held(facts: OrphanNode) -> Iterable[Held]:
    """Records that are not on their way out, and strays."""
    assert facts.report is not None
    epoch = facts.report.epoch
    for record in sorted(facts.records, key=lambda r: r.uid):
        if not record.removing:
            yield Held(_name(facts), epoch, record.uid, kind=kind_of(record))
    for stray in sorted(facts.report.strays, key=lambda s: (s.kind, s.name)):
        yield Held(_name(facts), epoch, stray.uid, stray.name)


def _without_object(seen: OrphanPass, facts: OrphanNode) -> Iterable[Held]:
    if not seen.lists:
        return
    newest = seen.lists[-1].uids
    yield from (held for held in _held(facts) if held.uid not in newest)


def _sure(seen: OrphanPass, suspects: Mapping[Held, float], held: Held) -> bool:
    """Two lists agree, the newer one was begun after the thing was seen, and a grace has passed."""
    since = suspects[held]
    if len(seen.lists) < 2 or any(held.uid in listed.uids for listed in seen.lists):
        return False
    return seen.lists[-1].started_at > since and seen.monotonic - since >= GRACE_SECONDS


def limit(live: int) -> int:
    """How many orphans of a node may be removed at once, of so many live records."""
    return max(BREAKER_LEAST, int(live * BREAKER_SHARE))


def _is_too_much(verdict: _Verdict) -> bool:
    report = verdict.facts.report
    live = sum(1 for record in verdict.facts.records if not record.nothing_left)
    if len({held.uid or held.name for held in verdict.alive}) <= limit(live):
        return False
    approved = verdict.facts.object.metadata.annotations.get(APPROVAL)
    return report is None or approved != report.epoch


def _judge(seen: OrphanPass, verdict: _Verdict, *, stopped: bool) -> list[Action]:
    where = _name(verdict.facts)
    if stopped:
        return [_stop(verdict)]
    if seen.policy is OrphanPolicy.REPORT:
        return []
    return _remove(where, verdict.held)


def _remove(where: str, held: Iterable[Held]) -> list[Action]:
    everything = tuple(held)
    actions: list[Action] = [
        Remove(node=where, uid=h.uid, kind=h.kind) for h in everything if not h.name
    ]
    strays = tuple(h.name for h in everything if h.name)
    return [*actions, RemoveStrays(node=where, names=strays)] if strays else actions


def _stop(verdict: _Verdict) -> Alert:
    where = _name(verdict.facts)
    epoch = verdict.facts.report.epoch if verdict.facts.report else ""
    return Alert(
        node=where,
        reason=STOPPED,
        message=(
            f"{len(verdict.alive)} things on node {where} have no object, too many at once to be"
            " believed: nothing is removed. Was etcd restored from a backup? If they may go,"
            f" annotate ExecutionNode {where} with {APPROVAL}={epoch}"
        ),
        key=names.short_digest(STOPPED, where, epoch),
    )


def _too_early(seen: OrphanPass, suspects: Mapping[Held, float]) -> list[Action]:
    """All objects were listed only once for a long while: what is gone cannot be told."""
    late = {h.node for h, since in suspects.items() if seen.monotonic - since >= GRACE_SECONDS}
    if len(seen.lists) != 1 or not late:
        return []
    return [
        Alert(
            node=where,
            reason=STOPPED,
            message=(
                f"node {where} holds things without an object, and the Executions have been listed"
                " only once since the operator began: nothing is removed before a second list"
            ),
            key=names.short_digest(STOPPED, where, "listed once"),
        )
        for where in sorted(late)
    ]


def _bury(seen: OrphanPass, usable: Iterable[OrphanNode]) -> list[Action]:
    """What was released without an agent's word is removed at once: somebody has decided it."""
    found: list[Action] = []
    for facts in usable:
        uids = {stone.uid for stone in seen.tombstones if stone.node == _name(facts)}
        found += _remove(_name(facts), (held for held in _held(facts) if held.uid in uids))
    return found


def _tombstones_done(seen: OrphanPass) -> list[Action]:
    usable = {_name(facts): facts for facts in seen.nodes if _is_usable(facts)}
    return [
        DropTombstone(uid=stone.uid, node=stone.node)
        for stone in sorted(seen.tombstones, key=lambda s: (s.node, s.uid))
        if _is_done(seen, stone, usable.get(stone.node))
    ]


def _is_done(seen: OrphanPass, stone: Tombstone, facts: OrphanNode | None) -> bool:
    age = seen.now - stone.written_at
    if age >= TOMBSTONE_MOST:
        return True
    if facts is None or facts.report is None or age < TOMBSTONE_LEAST:
        return False
    if node.unfit(facts.report) is not None:
        return False  # Its list of strays may be an old one: the engine is not asked.
    left = {record.uid for record in facts.records if not record.nothing_left}
    left |= {stray.uid for stray in facts.report.strays}
    return stone.uid not in left
