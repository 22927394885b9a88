"""How many warm slots there should be, which go, and which is given. PURE.

A slot is made, becomes ready, and is then given away or retired; it never comes back. Slots fill
only room that nothing else holds, and are the first to give it back. One that is being retired
still holds its room and counts, so that a slow engine does not make a pool grow past its size.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from isolet.wire.node import Amounts
from isolet.wire.pool import PoolWanted

DEMAND_SECONDS = 60.0
"""A pool that follows demand is as large as what was asked of it in this time."""

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
"""How long no slot is made after one that did not become ready, twice as long each time."""

READY_SECONDS = 120.0
"""How long a slot may take to run. Its runner, if it has one, has a startup budget besides."""

LOOK_SECONDS = 30.0


class SlotLife(StrEnum):
    """How far a slot is."""

    CREATING = "creating"
    READY = "ready"
    RETIRING = "retiring"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A slot that nobody was given."""

    uid: str
    pool: str
    """Digest of the pool that it was made for."""
    life: SlotLife
    made_at: float = 0.0
    ready_since: float | None = None
    """Since when it runs, on the boot-time clock; set exactly when it is ready."""
    reserved: bool = False
    """Somebody is about to be given it."""
    amounts: Amounts = Amounts()
    """The room that it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A wanted pool and what was seen of it."""

    wanted: PoolWanted
    asked: tuple[float, ...] = ()
    """When slots were asked for of late, on the boot-time clock."""
    waiting: int = 0
    """Records that wait for one now."""
    failures: int = 0
    """Slots in a row that did not become ready."""
    failed_at: float | None = None
    failed_why: str = ""
    """What came of the last one."""


@dataclass(frozen=True, slots=True)
class Make:
    """Make one slot for the pool of this digest."""

    pool: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Remove an unused slot."""

    uid: str
    why: str
    failed: bool = False
    """It did not become ready in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolDecision:
    """What to do now, and when to look again at the latest (seconds, more than 0)."""

    actions: tuple[Make | Retire, ...]
    look_again_in: float
    short: tuple[tuple[str, str], ...] = ()
    """Digests of pools that have fewer slots than wanted, and what is in the way."""


def decide(
    pools: Sequence[Pool], slots: Sequence[Slot], room: Amounts, now: float, *, closed: bool = False
) -> PoolDecision:
    """One look at all pools.

    Args:
        pools: the wanted ones.
        slots: every slot that nobody was given, retiring ones included.
        room: what the node has left beside all work and all slots; below 0 where work took more.
        now: the boot-time clock.
        closed: make none, as on a node whose agent is leaving or whose runtime is not qualified.
    """
    by_digest = {pool.wanted.digest(): pool for pool in pools}
    retired = _retired(by_digest, slots, room, now)
    gone = {action.uid for action in retired}
    kept = [slot for slot in slots if slot.uid not in gone]
    leaving = Counter(
        slot.pool for slot in slots if slot.uid in gone or slot.life is SlotLife.RETIRING
    )
    actions: list[Make | Retire] = list(retired)
    short = []
    for digest, pool in by_digest.items():
        made, why = _made(pool, [s for s in kept if s.pool == digest], leaving[digest], room, now)
        if closed:
            made, why = 0, "the node takes no work"
        room = room.plus(demand(pool.wanted), -made)
        actions += [Make(digest)] * made
        if why:
            short.append((digest, why))
    return PoolDecision(
        actions=tuple(actions),
        look_again_in=_next_look(by_digest, kept, now),
        short=tuple(short),
    )


def target(pool: Pool, now: float) -> int:
    """How many should be ready."""
    recent = sum(1 for at in pool.asked if now - at < DEMAND_SECONDS)
    return max(pool.wanted.minimum, min(pool.wanted.maximum, max(recent, pool.waiting)))


def choose(wanted: PoolWanted, slots: Iterable[Slot], now: float, *, ahead: int = 0) -> Slot | None:
    """The slot to give to one before whom so many others are to be served."""
    able = to_give(wanted, slots, now)
    return able[0] if len(able) > ahead else None


def to_give(wanted: PoolWanted, slots: Iterable[Slot], now: float) -> list[Slot]:
    """Those ready and not too old, the one that has waited longest first.

    One that is too old is passed over wherever it stands; it goes when the pool is next looked at.
    """
    digest = wanted.digest()
    able = [
        slot
        for slot in slots
        if slot.pool == digest
        and slot.life is SlotLife.READY
        and not slot.reserved
        and not _is_old(wanted, slot, now)
    ]
    return sorted(able, key=lambda slot: (slot.ready_since or 0.0, slot.uid))


def demand(wanted: PoolWanted) -> Amounts:
    """What one slot takes of the node's room."""
    return Amounts.of_sandbox(wanted.resources, wanted.medium)


def _is_old(wanted: PoolWanted, slot: Slot, now: float) -> bool:
    since = slot.ready_since
    return since is not None and now - since >= _idle_seconds(wanted)


