"""The part of the agent in memory that is about Processes and files of live sessions."""

from collections.abc import Sequence
from typing import Literal

from isolet.base import errors, names
from isolet.plan import reasons
from isolet.wire.agent_api import OutputChunk
from isolet.wire.base import Fence
from isolet.wire.execution import Outcome, Step
from isolet.wire.process import (
    Artifact,
    ArtifactChunk,
    FileEntry,
    ProcessAmendment,
    ProcessObserved,
    ProcessState,
    ProcessWanted,
    is_path,
)


class MemoryProcesses:
    """Processes run at once and go on until they are cancelled or the test ends them."""

    def __init__(self) -> None:
        self.processes: dict[str, ProcessObserved] = {}
        self.wanted: dict[str, ProcessWanted] = {}
        self.process_outputs: dict[str, bytes] = {}
        self.artifacts: dict[tuple[str, str], bytes] = {}
        self.files: dict[tuple[str, str], tuple[bytes, int]] = {}
        self._gone: set[str] = set()

    async def put_process(self, wanted: ProcessWanted, fence: Fence | None) -> ProcessObserved:
        self._enter("put_process", fence)
        digest = wanted.spec.digest(b"memory")
        known = self.processes.get(wanted.uid)
        if known is None and wanted.uid in self._gone:
            raise errors.Conflict(f"{wanted.uid} has ended here", reason="AlreadyEnded")
        if known is None:
            known = ProcessObserved(
                uid=wanted.uid,
                namespace=wanted.namespace,
                name=wanted.name,
                sequence=1,
                spec_digest=digest,
                generation=wanted.generation,
                step=Step.RUNNING,
                execution_uid=wanted.spec.execution_uid,
            )
            self.processes[wanted.uid], self.wanted[wanted.uid] = known, wanted
        if known.spec_digest != digest:
            raise errors.Conflict(f"{wanted.uid} is another request")
        return known

    async def amend_process(
        self, uid: str, change: ProcessAmendment, fence: Fence | None
    ) -> ProcessObserved:
        self._enter("amend_process", fence)
        seen = await self.get_process(uid)
        if change.state is ProcessState.CANCELLED and seen.outcome is None:
            outcome = Outcome(succeeded=False, reason=reasons.CANCELLED, message="asked")
            seen = seen.model_copy(update={"outcome": outcome, "step": Step.ENDED})
        if change.dispose and seen.outcome is not None:
            gone = {"nothing_left": True, "disposed": True, "step": Step.DISPOSED}
            seen = seen.model_copy(update=gone)
        self.processes[uid] = seen
        return seen

    async def remove_process(self, uid: str, fence: Fence | None) -> ProcessObserved:
        self._enter("remove_process", fence)
        self._gone.add(uid)
        seen = self.processes.pop(uid, None) or ProcessObserved(
            uid=uid, namespace="", name="", sequence=0, spec_digest="", step=Step.DISPOSED
        )
        return seen.model_copy(update={"removing": True, "nothing_left": True})

    async def forget_processes(self, uids: Sequence[str], fence: Fence | None) -> int:
        self._enter("forget_processes", fence)
        gone = self._gone & set(uids)
        self._gone -= gone
        return len(gone)

    async def get_process(self, uid: str) -> ProcessObserved:
        self._enter("get_process")
        if uid not in self.processes:
            raise errors.NotFound(f"no Process {uid}")
        return self.processes[uid]

    async def process_output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        self._enter("process_output")
        seen = await self.get_process(uid)
        data = self.process_outputs.get(f"{uid}/{stream}", b"")
        start = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        complete = seen.outcome is not None
        return OutputChunk(
            offset=start,
            data=data[start : start + limit],
            total_bytes=len(data),
            complete=complete,
        )

    async def read_artifact(self, uid: str, path: str, offset: int, limit: int) -> ArtifactChunk:
        self._enter("read_artifact")
        if (await self.get_process(uid)).outcome is None:
            raise errors.Conflict(f"{uid} still runs", reason=reasons.STILL_RUNNING)
        if not is_path(path):
            raise errors.Refused("no plain path", reason=reasons.ARTIFACT_REJECTED)
        if (uid, path) not in self.artifacts:
            raise errors.NotFound(f"{path} is not there")
        data = self.artifacts[uid, path]
        found = Artifact(path=path, size=len(data), digest=names.digest(data))
        return ArtifactChunk(artifact=found, offset=offset, data=data[offset : offset + limit])

    async def put_file(self, uid: str, path: str, content: bytes, mode: int) -> None:
        self._enter("put_file")
        if not is_path(path):
            raise errors.Invalid("no plain path")
        self.files[uid, path] = content, mode

    async def get_file(self, uid: str, path: str) -> bytes:
        self._enter("get_file")
        if (uid, path) not in self.files:
            raise errors.NotFound(f"{path} is not there")
        return self.files[uid, path][0]

    async def list_files(self, uid: str, path: str) -> Sequence[FileEntry]:
        self._enter("list_files")
        return tuple(
            FileEntry(path=name, kind="file", size=len(content), mode=mode)
            for (owner, name), (content, mode) in self.files.items()
            if owner == uid and name.rpartition("/")[0] == path
        )

    def _enter(self, call: str, fence: Fence | None = None) -> None:
        raise NotImplementedError
