"""Reads Git trees for sandboxes that have not been made yet, beside their workers.

A reading may take minutes, and its sandbox may be cancelled meanwhile, so no worker waits for one:
it begins it, is woken at its end and looks. What a reading found is in memory until the worker has
recorded it; an agent that dies before then begins it anew, with the commit that was recorded.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from isolet.agent.policy.git import GitRepository
from isolet.agent.service.context import Context
from isolet.agent.steps import AgentStep
from isolet.agent.workspace.mirrors import Remote
from isolet.agent.workspace.trees import Bounds
from isolet.base import errors, log, steps
from isolet.plan import reasons
from isolet.plan.git_model import GitPart, Tree, TreeFacts
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.execution import Outcome

READINGS_AT_ONCE = 2
AGAIN_SECONDS = 5
"""A mirror that lacks what is asked for is fetched again, but not more often than this."""

_FULL_ID = (40, 64)

_log = log.get("agent.imports")


@dataclass
class _Reading:
    """What is known of one uid, and the task that finds out more."""

    seen: TreeFacts = field(default_factory=TreeFacts)
    task: asyncio.Task[None] | None = None


class Imports:
    """The readings of all sandboxes."""

    def __init__(self, context: Context, wake: Callable[[str], None]) -> None:
        self._context = context
        self._wake = wake
        self._readings: dict[str, _Reading] = {}
        self._turn = asyncio.Semaphore(READINGS_AT_ONCE)

    def start(self, known: Collection[str]) -> None:
        """Drop the trees of what is no longer known here."""
        for uid in self._context.trees.list():
            if uid not in known:
                self._context.trees.remove(uid)

    def look(self, record: SandboxRecord) -> TreeFacts:
        """How it stands."""
        if record.git is None:
            return TreeFacts()
        reading = self._readings.get(record.uid) or _Reading()
        busy = reading.task is not None and not reading.task.done()
        return replace(reading.seen, busy=busy, at_hand=self._context.trees.is_ready(record.uid))

    def resolve(self, record: SandboxRecord) -> None:
        """Begin to find out the commit."""
        self._begin(record, self._resolve)

    def read(self, record: SandboxRecord) -> None:
        """Begin to read the tree of the commit."""
        self._begin(record, self._read)

    def forget(self, uid: str) -> None:
        """It starts no more, or has started: no reading goes on, and no tree is kept."""
        reading = self._readings.pop(uid, None)
        if reading is not None and reading.task is not None:
            reading.task.cancel()
        self._context.trees.unpacked(uid)

    async def close(self) -> None:
        """End all readings; they are begun anew by the next agent."""
        tasks = [r.task for r in self._readings.values() if r.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, record: SandboxRecord, what: Callable[[SandboxRecord, GitPart], Awaitable[TreeFacts]]
    ) -> None:
        reading = self._readings.setdefault(record.uid, _Reading())
        if reading.task is None or reading.task.done():
            reading.task = asyncio.create_task(self._guarded(record, reading, what))

    async def _guarded(
        self,
        record: SandboxRecord,
        reading: _Reading,
        what: Callable[[SandboxRecord, GitPart], Awaitable[TreeFacts]],
    ) -> None:
        assert record.git is not None
        try:
            async with self._turn:
                reading.seen = await what(record, record.git)
        except errors.IsoletError as error:
            reading.seen = TreeFacts(failed=_failure(record.git, error))
            _log.info("not imported", extra={"uid": record.uid, "reason": error.reason})
        except Exception as error:
            # Nothing known would be as if it had not begun, and it would begin again at once.
            _log.exception("not imported", extra={"uid": record.uid})
            reading.seen = TreeFacts(failed=_failure(record.git, _unforeseen(error)))
        finally:
            # After this task is done: the worker that looks must not find it busy.
            asyncio.get_running_loop().call_soon(self._wake, record.uid)

    async def _resolve(self, record: SandboxRecord, part: GitPart) -> TreeFacts:
        path = await self._path(part, fresh=len(part.revision) not in _FULL_ID)
        seconds = self._context.policy.git.timeout_seconds
        try:
            commit = await self._context.trees.resolve(path, part.revision, seconds=seconds)
        except errors.Refused as error:
            # A mirror that is too young to be asked again lacks only what came meanwhile.
            if error.reason != reasons.REVISION_NOT_FOUND or not self._is_mirror(part):
                raise
            path = await self._path(part, fresh=True, now=True)
            commit = await self._context.trees.resolve(path, part.revision, seconds=seconds)
        steps.reach(AgentStep.COMMIT_BEFORE)
        return TreeFacts(commit=commit)

    async def _read(self, record: SandboxRecord, part: GitPart) -> TreeFacts:
        assert part.commit is not None
        steps.reach(AgentStep.TREE_BEFORE)
        git = self._context.policy.git
        bounds = Bounds(
            workspace_bytes=record.spec.resources.workspace_bytes,
            entries=git.maximum_entries,
            seconds=git.timeout_seconds,
        )
        path = await self._path(part, fresh=False)
        found = await self._context.trees.export(record.uid, path, part.commit, bounds)
        steps.reach(AgentStep.TREE_AFTER)
        tree = Tree(
            entries=found.entries,
            submodules=found.submodules,
            more_submodules=found.more_submodules,
            lfs=found.lfs,
        )
        return TreeFacts(commit=part.commit, tree=tree)

    def _is_mirror(self, part: GitPart) -> bool:
        found = self._context.policy.git.find(part.repository)
        return found is not None and found.remote is not None

    async def _path(self, part: GitPart, *, fresh: bool, now: bool = False) -> str:
        """Where the repository lies on this node."""
        source = self._context.policy.git.find(part.repository)
        if source is None:
            raise errors.Refused(
                f"repository {part.repository} is not in the policy of this node any more",
                reason=reasons.REPOSITORY_UNAVAILABLE,
            )
        if source.remote is None:
            return _local(part.repository, source)
        remote = _remote(part.repository, source)
        if now:
            remote = replace(remote, refresh_seconds=min(AGAIN_SECONDS, remote.refresh_seconds))
        seconds = self._context.policy.git.timeout_seconds
        return await self._context.mirrors.path(remote, fresh=fresh, seconds=seconds)


def _local(name: str, source: GitRepository) -> str:
    """The path of a repository on the node, after all links; below its root if it has one."""
    assert source.path is not None
    real = os.path.realpath(source.path)
    if source.below is not None and real != os.path.normpath(
        os.path.realpath(source.below) + source.path[len(source.below) :]
    ):
        raise errors.Refused(
            f"repository {name} is reached through a link below its root",
            reason=reasons.REPOSITORY_UNAVAILABLE,
        )
    if not os.path.isdir(real):
        raise errors.Refused(
            f"repository {name} is not on this node: there is no folder {source.path}",
            reason=reasons.REPOSITORY_UNAVAILABLE,
        )
    return real


def _remote(name: str, source: GitRepository) -> Remote:
    assert source.remote is not None
    return Remote(
        name=name,
        url=source.remote,
        refresh_seconds=source.refresh_seconds,
        token_file=source.token_file,
        ca_file=source.ca_file,
        key_file=source.key_file,
        known_hosts_file=source.known_hosts_file,
    )


def _unforeseen(error: Exception) -> errors.IsoletError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.Unavailable(
            f"it cannot be kept on the node: {error.strerror}", reason=reasons.NODE_STORAGE_FULL
        )
    return errors.Unavailable("the agent failed in reading it; its log says why")


def _failure(part: GitPart, error: errors.IsoletError) -> Outcome:
    what = f"repository {part.repository}, revision {part.revision}"
    known = error.reason != errors.Unavailable.default_reason
    return Outcome(
        succeeded=False,
        reason=error.reason if known else reasons.GIT_IMPORT_FAILED,
        message=f"{what}: {error.message}",
    )
