"""Letting a sandbox go on, where its tenant would rather have the agent wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isolet.agent.engine.base import Status
from isolet.agent.service import take
from isolet.agent.service.take import Taker
from isolet.wire.execution import Medium
from tests.contract.store.records import a_record


class Running:
    """An exec that its tenant keeps stopped."""

    id = "e"

    async def output(self) -> AsyncIterator[tuple[object, bytes]]:
        await asyncio.Event().wait()
        yield (None, b"")


class Engine:
    """One sandbox that runs."""

    asked = 0

    async def inspect(self, _: str) -> Any:
        return SimpleNamespace(status=Status.RUNNING)

    @asynccontextmanager
    async def exec(self, *_: object, **__: object) -> AsyncIterator[Running]:
        self.asked += 1
        yield Running()


async def test_a_tenant_that_stops_what_lets_it_go_on_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(take, "LET_GO_SECONDS", 0.01)
    record, engine = a_record(), Engine()
    in_memory = record.with_(spec=replace(record.spec, medium=Medium.MEMORY))
    context: Any = SimpleNamespace(engine=engine)
    await asyncio.wait_for(Taker(context).thaw(in_memory), timeout=60)
    assert engine.asked == 1
