"""The calls about Checkpoints; `client.http` has the rest."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import aiohttp

from isolet.client import answers
from isolet.client.connection import Ask
from isolet.client.processes import checked_uid
from isolet.wire import http
from isolet.wire.base import Fence, Wire
from isolet.wire.checkpoint import CheckpointObserved, CheckpointWanted, Grant, Part

_M = TypeVar("_M", bound=Wire)


class CheckpointCalls:
    """Implements `isolet.wire.agent_api.CheckpointAPI`; a base of `HTTPAgent`."""

    async def put_checkpoint(
        self, wanted: CheckpointWanted, fence: Fence | None
    ) -> CheckpointObserved:
        """See `CheckpointAPI.put_checkpoint`."""
        ask = self._write("PUT", http.checkpoint(checked_uid(wanted.uid)), fence, wanted)
        return await self._call(ask, CheckpointObserved)

    async def remove_checkpoint(self, uid: str, fence: Fence | None) -> CheckpointObserved:
        """See `CheckpointAPI.remove_checkpoint`."""
        ask = self._write("DELETE", http.checkpoint(checked_uid(uid)), fence)
        return await self._call(ask, CheckpointObserved)

    async def get_checkpoint(self, uid: str) -> CheckpointObserved:
        """See `CheckpointAPI.get_checkpoint`."""
        return await self._call(self._read(http.checkpoint(checked_uid(uid))), CheckpointObserved)

    async def grant_checkpoint(
        self, uid: str, reader: str, seconds: int, fence: Fence | None
    ) -> Grant:
        """See `CheckpointAPI.grant_checkpoint`."""
        wish = http.GrantRequest(reader=reader, seconds=seconds)
        return await self._call(
            self._write("POST", http.grant(checked_uid(uid)), fence, wish), Grant
        )

    async def read_checkpoint(
        self,
        uid: str,
        part: Part,
        *,
        offset: int = 0,
        reader: str | None = None,
        token: str | None = None,
    ) -> AsyncIterator[bytes]:
        """See `CheckpointAPI.read_checkpoint`; the certificate says who the reader is.

        Raises:
            Unavailable: it broke off; more may be had from where it did.
        """
        ask = Ask(
            method="GET",
            path=http.part(checked_uid(uid), part.value),
            query={"offset": str(offset)},
            headers={} if token is None else {http.HEADER_GRANT: token},
            timeout=self._lasting(),
            streams=True,
        )
        async with self._answer(ask) as response:
            if response.status != 200:
                await answers.read(response, http.MAX_LINE, effect=False)
            async for piece in response.content.iter_any():
                yield piece

    # Given by `HTTPAgent`.

    def _read(self, path: str) -> Ask:
        raise NotImplementedError

    def _write(self, method: str, path: str, fence: Fence | None, body: Wire | None = None) -> Ask:
        raise NotImplementedError

    def _lasting(self) -> aiohttp.ClientTimeout:
        raise NotImplementedError

    def _answer(self, ask: Ask) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        raise NotImplementedError

    async def _call(self, ask: Ask, model: type[_M]) -> _M:
        raise NotImplementedError
