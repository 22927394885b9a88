"""One agent for a whole module of tests: run a command to its end in either place, and tell all."""

import asyncio
import itertools
from dataclasses import dataclass

from isolet.agent.host import ExecutionHost
from isolet.agent.operations import StartRequest, State
from isolet.agent.runner import ProcessRunner
from isolet.wire.execution import ExecutionSpec, Medium, Resources, Workspace
from isolet.wire.process import Sandbox
from tests.integration.agent.conftest import Node
from witness import Witness

MIB = 1 << 20
OWN, INSIDE = "own", "inside"
PLACES = (OWN, INSIDE)
"""A sandbox of its own; a session."""

TRAP = "trap 'told=yes' USR1"
TOLD = 'until [ "$told" ] || [ -e told ]; do sleep 0.1; done; rm -f told'
"""Shell that waits for `Bench.tell`, and what has to stand before anybody may tell it."""

ROOM = Resources(
    cpu_millis=1000,
    memory_bytes=256 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=64 * MIB,
    shm_bytes=MIB,
    pids=64,
    output_bytes=16 * MIB,
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """All that is told of an operation that has ended."""

    state: State
    reason: str
    exit_code: int | None
    message: str
    stdout: bytes
    stderr: bytes
    truncated: tuple[str, ...]
    incomplete: bool
    seconds: float | None
    """From its start to its end; None if it never started."""

    @property
    def how(self) -> tuple[State, str, int | None]:
        """State, reason and exit code."""
        return self.state, self.reason, self.exit_code

    @property
    def told(self) -> tuple[int | None, bytes, bytes]:
        """Exit code and both streams, of one whose output is whole."""
        assert (self.truncated, self.incomplete) == ((), False)
        return self.exit_code, self.stdout, self.stderr


class Bench:
    """Runs operations in sandboxes of their own, or in a session that is made when needed."""

    def __init__(self, node: Node, image: str) -> None:
        self.node = node
        self.image = image
        self.runner = ProcessRunner(node.service)
        self.host = ExecutionHost(node.service)
        self._numbers = itertools.count()
        self._lock = asyncio.Lock()
        self.session_uid: str = ""
        """The session that serves whoever names no bounds."""
        self.label = {"dev.isolet.installation": node.installation}

    def sandbox(self, *, medium: Medium = Medium.MEMORY, **changes: object) -> Sandbox:
        """A sandbox of its own; what is no field of it is a bound."""
        own = {k: changes.pop(k) for k in ("image", "user") if k in changes}
        resources = ROOM.model_copy(update=changes)
        return Sandbox(
            **{"image": self.image, **own},
            resources=resources,
            workspace=Workspace(medium=medium),
        )

    async def session(self, *, deadline_seconds: int = 600, **changes: object) -> str:
        """A new session's uid."""
        medium = changes.pop("medium", Medium.MEMORY)
        spec = ExecutionSpec(
            image=changes.pop("image", self.image),
            resources=ROOM.model_copy(update=changes),
            workspace=Workspace(medium=medium),
        )
        uid = f"session-{next(self._numbers)}"
        seen = await self.host.provision(spec, uid=uid, deadline_seconds=deadline_seconds)
        return seen.uid

    async def place(self, where: str, **bounds: object) -> dict[str, object]:
        """Where it is to run, as a request says it."""
        if where == OWN:
            return {"sandbox": self.sandbox(**bounds)}
        if bounds:
            return {"execution_uid": await self.session(**bounds)}
        async with self._lock:
            if not await self._is_running(self.session_uid):
                self.session_uid = await self.session()
        return {"execution_uid": self.session_uid}

    async def _is_running(self, uid: str) -> bool:
        seen = {each.uid: each for each in await self.host.list()}.get(uid)
        return seen is not None and seen.outcome is None

    async def request(
        self, where: str, *command: str, bounds: dict[str, object] | None = None, **changes: object
    ) -> StartRequest:
        """A request with an id of its own."""
        chosen = {"sandbox", "execution_uid"} & changes.keys()
        place = {} if chosen else await self.place(where, **(bounds or {}))
        operation = f"op-{next(self._numbers)}"
        base = {"operation_id": operation, "scope": "acme", "command": command, **place}
        return StartRequest(**{**base, **changes})

    async def start(
        self, where: str, *command: str, bounds: dict[str, object] | None = None, **changes: object
    ) -> str:
        """Start it; its id."""
        request = await self.request(where, *command, bounds=bounds, **changes)
        await self.runner.start(request)
        return request.operation_id

    async def run(
        self, where: str, *command: str, bounds: dict[str, object] | None = None, **changes: object
    ) -> Ended:
        """Start it and wait for its end; nothing but its record is left then."""
        return await self.end(await self.start(where, *command, bounds=bounds, **changes))

    async def sh(self, where: str, script: str, **changes: object) -> Ended:
        """The same for a script."""
        return await self.run(where, "sh", "-c", script, **changes)

    async def prints(self, operation: str, wanted: bytes) -> None:
        """Wait until it has printed this, and nothing else."""
        async with asyncio.timeout(60):
            while (await self.runner.read_output("acme", operation)).stdout != wanted:
                await asyncio.sleep(0.05)

    async def container(self, operation: str, witness: Witness) -> str:
        """Id of the container that it has to itself, or shares with its session."""
        found = (await self.runner.poll("acme", operation)).container_id
        assert found is not None
        assert witness.inspect(found)["Config"]["Labels"].items() >= self.label.items()
        return found

    async def tell(self, operation: str, where: str, witness: Witness) -> None:
        """Let one go on that does `TOLD`; no agent has a part in it.

        A command beside it would not do in a sandbox that ends by it: the engine may leave whoever
        waits for the command's end waiting for ever.
        """
        container = await self.container(operation, witness)
        if where == OWN:
            witness.docker("kill", "--signal", "USR1", container)
        else:
            witness.docker("exec", container, "touch", "/workspace/told")

    async def end(self, operation: str) -> Ended:
        """Wait for its end."""
        found = await self.runner.wait("acme", operation)
        output = await self.runner.read_output("acme", operation)
        await self.runner.dispose("acme", operation)
        began = found.started_at
        return Ended(
            state=found.state,
            reason=found.reason,
            exit_code=found.exit_code,
            message=found.message,
            stdout=output.stdout,
            stderr=output.stderr,
            truncated=output.truncated,
            incomplete=output.incomplete,
            seconds=None if began is None else (found.updated_at - began).total_seconds(),
        )
