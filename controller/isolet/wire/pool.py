"""Warm pools: what an agent is told to keep ready, and what it says of it.

A pool is one class at one generation on one node: sandboxes of exactly these bounds that run and
wait, each given to one Execution and never to a second. Nothing of a tenant is part of any message
here.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from isolet.base import names
from isolet.wire.base import Wire
from isolet.wire.dispatch import RunnerContract
from isolet.wire.execution import ExecutionSpec, Medium, Resources, Workspace

MAX_POOLS = 256
MAX_SIZE = 1024


_OPEN: dict[str, Any] = {
    "command": True,
    "env": True,
    "maximum_deadline_seconds": True,
    "idle_timeout_seconds": True,
    "status_tail_bytes": True,
    "workspace": {"retain_seconds"},
}
"""What a slot leaves open, since nothing of it is in the sandbox. All else must be the pool's own:
a field that comes later is part of that unless it is named here."""


class WhenEmpty(StrEnum):
    """What becomes of an Execution that finds no slot ready."""

    WAIT = "Wait"
    COLD = "Cold"
    REFUSE = "Refuse"


class PoolWanted(Wire):
    """One pool as its owner wants it now."""

    class_name: str = Field(max_length=253)
    class_uid: str = Field(default="", max_length=64)
    generation: int = 0
    """With `class_uid`: another one is another pool, and the old one's slots go."""
    image: str
    """The reference that the Executions will name too."""
    runtime: str = "runsc"
    user: str = "65532:65532"
    resources: Resources
    medium: Medium = Medium.MEMORY
    workspace_executable: bool = True
    tmp_executable: bool = False
    maximum_deadline_seconds: int = Field(default=86_400, ge=1, le=86_400)
    """The longest life of what a slot may be given to."""
    minimum: int = Field(ge=0, le=MAX_SIZE)
    """Slots that are kept ready."""
    maximum: int = Field(ge=1, le=MAX_SIZE)
    """Up to so many where demand asks for them; equal to `minimum` for a fixed size."""
    create_concurrency: int = Field(default=2, ge=1, le=32)
    """Slots of it that are being made at a time."""
    idle_timeout_seconds: int = Field(default=600, ge=10, le=86_400)
    """An unused slot is replaced after so long."""
    when_empty: WhenEmpty = WhenEmpty.COLD
    runner: RunnerContract | None = None
    """What its slots run, waiting for a document; they serve dispatches and nothing else. Absent:
    they wait for any command."""

    @property
    def startup_seconds(self) -> int:
        """How long the runner in a slot may take to say that it is ready; 0 without one."""
        return self.runner.budgets.startup_seconds if self.runner is not None else 0

    def digest(self) -> str:
        """What its slots are labelled with: class, generation and every bound, not its size.

        The idle timeout is one of the bounds: a slot is made with the longest life that follows
        from it, and kept longer it would end before what it is given to may.
        """
        sizes = {"minimum", "maximum", "create_concurrency", "when_empty"}
        return names.digest(names.canonical_json(self.model_dump(mode="json", exclude=sizes)))

    def serves(self, class_name: str, spec: ExecutionSpec) -> bool:
        """Whether an Execution of this class and spec is exactly what its slots are made for."""
        fixed = spec.model_dump(exclude=_OPEN)
        return (
            self.runner is None
            and class_name == self.class_name
            and fixed == self.spec().model_dump(exclude=_OPEN)
            and spec.maximum_deadline_seconds <= self.maximum_deadline_seconds
        )

    def spec(self) -> ExecutionSpec:
        """What a slot is: a session of the class's own bounds that nobody uses yet."""
        return ExecutionSpec(
            image=self.image,
            runtime=self.runtime,
            user=self.user,
            resources=self.resources,
            workspace=Workspace(medium=self.medium, executable=self.workspace_executable),
            tmp_executable=self.tmp_executable,
            maximum_deadline_seconds=self.maximum_deadline_seconds,
        )


class PoolsWanted(Wire):
    """Every pool of a node: one that is not named is not wanted."""

    pools: tuple[PoolWanted, ...] = Field(default=(), max_length=MAX_POOLS)

    def digest(self) -> str:
        """The same for the same wish, in whatever order."""
        pools = sorted((p.model_dump(mode="json") for p in self.pools), key=names.canonical_json)
        return names.digest(names.canonical_json(pools))

    def serving(self, class_name: str, spec: ExecutionSpec) -> PoolWanted | None:
        """The pool that serves this Execution, if there is one."""
        return next((one for one in self.pools if one.serves(class_name, spec)), None)

    def runner_of(self, digest: str) -> RunnerContract | None:
        """The runner in the slots of a pool; None where they wait for any command."""
        pools = (one for one in self.pools if one.runner is not None)
        return next((one.runner for one in pools if one.digest() == digest), None)

    def runners_of(self, class_name: str) -> PoolWanted | None:
        """The pool that serves the dispatches of a class, if there is one."""
        pools = (one for one in self.pools if one.runner is not None)
        return next((one for one in pools if one.class_name == class_name), None)


class PoolObserved(Wire):
    """One pool as it is."""

    class_name: str
    class_uid: str = ""
    generation: int = 0
    target: int = 0
    """How many should be ready now."""
    ready: int = 0
    creating: int = 0
    assigned: int = 0
    """Slots that were given to an Execution which has not ended."""
    retiring: int = 0
    """Slots that are being removed unused; they still hold their room."""
    created_total: int = 0
    failed_total: int = 0
    """Slots that never became ready; both since the agent began."""
    assigned_total: int = 0
    missed_total: int = 0
    """Executions that found none ready."""
    message: str = ""
    """Why there are fewer than wanted, where more is not being made."""


class PoolsObserved(Wire):
    """Every wanted pool of the node."""

    digest: str
    """Of the wish that is obeyed."""
    at: datetime
    pools: tuple[PoolObserved, ...] = ()
