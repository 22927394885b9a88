"""How an agent runs the program as a helper and reads its answer; no part of the program itself."""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isolet.agent.archive.entries import Figures
from isolet.agent.archive.refusal import Reason, Refused
from isolet.agent.helper import spawn
from isolet.base import errors

FOLDER = Path(__file__).parent
MAX_ANSWER = 16 << 10
_TOP = "/helper"
INSIDE = f"{_TOP}/isolet/agent/archive"
_SEEN = spawn.Mount(str(FOLDER), INSIDE)
_BOOT = (
    "import runpy, sys; sys.path.insert(0, {top!r}); sys.argv[0:1] = [];"
    "runpy.run_module('isolet.agent.archive', run_name='__main__', alter_sys=False)"
)


async def ask(
    what: str,
    request: Mapping[str, Any],
    rights: spawn.Rights,
    *,
    seconds: float,
    stream: AsyncIterator[bytes] | None = None,
) -> Figures:
    """Run the program as a helper.

    Args:
        what: `pack`, `normalise`, `unpack` or `verify`.
        request: as `isolet.agent.archive.__main__` has it; names paths as the helper sees them, and
            bounds, never anything of a tenant.
        rights: what it has; that it sees the program is added.
        seconds: after which it is ended.
        stream: what the helper reads as descriptor 0.

    Raises:
        Refused: why there is no archive, or no workspace from one.
        Unavailable: it could not be run, took too long, or was cut off before it answered.
    """
    wider = replace(rights, mounts=(_SEEN, *rights.mounts))
    command = argv(os.path.realpath(sys.executable), what, request)
    fed = stream is not None
    async with spawn.run(command, wider, seconds=seconds, stdin=fed) as helper:
        if stream is not None:
            await _feed(helper, stream)
        said = bytearray()
        while piece := await helper.read(MAX_ANSWER):
            said += piece
            if len(said) > MAX_ANSWER:
                raise errors.Unavailable("the helper says more than an answer")
        await helper.end()
    return figures(bytes(said))


async def _feed(helper: spawn.Helper, stream: AsyncIterator[bytes]) -> None:
    """Give it all of a stream, or as much as it takes."""
    async for piece in stream:
        if not await helper.write(piece):
            return
    await helper.close_input()


def argv(python: str, what: str, request: Mapping[str, Any], top: str = _TOP) -> tuple[str, ...]:
    """The command line.

    Args:
        python: the interpreter, as the helper sees it.
        what: see `ask`.
        request: see `ask`.
        top: folder that the package lies in.
    """
    return (python, "-I", "-S", "-c", _BOOT.format(top=top), "archive", what, json.dumps(request))


def figures(said: bytes) -> Figures:
    """What the program answered.

    Raises:
        Refused: why there is no archive, or no workspace from one.
        Unavailable: it was cut off before it answered.
    """
    try:
        fields = json.loads(said)
        if "done" in fields:
            return Figures(**fields["done"])
        raise Refused(Reason(fields["refused"]), fields["message"], fields["member"].encode())
    except (ValueError, KeyError, TypeError) as error:
        raise errors.Unavailable("the helper ended without an answer") from error
