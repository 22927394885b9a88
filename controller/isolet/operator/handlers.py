"""The watch: kopf in a thread of its own, used as a front end that hands events over and no more.

kopf keeps connections, bookmarks, reconnects and credentials; it stores nothing on objects, adds no
finalizer and runs no handler of ours but one per kind that delivers the raw event. Retries, timing
and decisions are the queue's and the plan's. If kopf ends, for whatever reason, the process ends.
"""

import asyncio
import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kopf

from isolet.base import log
from isolet.operator.cluster import FAREWELL_SECONDS, Access, Sockets, kopf_session
from isolet.operator.kube import Kind, Object

_log = log.get("operator.watch")

_SLICE = 256
"""Events taken in between two turns of the main loop: about a millisecond."""


class Event(NamedTuple):
    """One watch event, or one line of kopf's own list at its start."""

    kind: Kind
    deleted: bool
    obj: Object


class Inbox:
    """Carries events from kopf's thread to the main loop, in order, in slices."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Event], None]) -> None:
        self._loop = loop
        self._take = take
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._scheduled = False

    def put(self, event: Event) -> None:
        """Hand one over; called from kopf's thread."""
        self._events.append(event)
        with self._lock:
            if self._scheduled:
                return
            self._scheduled = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        try:
            for _ in range(min(_SLICE, len(self._events))):
                self._take(self._events.popleft())
        finally:
            # Also after an event that cannot be taken in: it must not stand in front of all others.
            self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            # Under the lock: a `put` either sees this turn scheduled or schedules one itself.
            self._scheduled = bool(self._events)
        if self._scheduled:
            self._loop.call_soon(self._drain)


class Watch:
    """kopf's thread. `ended` is called from it, once, with the reason, unless it was stopped."""

    def __init__(
        self,
        access: Access,
        kinds: Sequence[Kind],
        deliver: Callable[[Event], None],
        ended: Callable[[str], None],
    ) -> None:
        self._access = access
        self._registry = kopf.OperatorRegistry()
        self._ended = ended
        self._stop = threading.Event()
        self._sockets: list[Sockets] = []
        self._thread = threading.Thread(target=self._main, name="kopf", daemon=True)
        for kind in kinds:
            _serve(self._registry, kind, deliver)
        self._login()

    @property
    def alive(self) -> bool:
        """Whether the thread runs; whether events still come is `Relist.stalled`'s to say."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to list and watch."""
        for name in ("kopf", "kopf.objects"):
            # kopf's info lines repeat every event, and its debug lines hold whole objects.
            logging.getLogger(name).setLevel(logging.ERROR)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(timeout)

    def _login(self) -> None:
        """Give kopf sessions; it closes each when it ends or when the server no longer takes it."""

        @kopf.on.login(registry=self._registry)  # type: ignore[untyped-decorator,unused-ignore]
        async def login(**_: object) -> object:
            session = await kopf_session(self._access)
            self._sockets.append(session.sockets)
            return kopf.AiohttpSession(
                server=session.server,
                aiohttp_session=session.http,
                default_namespace=session.namespace,
            )

    def _main(self) -> None:
        reason = "kopf ended"
        try:
            asyncio.run(self._run())
        except BaseException as error:
            _log.exception("kopf broke off")
            reason = f"kopf broke off: {type(error).__name__}: {error}"
        finally:
            if not self._stop.is_set():
                self._ended(reason)

    async def _run(self) -> None:
        await kopf.operator(
            registry=self._registry,
            settings=settings(),
            clusterwide=True,
            standalone=True,
            stop_flag=self._stop,
        )
        for sockets in self._sockets:
            await sockets.closed(within=FAREWELL_SECONDS)


def settings() -> Any:
    """Kopf's settings, as measured and explained in docs/decisions/0010-kopf-as-front-end.md."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.scanning.disabled = True
    # An int: the server refuses `timeoutSeconds=300.0`.
    chosen.watching.server_timeout = 300
    chosen.watching.inactivity_timeout = 70
    chosen.watching.chunk_size = 500
    chosen.watching.initial_streaming = False
    # A limit would count idle workers, and one is idle for every object just seen.
    chosen.queueing.worker_limit = None
    chosen.queueing.idle_timeout = 1.0
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 5
    chosen.networking.error_backoffs = Backoffs()
    chosen.persistence.diffbase_storage = NoDiff()
    chosen.persistence.progress_storage = NoProgress()
    # kopf takes its finalizer off what needs none: with the default name, another operator's.
    chosen.persistence.finalizer = "isolet.dev/never-put-on"
    # It would SIGKILL the process; ending is `run`'s to do.
    chosen.process.ultimate_exiting_timeout = None
    return chosen


class Backoffs:
    """Endless delays: kopf gives up and ends when a finite list is used up."""

    def __iter__(self) -> Iterator[float]:
        for attempt in itertools.count():
            yield min(30.0, 0.5 * 2 ** min(attempt, 8)) * (0.5 + random.random() / 2)


class NoDiff(kopf.DiffBaseStorage):  # type: ignore[misc,unused-ignore]
    """Spares the copy and comparison of every object that kopf makes for handlers we lack."""

    def build(self, *, body: object, extra_fields: object = None) -> Any:
        """Nothing of the object is essential."""
        return {}

    def fetch(self, *, body: object) -> Any:
        """Nothing was stored."""
        return None

    def store(self, *, body: object, patch: object, essence: object) -> None:
        """Nothing is stored."""


class NoProgress(kopf.ProgressStorage):  # type: ignore[misc,unused-ignore]
    """No handler of ours has progress: nothing is looked for on objects, and nothing put there."""

    def fetch(self, *, key: object, body: object) -> Any:
        """Nothing was stored."""
        return None

    def store(self, *, key: object, record: object, body: object, patch: object) -> None:
        """Nothing is stored."""

    def purge(self, *, key: object, body: object, patch: object) -> None:
        """There is nothing to remove."""

    def touch(self, *, body: object, patch: object, value: object) -> None:
        """Objects are never touched."""

    def clear(self, *, essence: Any) -> Any:
        """There is nothing of it in the object."""
        return essence


def _serve(registry: Any, kind: Kind, deliver: Callable[[Event], None]) -> None:
    @kopf.on.event(  # type: ignore[untyped-decorator,unused-ignore]
        kind.group, kind.version, kind.plural, registry=registry, id=kind.plural
    )
    async def event(event: Mapping[str, Any], **_: object) -> None:
        raw = event["object"]
        # kopf goes on using its dict in this thread, so the main loop gets its own outer layers.
        obj = {**raw, "metadata": dict(raw["metadata"])}
        deliver(Event(kind, event["type"] == "DELETED", obj))
