"""An engine that is killed under a command in a session has forgotten it when it comes back.

That says nothing of what the command was to find out or to do.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isolet.agent.engine.base import ExecFacts, Stream
from isolet.agent.service import collect, standstill
from isolet.agent.service.live_files import LiveFiles
from isolet.agent.workspace.artifacts import ArtifactFolders
from isolet.base import errors
from isolet.plan import reasons
from isolet.plan.sandbox_model import ProcessPart
from unit.plan.worlds import Step, a_record

AWAY = errors.Unavailable("the engine cannot be reached")
FORGOTTEN = errors.NotFound("No such exec instance")
MISSING = 4
"""What the program in the sandbox ends with where there is no such file."""

HOST = a_record(Step.RUNNING)
PROCESS = a_record(Step.RUNNING, uid="p1", process=ProcessPart(output_limit=1, globs=("made",)))


class Engine:
    """Each command ends in the next of these ways: with a code, or with an error of the engine."""

    def __init__(self, *ends: int | errors.IsoletError) -> None:
        self.ends = list(ends)
        self.answers = True

    @contextlib.asynccontextmanager
    async def exec(self, *_: object, **__: object) -> AsyncIterator[Any]:
        if self.ends[0] is AWAY:
            raise self.ends.pop(0)
        yield SimpleNamespace(id="e1", output=self.output)

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        yield Stream.STDOUT, b"whole" if self.ends[0] == 0 else b""

    async def inspect_exec(self, _: str) -> ExecFacts:
        end = self.ends.pop(0)
        if isinstance(end, errors.IsoletError):
            raise end
        return ExecFacts(running=False, exit_code=end)

    async def inspect(self, _: str) -> object:
        if not self.answers:
            raise AWAY
        return object()


async def collected(engine: Engine, folder: Path) -> ProcessPart:
    context: Any = SimpleNamespace(engine=engine, artifacts=ArtifactFolders(folder))
    return await collect.from_live(context, LiveFiles(context), PROCESS, HOST)


COLLECTED = {
    "it is there": ((0,), 1, []),
    "it is not there": ((MISSING,), 0, [reasons.ARTIFACT_MISSING]),
    "the engine was restarted under the question": ((FORGOTTEN, 0), 1, []),
    "and it is not there": ((FORGOTTEN, MISSING), 0, [reasons.ARTIFACT_MISSING]),
    "the engine was away": ((AWAY, 0), 1, []),
    "it goes away each time": ((FORGOTTEN, FORGOTTEN), 0, ["Unconfirmed"]),
}


@pytest.mark.parametrize("name", COLLECTED)
async def test_what_an_engine_has_forgotten_is_asked_again(tmp_path: Path, name: str) -> None:
    ends, kept, wrong = COLLECTED[name]
    part = await collected(Engine(*ends), tmp_path)
    assert part.collected
    assert len(part.artifacts) == kept
    assert [problem.reason for problem in part.artifact_problems] == wrong


@pytest.mark.parametrize("end", [FORGOTTEN, AWAY])
async def test_nothing_is_recorded_while_the_engine_is_away(tmp_path: Path, end: Any) -> None:
    engine = Engine(end)
    engine.answers = False
    with pytest.raises(errors.Unavailable):
        await collected(engine, tmp_path)


async def test_a_file_is_not_said_to_be_missing() -> None:
    context: Any = SimpleNamespace(engine=Engine(FORGOTTEN, MISSING))
    files = LiveFiles(context)
    with pytest.raises(errors.Unconfirmed):
        await files.get(HOST, "made")
    with pytest.raises(errors.NotFound):
        await files.get(HOST, "made")


async def test_a_sandbox_is_not_taken_for_gone_that_may_stand_still() -> None:
    engine: Any = Engine(FORGOTTEN)
    with pytest.raises(errors.Unconfirmed):
        await standstill.let_go(engine, HOST)
