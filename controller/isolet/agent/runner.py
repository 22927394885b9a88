"""The process runner as a library, without Kubernetes: commands that survive the host that asked.

    runner = ProcessRunner(agent)
    request = StartRequest(operation_id="report", scope="acme", sandbox=sandbox, command=("make",))
    session = await runner.start(request)          # the same call reconnects after a restart
    session = await runner.poll("acme", "report")
    await runner.dispose("acme", "report")

It drives any `AgentAPI`: a `Service` in the same process (`isolet.agent.run.embedded`) or an agent
over its Unix socket (`isolet.client.http`). All state is the agent's: a runner has none of its own,
so any number of them may speak of the same operations. `run_shell` and `run_code` run something
once, in a sandbox that is always removed.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

from isolet.agent import paging
from isolet.agent.changes import Changes
from isolet.agent.operations import (
    Output,
    ReadArtifact,
    Reconciled,
    RunResult,
    Session,
    StartRequest,
    State,
    changed_at,
    session,
    uid_of,
)
from isolet.base import errors, names
from isolet.plan import reasons
from isolet.wire.agent_api import AgentAPI
from isolet.wire.execution import EnvVar, Step
from isolet.wire.node import Stray
from isolet.wire.process import (
    INTERPRETERS,
    Code,
    ProcessAmendment,
    ProcessObserved,
    ProcessState,
    ProcessWanted,
    Sandbox,
    StagedFile,
    is_path,
)

KEEP_SECONDS = 86_400
"""How long an ended operation's workspace stays if it is not disposed of."""

ONE_SHOT_SCOPE = "one-shot"
ONE_SHOT_GRACE = timedelta(minutes=30)
SILENCE_SECONDS = 5.0
"""How long a one-shot run waits for an engine that does not answer."""

FIRST_LOOK_SECONDS = 0.02
LONGEST_LOOK_SECONDS = 0.25


_INFRASTRUCTURE = frozenset(
    {
        reasons.IMAGE_MISSING,
        reasons.IMAGE_UNSUITABLE,
        reasons.START_UNCONFIRMED,
        reasons.CONTAINER_CONFLICT,
        reasons.CONTAINER_LOST,
        reasons.ISOLATION_MISMATCH,
        reasons.NODE_LOST,
    }
)


