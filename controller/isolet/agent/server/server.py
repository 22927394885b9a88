"""The agent's server: one API behind any number of listeners."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from isolet.agent.server import app, auth, listeners
from isolet.agent.server.handlers import Handlers, Limits, Route
from isolet.agent.server.metrics import ServerMetrics
from isolet.base import log, sockets, tls
from isolet.base.clock import Clock, SystemClock
from isolet.wire.agent_api import AgentAPI
from isolet.wire.dispatch import DispatchAPI

_REFRESH_SECONDS = 5.0
_log = log.get("agent.server")


class AgentServer:
    """Serves an `AgentAPI`. Make it within a running event loop."""

    def __init__(
        self,
        api: AgentAPI,
        *,
        limits: Limits | None = None,
        metrics: ServerMetrics | None = None,
        clock: Clock | None = None,
        refresh_seconds: float = _REFRESH_SECONDS,
        dispatch: DispatchAPI | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._metrics = metrics or ServerMetrics()
        self._handlers = Handlers(api, self._limits, self._metrics, dispatch)
        self._clock = clock or SystemClock()
        self._refresh_seconds = refresh_seconds
        self._listeners: list[listeners.Listener] = []
        self._paths: list[Path] = []
        self._refresher: asyncio.Task[None] | None = None

    async def listen_unix(self, path: Path) -> None:
        """Serve local callers at `path`, which becomes a socket of mode 0600.

        Raises:
            Conflict: somebody listens there already.
            OSError: it cannot be made.
        """
        listener = listeners.Listener(
            listeners.unix_socket(path), self._app(auth.local_peer), self._limits
        )
        self._listeners.append(listener)
        self._paths.append(path)
        await listener.start()

    async def listen_tls(self, host: str, port: int, files: tls.TLSFiles) -> int:
        """Serve callers with a certificate; returns the port.

        Raises:
            OSError: the address or the files cannot be used.
        """
        sock = sockets.tcp(host, port)
        listener = listeners.TLSListener(sock, self._app, self._limits, files, self._clock)
        self._listeners.append(listener)
        await listener.open()
        if self._refresher is None:
            self._refresher = asyncio.create_task(self._refresh())
        return listener.port

    async def listen_probes(self, host: str, port: int) -> int:
        """Serve liveness, readiness and metrics, and nothing else, to anyone; returns the port.

        Raises:
            OSError: the address cannot be used.
        """
        probes = self._build(self._handlers.probes(), auth.probe_peer)
        listener = listeners.Listener(sockets.tcp(host, port), probes, self._limits)
        self._listeners.append(listener)
        await listener.start()
        return listener.port

    def _app(self, identify: auth.Identify) -> web.Application:
        return self._build((*self._handlers.routes(), *self._handlers.probes()), identify)

    def _build(self, routes: Sequence[Route], identify: auth.Identify) -> web.Application:
        seconds = self._limits.answer_seconds
        return app.build(routes, identify, self._metrics, answer_seconds=seconds)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            try:
                await self.refresh()
            except Exception:
                _log.exception("certificates cannot be taken up, the old ones stay")

    async def refresh(self) -> None:
        """Take up certificates that have changed."""
        for listener in self._listeners:
            if isinstance(listener, listeners.TLSListener) and await listener.refresh():
                self._handlers.end_streams()

    async def close(self) -> None:
        """Take no new request, end the streams, let the rest finish for a while, close."""
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher
        for listener in self._listeners:
            listener.stop_accepting()
        self._handlers.end_streams()
        for listener in self._listeners:
            await listener.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
