"""The part of the agent's interface that is about Processes and files of live sessions."""

from collections.abc import Sequence
from typing import Literal

from isolet.agent.service.live_files import LiveFiles
from isolet.agent.service.processes import Processes
from isolet.agent.service.turns import Turns
from isolet.base import errors
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.agent_api import OutputChunk
from isolet.wire.base import Fence
from isolet.wire.execution import Step
from isolet.wire.process import (
    ArtifactChunk,
    FileEntry,
    ProcessAmendment,
    ProcessObserved,
    ProcessWanted,
)


class ProcessDoor:
    """Implements `isolet.wire.agent_api.ProcessAPI`; the base of `Service`."""

    def __init__(self, processes: Processes, files: LiveFiles, turns: Turns) -> None:
        self._processes = processes
        self._files = files
        self._turns = turns

    async def put_process(self, wanted: ProcessWanted, fence: Fence | None) -> ProcessObserved:
        """See ProcessAPI."""
        await self._obey(fence)
        return await self._processes.put(wanted)

    async def amend_process(
        self, uid: str, change: ProcessAmendment, fence: Fence | None
    ) -> ProcessObserved:
        """See ProcessAPI."""
        await self._obey(fence)
        return await self._processes.amend(uid, change)

    async def remove_process(self, uid: str, fence: Fence | None) -> ProcessObserved:
        """See ProcessAPI."""
        await self._obey(fence)
        return await self._processes.remove(uid)

    async def forget_processes(self, uids: Sequence[str], fence: Fence | None) -> int:
        """See ProcessAPI."""
        await self._obey(fence)
        return await self._processes.forget(uids)

    async def get_process(self, uid: str) -> ProcessObserved:
        """See ProcessAPI."""
        return await self._processes.get(uid)

    async def process_output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """See ProcessAPI."""
        return await self._processes.output(uid, stream, offset, limit)

    async def read_artifact(self, uid: str, path: str, offset: int, limit: int) -> ArtifactChunk:
        """See ProcessAPI."""
        return await self._processes.read_artifact(uid, path, offset, limit)

    async def put_file(self, uid: str, path: str, content: bytes, mode: int) -> None:
        """See ProcessAPI."""
        async with self._turns.command(uid):
            await self._files.put(await self._live(uid), path, content, mode)

    async def get_file(self, uid: str, path: str) -> bytes:
        """See ProcessAPI."""
        async with self._turns.command(uid):
            return await self._files.get(await self._live(uid), path)

    async def list_files(self, uid: str, path: str) -> Sequence[FileEntry]:
        """See ProcessAPI."""
        async with self._turns.command(uid):
            return await self._files.list(await self._live(uid), path)

    async def _live(self, uid: str) -> SandboxRecord:
        """The record of a running session."""
        record = await self._record(uid)
        if not record.spec.session:
            raise errors.Conflict(f"{uid} runs one command and is no session", reason="NotASession")
        if record.step is not Step.RUNNING or record.stop is not None:
            raise errors.Conflict(f"{uid} is not running", reason="NotRunning")
        await self._touch(uid)
        return record

    async def _obey(self, fence: Fence | None) -> None:
        raise NotImplementedError

    async def _record(self, uid: str) -> SandboxRecord:
        raise NotImplementedError

    async def _touch(self, uid: str) -> None:
        raise NotImplementedError
