"""Processes as callers ask for them: admitted, cancelled, removed, read."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from isolet.agent.engine.base import Stream
from isolet.agent.policy import checks
from isolet.agent.service import collect, process_records, records
from isolet.agent.service.admission import Admission
from isolet.agent.service.context import Context
from isolet.agent.service.facts import Facts
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.inside import InsideDriver
from isolet.agent.service.inside_look import is_inside
from isolet.agent.service.output import files_of, with_cut_streams
from isolet.base import errors
from isolet.plan import reasons
from isolet.plan.sandbox_model import Kind, PinnedSpec, SandboxRecord
from isolet.wire.agent_api import OutputChunk
from isolet.wire.execution import Step
from isolet.wire.process import (
    Artifact,
    ArtifactChunk,
    ProcessAmendment,
    ProcessObserved,
    ProcessWanted,
    is_path,
)

MAX_CHUNK_BYTES = 1 << 20


class Processes:
    """What `Service` does about Processes. `told` is called with every record that was changed."""

    def __init__(
        self,
        context: Context,
        admission: Admission,
        inputs: Inputs,
        facts: Facts,
        inside: InsideDriver,
        told: Callable[[SandboxRecord], None],
    ) -> None:
        self._context = context
        self._admission = admission
        self._inputs = inputs
        self._facts = facts
        self._inside = inside
        self._told = told

    async def put(self, wanted: ProcessWanted) -> ProcessObserved:
        """See ProcessAPI."""
        digest = wanted.spec.digest(self._context.key)
        record = await self._context.store.get(wanted.uid)
        if record is None:
            record = await self._admit(wanted, digest)
        if record.spec_digest != digest or record.kind is not Kind.PROCESS:
            raise errors.Conflict(f"{wanted.uid} is known here with another request")
        records.require_not_over(record)
        if record.step is Step.RECORDED and record.outcome is None:
            self._keep(wanted, record.spec)
        change = ProcessAmendment(
            generation=wanted.generation, state=wanted.state, stop_reason=wanted.stop_reason
        )
        record = await self._apply(record, change)
        self._told(record)
        return self.observed(record)

    async def _admit(self, wanted: ProcessWanted, digest: str) -> SandboxRecord:
        spec = wanted.spec
        problems = checks.process_violations(spec)
        if spec.execution_uid is not None:
            pinned = await self._pinned_inside(wanted)
            return await self._admission.inside(
                spec.execution_uid,
                problems,
                lambda: self._keep(wanted, pinned),
                lambda: self._new(wanted, pinned, digest),
            )
        own = process_records.as_execution(spec)
        pinned = records.pinned(own)
        names = self._admission.image_names(own.image)
        more = checks.violations(own, self._context.policy, image_names=names)
        return await self._admission.sandbox(
            own,
            tuple(dict.fromkeys((*problems, *more))),  # what both looked at is said once
            lambda: self._keep(wanted, pinned),
            lambda: self._new(wanted, pinned, digest),
        )

    def _new(self, wanted: ProcessWanted, pinned: PinnedSpec, digest: str) -> SandboxRecord:
        context = self._context
        now = context.clock.now()
        return process_records.new(wanted, pinned, digest, context.installation, now)

    def _keep(self, wanted: ProcessWanted, pinned: PinnedSpec) -> None:
        if wanted.spec.execution_uid is None:
            self._inputs.keep_process(wanted.uid, wanted.spec, pinned.user)
        else:
            self._inside.keep(wanted.uid, wanted.spec, pinned.user)

    async def _pinned_inside(self, wanted: ProcessWanted) -> PinnedSpec:
        """The session's own bounds, which hold for what runs in it."""
        uid = wanted.spec.execution_uid or ""
        host = await self._context.store.get(uid)
        if host is None or host.kind is not Kind.EXECUTION:
            raise errors.NotFound(f"no Execution {uid} on this node")
        if not host.spec.session:
            raise errors.Conflict(f"{uid} runs one command and is no session", reason="NotASession")
        if host.step is not Step.RUNNING or host.stop is not None:
            raise errors.Conflict(f"{uid} is not running", reason="NotRunning")
        return replace(
            host.spec,
            program=wanted.spec.argv()[0][:256],
            retain_seconds=0,
            idle_timeout_seconds=None,
            status_tail_bytes=wanted.spec.output.status_tail_bytes,
            env_names=tuple(variable.name for variable in wanted.spec.env),
        )

    async def amend(self, uid: str, change: ProcessAmendment) -> ProcessObserved:
        """See ProcessAPI."""
        record = await self._apply(await self.record(uid), change)
        self._told(record)
        return self.observed(record)

    async def _apply(self, record: SandboxRecord, change: ProcessAmendment) -> SandboxRecord:
        while True:
            changed = process_records.amended(record, change)
            if changed == record:
                return record
            try:
                return await self._context.store.update(changed)
            except errors.Conflict:
                record = await self.record(record.uid)

    async def remove(self, uid: str) -> ProcessObserved:
        """See ProcessAPI."""
        store = self._context.store
        while (record := await store.get(uid)) is not None:
            if record.kind is not Kind.PROCESS:
                raise errors.NotFound(f"{uid} is no Process")
            try:
                if not record.removing:
                    record = await store.update(record.with_(removing=True))
                self._told(record)
                return self.observed(record)
            except errors.Conflict:
                continue
        if await store.tombstone(uid) is None:
            try:
                await store.fence(uid, at=self._context.moment(), kind=Kind.PROCESS)
            except errors.Conflict:  # It has just come.
                return await self.remove(uid)
        return await self._buried(uid)

    async def forget(self, uids: Sequence[str]) -> int:
        """See ProcessAPI."""
        return await self._context.store.forget(uids, Kind.PROCESS)

    async def get(self, uid: str) -> ProcessObserved:
        """See ProcessAPI."""
        record = await self._context.store.get(uid)
        if record is not None and record.kind is Kind.PROCESS:
            return self.observed(record)
        return await self._buried(uid)

    async def _buried(self, uid: str) -> ProcessObserved:
        tombstone = await self._context.store.tombstone(uid)
        if tombstone is None or tombstone.kind is not Kind.PROCESS:
            raise errors.NotFound(f"no Process {uid} on this node")
        return process_records.buried(tombstone, 0)

    async def record(self, uid: str) -> SandboxRecord:
        """The record. Raises NotFound."""
        record = await self._context.store.get(uid)
        if record is None or record.kind is not Kind.PROCESS:
            raise errors.NotFound(f"no Process {uid} on this node")
        return record

    async def output(self, uid: str, stream: str, offset: int, limit: int) -> OutputChunk:
        """See ProcessAPI."""
        record = await self.record(uid)
        files = files_of(record, self._context.output_folder(uid))
        start, data, total = files.read(Stream(stream), offset, min(limit, MAX_CHUNK_BYTES))
        return OutputChunk(
            offset=start, data=data, total_bytes=total, complete=record.outcome is not None
        )

    async def read_artifact(self, uid: str, path: str, offset: int, limit: int) -> ArtifactChunk:
        """See ProcessAPI."""
        record = await self.record(uid)
        if record.outcome is None:
            raise errors.Conflict(f"{uid} still runs", reason=reasons.STILL_RUNNING)
        if not is_path(path):
            raise errors.Refused(
                "the path is not normalised and relative to the workspace",
                reason=reasons.ARTIFACT_REJECTED,
            )
        artifact = _kept(record, path) or await self._keep_now(record, path)
        data = self._context.artifacts.read(uid, path, offset, min(limit, MAX_CHUNK_BYTES))
        return ArtifactChunk(artifact=artifact, offset=offset, data=data)

    async def _keep_now(self, record: SandboxRecord, path: str) -> Artifact:
        """Keep a file that was not asked for before, while its workspace is still there."""
        if record.nothing_left or is_inside(record) or record.step is Step.DISPOSED:
            raise errors.NotFound(f"{path} was not kept, and the workspace is gone")
        if "*" in path or "?" in path:
            raise errors.NotFound(f"{path} is a glob")
        kept, problems = await collect.look(self._context, record, (path,))
        for problem in problems:
            raise collect.refusal(problem)
        while True:
            assert record.process is not None
            part = collect.merged(record.process, kept, ())
            try:
                stored = await self._context.store.update(record.with_(process=part))
                break
            except errors.Conflict:
                record = await self.record(record.uid)
        artifact = _kept(stored, path)
        assert artifact is not None
        return artifact

    def observed(self, record: SandboxRecord) -> ProcessObserved:
        """As it is told: live counts while it runs, the tails from the output files."""
        files = files_of(record, self._context.output_folder(record.uid))
        if record.outcome is None:
            record = record.with_(process=with_cut_streams(self._context, record))
            facts = self._inside if is_inside(record) else self._facts
            return process_records.observed(record.with_(output=facts.output(record)))
        limit = record.spec.status_tail_bytes
        if not limit:
            return process_records.observed(record)
        output = record.output.model_copy(
            update={
                "stdout_tail": files.read(Stream.STDOUT, -limit, limit)[1],
                "stderr_tail": files.read(Stream.STDERR, -limit, limit)[1],
            }
        )
        return process_records.observed(record.with_(output=output))


def _kept(record: SandboxRecord, path: str) -> Artifact | None:
    assert record.process is not None
    return next((a for a in record.process.artifacts if a.path == path), None)
