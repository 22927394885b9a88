"""A front door process, put together: API server, agents, dispatcher, server.

On SIGTERM it is not ready any more and takes nothing new; what it has admitted is served to its
end, for as long as such a run may take. Only then does it go.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from isolet.apiserver import app
from isolet.apiserver.agents import AgentPool
from isolet.apiserver.auth import Door, KubernetesReviewer, TokenFile
from isolet.apiserver.dispatcher import Dispatcher
from isolet.apiserver.kubernetes import KubernetesDispatcher, Target
from isolet.apiserver.metrics import DoorMetrics
from isolet.apiserver.runs import RunBook
from isolet.apiserver.server import FrontServer
from isolet.apiserver.settings import Settings
from isolet.base import errors, log
from isolet.operator.cluster import Access, KubeCluster
from isolet.plan import dispatch_budget

_log = log.get("apiserver")


def main(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT and what follows from it.

    Raises:
        IsoletError: it cannot start; the message says why.
    """
    asyncio.run(_until_signal(settings))


async def _until_signal(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _outside(settings) as (dispatcher, door):
        await serve(settings, dispatcher, door, stop)


async def serve(
    settings: Settings, dispatcher: Dispatcher, door: Door, stop: asyncio.Event
) -> None:
    """Serve until told to stop, and then what was admitted.

    Raises:
        Invalid: it cannot listen.
    """
    metrics = DoorMetrics()
    book = RunBook(dispatcher, settings.bounds.capacity, metrics)
    parts = app.Parts(
        dispatcher=dispatcher,
        book=book,
        door=door,
        contract=settings.contract,
        metrics=metrics,
        bounds=settings.bounds,
    )
    server = FrontServer(app.build(parts), settings.bounds)
    port = await server.listen(settings.host, settings.port, settings.serving_tls)
    _log.info("serving", extra={"host": settings.host, "port": port})
    await stop.wait()
    book.draining = True
    seconds = dispatch_budget.drain(dispatcher.budgets())
    _log.info("draining", extra={"runs": book.taken, "seconds": seconds})
    if not await book.drained(seconds):
        _log.error("runs are left that did not end in time")
    await server.close()


@asynccontextmanager
async def _outside(settings: Settings) -> AsyncIterator[tuple[Dispatcher, Door]]:
    """What the front door reaches: the API server and the agents."""
    access = Access(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="isolet-apiserver"
    )
    door_token = None if settings.token_file is None else TokenFile(settings.token_file)
    if door_token is None and not settings.kubernetes_tokens:
        raise errors.Invalid("nobody could call: give --token-file or --kubernetes-tokens")
    cluster = await KubeCluster.connect(access)
    agents = AgentPool(settings.agent_tls)
    target = Target(
        namespace=settings.namespace,
        class_name=settings.class_name,
        refresh_seconds=settings.refresh_seconds,
        cancelled_ahead=settings.bounds.cancelled_ahead,
        binding_key=settings.binding_key,
    )
    dispatcher = KubernetesDispatcher(cluster, agents, target)
    reviewer = None
    if settings.kubernetes_tokens:
        reviewer = KubernetesReviewer(cluster, settings.namespace)
    try:
        await dispatcher.start()
        yield dispatcher, Door(door_token, reviewer)
    finally:
        await dispatcher.close()
        await agents.close()
        await cluster.close()
