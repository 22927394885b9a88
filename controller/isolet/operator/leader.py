"""One leader at a time: a Lease, held by a thread of its own.

Time is this machine's boot-time clock alone: another holder's lease has run out when *we* have seen
it unchanged for its whole duration, never because of a time written in it. The lease is renewed
only while the main loop shows a heartbeat, so a hung leader is replaced; a leader that loses it
ends its process at once. A Lease does not fence by itself: writes ask `Leadership.check` first, API
writes carry a resource version, and agents get (Lease uid, transitions) and refuse an older one.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.kube import LEASES, Cluster, Object, version_of
from isolet.operator.steps import Effect, at
from isolet.wire.base import Fence

_log = log.get("operator.leader")

NOT_LEADER = "NotLeader"
"""Reason of the refusal that this process gives itself; an agent's has another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds. `request` must be below `renew` and `renew` below `duration`."""

    duration: float = 15.0
    """After so long without a renewal others may take it."""
    renew: float = 10.0
    """After so long without a renewal the leader stops, which leaves `duration - renew` for what it
    has already sent."""
    retry: float = 2.0
    request: float = 3.0
    heartbeat: float = 8.0
    """An older heartbeat of the main loop stops the renewing."""


class Leadership:
    """What the rest of the process may know: am I leader, until when, with which fence.

    Written by the elector's thread, read from any; every field is replaced whole.
    """

    def __init__(self, clock: Clock, times: LeaseTimes) -> None:
        self._clock = clock
        self._times = times
        self._held: tuple[Fence, float] | None = None
        self._beat = clock.boottime()

    def beat(self) -> None:
        """The main loop is alive."""
        self._beat = self._clock.boottime()

    def heartbeat_age(self) -> float:
        """Seconds since the main loop last showed itself."""
        return self._clock.boottime() - self._beat

    def hold(self, fence: Fence, renewed_at: float) -> None:
        """The lease is ours, as of a request sent at `renewed_at`."""
        self._held = (fence, renewed_at + self._times.renew)

    def give_up(self) -> None:
        """It is not ours."""
        self._held = None

    def valid(self) -> bool:
        """Whether a write may begin now."""
        held = self._held
        return held is not None and self._clock.boottime() < held[1]

    def check(self) -> Fence:
        """The fence to act with.

        Raises:
            Fenced: this process may not write (any more).
        """
        held = self._held
        if held is None or self._clock.boottime() >= held[1]:
            raise errors.Fenced("this operator does not hold the lease", reason=NOT_LEADER)
        return held[0]

    def remaining(self) -> float:
        """Seconds until another may take the lease: how long what is sent now may still land."""
        held = self._held
        if held is None:
            return 0.0
        grace = self._times.duration - self._times.renew
        return held[1] + grace - self._clock.boottime()

    @property
    def held(self) -> bool:
        """Whether it was won and not yet given up, be it valid or about to be lost."""
        return self._held is not None


@dataclass(frozen=True, slots=True)
class _Seen:
    holder: str
    transitions: int
    version: int
    duration: float
    since: float
    """When this very version was first seen, boot time."""


