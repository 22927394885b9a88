"""The operator's own list of everything: what the watch may have missed, and whether it lives.

kopf does not report deletions that fell into a gap of its watch, and a watch can die in silence.
Every few minutes, and when this process becomes leader, each kind is listed in pages: news goes
into the cache, what is gone is dropped, and every key is rung (that is the resync). If the watch
has not delivered within a grace what the list has shown, the watch is dead: liveness fails.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.cache import ObjectCache
from isolet.operator.kube import (
    WORK,
    Cluster,
    Key,
    Kind,
    ListOptions,
    Page,
    key_of,
    uid_of,
    version_of,
)
from isolet.plan.model import ObjectList

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
        if version <= max(self.delivered, self._shown):
            return
        if self._shown <= self.delivered:
            self._since = now
        self._shown = version

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
    second: float = 30.0
    """A new leader lists a second time after so long: what one list alone lacks is no orphan."""
    rounds: int = 0
    """Complete lists of all kinds in this process."""
    last: float | None = None
    """When the last round ended, monotonic."""
    accounts: dict[str, WatchAccount] = field(default_factory=dict)
    lists: tuple[ObjectList, ...] = ()
    """The last two complete lists of all work since this leader began, the older first."""

    def __post_init__(self) -> None:
        self.accounts = {kind.kind: WatchAccount() for kind in self.kinds}
        self._now = asyncio.Event()
        self._leading = False

    def at_once(self) -> None:
        """Begin a round without waiting for its time."""
        self._now.set()

    def begin_leading(self) -> None:
        """What was listed before does not count as this leader's."""
        self.lists = ()
        self._leading = True
        self.at_once()

    async def run(self) -> None:
        """List for ever; a failed round is tried again after a short delay."""
        delay = 1.0
        while True:
            self._now.clear()
            try:
                await self.round()
                delay = 1.0
                hurry = self._leading and len(self.lists) < 2
                pause = min(self.second, self.every) if hurry else self.every
            except errors.IsoletError as error:
                _log.warning("list failed", extra={"reason": error.reason, "detail": str(error)})
                delay = min(delay * 2, 30.0)
                pause = delay
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._now.wait()

    async def round(self) -> None:
        """List every kind once.

        Raises:
            IsoletError: a list failed; nothing was dropped for that kind.
        """
        began, lists = self.clock.monotonic(), self.lists
        uids: set[str] = set()
        for kind in self.kinds:
            listed = await self._list(kind)
            if kind in WORK:
                uids.update(listed)
        if self.lists is lists:  # no change of leadership meanwhile
            whole = ObjectList(uids=frozenset(uids), started_at=began)
            self.lists = (*self.lists[-1:], whole)
        self.rounds += 1
        self.last = self.clock.monotonic()

    async def _list(self, kind: Kind) -> Iterable[str]:
        """Take in a kind; returns the uids of all that there are."""
        listed: dict[Key, str] = {}
        # A new leader's second list is there to be compared with its first, and comes seconds
        # after it: what has not changed since has just had its pass.
        ring = _nobody if kind in WORK and len(self.lists) == 1 else self.ring
        page = await self._page(kind, None, listed, ring, first=True)
        version = page.version
        while page.token is not None:
            page = await self._page(kind, page.token, listed, ring)
        for key in self.cache.keep_only(kind, set(listed), version):
            self.ring(key)
        return listed.values()

    async def _page(
        self,
        kind: Kind,
        token: str | None,
        listed: dict[Key, str],
        ring: Callable[[Key], None],
        *,
        first: bool = False,
    ) -> Page:
        seen = self.cache.newest(kind)
        page = await self.cluster.list(kind, ListOptions(limit=PAGE, token=token))
        if first and page.version < seen:
            self._went_back(kind)
        now = self.clock.monotonic()
        for obj in page.items:
            self.cache.put(kind, obj)
            self.accounts[kind.kind].show(version_of(obj), now)
            key = key_of(kind, obj)
            listed[key] = uid_of(obj)
            ring(key)
        return page

    def _went_back(self, kind: Kind) -> None:
        """A list is older than what was seen before it was asked for: etcd is a backup's."""
        _log.warning("the API server went back in time", extra={"kind": kind.kind})
        self.accounts[kind.kind].restart()
        for key in self.cache.reset(kind):
            self.ring(key)

    def stalled(self, grace: float) -> list[str]:
        """Kinds whose watch has owed an event for longer than `grace` seconds."""
        now = self.clock.monotonic()
        return [kind for kind, account in self.accounts.items() if account.behind(now) > grace]


def _nobody(_key: Key) -> None:
    """Rings no key."""
