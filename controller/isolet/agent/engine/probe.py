"""Whether an image has certain files, found out without running anything of it."""

import asyncio
import base64
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from isolet.agent.engine import api
from isolet.base import errors, names

KIND = "probe"
_MAX_LINKS = 8
# Bits of Go's fs.FileMode, which is what the engine gives.
_DIRECTORY = 1 << 31
_SYMLINK = 1 << 27


def create_body(image_id: str, installation: str) -> dict[str, object]:
    """A container that is never started; its labels let an agent find one that a crash left."""
    return {
        "Image": image_id,
        "Entrypoint": [],
        "Cmd": ["never-started"],
        "Labels": {names.LABEL_INSTALLATION: installation, names.LABEL_KIND: KIND},
        # Not the log driver `none`: whoever attaches to every container of the node, log included,
        # would have dockerd (20.10) look for a plugin of that name for 15 s, and nobody is told
        # of any container's end meanwhile.
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "local"}},
    }


async def has_files(engine: api.API, container_id: str, paths: Sequence[str]) -> dict[str, bool]:
    """For each path, whether the container has a file there.

    Raises:
        Unavailable: somebody has removed it meanwhile (`docker container prune` does). The engine
            gives the same answer for a file that is not there.
    """
    found = {path: await has_file(engine, container_id, path) for path in dict.fromkeys(paths)}
    try:
        await engine.get(f"/containers/{container_id}/json")
    except errors.NotFound:
        raise errors.Unavailable("the probe container was removed meanwhile") from None
    return found


async def has_file(engine: api.API, container_id: str, path: str) -> bool:
    """Whether `path` names a file in the container's root, links followed within it."""
    for _ in range(_MAX_LINKS):
        stat = await _stat(engine, container_id, path)
        if stat is None:
            return False
        if not stat["mode"] & _SYMLINK:
            return not stat["mode"] & _DIRECTORY
        # The engine gives the target fully resolved within the container's root; a second round
        # tells whether it exists.
        target = str(stat.get("linkTarget", ""))
        if not target.startswith("/") or target == path:
            return False
        path = target
    return False


async def _stat(engine: api.API, container_id: str, path: str) -> Mapping[str, Any] | None:
    try:
        reply = await engine.get(
            f"/containers/{container_id}/archive", {"path": path}, method="HEAD"
        )
    except errors.NotFound:
        return None
    encoded = reply.headers.get("x-docker-container-path-stat", "")
    try:
        stat = json.loads(base64.b64decode(encoded))
        return stat if isinstance(stat.get("mode"), int) else None
    except (ValueError, AttributeError):
        raise errors.Unavailable("the engine's file status cannot be read") from None


async def to_the_end(work: Coroutine[None, None, None]) -> None:
    """Do `work` even when the caller is cancelled meanwhile; the cancellation follows after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