class Elector:
    """One attempt at a time; `tick` is the whole behaviour and needs no thread."""

    def __init__(
        self,
        cluster: Cluster,
        leadership: Leadership,
        clock: Clock,
        times: LeaseTimes,
        *,
        namespace: str,
        identity: str,
        name: str = "isolet-operator",
    ) -> None:
        self._cluster = cluster
        self._leadership = leadership
        self._clock = clock
        self._times = times
        self._namespace = namespace
        self._identity = identity
        self._name = name
        self._seen: _Seen | None = None
        self._lease: Object | None = None

    async def tick(self) -> bool:
        """Acquire or renew once, if that is possible now; returns whether the lease is held.

        Raises:
            Fenced: it was held and is lost; the process must end.
        """
        leading = self._leadership.held
        try:
            async with asyncio.timeout(self._times.request):
                await (self._renew() if leading else self._try_acquire())
        except errors.Fenced:
            self._leadership.give_up()
            raise
        except (errors.IsoletError, TimeoutError) as error:
            _log.warning("lease request failed", extra={"detail": str(error) or "timed out"})
        if leading and not self._leadership.valid():
            self._leadership.give_up()
            raise errors.Fenced("the lease could not be renewed in time", reason="LeaseLost")
        return self._leadership.held

    async def release(self) -> None:
        """Hand the lease over, so that another need not wait it out; best effort."""
        if not self._leadership.held or self._lease is None:
            return
        self._leadership.give_up()
        body = self._body(self._lease, holder="", transitions=_transitions(self._lease), duration=1)
        try:
            async with asyncio.timeout(self._times.request):
                await at(Effect.LEASE_RELEASE, self._put(body))
        except (errors.IsoletError, TimeoutError) as error:
            _log.warning("lease not released", extra={"detail": str(error) or "timed out"})

    async def _renew(self) -> None:
        if self._leadership.heartbeat_age() > self._times.heartbeat:
            _log.error("not renewing: the main loop hangs")
            return
        assert self._lease is not None
        sent = self._clock.boottime()
        transitions = _transitions(self._lease)
        body = self._body(self._lease, holder=self._identity, transitions=transitions)
        try:
            lease = await at(Effect.LEASE_RENEW, self._put(body))
        except errors.Conflict:
            await self._after_conflict(transitions)
            return
        except errors.NotFound:
            raise errors.Fenced("the lease was deleted", reason="LeaseLost") from None
        self._keep(lease, sent)

    async def _after_conflict(self, transitions: int) -> None:
        """Somebody wrote it: an earlier renewal of ours whose answer was lost, or a rival."""
        lease = await self._get()
        if lease is None or (_holder(lease), _transitions(lease)) != (self._identity, transitions):
            raise errors.Fenced("another operator holds the lease", reason="LeaseLost")
        assert self._lease is not None
        _no_older(lease, version_of(self._lease))
        # Still ours; the next tick renews it with the right version.
        self._lease = lease

    async def _try_acquire(self) -> None:
        sent = self._clock.boottime()
        lease = await self._get()
        if lease is None:
            body = {"metadata": {"name": self._name}, "spec": self._spec(self._identity, 1)}
            create = self._cluster.create(LEASES, self._namespace, body)
            await self._acquire(create, sent)
        elif self._is_free(lease):
            body = self._body(lease, holder=self._identity, transitions=_transitions(lease) + 1)
            await self._acquire(self._put(body), sent)

    async def _acquire(self, write: Awaitable[Object], sent: float) -> None:
        try:
            lease = await at(Effect.LEASE_ACQUIRE, write)
        except errors.Conflict:
            return  # another was faster
        self._keep(lease, sent)
        _log.info("leading", extra={"transitions": _transitions(lease)})

    def _is_free(self, lease: Object) -> bool:
        """Whether its holder gave it back, or was silent for a whole duration as *we* saw it."""
        now = self._clock.boottime()
        version = version_of(lease)
        if self._seen is None or self._seen.version != version:
            _no_older(lease, self._seen.version if self._seen is not None else 0)
            spec = lease.get("spec") or {}
            stated = float(spec.get("leaseDurationSeconds") or 0)
            # Bounded: a nonsensical duration must not lock everyone out for ever.
            duration = min(max(stated, self._times.duration), 10 * self._times.duration)
            self._seen = _Seen(_holder(lease), _transitions(lease), version, duration, now)
        if self._seen.holder in ("", self._identity):
            # Given back; or an attempt of this very process whose answer was lost.
            return True
        return now >= self._seen.since + self._seen.duration

    def _keep(self, lease: Object, sent: float) -> None:
        self._lease = lease
        fence = Fence(lease_uid=lease["metadata"]["uid"], transitions=_transitions(lease))
        self._leadership.hold(fence, sent)

    async def _get(self) -> Object | None:
        try:
            return await self._cluster.get(LEASES, self._namespace, self._name)
        except errors.NotFound:
            return None

    async def _put(self, body: Object) -> Object:
        return await self._cluster.replace(LEASES, self._namespace, self._name, body)

    def _body(
        self, lease: Object, *, holder: str, transitions: int, duration: int | None = None
    ) -> Object:
        spec = {**(lease.get("spec") or {}), **self._spec(holder, transitions, duration)}
        if holder == _holder(lease):
            spec["acquireTime"] = lease["spec"].get("acquireTime") or spec["acquireTime"]
        return {**lease, "spec": spec}

    def _spec(self, holder: str, transitions: int, duration: int | None = None) -> Object:
        now = _micro_time(self._clock.now())
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration or int(self._times.duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }


class ElectorThread:
    """Runs an `Elector` in a thread with a loop and a connection of its own.

    `lost` is called from that thread when the lease is lost or the elector breaks; it must end the
    process. `won` is called once, from that thread.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[tuple[Elector, Callable[[], Awaitable[None]]]]],
        retry: float,
        won: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self._make = make
        self._retry = retry
        self._won = won
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="leader", daemon=True)

    def start(self) -> None:
        """Begin to compete."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Release the lease if it is held, and end the thread."""
        self._stop.set()
        self._thread.join(timeout)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except errors.Fenced as error:
            self._lost(error.message)
        except Exception as error:
            _log.exception("the elector broke off")
            self._lost(f"the elector broke off: {error}")

    async def _run(self) -> None:
        elector, close = await self._make()
        try:
            leading = False
            while not self._stop.is_set():
                held = await elector.tick()
                if held and not leading:
                    leading = True
                    self._won()
                await asyncio.to_thread(self._stop.wait, self._retry)
            await elector.release()
        finally:
            await close()


def _no_older(lease: Object, seen: int) -> None:
    """Where etcd is a backup's, what this process knows of all objects is of another time.

    The lists may not show it: once enough was written since, they are as young as what was seen.

    Raises Fenced: it is; the process must end.
    """
    if version_of(lease) < seen:
        raise errors.Fenced("the API server went back in time", reason="LeaseLost")


def _holder(lease: Object) -> str:
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def _transitions(lease: Object) -> int:
    return int((lease.get("spec") or {}).get("leaseTransitions") or 0)


def _micro_time(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