def _is_late(wanted: PoolWanted, slot: Slot, now: float) -> bool:
    return slot.life is SlotLife.CREATING and now - slot.made_at >= _ready_seconds(wanted)


def _idle_seconds(wanted: PoolWanted) -> int:
    """How old a slot may become: its age counts from when it ran, not from when it was ready."""
    return wanted.startup_seconds + wanted.idle_timeout_seconds


def _ready_seconds(wanted: PoolWanted) -> float:
    return READY_SECONDS + wanted.startup_seconds


def _retired(
    pools: dict[str, Pool], slots: Sequence[Slot], room: Amounts, now: float
) -> list[Retire]:
    """Slots of no wanted pool, those too old, those over the size, and those in the way of work."""
    idle = [s for s in slots if s.life is not SlotLife.RETIRING and not s.reserved]
    found = {slot.uid: "its pool is not wanted" for slot in idle if slot.pool not in pools}
    failed: set[str] = set()
    for digest, pool in pools.items():
        mine = [slot for slot in idle if slot.pool == digest]
        old = [slot for slot in mine if _is_old(pool.wanted, slot, now)]
        found |= {slot.uid: "unused for too long" for slot in old}
        late = [slot for slot in mine if _is_late(pool.wanted, slot, now)]
        found |= dict.fromkeys((slot.uid for slot in late), _late(pool.wanted))
        failed |= {slot.uid for slot in late}
        fresh = sorted((s for s in mine if s.uid not in found), key=_youth)
        surplus = len(fresh) - target(pool, now)
        found |= {slot.uid: "more than wanted" for slot in fresh[: max(0, surplus)]}
    going = [s for s in slots if s.uid in found or s.life is SlotLife.RETIRING]
    for slot in going:
        room = room.plus(slot.amounts)
    found |= {uid: "its room is needed" for uid in _in_the_way(idle, found, room)}
    return [Retire(uid, why, failed=uid in failed) for uid, why in found.items()]


def _late(wanted: PoolWanted) -> str:
    within = f"not ready within {_ready_seconds(wanted):.0f} s"
    if wanted.runner is None:
        return within
    return f"{within}: is {wanted.runner.ready_line!r} the first line that the runner writes?"


def _youth(slot: Slot) -> tuple[float, str]:
    """The oldest ready one first, those not ready yet last."""
    return (float("inf") if slot.ready_since is None else slot.ready_since, slot.uid)


def _in_the_way(idle: Sequence[Slot], found: Container[str], room: Amounts) -> Iterator[str]:
    """The slots to give up until nothing is promised twice, the youngest first.

    `room` is what will be left once those that go anyway have gone.
    """
    for slot in sorted(idle, key=_youth, reverse=True):
        if not _is_short(room):
            return
        if slot.uid not in found:
            room = room.plus(slot.amounts)
            yield slot.uid


def _made(
    pool: Pool, mine: Sequence[Slot], leaving: int, room: Amounts, now: float
) -> tuple[int, str]:
    """How many to make now, and why not more where more are wanted."""
    creating = sum(1 for slot in mine if slot.life is SlotLife.CREATING)
    live = sum(1 for slot in mine if slot.life is not SlotLife.RETIRING)
    lacking = target(pool, now) - live - leaving
    if lacking <= 0:
        return 0, _failing(pool) if creating else ""
    if _backoff_left(pool, now) > 0:
        return 0, _failing(pool)
    fits = 0
    while fits < lacking and not _is_short(room.plus(demand(pool.wanted), -fits - 1)):
        fits += 1
    turns = max(0, pool.wanted.create_concurrency - creating)
    return min(lacking, turns, fits), "the node has no room for more" if fits < lacking else ""


def _failing(pool: Pool) -> str:
    if not pool.failures:
        return ""
    why = f" ({pool.failed_why})" if pool.failed_why else ""
    return f"the last {pool.failures} did not become ready{why}"


def _backoff_left(pool: Pool, now: float) -> float:
    if not pool.failures or pool.failed_at is None:
        return 0.0
    pause = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(pool.failures - 1, 16))
    return pool.failed_at + pause - now


def _is_short(room: Amounts) -> bool:
    return min(room.cpu_millis, room.memory_bytes, room.disk_bytes, room.executions) < 0


def _next_look(pools: dict[str, Pool], kept: Sequence[Slot], now: float) -> float:
    looks = [LOOK_SECONDS]
    for slot in kept:
        if slot.pool not in pools:
            continue
        wanted = pools[slot.pool].wanted
        if slot.life is SlotLife.CREATING:
            looks.append(slot.made_at + _ready_seconds(wanted) - now)
        if slot.ready_since is not None:
            looks.append(slot.ready_since + _idle_seconds(wanted) - now)
    for pool in pools.values():
        looks.append(_backoff_left(pool, now) or LOOK_SECONDS)
        if pool.wanted.minimum != pool.wanted.maximum:
            looks += [at + DEMAND_SECONDS - now for at in pool.asked[:1]]
    return max(0.05, min(look for look in looks if look > 0))
