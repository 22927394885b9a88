"""The operator's own list of everything: what the watch may have missed, and whether it lives.

kopf does not report deletions that fell into a gap of its watch, and a watch can die in silence.
Every few minutes, and when this process becomes leader, each kind is listed in pages: news goes
into the cache, what is gone is dropped, and every key is rung (that is the resync). If the watch
has not delivered within a grace what the list has shown, the watch is dead: liveness fails.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.cache import ObjectCache
from isolet.operator.kube import Cluster, Key, Kind, ListOptions, key_of, version_of

_log = log.get("operator.relist")

PAGE = 500


@dataclass
class WatchAccount:
    """What the watch of one kind has delivered, against what the lists have shown.

    A watch delivers in the order of resource versions, so one number says how far it has come.
    """

    delivered: int = 0
    _shown: int = 0
    _since: float = 0.0

    def deliver(self, version: int) -> None:
        """The watch brought an event."""
        self.delivered = max(self.delivered, version)

    def show(self, version: int, now: float) -> None:
        """A list holds an object of this version."""
        if version > max(self.delivered, self._shown):
            self._shown, self._since = version, now

    def behind(self, now: float) -> float:
        """For how long the watch has owed something; 0 if it owes nothing."""
        return now - self._since if self._shown > self.delivered else 0.0

    def restart(self) -> None:
        """The store went back in time; versions begin anew."""
        self.delivered = self._shown = 0


@dataclass
class Relist:
    """Lists every kind, now and then."""

    cluster: Cluster
    cache: ObjectCache
    kinds: Sequence[Kind]
    ring: Callable[[Key], None]
    clock: Clock
    every: float = 300.0
    rounds: int = 0
    """Complete lists of all kinds in this process."""
    last: float | None = None
    """When the last round ended, monotonic."""
    accounts: dict[str, WatchAccount] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accounts = {kind.kind: WatchAccount() for kind in self.kinds}
        self._now = asyncio.Event()
        self._done = asyncio.Condition()

    def at_once(self) -> None:
        """Begin a round without waiting for its time."""
        self._now.set()

    async def wait_for(self, rounds: int) -> None:
        """Wait until so many rounds are complete."""
        async with self._done:
            await self._done.wait_for(lambda: self.rounds >= rounds)

    async def run(self) -> None:
        """List for ever; a failed round is tried again after a short delay."""
        delay = 1.0
        while True:
            self._now.clear()
            try:
                await self.round()
                delay = 1.0
                pause = self.every
            except errors.IsoletError as error:
                _log.warning("list failed", extra={"reason": error.reason, "detail": str(error)})
                delay = min(delay * 2, 30.0)
                pause = delay
            try:
                async with asyncio.timeout(pause):
                    await self._now.wait()
            except TimeoutError:
                pass

    async def round(self) -> None:
        """List every kind once.

        Raises:
            IsoletError: a list failed; nothing was dropped for that kind.
        """
        for kind in self.kinds:
            await self._list(kind)
        async with self._done:
            self.rounds += 1
            self.last = self.clock.monotonic()
            self._done.notify_all()

    async def _list(self, kind: Kind) -> None:
        listed: set[Key] = set()
        token: str | None = None
        version: int | None = None
        went_back: set[Key] = set()
        while True:
            page = await self.cluster.list(kind, ListOptions(limit=PAGE, token=token))
            if version is None:
                version = page.version
                went_back = self._check_history(kind, version)
            for obj in page.items:
                self.cache.put(kind, obj)
                self.accounts[kind.kind].show(version_of(obj), self.clock.monotonic())
                key = key_of(kind, obj)
                listed.add(key)
                self.ring(key)
            token = page.token
            if token is None:
                break
        gone = self.cache.keep_only(kind, listed, version)
        for key in {*gone, *(went_back - listed)}:
            self.ring(key)

    def _check_history(self, kind: Kind, version: int) -> set[Key]:
        """A list older than what was already seen: etcd was restored from a backup."""
        if version >= self.cache.newest(kind):
            return set()
        _log.warning("the API server went back in time", extra={"kind": kind.kind})
        self.accounts[kind.kind].restart()
        return set(self.cache.reset(kind))

    def stalled(self, grace: float) -> list[str]:
        """Kinds whose watch has owed an event for longer than `grace` seconds."""
        now = self.clock.monotonic()
        return [kind for kind, account in self.accounts.items() if account.behind(now) > grace]
