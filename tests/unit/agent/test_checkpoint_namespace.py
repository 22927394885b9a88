"""A Checkpoint and its Execution are of one namespace: the agent does not leave that to others."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent.service.checkpoints import Checkpoints
from isolet.base import errors
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.checkpoint import CheckpointSpec, CheckpointWanted
from tests.contract.store.records import a_record


class Store:
    """Knows one Execution."""

    def __init__(self, host: SandboxRecord) -> None:
        self._host = host

    async def get(self, uid: str) -> SandboxRecord | None:
        return self._host if uid == self._host.uid else None

    async def tombstone(self, uid: str) -> None:
        return None


class Admission:
    """Lets everything in."""

    async def checkpoint(self, record: SandboxRecord) -> SandboxRecord:
        raise Admitted


class Admitted(Exception):
    pass


async def ask(namespace: str) -> None:
    host = a_record("host", namespace="team-a")
    context: Any = SimpleNamespace(
        store=Store(host), clock=SimpleNamespace(now=lambda: host.created_at)
    )
    wanted = CheckpointWanted(
        uid="c1", namespace=namespace, name="c", spec=CheckpointSpec(execution_uid="host")
    )
    await Checkpoints(context, cast(Any, Admission()), lambda _: None).put(wanted)


async def test_one_of_the_same_namespace_is_taken() -> None:
    with pytest.raises(Admitted):
        await ask("team-a")


async def test_one_of_another_namespace_is_as_if_it_were_not_there() -> None:
    with pytest.raises(errors.NotFound, match="no Execution host on this node"):
        await ask("team-b")
