"""/metrics, /healthz and /readyz. Plain HTTP and without a secret: on loopback by default."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from isolet.base import errors

Problems = Callable[[], Sequence[str]]


@dataclass
class HealthServer:
    """Serves from the main loop, so that a hung loop does not answer."""

    host: str
    port: int
    metrics: Callable[[], bytes]
    unhealthy: Problems
    unready: Problems
    _runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; returns the port.

        Raises:
            Invalid: the address cannot be listened on.
        """
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._probe(self.unhealthy))
        app.router.add_get("/readyz", self._probe(self.unready))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise errors.Invalid(
                f"cannot serve metrics and probes on {self.host}:{self.port}: {error.strerror}",
                reason="AddressUnusable",
            ) from error
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics(), content_type="text/plain", charset="utf-8")

    def _probe(self, problems: Problems) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            found = list(problems())
            return web.Response(status=503 if found else 200, text="\n".join(found) or "ok")

        return answer
