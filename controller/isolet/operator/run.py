"""An operator process: real API server, kopf's thread, the elector's thread, and how it ends.

It ends at once, without tidying, when the lease is lost or kopf ends: nothing it still does could
be of use, and everything it knows is in the API server and the agents. On SIGTERM the passes under
way end, the lease is handed over, then it ends with 0.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial

from isolet.base import errors, log
from isolet.base.clock import SystemClock
from isolet.client.http import HTTPAgent
from isolet.operator.assembly import Operator
from isolet.operator.cluster import Access, KubeCluster
from isolet.operator.handlers import Inbox, Watch
from isolet.operator.health import HealthServer
from isolet.operator.kube import CRDS, OURS, Cluster, Kind
from isolet.operator.leader import Elector, ElectorThread
from isolet.operator.links import Agent, NodeEndpoint
from isolet.operator.metrics import render
from isolet.operator.nodes import Connect
from isolet.operator.settings import Settings

_log = log.get("operator.run")

ExitNow = Callable[[str], None]

STOP_THREAD = 10.0
RIGHTS_PATIENCE = 60.0
"""How long a refusal is taken for rights that are still on their way: an API server that has just
started answers before it has read its roles, and an installer may make them last."""


def main(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    try:
        asyncio.run(_until_signal(settings))
    except errors.IsoletError as error:
        _log.error(error.message, extra={"reason": error.reason})
        return 1
    return 0


async def run(
    settings: Settings,
    *,
    connect: Connect | None = None,
    exit_now: ExitNow | None = None,
    stop: asyncio.Event | None = None,
    ready: Callable[[Operator, int], None] | None = None,
) -> None:
    """Run one operator until `stop` is set.

    Args:
        settings: what was chosen.
        connect: how to reach an agent; HTTP by default.
        exit_now: ends the process at once; it may be called from any thread.
        stop: asks for an orderly end.
        ready: called once everything runs, with the operator and the port of its metrics.

    Raises:
        Invalid: there is no access to the API server, or our CRDs are not there.
    """
    stop = stop or asyncio.Event()
    access = Access(
        kubeconfig=settings.kubeconfig, context=settings.context, connections=settings.connections
    )
    cluster = await KubeCluster.connect(access, settings.request_timeout)
    try:
        await check_crds(cluster, stop)
        if not stop.is_set():
            exit_now = exit_now or _exit
            connect = connect or partial(connect_http, settings)
            operator = Operator(settings, cluster, connect, SystemClock())
            await _run(operator, access, exit_now, stop, ready)
    finally:
        await cluster.close()


def connect_http(settings: Settings, endpoint: NodeEndpoint) -> Agent:
    """A client of the agent at `endpoint`."""
    return HTTPAgent(endpoint.endpoint, node=endpoint.server_name, files=settings.agent_tls)


async def check_crds(cluster: Cluster, stop: asyncio.Event) -> None:
    """Wait for the API server and our rights, and see that our kinds are served.

    kopf only warns of a kind that is missing at its start, and never serves it.

    Raises:
        Invalid: they are not; the message says what to apply.
        Refused: our rights have not come within `RIGHTS_PATIENCE` seconds.
    """
    clock = asyncio.get_running_loop()
    patience, delay = clock.time() + RIGHTS_PATIENCE, 0.5
    while not stop.is_set():
        try:
            missing = [kind for kind in OURS if not await _is_served(cluster, kind)]
        except (errors.Unavailable, errors.Refused) as error:
            if isinstance(error, errors.Refused) and clock.time() >= patience:
                raise
            _log.warning("waiting for the API server", extra={"detail": error.message})
            await asyncio.sleep(delay)
            delay = min(2 * delay, 10.0)
            continue
        if missing:
            names = ", ".join(f"{kind.plural}.{kind.group}" for kind in missing)
            raise errors.Invalid(
                f"the API server does not serve {names}: apply the files in crds/ first"
                " (kubectl apply --server-side -f crds/)",
                reason="CRDsMissing",
            )
        return


async def _is_served(cluster: Cluster, kind: Kind) -> bool:
    try:
        crd = await cluster.get(CRDS, "", f"{kind.plural}.{kind.group}")
    except errors.NotFound:
        return False
    conditions = (crd.get("status") or {}).get("conditions") or ()
    versions = crd["spec"]["versions"]
    established = any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
    return established and any(v["name"] == kind.version and v["served"] for v in versions)


async def _run(
    operator: Operator,
    access: Access,
    exit_now: ExitNow,
    stop: asyncio.Event,
    ready: Callable[[Operator, int], None] | None,
) -> None:
    settings, loop = operator.settings, asyncio.get_running_loop()
    watch = Watch(access, OURS, Inbox(loop, operator.take).put, exit_now)
    elector = ElectorThread(
        partial(_elector, operator, access),
        settings.lease.retry,
        won=lambda: _on(loop, operator.win),
        lost=exit_now,
    )
    health = HealthServer(
        settings.metrics_host,
        settings.metrics_port,
        metrics=partial(render, operator.registry),
        unhealthy=lambda: operator.unhealthy() + ([] if watch.alive else ["kopf has ended"]),
        unready=operator.unready,
    )
    port = await health.start()
    _log.info("started", extra={"identity": settings.identity, "metrics_port": port})
    work = asyncio.create_task(operator.run(), name="operator")
    waiting = asyncio.create_task(stop.wait())
    try:
        watch.start()
        elector.start()
        if ready is not None:
            ready(operator, port)
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        await operator.drain()
    finally:
        await _end(operator, work, waiting, watch, elector)
        await health.stop()


async def _end(
    operator: Operator,
    work: asyncio.Task[None],
    waiting: asyncio.Task[bool],
    watch: Watch,
    elector: ElectorThread,
) -> None:
    """Stop writing, then hand over the lease, then stop reading."""
    for task in (work, waiting):
        task.cancel()
    await asyncio.gather(work, waiting, return_exceptions=True)
    await operator.close()
    await asyncio.to_thread(elector.stop, STOP_THREAD)
    await asyncio.to_thread(watch.stop, STOP_THREAD)


async def _elector(
    operator: Operator, access: Access
) -> tuple[Elector, Callable[[], Awaitable[None]]]:
    """The elector, with a connection of its own; made on its thread."""
    settings = operator.settings
    cluster = await KubeCluster.connect(access, settings.lease.request)
    elector = Elector(
        cluster,
        operator.leadership,
        operator.clock,
        settings.lease,
        namespace=settings.namespace,
        identity=settings.identity,
    )
    return elector, cluster.close


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call it on the main loop, from another thread; not at all if that loop has ended."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return


def _exit(reason: str) -> None:
    _log.critical("ending at once", extra={"reason": reason})
    logging.shutdown()
    os._exit(1)


async def _until_signal(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, stop=stop)
