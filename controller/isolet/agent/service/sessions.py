"""Commands inside a running session: attached, bounded in time and output.

Docker cannot end the tree of one exec, so a command that passes its time or its output limit ends
the whole sandbox, siblings included (docs/measured.md#exec).
"""

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from isolet.agent.engine.base import ExecStream, Stream
from isolet.agent.service import inputs
from isolet.agent.service.context import Context
from isolet.agent.service.exits import exit_code
from isolet.agent.workspace import script
from isolet.agent.workspace.control import ControlLines, StartFailed
from isolet.base import errors
from isolet.plan import reasons, sandbox_outcome
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.execution import ExecRequest, ExecResult

SETTLE_SECONDS = 2.0
"""How long a command's streams may take to end after its session has."""

BY_SIGNAL = (128 + 9, 128 + 15)
"""Exit codes of what is killed, by itself or with its sandbox."""


class Overran(errors.Refused):
    """The command passed a bound; its sandbox must go."""


@dataclass
class _Collected:
    """Output of one command, up to the cap."""

    cap: int
    lines: ControlLines
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    failed: str | None = None

    def take(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDOUT:
            event, data = self.lines.feed(data)
            if isinstance(event, StartFailed):
                self.failed = event.why.value
        self._keep(stream, data)

    def finish(self) -> None:
        """At the end of the streams: a failed exec, or bytes that were held back."""
        failed, rest = self.lines.finish()
        if failed is not None:
            self.failed = str(failed.code)
        self._keep(Stream.STDOUT, rest)

    def _keep(self, stream: Stream, data: bytes) -> None:
        target = self.stdout if stream is Stream.STDOUT else self.stderr
        target += data
        if len(self.stdout) + len(self.stderr) > self.cap:
            raise Overran(
                f"the command printed more than {self.cap} bytes; its session is destroyed",
                reason=reasons.OUTPUT_LIMIT_EXCEEDED,
            )


class Sessions:
    """Runs commands in sessions."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._numbers = itertools.count(1)

    async def exec(self, record: SandboxRecord, request: ExecRequest) -> ExecResult:
        """Run one command to its end.

        Raises:
            Overran: it passed its time or the output limit; the caller ends the sandbox.
            Invalid: an argument or value that cannot be passed on.
            Refused: the program cannot be started (reason `StartFailed`).
            Unavailable: the engine went away meanwhile.
        """
        launch = f"exec-{next(self._numbers)}"
        nonce = self._context.nonce(record.uid, launch)
        content = script.build(
            script.Launch(
                argv=request.command,
                env=inputs.env_pairs(request.env),
                cwd=request.cwd or "/workspace",
                nonce=nonce,
            )
        )
        self._context.launches.write(record.uid, launch, content)
        try:
            return await self._run(record, request, launch, nonce)
        finally:
            self._context.launches.remove_file(record.uid, launch)

    async def _run(
        self, record: SandboxRecord, request: ExecRequest, launch: str, nonce: str
    ) -> ExecResult:
        collected = _Collected(record.spec.resources.output_bytes, ControlLines(nonce))
        started_at = self._context.clock.now()
        try:
            async with asyncio.timeout(request.timeout_seconds):
                code = await self._attached(record, request, launch, collected)
        except TimeoutError:
            raise Overran(
                f"the command ran longer than {request.timeout_seconds} s; "
                "its session is destroyed",
                reason=reasons.COMMAND_TIMEOUT,
            ) from None
        collected.finish()
        if collected.failed is not None:
            why = sandbox_outcome.not_started(request.command[0], collected.failed)
            raise errors.Refused(why, reason=reasons.START_FAILED)
        return ExecResult(
            exit_code=code,
            stdout=bytes(collected.stdout),
            stderr=bytes(collected.stderr),
            started_at=started_at,
            completed_at=self._context.clock.now(),
        )

    async def _attached(
        self, record: SandboxRecord, request: ExecRequest, launch: str, collected: _Collected
    ) -> int:
        engine = self._context.engine
        async with engine.exec(
            record.engine_name,
            ("/bin/sh", f"{script.MOUNT_POINT}/{launch}"),
            user=record.spec.user,
            working_dir="/workspace",
            stdin=True,
        ) as stream:
            feeder = asyncio.create_task(_feed(stream, request.stdin))
            try:
                # Both at once: writing all input before reading any output would deadlock.
                waiting = True
                async for source, data in stream.output():
                    collected.take(source, data)
                    if waiting and collected.lines.seen is not None:
                        # The program has its values: no file needs to hold them any longer.
                        waiting = False
                        self._context.launches.remove_file(record.uid, launch)
            finally:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
        return await exit_code(self._context.engine, stream.id)


async def first_end(
    command: Coroutine[Any, Any, ExecResult], session: Coroutine[Any, Any, None]
) -> ExecResult | None:
    """The end of a command, or of its session (None), whichever comes first.

    The engine sometimes keeps the streams of an exec open though its container is gone.
    """
    running, lasting = asyncio.create_task(command), asyncio.create_task(session)
    try:
        await asyncio.wait({running, lasting}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait({running}, timeout=SETTLE_SECONDS)
        return running.result() if running.done() else None
    finally:
        for task in (running, lasting):
            task.cancel()
        await asyncio.gather(running, lasting, return_exceptions=True)


async def _feed(stream: ExecStream, data: bytes) -> None:
    await stream.write(data)
    await stream.close_stdin()
