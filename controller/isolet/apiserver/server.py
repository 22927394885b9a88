"""Where the front door listens, how many connections it bears, and how it goes.

A connection beyond the bound is answered before a byte of it is read, with the marker that says
that nothing was begun. A caller that has closed its sending side still gets its answer.
"""

import asyncio
import ssl

from aiohttp import web

from isolet.apiserver.settings import Bounds
from isolet.base import errors, sockets
from isolet.base.tls import TLSFiles

_BACKLOG = 128
_CLOSE_SECONDS = 2.0
"""What is still open when a server closes, after its runs were drained, is given so long."""
_TURNED = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Length: 0\r\n"
    b"X-Execution-Admitted: false\r\n"
    b"Connection: close\r\n\r\n"
)


class HalfOpen(web.RequestHandler):
    """A connection whose other side may have nothing more to say and still wait."""

    half_closed = False

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the transport open while an answer is owed; the answer then ends the connection.

        One that owes none ends at once, for it counts against the bound. TLS cannot be kept half
        open.
        """
        self.half_closed = True
        transport, waits = self.transport, self._waiter
        if transport is None or transport.get_extra_info("sslcontext"):
            return None
        if waits is not None and not waits.done():
            return None
        self.close()  # Once it is answered.
        return True

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP. aiohttp's own answer, and its log, quote what was sent."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer had begun")
        answer = web.Response(status=400 if status == 400 else 500)
        answer.force_close()
        return answer


class _Turned(asyncio.Protocol):
    """Stands in for a connection beyond the bound."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(_TURNED)
        transport.close()


class FrontServer:
    """One listening socket and the application behind it."""

    def __init__(self, app: web.Application, bounds: Bounds) -> None:
        self._bounds = bounds
        app.on_response_prepare.append(_close_after)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, tls: TLSFiles | None) -> int:
        """Accept connections from now on; returns the port.

        Raises:
            Invalid: the address or the certificate cannot be used.
        """
        context = None if tls is None else _context(tls)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._protocol,
                sock=sockets.tcp(host, port),
                ssl=context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=None if context is None else self._bounds.head_seconds,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise errors.Invalid(
                f"cannot listen on {host}:{port}: {error}", reason="AddressUnusable"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        most = self._bounds.capacity + self._bounds.spare_connections
        if server is None or len(server.connections) >= most:
            return _Turned()
        return HalfOpen(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            # Also the time in which a connection has to send its first head, and the next.
            keepalive_timeout=self._bounds.head_seconds,
            max_headers=self._bounds.headers,
            auto_decompress=False,
            lingering_time=1.0,
        )

    async def close(self) -> None:
        """Take no further connection and end those that are open."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()


async def _close_after(request: web.Request, answer: web.StreamResponse) -> None:
    if getattr(request.protocol, "half_closed", False):
        answer.force_close()


def _context(tls: TLSFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        for path in (tls.certificate, tls.key):
            path.stat()  # OpenSSL does not say which of them is missing.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        where = error.filename or f"{tls.certificate} with {tls.key}"
        raise errors.Invalid(f"{where}: {error.strerror}", reason="CertificateUnusable") from error
    return context
