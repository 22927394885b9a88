"""An agent over HTTP: `AgentAPI` spoken to a Unix socket or, with mutual TLS, to a node's address.

What the caller must know of a failure is whether anything may have happened. A failure before the
first byte was sent is `Unavailable`; a later one is `Unconfirmed` if an effect was asked for. The
name in the agent's certificate is checked against the node that is meant, whatever the address.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Literal, TypeVar

import aiohttp

from isolet.base import errors, tls
from isolet.client import answers
from isolet.client.checkpoints import CheckpointCalls
from isolet.client.connection import BROKEN, Ask, Connection, Timeouts
from isolet.client.processes import ProcessCalls, checked_uid
from isolet.wire import http
from isolet.wire.agent_api import Change, OutputChunk, Snapshot
from isolet.wire.base import HEADER_FENCE, HEADER_WIRE, WIRE_VERSIONS, Fence, Wire
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecResult,
    ExecutionObserved,
    ExecutionWanted,
)
from isolet.wire.node import NodeObserved, Stray
from isolet.wire.pool import PoolsObserved, PoolsWanted

_M = TypeVar("_M", bound=Wire)
_UNSUPPORTED = 415


class HTTPAgent(ProcessCalls, CheckpointCalls):
    """One node's agent. Use it within one event loop, and close it."""

    def __init__(
        self,
        endpoint: str,
        *,
        node: str | None = None,
        files: tls.TLSFiles | None = None,
        timeouts: Timeouts | None = None,
        pool: int = 16,
        wire_versions: tuple[int, ...] = WIRE_VERSIONS,
    ) -> None:
        """Connects when first used.

        Args:
            endpoint: `unix:///path` or `https://host:port`.
            node: name of the node whose agent this must be; needed for https.
            files: our certificate and the authority; needed for https.
            timeouts: how long each kind of call may take.
            pool: most connections for plain calls, and again as many for streams and commands.
            wire_versions: versions we speak, oldest first; the newest is tried first.

        Raises:
            Invalid: the endpoint is neither, or lacks what it needs.
        """
        self._timeouts = timeouts or Timeouts()
        self._versions = wire_versions
        self._version = wire_versions[-1]
        self._connection = Connection(endpoint, node=node, files=files, pool=pool)
        self._greeted = -1
        """How many failures the connection had when the agent was last greeted."""

    @property
    def is_busy(self) -> bool:
        """Whether a call is in progress, a stream among them."""
        return self._connection.under_way > 0

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def put(self, wanted: ExecutionWanted, fence: Fence | None) -> ExecutionObserved:
        """See `AgentAPI.put`."""
        ask = self._write("PUT", http.execution(checked_uid(wanted.uid)), fence, wanted)
        return await self._call(ask, ExecutionObserved)

    async def amend(self, uid: str, change: Amendment, fence: Fence | None) -> ExecutionObserved:
        """See `AgentAPI.amend`."""
        ask = self._write("PATCH", http.execution(checked_uid(uid)), fence, change)
        return await self._call(ask, ExecutionObserved)

    async def remove(self, uid: str, fence: Fence | None) -> ExecutionObserved:
        """See `AgentAPI.remove`."""
        ask = self._write("DELETE", http.execution(checked_uid(uid)), fence)
        return await self._call(ask, ExecutionObserved)

    async def get(self, uid: str) -> ExecutionObserved:
        """See `AgentAPI.get`."""
        return await self._call(self._read(http.execution(checked_uid(uid))), ExecutionObserved)

    async def snapshot(self) -> Snapshot:
        """See `AgentAPI.snapshot`."""
        return await self._call(self._read(http.EXECUTIONS), Snapshot)

    async def node(self) -> NodeObserved:
        """See `AgentAPI.node`."""
        return await self._call(self._read(http.NODE), NodeObserved)

    async def remove_strays(self, names: Sequence[str], fence: Fence | None) -> Sequence[Stray]:
        """See `AgentAPI.remove_strays`."""
        body = http.StraysRequest(names=tuple(names))
        ask = self._write("POST", http.STRAYS_REMOVE, fence, body)
        return (await self._call(ask, http.StraysAnswer)).strays

    async def put_pools(self, wanted: PoolsWanted, fence: Fence | None) -> PoolsObserved:
        """See `AgentAPI.put_pools`."""
        return await self._call(self._write("PUT", http.POOLS, fence, wanted), PoolsObserved)

    async def watch(self, after: int) -> AsyncIterator[Change]:
        """See `AgentAPI.watch`; ends when the agent ends it, is gone, or is silent too long.

        Raises:
            Unavailable: it could not begin, or the agent says why it ended.
        """
        ask = Ask(
            method="GET",
            path=http.WATCH,
            query={"after": str(after)},
            timeout=self._lasting(),
            streams=True,
        )
        async with self._answer(ask) as response:
            if response.status != 200:
                await answers.read(response, http.MAX_LINE, effect=False)
            silence = self._timeouts.watch_inactivity
            async with aclosing(answers.changes(response, silence=silence)) as changes:
                try:
                    async for change in changes:
                        yield change
                except BROKEN:
                    return

    async def output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """See `AgentAPI.output`; at most 1 MiB at a time."""
        ask = Ask(
            method="GET",
            path=http.output(checked_uid(uid), stream),
            query={"offset": str(offset), "limit": str(limit)},
            timeout=self._within(self._timeouts.output),
            streams=True,
        )
        async with self._answer(ask) as response:
            data = await answers.read(response, http.MAX_OUTPUT_CHUNK, effect=False)
            return answers.output(response.headers, data)

    async def exec(self, uid: str, request: ExecRequest) -> ExecResult:
        """See `AgentAPI.exec`."""
        body = http.frame_request(request)
        seconds = request.timeout_seconds + self._timeouts.exec_grace + len(body) / (1 << 20)
        ask = Ask(
            method="POST",
            path=http.exec_(checked_uid(uid)),
            timeout=self._within(seconds),
            effect=True,
            streams=True,
            body=body,
            headers={"Content-Type": http.FRAMED, "Accept": http.FRAMED},
        )
        async with self._answer(ask) as response:
            raw = await answers.read(response, http.MAX_EXEC_BODY, effect=True)
        return await answers.message(raw, http.unframe_result, effect=True)

    async def _call(self, ask: Ask, model: type[_M]) -> _M:
        async with self._answer(ask) as response:
            raw = await answers.read(response, http.MAX_ANSWER, effect=ask.effect)
        return await answers.message(raw, model.model_validate_json, effect=ask.effect)

    @asynccontextmanager
    async def _answer(self, ask: Ask) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer in a version that both sides speak: asks again once if need be."""
        if ask.effect and self._greeted != self._connection.failures:
            await self._greet()
        async with self._agreed(ask) as response:
            yield response

    async def _greet(self) -> None:
        """Ask for something harmless before the first effect, and before the next after a failure.

        A server that refuses our certificate, or is about to go, cuts the connection only after we
        have sent: without this every such effect would count as one that may have happened.
        """
        failures = self._connection.failures
        async with self._connection.request(self._read(http.HEALTHZ)) as response:
            await answers.read(response, http.MAX_BODY, effect=False)
        self._greeted = failures

    @asynccontextmanager
    async def _agreed(self, ask: Ask) -> AsyncIterator[aiohttp.ClientResponse]:
        tried = self._version
        async with self._connection.request(_spoken(ask, tried)) as response:
            if response.status != _UNSUPPORTED or not self._step_from(tried, response):
                yield response
                return
        async with self._connection.request(_spoken(ask, self._version)) as response:
            yield response

    def _step_from(self, tried: int, response: aiohttp.ClientResponse) -> bool:
        """Take the newest version that the agent speaks too; whether that is not the one tried."""
        spoken = answers.versions(response.headers)
        common = [version for version in self._versions if version in spoken]
        if not common or common[-1] == tried:
            return False
        self._version = common[-1]
        return True

    def _read(self, path: str) -> Ask:
        return Ask(method="GET", path=path, timeout=self._within(self._timeouts.read))

    def _write(self, method: str, path: str, fence: Fence | None, body: Wire | None = None) -> Ask:
        headers = {} if fence is None else {HEADER_FENCE: _fence(fence)}
        if body is not None:
            headers["Content-Type"] = http.JSON
        return Ask(
            method=method,
            path=path,
            timeout=self._within(self._timeouts.write),
            effect=True,
            body=None if body is None else body.to_json(),
            headers=headers,
        )

    def _lasting(self) -> aiohttp.ClientTimeout:
        """For what goes on for as long as something comes."""
        return aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._timeouts.connect,
            sock_read=self._timeouts.watch_inactivity,
        )

    def _within(self, seconds: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=seconds, sock_connect=self._timeouts.connect)


def _spoken(ask: Ask, version: int) -> Ask:
    return replace(ask, headers={**ask.headers, HEADER_WIRE: str(version)})


def _fence(fence: Fence) -> str:
    """The fence as a header that the other side reads as the same."""
    text = fence.header()
    if not http.is_fence(text) or text.count("/") != 2:
        raise errors.Invalid("the fence cannot stand in a header", reason="InvalidFence")
    return text
