"""Where the agent listens: a Unix socket, TLS on TCP, and a plain port for probes.

Each listener has an application of its own, which differs in how a caller is told. A TLS listener
looks at its files every few seconds and takes up new ones without a restart: new connections get a
new context at once, a connection of the old one is refused its next request and closes.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from isolet.agent.server import auth
from isolet.agent.server.handlers import Limits
from isolet.base import errors, log, tls
from isolet.base.clock import Clock

_BACKLOG = 128
_MAX_SOCKET_PATH = 107
_log = log.get("agent.server")


class _Turned(asyncio.Protocol):
    """Stands in for a connection beyond the bound: it is closed before a byte is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close at once."""
        transport.close()


class Listener:
    """One listening socket and the application behind it."""

    def __init__(self, sock: socket.socket, app: web.Application, limits: Limits) -> None:
        self._sock = sock
        self._limits = limits
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=limits.shutdown_seconds,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=1.0,
            auto_decompress=False,
            handler_cancellation=True,
        )
        self._accepting: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The TCP port that was bound."""
        return int(self._sock.getsockname()[1])

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        """Accept connections from now on."""
        await self._runner.setup()
        await self._accept(context)

    async def _accept(self, context: ssl.SSLContext | None) -> None:
        """Accept with this context instead of the one before; no connection is lost between."""
        loop = asyncio.get_running_loop()
        before = self._accepting
        handshake = None if context is None else self._limits.handshake_seconds
        # The duplicate shares the kernel's queue; closing a server closes only its own.
        self._accepting = await loop.create_server(
            self._protocol,
            sock=self._sock.dup(),
            ssl=context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=handshake,
            ssl_shutdown_timeout=handshake,
        )
        if before is not None:
            before.close()

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None or len(server.connections) >= self._limits.connections:
            return _Turned()
        return server()

    def stop_accepting(self) -> None:
        """Take no further connection; those that are open go on."""
        if self._accepting is not None:
            self._accepting.close()
        self._sock.close()

    async def close(self) -> None:
        """Let requests in progress end for a while, then close all."""
        self.stop_accepting()
        await self._runner.cleanup()


class TLSListener(Listener):
    """A listener for callers with a certificate."""

    def __init__(
        self,
        sock: socket.socket,
        make_app: Callable[[auth.Identify], web.Application],
        limits: Limits,
        files: tls.TLSFiles,
        clock: Clock,
    ) -> None:
        super().__init__(sock, make_app(self._identify), limits)
        self._files = files
        self._clock = clock
        self._stamp: tls.Stamp | None = None
        self._context: ssl.SSLContext | None = None
        self._failure = ""

    async def open(self) -> None:
        """Load the certificates and accept connections.

        Raises:
            OSError: the files are missing or wrong.
        """
        stamp = self._files.stamp()
        self._context, self._stamp = tls.server_context(self._files), stamp
        await self.start(self._context)

    async def refresh(self) -> bool:
        """Take up the files if they have changed; whether that was so.

        Files that do not fit together (one of two has been replaced so far) change nothing.
        """
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return False
            context = tls.server_context(self._files)
        except OSError as error:
            self._complain(str(error))
            return False
        self._context, self._stamp, self._failure = context, stamp, ""
        await self._accept(context)
        _log.info("certificates read again", extra={"folder": str(self._files.certificate.parent)})
        return True

    def _complain(self, failure: str) -> None:
        if failure != self._failure:
            self._failure = failure
            _log.error("certificates cannot be read, the old ones stay", extra={"why": failure})

    def _identify(self, request: web.Request) -> auth.Peer:
        transport = request.transport
        if transport is None or transport.get_extra_info("sslcontext") is not self._context:
            raise auth.stale()
        return auth.tls_peer(request, now=self._clock.now().timestamp())


def unix_socket(path: Path) -> socket.socket:
    """A listening socket at `path` that only its owner may open.

    Raises:
        Conflict: somebody listens there already.
        OSError: the folder is missing or not writable.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise errors.Invalid(f"socket path {path} is longer than {_MAX_SOCKET_PATH} bytes")
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode must be right from the first moment on, so not by a chmod after the bind.
    mask = os.umask(0o177)
    try:
        sock.bind(str(path))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _clear(path: Path) -> None:
    """Remove a socket that a dead agent left behind; nothing else is ever removed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise errors.Conflict(f"{path} exists and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise errors.Conflict(f"another process listens at {path}")