class ProcessRunner:
    """Start, poll, cancel, read, dispose, reconcile, prune, list."""

    def __init__(self, agent: AgentAPI) -> None:
        self._agent = agent
        self._changes = Changes(agent)

    async def start(self, request: StartRequest) -> Session:
        """Start the operation, or continue it where it stands; never a second run of it.

        Raises:
            Invalid: the request is malformed.
            Conflict: the id stands for another request.
            Refused, Unavailable: the node forbids it, or cannot take it now.
        """
        spec = request.spec()
        if spec.sandbox is not None:
            kept = spec.sandbox.workspace.model_copy(update={"retain_seconds": KEEP_SECONDS})
            sandbox = spec.sandbox.model_copy(update={"workspace": kept})
            spec = spec.model_copy(update={"sandbox": sandbox})
        wanted = ProcessWanted(
            uid=uid_of(request.scope, request.operation_id),
            namespace=request.scope,
            name=request.operation_id,
            spec=spec,
        )
        await self._agent.put_process(wanted, None)
        return session(await self._until(wanted.uid, _is_under_way))

    async def poll(self, scope: str, operation_id: str) -> Session:
        """The operation as it stands. Raises NotFound."""
        return session(await self._seen(scope, operation_id))

    async def cancel(self, scope: str, operation_id: str) -> Session:
        """Ask for its end; done only when the engine has confirmed it. May be repeated."""
        change = ProcessAmendment(state=ProcessState.CANCELLED)
        uid = uid_of(scope, operation_id)
        await self._seen(scope, operation_id)
        return session(await self._agent.amend_process(uid, change, None))

    async def wait(self, scope: str, operation_id: str) -> Session:
        """Wait for its end. Raises NotFound, also when it is forgotten meanwhile."""
        uid = (await self._seen(scope, operation_id)).uid
        await self._until(uid, _is_over)
        return await self.poll(scope, operation_id)

    async def read_output(self, scope: str, operation_id: str) -> Output:
        """What is kept: live while it runs, and after the end and disposal."""
        seen = await self._seen(scope, operation_id)
        return Output(
            stdout=await self._read(seen.uid, "stdout"),
            stderr=await self._read(seen.uid, "stderr"),
            truncated=seen.output.truncated_streams,
            incomplete=seen.output.incomplete,
        )

    async def read_artifact(self, scope: str, operation_id: str, path: str) -> ReadArtifact:
        """A file of the ended operation's workspace.

        Raises:
            Conflict: it still runs (`StillRunning`).
            NotFound: there is no such file, or the workspace is gone.
            Refused: `ArtifactRejected`, `ArtifactTooLarge`.
        """
        uid = (await self._seen(scope, operation_id)).uid
        content = bytearray()
        while True:
            chunk = await self._agent.read_artifact(uid, path, len(content), 1 << 20)
            content += chunk.data
            if len(content) >= chunk.artifact.size or not chunk.data:
                break
        found = chunk.artifact
        if len(content) != found.size or names.digest(bytes(content)) != found.digest:
            raise errors.Corrupt(f"artifact {path} is not what its digest says")
        return ReadArtifact(
            path=found.path, size=found.size, digest=found.digest, content=bytes(content)
        )

    async def dispose(self, scope: str, operation_id: str) -> Session:
        """Remove sandbox and workspace; the record stays, with output and kept artifacts.

        Raises:
            Conflict: it still runs (`StillRunning`).
        """
        seen = await self._seen(scope, operation_id)
        if seen.outcome is None:
            raise errors.Conflict(f"{operation_id} still runs", reason=reasons.STILL_RUNNING)
        change = ProcessAmendment(state=ProcessState.CANCELLED, dispose=True)
        await self._agent.amend_process(seen.uid, change, None)
        return session(await self._until(seen.uid, lambda seen: seen.nothing_left))

    async def reconcile(
        self, scope: str | None = None, *, remove_orphans: bool = False
    ) -> Reconciled:
        """Look at everything: what stands as recorded, what is lost, what nobody owns.

        Orphans are only reported unless they are to be removed; with a scope, only that scope's.
        """
        sessions = [session(seen) for seen in await self._all(scope)]
        orphans = tuple(
            stray
            for stray in (await self._agent.node()).strays
            if (scope is None or stray.namespace == scope) and _is_orphan(stray)
        )
        removed: tuple[Stray, ...] = ()
        if remove_orphans and orphans:
            left = await self._agent.remove_strays([stray.name for stray in orphans], None)
            still = {stray.name for stray in left}
            removed = tuple(stray for stray in orphans if stray.name not in still)
        return Reconciled(
            matched=tuple(s for s in sessions if s.state is not State.LOST),
            lost=tuple(s for s in sessions if s.state is State.LOST),
            orphans=orphans,
            removed=removed,
        )

    async def prune(self, *, terminal_before: datetime, scope: str | None = None) -> int:
        """Forget ended operations last changed before then (exclusive); returns how many.

        What is left of them goes too, and their ids may be used again.

        Raises:
            TypeError: the cutoff is no datetime with a zone; nothing was deleted.
        """
        if not isinstance(terminal_before, datetime) or terminal_before.tzinfo is None:
            raise TypeError("terminal_before must be a datetime with a zone")
        old = [
            seen.uid
            for seen in await self._all(scope)
            if session(seen).terminal and changed_at(seen) < terminal_before
        ]
        for uid in old:
            await self._remove(uid)
        await self._agent.forget_processes(old, None)
        return len(old)

    async def list(
        self,
        *,
        scope: str | None = None,
        states: Sequence[State] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[tuple[Session, ...], str | None]:
        """A page of operations and the cursor of the next, None after the last.

        Ordered by creation, then scope, then id, both as UTF-8 bytes.

        Raises:
            TypeError: the cursor is none of ours.
            ValueError: the limit is not from 1 to 1000.
        """
        after = paging.after(cursor)
        paging.check_limit(limit)
        found = [
            each
            for each in map(session, await self._all(scope))
            if states is None or each.state in states
        ]
        return paging.page(found, _position, after, limit)

    async def run_shell(
        self, command: str, sandbox: Sandbox, *, cwd: str = "", timeout_seconds: int | None = None,
        env: tuple[EnvVar, ...] = (), files: tuple[StagedFile, ...] = (),
    ) -> RunResult:  # fmt: skip
        """Run `/bin/sh -c command` once, in a fresh sandbox that is always removed.

        What the program does is the result, also a cwd outside the workspace. What keeps it from
        running is an exception with a reason.
        """
        return await self._run(
            sandbox, cwd, shell=command, timeout_seconds=timeout_seconds, env=env, files=files
        )

    async def run_code(
        self, language: str, source: str, sandbox: Sandbox, *, cwd: str = "",
        timeout_seconds: int | None = None, env: tuple[EnvVar, ...] = (),
        files: tuple[StagedFile, ...] = (),
    ) -> RunResult:  # fmt: skip
        """Run source in its interpreter; see `run_shell`. An unknown language runs nothing."""
        if language not in INTERPRETERS:
            known = ", ".join(INTERPRETERS)
            return _nothing_ran(f"language {language[:32]!r} is not one of {known}")
        code = Code(language=language, source=source)
        return await self._run(
            sandbox, cwd, code=code, timeout_seconds=timeout_seconds, env=env, files=files
        )

    async def _run(self, sandbox: Sandbox, cwd: str, **request: object) -> RunResult:
        inner = _below_workspace(cwd)
        if inner is None:
            return _nothing_ran(f"cwd {cwd[:256]!r} is outside the workspace")
        spec = StartRequest(
            operation_id="",
            scope="",
            sandbox=sandbox,
            cwd=inner,
            **request,  # type: ignore[arg-type]
        ).spec()
        uid = f"run-{uuid.uuid4()}"
        wanted = ProcessWanted(uid=uid, namespace=ONE_SHOT_SCOPE, name=uid, spec=spec)
        try:
            seen = await self._ended(wanted)
        except BaseException:
            # Also when the caller gives up. The agent goes on removing it for as long as it takes.
            await asyncio.shield(self._agent.remove_process(uid, None))
            raise
        try:
            return await self._result(seen)
        finally:
            await asyncio.shield(self._remove(uid))

    async def _ended(self, wanted: ProcessWanted) -> ProcessObserved:
        """Have it and wait for its end.

        Raises:
            Unavailable: it could not be begun, or the engine has been silent for too long.
        """
        seen = await self._agent.put_process(wanted, None)
        clock = asyncio.get_running_loop().time
        silent_since: float | None = None
        while seen.outcome is None:
            await asyncio.sleep(FIRST_LOOK_SECONDS)
            seen = await self._agent.get_process(wanted.uid)
            waiting = seen.waiting
            if waiting is None or waiting.reason != reasons.ENGINE_UNAVAILABLE:
                silent_since = None
                continue
            silent_since = silent_since or clock()
            if clock() - silent_since >= SILENCE_SECONDS:
                raise errors.Unavailable(waiting.message, reason=waiting.reason)
        return seen

    async def _result(self, seen: ProcessObserved) -> RunResult:
        outcome = seen.outcome
        assert outcome is not None
        if outcome.reason in _INFRASTRUCTURE:
            raise errors.Unavailable(outcome.message, reason=outcome.reason)
        if outcome.reason == reasons.START_FAILED:
            return _nothing_ran(outcome.message)
        late = outcome.reason == reasons.DEADLINE_EXCEEDED
        return RunResult(
            exit_code=None if late else outcome.exit_code,
            stdout=await self._read(seen.uid, "stdout"),
            stderr=await self._read(seen.uid, "stderr"),
            truncated=seen.output.truncated_streams,
            timed_out=late,
        )

    async def _remove(self, uid: str) -> None:
        """Have nothing left of it."""
        delay = FIRST_LOOK_SECONDS
        while not (await self._agent.remove_process(uid, None)).nothing_left or (
            await self._has_record(uid)
        ):
            await asyncio.sleep(delay)
            delay = min(LONGEST_LOOK_SECONDS, delay * 1.5)

    async def _until(self, uid: str, reached: Callable[[ProcessObserved], bool]) -> ProcessObserved:
        return await self._changes.until(uid, self._agent.get_process, ProcessObserved, reached)

    async def _has_record(self, uid: str) -> bool:
        """Whether more than a tombstone is left."""
        return (await self._agent.get_process(uid)).created_at is not None

    async def _seen(self, scope: str, operation_id: str) -> ProcessObserved:
        """The record; a tombstone is none."""
        seen = await self._agent.get_process(uid_of(scope, operation_id))
        if seen.created_at is None:
            raise errors.NotFound(f"no operation {operation_id} in {scope}")
        return seen

    async def _all(self, scope: str | None) -> Sequence[ProcessObserved]:
        every = (await self._agent.snapshot()).processes
        return [s for s in every if scope is None or s.namespace == scope]

    async def _read(self, uid: str, stream: Literal["stdout", "stderr"]) -> bytes:
        data, at = bytearray(), 0
        while True:
            chunk = await self._agent.process_output(uid, stream, at, 1 << 20)
            data += chunk.data
            at = chunk.offset + len(chunk.data)
            if at >= chunk.total_bytes or not chunk.data:
                return bytes(data)


def _is_under_way(seen: ProcessObserved) -> bool:
    """Whether it runs, has ended, or waits for something that is told."""
    return seen.outcome is not None or seen.step is Step.RUNNING or seen.waiting is not None


def _is_over(seen: ProcessObserved) -> bool:
    """Whether it has ended, or only a tombstone is left of it."""
    return seen.created_at is None or session(seen).terminal


def _position(found: Session) -> paging.Position:
    return (found.created_at, found.scope.encode(), found.operation_id.encode())


def _is_orphan(stray: Stray) -> bool:
    """A one-shot run has an owner that may be slow; after its time it has none."""
    return stray.namespace != ONE_SHOT_SCOPE or stray.age_seconds >= ONE_SHOT_GRACE.total_seconds()


def _below_workspace(cwd: str) -> str | None:
    """The path below the workspace, None if it leads out of it."""
    if cwd == "/workspace" or cwd in ("", "."):
        return ""
    inner = cwd.removeprefix("/workspace/").removeprefix("./").rstrip("/")
    return inner if is_path(inner) else None


def _nothing_ran(why: str) -> RunResult:
    return RunResult(exit_code=None, stdout=b"", stderr=why.encode() + b"\n")
