"""Checkpoints of a real agent, and witnesses that share no code with it."""

import asyncio
import json
import subprocess
from pathlib import Path

from isolet.agent.service.service import Service
from isolet.wire.checkpoint import CheckpointObserved, CheckpointSpec, CheckpointWanted


def wanted(uid: str, execution_uid: str, **changes: object) -> CheckpointWanted:
    spec = CheckpointSpec(execution_uid=execution_uid, reason="test")
    return CheckpointWanted(uid=uid, name=uid, spec=spec, **changes)


async def ended(service: Service, uid: str, seconds: float = 60) -> CheckpointObserved:
    """The Checkpoint once it has its outcome."""
    async with asyncio.timeout(seconds):
        while True:
            seen = await service.get_checkpoint(uid)
            if seen.outcome is not None:
                return seen
            await asyncio.sleep(0.02)


async def gone(service: Service, uid: str, seconds: float = 60) -> CheckpointObserved:
    """The Checkpoint once its record is gone too."""
    seen = await service.remove_checkpoint(uid, None)
    async with asyncio.timeout(seconds):
        while not seen.nothing_left or seen.outcome is not None:
            await asyncio.sleep(0.02)
            seen = await service.get_checkpoint(uid)
    return seen


async def take(service: Service, uid: str, execution_uid: str) -> CheckpointObserved:
    await service.put_checkpoint(wanted(uid, execution_uid), None)
    return await ended(service, uid)


def by_tar(folder: Path, name: str) -> bytes:
    """A file of a copy, by GNU tar."""
    argv = ["tar", "-xOf", str(folder / "content"), name]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "entries").read_text().splitlines()]
