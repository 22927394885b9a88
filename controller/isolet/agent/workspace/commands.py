"""Runs the few programs that disks need: argv only, bounded in time, nothing of our environment."""

import asyncio
from collections.abc import Sequence

from isolet.base import errors

_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


async def run(argv: Sequence[str], *, timeout: float) -> str:
    """Run to its end; returns what it said on stdout and stderr.

    Raises:
        Unavailable: not there, failed, or took too long (it is killed and waited for).
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_ENV,
        )
    except OSError as error:
        raise errors.Unavailable(f"{argv[0]} cannot be run here: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise errors.Unavailable(f"{argv[0]} took longer than {timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = output.decode(errors="replace").strip()
    if process.returncode != 0:
        last = said.splitlines()[-1] if said else ""
        raise errors.Unavailable(f"{argv[0]} failed with {process.returncode}: {last}")
    return said
