"""Another agent as a source: over mutual TLS, with our node's certificate and a grant.

The name in its certificate has to be that of the node that is meant, whatever its address.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import pydantic

from isolet.base import errors, tls
from isolet.wire import faults, http
from isolet.wire.checkpoint import Part
from isolet.wire.restore import Peer

_MAX_FAULT_BYTES = 64 << 10


class PeerSource:
    """The copy of one Checkpoint on another node."""

    def __init__(
        self, peer: Peer, uid: str, session: aiohttp.ClientSession, silence: float
    ) -> None:
        self._url = _base(peer.endpoint) + http.checkpoint(uid) + "/parts/"
        self._peer = peer
        self._session = session
        self._silence = silence

    @classmethod
    @asynccontextmanager
    async def open(
        cls, peer: Peer, uid: str, files: tls.TLSFiles, *, silence_seconds: float = 20.0
    ) -> AsyncGenerator[Self, None]:
        """Connects when first read.

        Args:
            peer: which node, where, and the grant.
            uid: of the Checkpoint.
            files: our node's certificate.
            silence_seconds: how long it may send nothing.

        Raises:
            Invalid: the endpoint is none of an agent.
            Unavailable: our certificate cannot be read.
        """
        try:
            context = tls.client_context(files)
        except OSError as error:
            raise errors.Unavailable(f"this node's certificate cannot be read: {error}") from error
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=silence_seconds)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=1, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "isolet"},
            auto_decompress=False,
            timeout=timeout,
        ) as session:
            yield cls(peer, uid, session, silence_seconds)

    @property
    def name(self) -> str:
        """See `Source`."""
        return f"node {self._peer.node}"

    async def read(self, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
        """See `Source`."""
        try:
            async with self._session.get(
                self._url + part.value,
                params={"offset": str(offset)},
                headers={http.HEADER_GRANT: self._peer.grant.token},
                server_hostname=http.server_name(self._peer.node),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise await self._failure(response)
                while piece := await self._next(response):
                    yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # Not its text: a request's headers may be in it.
            kind = type(error).__name__
            raise errors.Unavailable(
                f"{self.name} cannot be read: {kind}", reason="AgentUnreachable"
            ) from None

    async def _next(self, response: aiohttp.ClientResponse) -> bytes:
        # aiohttp's own timeout does not fire once the frame of a chunk was broken.
        async with asyncio.timeout(self._silence):
            return await response.content.readany()

    async def _failure(self, response: aiohttp.ClientResponse) -> errors.IsoletError:
        raw = await response.content.read(_MAX_FAULT_BYTES)
        try:
            fault = faults.Fault.model_validate_json(raw)
        except pydantic.ValidationError:
            return errors.Unavailable(f"{self.name} answered {response.status}", reason="BadAnswer")
        return faults.from_http(response.status, fault)


def _base(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme != "https" or not parts.hostname or not plain:
        raise errors.Invalid(f"{endpoint!r} is not https://host:port")
    return f"https://{parts.netloc}"
