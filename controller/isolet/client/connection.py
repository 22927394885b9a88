"""The way to one agent: endpoint, pools, certificates, and what a broken connection means."""

import asyncio
import io
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from isolet.base import errors, log, tls
from isolet.wire import http

BROKEN = (aiohttp.ClientError, TimeoutError, OSError)
"""What a connection that fails raises."""

_IDLE_SECONDS = 20.0
"""How long a connection is kept for the next request: less than an agent keeps it (30 s), so that
no request is sent into one that is just being closed."""
_LARGE = 64 << 10
_STAT_SECONDS = 1.0
_log = log.get("client")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seconds, by kind of call."""

    connect: float = 5.0
    read: float = 15.0
    write: float = 30.0
    output: float = 30.0
    exec_grace: float = 30.0
    """Beyond the command's own time, and beyond the time its input takes at 1 MiB a second."""
    watch_inactivity: float = 30.0
    """A watch brings a bookmark every few seconds; one that is silent for so long is dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request."""

    method: str
    path: str
    timeout: aiohttp.ClientTimeout
    effect: bool = False
    """Whether it is to change something, so that a lost answer leaves that open."""
    once: bool = False
    """Whether it must not be sent twice: asked again, it would be told something else."""
    streams: bool = False
    """Whether it may last: such requests have a pool of their own."""
    body: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Progress:
    """How far a request has come."""

    sent: bool = False


class Connection:
    """Connections to one agent."""

    def __init__(
        self, endpoint: str, *, node: str | None, files: tls.TLSFiles | None, pool: int
    ) -> None:
        self._socket, self._base = _parse(endpoint)
        if self._socket is None and node is None:
            raise errors.Invalid(f"{endpoint}: https needs the node's name")
        if self._socket is None and files is None:
            raise errors.Invalid(
                f"{endpoint}: https needs a certificate of ours, and this process has none: give"
                " it the folder of one (--tls-dir; of a front door, --agent-tls-dir)"
            )
        self._name = node or endpoint
        self._server_name = None if node is None else http.server_name(node)
        self._trust = None if files is None or self._socket else _Trust(files)
        self._pool = pool
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self.failures = 0
        """How often a request has broken."""
        self.under_way = 0
        """Requests whose answers have not been read to their end."""

    @asynccontextmanager
    async def request(self, ask: Ask) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send it and give the answer's head; the body is to be read inside.

        Raises:
            Unavailable: it was not sent, or asked for no effect.
            Unconfirmed: the connection broke after it was sent.
        """
        progress = _Progress()
        self.under_way += 1
        try:
            async with self._session(ask.streams).request(
                ask.method,
                self._base + ask.path,
                data=_data(ask.body),
                params=dict(ask.query),
                headers=dict(ask.headers),
                timeout=ask.timeout,
                allow_redirects=False,
                trace_request_ctx=progress,
                middlewares=(_once,) if ask.once else None,
                **self._tls(),
            ) as response:
                yield response
        except BROKEN as error:
            self.failures += 1
            raise self._failure(ask, error, sent=progress.sent) from error
        finally:
            self.under_way -= 1

    def _failure(self, ask: Ask, error: Exception, *, sent: bool) -> errors.Unavailable:
        what = f"agent of {self._name}: {ask.method} {ask.path}: {_describe(error)}"
        if _refused_by_tls(error):
            return errors.Unavailable(what, reason="TLSRefused", retry_after=5.0)
        if sent and ask.effect:
            return errors.Unconfirmed(what)
        return errors.Unavailable(what, reason="AgentUnreachable")

    def _tls(self) -> dict[str, Any]:
        if self._trust is None:
            return {}
        return {"ssl": self._trust.context(), "server_hostname": self._server_name}

    def _session(self, streams: bool) -> aiohttp.ClientSession:
        """The session for plain calls or that for lasting ones; made within the running loop."""
        session = self._sessions.get(streams)
        if session is None:
            session = self._sessions[streams] = aiohttp.ClientSession(
                connector=self._connector(),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[_trace()],
                headers={"Accept-Encoding": "identity", "User-Agent": "isolet"},
                auto_decompress=False,
            )
        return session

    def _connector(self) -> aiohttp.BaseConnector:
        if self._socket is not None:
            return aiohttp.UnixConnector(
                path=self._socket, limit=self._pool, keepalive_timeout=_IDLE_SECONDS
            )
        return aiohttp.TCPConnector(limit=self._pool, keepalive_timeout=_IDLE_SECONDS)

    async def close(self) -> None:
        """Close all connections; requests in progress fail."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()


class _Trust:
    """Our certificate and the authority, read again when the files change."""

    def __init__(self, files: tls.TLSFiles) -> None:
        self._files = files
        self._stamp: tls.Stamp | None = None
        self._context: ssl.SSLContext | None = None
        self._looked = 0.0

    def context(self) -> ssl.SSLContext:
        """The context for new connections; raises Unavailable where there is none."""
        now = time.monotonic()
        if self._context is None or now - self._looked >= _STAT_SECONDS:
            self._looked = now
            self._look()
        if self._context is None:
            raise errors.Unavailable("no client certificate", reason="ClientCertificate")
        return self._context

    def _look(self) -> None:
        try:
            stamp = self._files.stamp()
            if stamp != self._stamp:
                self._context, self._stamp = tls.client_context(self._files), stamp
        except OSError as error:
            if self._context is None:
                raise errors.Unavailable(
                    f"client certificate {self._files.certificate}: {error}",
                    reason="ClientCertificate",
                ) from error
            _log.error("client certificates cannot be read, the old ones stay: %s", error)


def _parse(endpoint: str) -> tuple[str | None, str]:
    """The socket's path, if it is one, and the URL before the path."""
    wrong = errors.Invalid(f"{endpoint!r} is neither unix:///path nor https://host:port")
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:  # A host in brackets that is no address, or a port over 65535.
        raise wrong from None
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return parts.path, "http://localhost"
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme == "https" and parts.hostname and port != 0 and plain:
        return None, f"https://{parts.netloc}"
    raise wrong


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    """A large body goes out in pieces, so that writing it never holds up the event loop."""
    return body if body is None or len(body) <= _LARGE else io.BytesIO(body)


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a PUT or DELETE again whose connection broke.

    It does so on two errors, of which those of a connection that was never made are exempt.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(_describe(error)) from error


def _trace() -> aiohttp.TraceConfig:
    """Marks a request as sent just before its first byte goes out."""
    config = aiohttp.TraceConfig()

    async def sent(
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        context.trace_request_ctx.sent = True

    config.on_request_headers_sent.append(sent)
    return config


def _refused_by_tls(error: BaseException | None) -> bool:
    """Whether the other side refused our certificate, or we its: nothing was done then.

    (With TLS 1.3 a refusal of ours mostly looks like a connection that breaks after the request.)
    """
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError | asyncio.TimeoutError) and not str(error):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"
