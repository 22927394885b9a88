"""The calls about Processes and files of live sessions; `client.http` has the rest."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeVar

import aiohttp

from isolet.base import errors
from isolet.client import answers
from isolet.client.connection import Ask, Timeouts
from isolet.wire import http
from isolet.wire.agent_api import OutputChunk
from isolet.wire.base import Fence, Wire
from isolet.wire.process import (
    ArtifactChunk,
    FileEntry,
    ProcessAmendment,
    ProcessObserved,
    ProcessWanted,
)

_M = TypeVar("_M", bound=Wire)


class ProcessCalls:
    """Implements `isolet.wire.agent_api.ProcessAPI`; the base of `HTTPAgent`."""

    _timeouts: Timeouts

    async def put_process(self, wanted: ProcessWanted, fence: Fence | None) -> ProcessObserved:
        """See `ProcessAPI.put_process`."""
        ask = self._write("PUT", http.process(checked_uid(wanted.uid)), fence, wanted)
        return await self._call(ask, ProcessObserved)

    async def amend_process(
        self, uid: str, change: ProcessAmendment, fence: Fence | None
    ) -> ProcessObserved:
        """See `ProcessAPI.amend_process`."""
        ask = self._write("PATCH", http.process(checked_uid(uid)), fence, change)
        return await self._call(ask, ProcessObserved)

    async def remove_process(self, uid: str, fence: Fence | None) -> ProcessObserved:
        """See `ProcessAPI.remove_process`."""
        ask = self._write("DELETE", http.process(checked_uid(uid)), fence)
        return await self._call(ask, ProcessObserved)

    async def forget_processes(self, uids: Sequence[str], fence: Fence | None) -> int:
        """See `ProcessAPI.forget_processes`."""
        gone = 0
        for at in range(0, len(uids), 1000):
            body = http.ForgetRequest(uids=tuple(map(checked_uid, uids[at : at + 1000])))
            ask = self._write("POST", http.PROCESSES_FORGET, fence, body)
            gone += (await self._call(ask, http.ForgetAnswer)).forgotten
        return gone

    async def get_process(self, uid: str) -> ProcessObserved:
        """See `ProcessAPI.get_process`."""
        return await self._call(self._read(http.process(checked_uid(uid))), ProcessObserved)

    async def process_output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """See `ProcessAPI.process_output`; at most 1 MiB at a time."""
        path = http.process_output(checked_uid(uid), stream)
        ask = self._get(path, {"offset": str(offset), "limit": str(limit)})
        async with self._answer(ask) as response:
            data = await answers.read(response, http.MAX_OUTPUT_CHUNK, effect=False)
            return answers.output(response.headers, data)

    async def read_artifact(self, uid: str, path: str, offset: int, limit: int) -> ArtifactChunk:
        """See `ProcessAPI.read_artifact`; at most 1 MiB at a time."""
        query = {"path": path, "offset": str(offset), "limit": str(limit)}
        async with self._answer(self._get(http.artifact(checked_uid(uid)), query)) as response:
            data = await answers.read(response, http.MAX_OUTPUT_CHUNK, effect=False)
            return answers.artifact(response.headers, path, data)

    async def put_file(self, uid: str, path: str, content: bytes, mode: int) -> None:
        """See `ProcessAPI.put_file`."""
        seconds = self._timeouts.exec_grace + len(content) / (1 << 20)
        ask = Ask(
            method="PUT",
            path=http.file(checked_uid(uid)),
            query={"path": path, "mode": str(mode)},
            timeout=self._within(seconds),
            effect=True,
            streams=True,
            body=content,
            headers={"Content-Type": http.BYTES},
        )
        await self._call(ask, Wire)

    async def get_file(self, uid: str, path: str) -> bytes:
        """See `ProcessAPI.get_file`."""
        async with self._answer(self._get(http.file(checked_uid(uid)), {"path": path})) as response:
            return await answers.read(response, http.MAX_ANSWER, effect=False)

    async def list_files(self, uid: str, path: str) -> Sequence[FileEntry]:
        """See `ProcessAPI.list_files`."""
        ask = self._get(http.files(checked_uid(uid)), {"path": path})
        return (await self._call(ask, http.FilesAnswer)).entries

    def _get(self, path: str, query: Mapping[str, str]) -> Ask:
        return Ask(
            method="GET",
            path=path,
            query=query,
            timeout=self._within(self._timeouts.output),
            streams=True,
        )

    # Given by `HTTPAgent`.

    def _read(self, path: str) -> Ask:
        raise NotImplementedError

    def _write(self, method: str, path: str, fence: Fence | None, body: Wire | None = None) -> Ask:
        raise NotImplementedError

    def _within(self, seconds: float) -> aiohttp.ClientTimeout:
        raise NotImplementedError

    async def _call(self, ask: Ask, model: type[_M]) -> _M:
        raise NotImplementedError

    def _answer(self, ask: Ask) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        raise NotImplementedError


def checked_uid(uid: str) -> str:
    """The uid, which is going to stand in a path."""
    if not http.is_uid(uid):
        raise errors.Invalid(f"{uid[:80]!r} is not a uid", reason="InvalidUid")
    return uid
