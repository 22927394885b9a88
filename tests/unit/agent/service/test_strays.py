"""What has no record is a stray; what is made or goes while the node is looked at is none."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent.service.node import Node
from isolet.base import names
from tests.contract.store.records import a_record
from tests.fakes.store import MemoryStore

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LABELS = {names.LABEL_UID: "u1"}
CONTAINER = SimpleNamespace(id="c1", name="isolet-u1", labels=LABELS, created_at=NOW)
VOLUME = SimpleNamespace(name="isolet-u1-ws", labels=LABELS, created_at=NOW)
DISK = SimpleNamespace(uid="u1", made_at=0)


class Place:
    """A node with one of everything that there is; something happens while it is listed."""

    def __init__(self, meanwhile: Callable[[MemoryStore], Any]) -> None:
        self.store = MemoryStore()
        self.meanwhile = meanwhile

    async def listed(self, *found: object) -> list[object]:
        await self.meanwhile(self.store)
        return list(found)

    def node(self) -> Node:
        context = SimpleNamespace(
            installation="i",
            store=self.store,
            engine=SimpleNamespace(
                containers=lambda _: self.listed(CONTAINER), volumes=lambda _: self.listed(VOLUME)
            ),
            disks=SimpleNamespace(list=lambda: self.listed(DISK)),
            checkpoints=SimpleNamespace(list=lambda: ["u1"], made_at=lambda _: 0.0),
            clock=SimpleNamespace(now=lambda: NOW),
        )
        return Node(cast(Any, context), lambda: None)


async def nothing(_: MemoryStore) -> None: ...


async def made(store: MemoryStore) -> None:
    if await store.get("u1") is None:
        await store.add(a_record("u1"))


async def gone(store: MemoryStore) -> None:
    if await store.get("u1") is not None:
        await store.bury("u1", at=SimpleNamespace(wall=NOW, boottime=1.0, boot_id="b"))


EVERYTHING = ["container", "volume", "disk", "checkpoint"]


@pytest.mark.parametrize(
    ("before", "meanwhile", "strays"),
    [
        (False, nothing, EVERYTHING),
        (True, nothing, []),
        (False, made, []),
        (True, gone, []),
    ],
    ids=["nobody's", "somebody's", "made meanwhile", "gone meanwhile"],
)
async def test_only_what_has_no_record_on_either_side_of_a_look_is_a_stray(
    before: bool, meanwhile: Callable[[MemoryStore], Any], strays: list[str]
) -> None:
    place = Place(meanwhile)
    if before:
        await place.store.add(a_record("u1"))
    assert [stray.kind for stray in await place.node()._find_strays()] == strays
