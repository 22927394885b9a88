"""Keeps the artifacts of a Process: what its globs name, and what is asked for afterwards."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from isolet.agent.service import config
from isolet.agent.service.context import Context
from isolet.agent.service.live_files import LiveFiles
from isolet.agent.workspace import reader
from isolet.agent.workspace.artifacts import Kept, Problem
from isolet.base import errors, log
from isolet.plan import reasons
from isolet.plan.sandbox_model import ProcessPart, SandboxRecord
from isolet.wire.execution import Medium
from isolet.wire.process import Artifact, ArtifactProblem

TRIES = 20
TRY_SECONDS = 0.1
"""The engine lets go of a volume a moment after the sandbox has ended."""

_log = log.get("agent.collect")


async def from_stopped(context: Context, record: SandboxRecord) -> ProcessPart:
    """The Process's part with what its globs match; a workspace that cannot be read is told."""
    assert record.process is not None
    try:
        kept, problems = await look(context, record, record.process.globs)
    except errors.IsoletError as error:
        _log.warning("artifacts", extra={"uid": record.uid, "why": error.message})
        kept, problems = (), (Problem("", error.reason, error.message),)
    return merged(replace(record.process, collected=True), kept, problems)


async def from_live(
    context: Context, files: LiveFiles, record: SandboxRecord, host: SandboxRecord | None
) -> ProcessPart:
    """As `from_stopped`, in a session that lives on, within the bounds of its `get_file`.

    Wildcards are understood in the last part of a glob only: nothing walks a live workspace.
    """
    assert record.process is not None
    kept: list[Kept] = []
    problems: list[Problem] = []
    for glob in record.process.globs:
        try:
            if host is None:
                raise errors.NotFound("its session is gone")
            for path in await _live_paths(files, host, glob):
                content = await files.get(host, path)
                kept.append(
                    await asyncio.to_thread(context.artifacts.keep, record.uid, path, content)
                )
        except errors.NotFound as error:
            problems.append(Problem(glob, reasons.ARTIFACT_MISSING, error.message))
        except errors.IsoletError as error:
            problems.append(Problem(glob, error.reason, error.message))
    return merged(replace(record.process, collected=True), kept, problems)


async def _live_paths(files: LiveFiles, host: SandboxRecord, glob: str) -> list[str]:
    folder, _, last = glob.rpartition("/")
    if not reader.has_wildcard(glob):
        return [glob]
    if reader.has_wildcard(folder) or last == "**":
        raise errors.Refused(
            f"{glob}: in a session only the last part may have wildcards",
            reason=reasons.ARTIFACT_REJECTED,
        )
    entries = await files.list(host, folder)
    matches = reader.pattern(glob).match
    return [entry.path for entry in entries if entry.kind == "file" and matches(entry.path)]


async def look(
    context: Context, record: SandboxRecord, globs: Sequence[str]
) -> tuple[tuple[Kept, ...], tuple[Problem, ...]]:
    """Keep what matches in the stopped workspace.

    Raises:
        NotFound: the workspace is gone, or was in memory.
        Unavailable: it cannot be read.
    """
    if record.spec.medium is not Medium.DISK:
        raise errors.NotFound("a Memory workspace is gone with its sandbox")
    user = config.user_ids(record.spec.user)
    for number in range(TRIES):
        device = await context.disks.device_of(record.uid)
        if device is None:
            raise errors.NotFound("its workspace is not there any more")
        try:
            return await asyncio.to_thread(
                context.artifacts.collect, record.uid, device, user, globs
            )
        except errors.Unavailable as error:
            if "busy" not in error.message or number == TRIES - 1:
                raise
        await asyncio.sleep(TRY_SECONDS)
    raise AssertionError


def merged(part: ProcessPart, kept: Sequence[Kept], problems: Sequence[Problem]) -> ProcessPart:
    """The part with more artifacts; one that was kept before stays as it was."""
    known = {artifact.path: artifact for artifact in part.artifacts}
    for each in kept:
        known.setdefault(each.path, Artifact(path=each.path, size=each.size, digest=each.digest))
    more = tuple(ArtifactProblem(path=p.path, reason=p.reason, message=p.message) for p in problems)
    return replace(
        part,
        artifacts=tuple(known[path] for path in sorted(known)),
        artifact_problems=(*part.artifact_problems, *more),
    )


def refusal(problem: Problem) -> errors.IsoletError:
    """The error for one file that was asked for."""
    if problem.reason == reasons.ARTIFACT_MISSING:
        return errors.NotFound(problem.message)
    return errors.Refused(problem.message, reason=problem.reason)
