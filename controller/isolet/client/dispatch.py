"""An agent's dispatch over HTTP: `DispatchAPI` for a front door."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import aiohttp
import pydantic

from isolet.base import errors
from isolet.client import answers
from isolet.client.connection import BROKEN, Ask
from isolet.client.http import HTTPAgent
from isolet.client.processes import checked_uid
from isolet.wire import http
from isolet.wire.base import Wire
from isolet.wire.dispatch import (
    BeginRequest,
    CancelAnswer,
    DispatchLine,
    DispatchObserved,
    DispatchWanted,
    Reservation,
    ReserveRequest,
)


class HTTPDispatch(HTTPAgent):
    """Implements `isolet.wire.dispatch.DispatchAPI`."""

    async def reserve(self, request: ReserveRequest) -> Reservation:
        """See DispatchAPI."""
        # A reservation whose answer is lost runs out by itself, so nothing is in doubt.
        ask = Ask(
            method="POST",
            path=http.SLOTS_RESERVE,
            timeout=self._within(self._timeouts.read),
            body=request.to_json(),
            headers={"Content-Type": http.JSON},
        )
        return await self._call(ask, Reservation)

    async def release(self, reservation: Reservation) -> None:
        """See DispatchAPI."""
        await self._call(self._write("POST", http.SLOTS_RELEASE, None, reservation), Wire)

    async def begin(
        self, reservation: Reservation | None, wanted: DispatchWanted, payload: bytes
    ) -> DispatchObserved:
        """See DispatchAPI."""
        head = BeginRequest(reservation=reservation, wanted=wanted).to_json()
        ask = Ask(
            method="PUT",
            path=http.dispatch(checked_uid(wanted.uid)),
            timeout=self._within(self._timeouts.write + len(payload) / (1 << 20)),
            effect=True,
            # While it is being begun a second one would be told that its slot is gone.
            once=True,
            streams=True,
            body=b"\n".join((head, payload)),
            headers={"Content-Type": http.FRAMED},
        )
        return await self._call(ask, DispatchObserved)

    async def dispatch(self, uid: str) -> DispatchObserved:
        """See DispatchAPI."""
        return await self._call(self._read(http.dispatch(checked_uid(uid))), DispatchObserved)

    async def cancel(self, uid: str) -> CancelAnswer:
        """See DispatchAPI; waits as long as the run's cleanup may take."""
        ask = Ask(
            method="DELETE",
            path=http.dispatch(checked_uid(uid)),
            timeout=self._within(_LONGEST_CLEANUP + self._timeouts.write),
            effect=True,
            streams=True,
        )
        return await self._call(ask, CancelAnswer)

    async def follow(self, uid: str, after: int) -> AsyncIterator[DispatchLine]:
        """See DispatchAPI; ends without an end line when the connection breaks: ask again."""
        silence = self._timeouts.watch_inactivity
        ask = Ask(
            method="GET",
            path=http.dispatch_events(checked_uid(uid)),
            query={"after": str(after)},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeouts.connect, sock_read=silence
            ),
            streams=True,
        )
        async with self._answer(ask) as response:
            if response.status != 200:
                await answers.read(response, http.MAX_BODY, effect=False)
            async with aclosing(_lines(response, silence)) as lines:
                try:
                    async for line in lines:
                        if line.ended is not None:
                            await _finish(response)
                        yield line
                except BROKEN:
                    return


_LONGEST_CLEANUP = 300.0
_FINISH_SECONDS = 1.0


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Read the end of the body, which comes at once: the connection can be used again then."""
    with suppress(*BROKEN):
        async with asyncio.timeout(_FINISH_SECONDS):
            await response.content.readany()


async def _lines(
    response: aiohttp.ClientResponse, silence: float
) -> AsyncGenerator[DispatchLine, None]:
    async for line in answers.lines(response, silence=silence, most=http.MAX_EVENT_LINE):
        try:
            yield DispatchLine.model_validate_json(line)
        except pydantic.ValidationError as problem:
            found = answers.last_words(line)
            if found is None:
                raise errors.Unavailable("a line that is no event", reason="BadAnswer") from problem
            raise found from problem
