"""The agent's warm slots as its own callers use them, over its Unix socket, and its two pools.

The pools are those of two classes of the API server, so that the same slots serve whoever comes to
the agent and whoever comes through Kubernetes.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from isolet.agent.service.dispatches import NO_CAPACITY
from isolet.base import errors, names
from isolet.client.dispatch import HTTPDispatch
from isolet.wire.dispatch import DispatchWanted, Mode, ReserveRequest, RunnerContract
from isolet.wire.execution import ExecutionSpec, ExecutionWanted, Resources
from isolet.wire.pool import PoolObserved, PoolWanted
from isolet_cluster.errors import ClusterError

from .cold import BOUNDS
from .outputs import Outputs
from .place import Place, a_class

COMMANDS, RUNNERS, NONE = "bench-commands", "bench-runners", "bench-none"
SIZE = 10
RUNNER_COMMAND = ("/app/runtime", "--once", "warm")
SECONDS = 120.0
LOOK = 0.1
"""Seconds between two looks at what is only waited for: each costs the agent a millisecond."""
AGAIN = 0.02
"""Seconds until a caller that found no slot asks again."""
_CPU = 1000
"""Millicores of a slot: the least that the execution managers of this kind give. With half of one
the kernel holds a sandbox back for the rest of 100 ms as soon as it has begun to work."""
_RUNNER_BOUNDS = {"cpu": f"{_CPU}m", "memory": "128Mi", "workspace": "16Mi"}
_RUNNER_BOUNDS |= {"tmp": "16Mi", "shm": "1Mi"}

_COMMAND_BOUNDS = BOUNDS.model_copy(update={"cpu_millis": _CPU})


def document(word: str) -> bytes:
    """A document whose run says the word, and no more."""
    return json.dumps({"run_id": word, "payload": [{"echo": word}]}).encode()


def classes(place: Place, size: int = SIZE) -> list[dict[str, object]]:
    """A class with slots for any command, one with slots of a runner, and one without slots."""
    runner = os.environ["ISOLET_IMAGE_RUNNER"]
    bounds = {**_RUNNER_BOUNDS, "pids": 64, "output": "1Mi"}
    pool = {"size": size, "medium": "Memory", "whenEmpty": "Wait"}
    own = {
        COMMANDS: {"warmPool": pool},
        RUNNERS: {
            "images": {"allowed": [runner], "default": runner},
            "resources": {"default": bounds, "maximum": bounds},
            "warmPool": pool,
            "runner": {"command": list(RUNNER_COMMAND)},
        },
        NONE: {},
    }
    found = []
    for name, changes in own.items():
        made = a_class(place.image, cpu=f"{_CPU}m")
        spec = made["spec"]
        assert isinstance(spec, dict)
        found.append(made | {"metadata": {"name": name}, "spec": {**spec, **changes}})
    return found


def pool_of_commands(place: Place) -> PoolWanted:
    """What a slot for commands is made as: for containers of the same configuration."""
    return PoolWanted(
        class_name=COMMANDS,
        image=place.image,
        resources=_COMMAND_BOUNDS,
        maximum_deadline_seconds=600,
        minimum=1,
        maximum=1,
    )


def pool_of_runners() -> PoolWanted:
    """What a slot of the runner is made as."""
    return PoolWanted(
        class_name=RUNNERS,
        image=os.environ["ISOLET_IMAGE_RUNNER"],
        resources=Resources(
            cpu_millis=_CPU,
            memory_bytes=128 << 20,
            workspace_bytes=16 << 20,
            tmp_bytes=16 << 20,
            shm_bytes=1 << 20,
            pids=64,
            output_bytes=1 << 20,
        ),
        maximum_deadline_seconds=600,
        minimum=1,
        maximum=1,
        runner=RunnerContract(command=RUNNER_COMMAND),
    )


@dataclass
class Slots:
    """Calls of the agent; each run says a word of its own, and when that came is its first byte."""

    place: Place
    agent: HTTPDispatch
    outputs: Outputs
    found_none: int = 0
    """Dispatches that found no slot, and asked again."""

    async def command(self, word: str, class_name: str = COMMANDS) -> tuple[str, float]:
        """Run `echo <word>`; returns uid and the time of its first byte."""
        uid = f"{class_name}-{uuid.uuid4().hex[:12]}"
        spec = ExecutionSpec(
            image=self.place.image,
            resources=_COMMAND_BOUNDS,
            command=("echo", word),
            maximum_deadline_seconds=600,
        )
        wanted = ExecutionWanted(
            uid=uid, name=uid, class_name=class_name, spec=spec, active_deadline_seconds=600
        )
        await self.agent.put(wanted, None)
        return uid, await self.outputs.first(word)

    async def dispatch(self, word: str, *, reserve: bool = False) -> tuple[str, float]:
        """Dispatch a document; returns uid and the time of its first byte.

        With `reserve` in two calls, as whoever has something to do between them.
        """
        payload = document(word)
        wanted = DispatchWanted(
            uid=word,
            name=word,
            run_id=word,
            class_name=RUNNERS,
            mode=Mode.STREAM,
            payload_digest=names.digest(payload),
            payload_bytes=len(payload),
        )
        request = ReserveRequest(class_name=RUNNERS)
        while True:
            try:
                slot = await self.agent.reserve(request) if reserve else None
                await self.agent.begin(slot, wanted, payload)
                return word, await self.outputs.first(word)
            except errors.Unavailable as error:
                if error.reason != NO_CAPACITY:
                    raise
                self.found_none += 1
                await asyncio.sleep(AGAIN)

    async def gone(self, uid: str) -> None:
        """Wait for its end and until nothing is left of it."""

        async def ended() -> bool:
            return (await self.agent.get(uid)).outcome is not None

        async def removed() -> bool:
            return (await self.agent.remove(uid, None)).nothing_left

        await until(ended, f"the end of {uid}")
        await until(removed, f"nothing of {uid}")

    async def pools(self) -> dict[str, PoolObserved]:
        """Both pools as the agent has them."""
        return {pool.class_name: pool for pool in (await self.agent.node()).pools}

    async def full(self, size: int = SIZE) -> None:
        """Wait until both pools are full and nothing is being made or removed."""

        async def rests() -> bool:
            try:
                seen = await self.pools()
            except errors.Unavailable:
                return False  # It has only just been started.
            now = [(one.ready, one.creating, one.retiring) for one in seen.values()]
            return seen.keys() == {COMMANDS, RUNNERS} and set(now) == {(size, 0, 0)}

        await until(rests, "full pools")


async def until(reached: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask until it is so."""
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                if await reached():
                    return
                await asyncio.sleep(LOOK)
    except TimeoutError:
        raise ClusterError(f"{what}: not in {SECONDS:.0f} s") from None
