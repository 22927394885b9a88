"""Keeps the artifacts of a Process: what its globs name, and what is asked for afterwards."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

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

MOST_FOLDERS = 100
"""Of a live workspace, for one glob: each is a command in the sandbox."""
MOST_PROBLEMS = 64

_T = TypeVar("_T")
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

    Raises:
        Unavailable: the engine does not answer, which says nothing of a file: to be done again.
    """
    assert record.process is not None
    kept: list[Kept] = []
    problems: list[Problem] = []
    for glob in record.process.globs:
        if host is None:
            problems.append(_problem(glob, errors.NotFound("its session is gone")))
            continue
        paths = await _asked(context, host, partial(_live_paths, files, host, glob))
        if isinstance(paths, errors.IsoletError):
            problems.append(_problem(glob, paths))
            continue
        for path in paths:
            content = await _asked(context, host, partial(files.get, host, path))
            if isinstance(content, errors.IsoletError):
                problems.append(_problem(path, content))
                continue
            keep = context.artifacts.keep
            kept.append(await asyncio.to_thread(keep, record.uid, path, content))
    return merged(replace(record.process, collected=True), kept, problems[:MOST_PROBLEMS])


async def _asked(
    context: Context, host: SandboxRecord, ask: Callable[[], Awaitable[_T]]
) -> _T | errors.IsoletError:
    """What is answered, or what stands against it.

    An engine that goes away takes with it what was asked, so it is then asked once more.

    Raises:
        Unavailable: it does not answer at all.
    """
    try:
        return await ask()
    except errors.Unavailable:
        await context.engine.inspect(host.engine_name)
    except errors.IsoletError as error:
        return error
    try:
        return await ask()
    except errors.IsoletError as error:
        return error


def _problem(path: str, error: errors.IsoletError) -> Problem:
    missing = isinstance(error, errors.NotFound)
    return Problem(path, reasons.ARTIFACT_MISSING if missing else error.reason, error.message)


async def _live_paths(files: LiveFiles, host: SandboxRecord, glob: str) -> list[str]:
    """What matches, in order. Only folders that a match can lie below are looked into."""
    if not reader.has_wildcard(glob):
        return [glob]
    matches = reader.pattern(glob).match
    found: list[str] = []
    left = [fixed_part(glob)]
    for looks in itertools.count(1):
        if not left:
            return sorted(found)
        if looks > MOST_FOLDERS:
            raise errors.Refused(
                f"{glob}: more than {MOST_FOLDERS} folders would have to be looked into",
                reason=reasons.ARTIFACT_TOO_LARGE,
            )
        for entry in await files.list(host, left.pop()):
            if entry.kind == "folder" and leads_into(glob, entry.path):
                left.append(entry.path)
            elif entry.kind != "folder" and matches(entry.path):
                found.append(entry.path)
    raise AssertionError


def fixed_part(glob: str) -> str:
    """The folder above the first part with a wildcard."""
    words = glob.split("/")
    fixed = itertools.takewhile(lambda word: not reader.has_wildcard(word), words)
    return "/".join(fixed)


def leads_into(glob: str, folder: str) -> bool:
    """Whether something below the folder can match."""
    words, parts = glob.split("/"), folder.split("/")
    for word, part in zip(words, parts, strict=False):
        if word == "**":
            return True
        if not reader.pattern(word).match(part):
            return False
    return len(parts) < len(words)


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
        device = await context.disks.device_of(record.place)
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
