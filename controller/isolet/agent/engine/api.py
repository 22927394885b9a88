"""Calls to the Docker Engine API: version, time limits, and what an error means.

This is where the engine's answers become the errors of `isolet.base.errors`, by HTTP status and by
whether the request was sent, never by text. No call is ever repeated here.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib import parse

from isolet.agent.engine import http, transport
from isolet.base import errors

OLDEST = (1, 41)
"""Docker 20.10."""
NEWEST = (1, 51)
"""Docker 28; a newer engine answers in this version."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seconds that a call may take, by kind of call."""

    connect: float = 5.0
    read: float = 10.0
    """Inspect and the like."""
    scan: float = 30.0
    """Lists, which take the lock of each container."""
    change: float = 60.0
    """Create, kill, pause, volumes."""
    start: float = 120.0
    stop_margin: float = 30.0
    """Beyond the grace time of a stop."""
    remove: float = 60.0
    """A removal with its confirmation."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    unreadable: type[errors.IsoletError] = errors.Unavailable
    """What an answer that makes no sense is: unconfirmed if it was to a change."""

    def read(self, reader: Callable[[Any], T]) -> T:
        """What `reader` makes of the body's JSON. Raises `unreadable` if it cannot."""
        try:
            return reader(json.loads(self.body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self.unreadable("the engine's answer cannot be read") from error


class API:
    """One engine behind one Unix socket."""

    def __init__(self, socket_path: str, timeouts: Timeouts) -> None:
        self.socket_path = socket_path
        self.timeouts = timeouts
        self._version: str | None = None

    async def get(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        within: float | None = None,
        method: str = "GET",
    ) -> Reply:
        """Read. Raises NotFound, Unavailable and the like, never Unconfirmed."""
        return await self._call(
            method, path, query, None, within=within or self.timeouts.read, changes=False
        )

    async def change(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        *,
        within: float | None = None,
        failed: type[errors.IsoletError] = errors.Unconfirmed,
    ) -> Reply:
        """Change something, once. Raises Unconfirmed when it was sent and no answer came.

        `failed` is raised for an answered status 500, Docker's "something went wrong on the way":
        in general part of the change may be done.
        """
        return await self._call(
            method,
            path,
            query,
            body,
            within=within or self.timeouts.change,
            changes=True,
            failed=failed,
        )

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, object]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of a GET as it comes, without an end in time. Reading it raises Unavailable."""
        async with self._open("GET", path, query, None, changes=False) as answer:
            yield _guarded(answer.body())

    @contextlib.asynccontextmanager
    async def hijack(
        self,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> AsyncIterator[tuple[transport.Connection, bytes]]:
        """The raw connection behind a POST that the engine upgrades, and what came with it."""
        async with self._open("POST", path, query, body, changes=True, upgrade=True) as answer:
            yield answer.connection, answer.rest

    async def version(self) -> str:
        """The API version both sides speak, asked for again after the engine was away."""
        if self._version is None:
            reply = await self._once(
                "GET", "/_ping", None, within=self.timeouts.read, changes=False
            )
            self._version = _agree(reply.headers.get("api-version", ""))
        return self._version

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: Mapping[str, object] | None,
        *,
        within: float,
        changes: bool,
        failed: type[errors.IsoletError] = errors.Unavailable,
    ) -> Reply:
        target = _target(await self.version(), path, query)
        reply = await self._once(method, target, body, within=within, changes=changes)
        _raise_for(reply, failed)
        return reply

    async def _once(
        self,
        method: str,
        target: str,
        body: Mapping[str, object] | None,
        *,
        within: float,
        changes: bool,
    ) -> Reply:
        with self._translated(changes):
            connection = await self._connect()
            with contextlib.closing(connection):
                async with asyncio.timeout(within):
                    request = http.request_bytes(
                        method, target, {"Connection": "close"}, _encoded(body)
                    )
                    answer = await http.exchange(connection, request)
                    body_bytes = await answer.read(of=method)
        unreadable = errors.Unconfirmed if changes else errors.Unavailable
        return Reply(answer.status, answer.headers, body_bytes, unreadable)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: Mapping[str, object] | None,
        *,
        changes: bool,
        upgrade: bool = False,
    ) -> AsyncIterator[http.Exchange]:
        target = _target(await self.version(), path, query)
        headers = (
            {"Connection": "Upgrade", "Upgrade": "tcp"} if upgrade else {"Connection": "close"}
        )
        request = http.request_bytes(method, target, headers, _encoded(body))
        with self._translated(changes):
            connection = await self._connect()
        with contextlib.closing(connection):
            with self._translated(changes):
                async with asyncio.timeout(self.timeouts.change):
                    answer = await http.exchange(connection, request)
                    if answer.status not in (101, 200):
                        reply = Reply(answer.status, answer.headers, await answer.read())
                        _raise_for(reply, errors.Unconfirmed if changes else errors.Unavailable)
            yield answer

    async def _connect(self) -> transport.Connection:
        return await transport.Connection.open(self.socket_path, patience=self.timeouts.connect)

    @contextlib.contextmanager
    def _translated(self, changes: bool) -> Iterator[None]:
        try:
            yield
        except transport.NotSent as error:
            self._version = None
            raise errors.Unavailable(f"the engine cannot be reached: {error}") from error
        except (transport.Lost, TimeoutError) as error:
            if isinstance(error, transport.Lost):
                self._version = None
            said = str(error) or "no answer in time"
            if changes:
                raise errors.Unconfirmed(f"the engine did not confirm: {said}") from error
            raise errors.Unavailable(f"the engine did not answer: {said}") from error


def quoted(name: str) -> str:
    """A name or id as one path segment. Raises Invalid: `..` would become another path."""
    if not _NAME.fullmatch(name):
        raise errors.Invalid(f"not a name the engine can have: {name!r}")
    if set(name) == {"."}:
        raise errors.Invalid(f"not a name the engine can have: {name!r}")
    return name


def label_filter(labels: Mapping[str, str], **more: list[str]) -> str:
    """The `filters` parameter for things that carry all of `labels`."""
    wanted = [f"{key}={value}" for key, value in sorted(labels.items())]
    return json.dumps({"label": wanted, **more})


async def _guarded(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except transport.Lost as error:
        raise errors.Unavailable(f"the engine's stream broke off: {error}") from error


def _encoded(body: Mapping[str, object] | None) -> bytes | None:
    return None if body is None else json.dumps(body, separators=(",", ":")).encode()


def _target(version: str, path: str, query: Mapping[str, object] | None) -> str:
    return f"/v{version}{path}" + (f"?{parse.urlencode(query)}" if query else "")


def _agree(offered: str) -> str:
    major, _, minor = offered.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise errors.Unavailable("the engine does not say which API it speaks")
    theirs = (int(major), int(minor))
    if theirs < OLDEST:
        raise errors.Refused(
            f"the engine speaks API {offered}; Docker 20.10 (API {OLDEST[0]}.{OLDEST[1]}) or newer"
            " is needed",
            reason="EngineTooOld",
        )
    return "{}.{}".format(*min(theirs, NEWEST))


def _raise_for(reply: Reply, failed: type[errors.IsoletError]) -> None:
    if reply.status < 300 or reply.status == 304:
        return
    message = _message(reply)
    match reply.status:
        case 404:
            raise errors.NotFound(message)
        case 409:
            raise errors.Conflict(message)
        case status if status < 500 or status == 501:
            raise errors.Refused(message)
        case 503:
            raise errors.Unavailable(message)
        case _:
            raise failed(message)


def _message(reply: Reply) -> str:
    try:
        text = json.loads(reply.body)["message"]
    except (ValueError, TypeError, KeyError):
        text = ""
    return str(text) or f"the engine answered {reply.status}"
