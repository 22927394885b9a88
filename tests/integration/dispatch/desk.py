"""One agent on a real engine, behind a proxy to it, with a front door before it; no Kubernetes."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from isolet.agent import deadlines
from isolet.agent.dispatch.service import DispatchService
from isolet.agent.server.server import AgentServer
from isolet.apiserver import app
from isolet.apiserver.admission import Contract
from isolet.apiserver.auth import Door, TokenFile
from isolet.apiserver.kubernetes import KubernetesDispatcher, Target
from isolet.apiserver.metrics import DoorMetrics
from isolet.apiserver.runs import RunBook
from isolet.apiserver.server import FrontServer
from isolet.apiserver.settings import Bounds
from isolet.base import errors
from isolet.client.dispatch import HTTPDispatch
from isolet.operator.kube import CLASSES, NODES
from isolet.plan.sandbox_model import Kind
from isolet.wire.dispatch import (
    Budgets,
    DispatchLine,
    DispatchWanted,
    ReserveRequest,
    RunnerContract,
)
from isolet.wire.execution import Outcome
from isolet.wire.pool import PoolObserved, PoolsWanted, PoolWanted
from isolet.wire.process import StagedFile
from tests.contract.engine.proxy import Proxy
from tests.dispatches import a_pool, a_run
from tests.fakes.cluster import FakeCluster
from tests.fakes.dispatcher import GivenAgents
from tests.integration.agent.conftest import Node, environment
from tests.unit.api.objects import a_class, a_node
from tests.witness import Witness

CLASS = "trial"
TRIAL = RunnerContract(
    command=("python3", "trial.py"),
    files=(StagedFile(path="trial.py", content=Path(__file__).with_name("trial.py").read_bytes()),),
)
TOKEN = "t" * 32
BODY: dict[str, Any] = {
    "job_id": "job",
    "app_id": "app",
    "board_id": "board",
    "node_id": "node",
    "user_id": "user",
    "credentials": {},
    "executor_jwt": "signed-token",
    "callback_url": "http://callback:8080",
    "artifact": {"path": "artifact"},
}
QUICK = Budgets(startup_seconds=60, execution_seconds=120, cleanup_seconds=5)


def pool(class_name: str = CLASS, **changes: object) -> PoolWanted:
    """The pool of the trial runner, changed as said."""
    base = {"class_name": class_name, "runner": TRIAL}
    return a_pool(environment("ISOLET_IMAGE_RUNNER"), **{**base, **changes})


async def until(look: Callable[[], Awaitable[Any]], within: float = 90.0) -> Any:
    """What `look` gives once it gives something."""
    async with asyncio.timeout(within):
        while not (found := await look()):
            await asyncio.sleep(0.02)
    return found


class Desk:
    """The parts, and what tests do with them. Every uid and run id is a new one."""

    def __init__(self, socket: str, root: Path) -> None:
        self.root = root
        self.proxy = Proxy(root / "e", socket)
        self.node = Node(str(root / "e"), root / "agent")
        self.witness = Witness(socket)
        self.cluster = FakeCluster()
        self._numbers = itertools.count()

    @property
    def runs(self) -> DispatchService:
        """The runs of the agent of the moment."""
        assert self.node.service is not None
        return self.node.service.runs.service

    async def open(self) -> None:
        await self.proxy.start()
        await self.node.open()
        self.cluster.seed(NODES, a_node("node-0"))
        runner = {"command": ["python3", "trial.py"], "budgets": {"cleanupSeconds": 5}}
        self.cluster.seed(CLASSES, a_class(CLASS, runner=runner, warmPool={"size": 1}))

    async def close(self) -> None:
        await self.serve()
        await self.clean()
        await self.node.clear()
        left = self.witness.containers(self.node.installation)
        left += self.witness.volumes(self.node.installation)
        assert not left, left
        await self.proxy.stop()

    async def cut(self) -> None:
        """Break every connection to the engine that there is."""
        tasks = list(self.proxy._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # the pool

    async def serve(self, *pools: PoolWanted) -> None:
        """Want exactly these, and wait until every one is as large as it should be."""
        await self.put(*pools)
        await self.ready()

    async def put(self, *pools: PoolWanted) -> None:
        assert self.node.service is not None
        await self.node.service.put_pools(PoolsWanted(pools=pools), None)

    async def pools(self) -> tuple[PoolObserved, ...]:
        assert self.node.service is not None
        return (await self.node.service.node()).pools

    async def ready(self) -> None:
        async def look() -> bool:
            found = await self.pools()
            whole = all((p.ready, p.creating, p.retiring) == (p.target, 0, 0) for p in found)
            return whole and len(await self.slots()) == sum(p.ready for p in found)

        await until(look)

    async def slots(self) -> list[str]:
        """Containers of slots that nobody was given, by their records."""
        assert self.node.store is not None
        records = await self.node.store.list()
        return sorted(r.container_id or "" for r in records if r.kind is Kind.SLOT)

    # runs

    def uid(self) -> str:
        return f"run-{next(self._numbers)}"

    def asked(
        self, *steps: dict[str, object], uid: str, budgets: Budgets = QUICK, **more: object
    ) -> tuple[bytes, DispatchWanted]:
        """A document and what is said of it."""
        document = json.dumps({"run_id": uid, "payload": list(steps), **more}).encode()
        return document, a_run(document, uid, class_name=CLASS, budgets=budgets)

    async def begin(
        self,
        *steps: dict[str, object],
        uid: str = "",
        budgets: Budgets = QUICK,
        class_name: str = CLASS,
    ) -> str:
        """Begin a run of these steps; its uid."""
        uid = uid or self.uid()
        document, wanted = self.asked(*steps, uid=uid, budgets=budgets)
        kept = await self.runs.reserve(ReserveRequest(class_name=class_name))
        await self.runs.begin(kept, wanted.model_copy(update={"class_name": class_name}), document)
        return uid

    async def lines(self, uid: str, after: int = 0) -> list[DispatchLine]:
        """What it said and how it ended, without heartbeats."""
        found = [line async for line in self.runs.follow(uid, after)]
        return [line for line in found if not line.heartbeat]

    async def ended(self, uid: str) -> Outcome:
        async with asyncio.timeout(120):
            outcome = (await self.lines(uid))[-1].ended
        assert outcome is not None
        return outcome

    async def clean(self) -> None:
        """Nothing is left of any run, by the engine's word and the host's; only slots wait."""
        await until(self._is_clean)

    async def _is_clean(self) -> bool:
        assert self.node.store is not None
        records = await self.node.store.list()
        if not all(record.kind is Kind.SLOT or record.nothing_left for record in records):
            return False
        slots = [record for record in records if record.kind is Kind.SLOT]
        containers = await asyncio.to_thread(self.witness.containers, self.node.installation)
        folders = {p.name for p in (self.node.run / "launch").iterdir()} - {".staging"}
        entries = deadlines.read(self.node.run / "deadlines.json").entries
        return (
            sorted(containers) == sorted(r.container_id or "" for r in slots)
            and folders == {record.uid for record in slots}
            and {e.name for e in entries} == {record.container_name for record in slots}
        )


class FrontDoor:
    """A front door over a desk's agent, both on real sockets."""

    def __init__(self, desk: Desk, **bounds: Any) -> None:
        self.desk = desk
        self.bounds = replace(Bounds(capacity=4), **bounds)
        self.metrics = DoorMetrics()
        self.port = 0

    async def start(self) -> "FrontDoor":
        desk = self.desk
        folder = desk.root / f"door-{next(desk._numbers)}"
        folder.mkdir()
        (folder / "token").write_text(TOKEN + "\n")
        assert desk.node.service is not None
        self.agent = AgentServer(desk.node.service, dispatch=desk.runs)
        await self.agent.listen_unix(folder / "s")
        self.client = HTTPDispatch(f"unix://{folder / 's'}")
        target = Target(namespace="runs", class_name=CLASS)
        agents = GivenAgents(lambda _: self.client)
        self.dispatcher = KubernetesDispatcher(desk.cluster, agents, target)
        await self.dispatcher.start()
        self.book = RunBook(self.dispatcher, self.bounds.capacity, self.metrics)
        parts = app.Parts(
            dispatcher=self.dispatcher,
            book=self.book,
            door=Door(TokenFile(folder / "token"), None),
            contract=Contract(callback_url=BODY["callback_url"]),
            metrics=self.metrics,
            bounds=self.bounds,
        )
        self.server = FrontServer(app.build(parts), self.bounds)
        self.port = await self.server.listen("127.0.0.1", 0, None)
        self.http = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        return self

    async def close(self) -> None:
        await self.http.close()
        assert await self.book.drained(120)
        await self.server.close()
        await self.dispatcher.close()
        await self.client.close()
        await self.agent.close()

    def body(self, *steps: dict[str, object], run_id: str = "", **more: object) -> dict[str, Any]:
        return {**BODY, "run_id": run_id or self.desk.uid(), "payload": list(steps), **more}

    def post(self, path: str, body: Any, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"X-Execution-Manager-Token": TOKEN, **headers}
        return self.http.post(path, data=data, headers=given)

    async def uid_of(self, run_id: str) -> str:
        """The uid of the Execution that stands for a run."""
        return (await self.dispatcher.find(run_id)).uid


async def refused(work: Awaitable[object]) -> errors.IsoletError:
    """The error that it ends with."""
    try:
        await work
    except errors.IsoletError as error:
        return error
    raise AssertionError("it was not refused")
