"""An agent process, put together: engine, store, workspaces, service, watchdog, server.

On SIGTERM it takes no new work, lets requests in progress end, and goes; sandboxes run on and the
watchdog stays, so that deadlines hold until the next agent takes everything up again.
"""

import asyncio
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from isolet.agent import deadlines, watchdog
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.engine.docker import DockerEngine
from isolet.agent.policy import model
from isolet.agent.server.metrics import ServerMetrics
from isolet.agent.server.server import AgentServer
from isolet.agent.service.context import Context
from isolet.agent.service.service import Service
from isolet.agent.settings import AgentSettings, host_and_port
from isolet.agent.store.sqlite import SQLiteStore
from isolet.agent.transfer.objectstore import ObjectStore
from isolet.agent.workspace.disk import DiskWorkspaces
from isolet.agent.workspace.launch import LaunchFolders
from isolet.agent.workspace.mirrors import Mirrors
from isolet.agent.workspace.trees import Trees
from isolet.base import errors, log, wholefile
from isolet.base.clock import SystemClock

KEY_BYTES = 32
_WATCHDOG = "isolet.agent.watchdog"
_LOOK_SECONDS = 1.0
_log = log.get("agent.run")


@dataclass(frozen=True, slots=True)
class Running:
    """An agent that serves, for whoever started it in process."""

    service: Service
    port: int | None
    """Of the TLS listener; None where there is none."""
    probe_port: int | None


def main(settings: AgentSettings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        IsoletError: it cannot start; the message says why.
        OSError: as above, from the system.
    """
    asyncio.run(_until_signal(settings))


async def _until_signal(settings: AgentSettings) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, stop)


async def run(
    settings: AgentSettings,
    stop: asyncio.Event,
    ready: Callable[[Running], None] | None = None,
) -> None:
    """Serve until `stop` is set; `ready` is called once all listeners are open."""
    async with _service(settings) as service, AsyncExitStack() as stack:
        server = AgentServer(
            service, metrics=ServerMetrics(CollectorRegistry()), dispatch=service.runs.service
        )
        stack.push_async_callback(server.close)
        running = await _listen(settings, service, server)
        # Last, so that an agent that cannot start leaves nothing behind.
        _guard(settings, stack)
        _log.info("started", extra={"node": settings.node, "port": running.port})
        if ready is not None:
            ready(running)
        await stop.wait()
        _log.info("stopping; sandboxes run on", extra={"node": settings.node})
        service.stop_admitting()


async def _listen(settings: AgentSettings, service: Service, server: AgentServer) -> Running:
    await server.listen_unix(settings.socket_path)
    port = probe_port = None
    if settings.listen is not None:
        port = await server.listen_tls(*host_and_port(settings.listen), settings.tls_files)
    if settings.probe_listen is not None:
        probe_port = await server.listen_probes(*host_and_port(settings.probe_listen))
    return Running(service, port, probe_port)


@asynccontextmanager
async def embedded(settings: AgentSettings) -> AsyncIterator[Service]:
    """The agent as a library: everything but the server.

    Raises:
        Conflict: another agent holds the folders.
        Invalid: the policy file is wrong.
        IsoletError: something that it needs is not there.
    """
    async with _service(settings) as service, AsyncExitStack() as stack:
        _guard(settings, stack)
        yield service


@asynccontextmanager
async def _service(settings: AgentSettings) -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        _folders(settings, stack)
        context = await _context(settings, stack)
        service = Service(context, DeadlineBook(settings.deadlines, settings.installation))
        stack.push_async_callback(service.close)
        await service.start(deadlines.read_journal(settings.journal))
        yield service


def _guard(settings: AgentSettings, stack: AsyncExitStack) -> None:
    if settings.watchdog:
        guardian = Guardian(settings)
        stack.push_async_callback(guardian.close)
        guardian.start()


async def _context(settings: AgentSettings, stack: AsyncExitStack) -> Context:
    state = settings.state_dir
    key = node_key(state)
    store = await SQLiteStore.open(state)
    stack.push_async_callback(store.close)
    disks = DiskWorkspaces(state / "disks")
    await disks.prepare()
    launches = LaunchFolders(settings.run_dir / "launch")
    await launches.prepare()
    stack.push_async_callback(launches.close)
    trees, mirrors = Trees(state / "trees"), Mirrors(state / "mirrors")
    trees.prepare()
    mirrors.prepare()
    engine = DockerEngine(str(settings.engine_socket), installation=settings.installation)
    stack.push_async_callback(engine.close)
    return Context(
        node=settings.node,
        installation=settings.installation,
        boot_id=deadlines.boot_id(),
        kernel=Path("/proc/version").read_text().strip(),
        key=key,
        state=state,
        engine=engine,
        store=store,
        disks=disks,
        launches=launches,
        trees=trees,
        mirrors=mirrors,
        clock=SystemClock(),
        policy=read_policy(settings.policy_file, await _facts(disks)),
        proof_of_runtime=is_gvisor,
        certificate=settings.tls_files if settings.tls_dir is not None else None,
        object_store=_object_store(settings, stack),
    )


def _object_store(settings: AgentSettings, stack: AsyncExitStack) -> ObjectStore | None:
    found = settings.checkpoint_store
    if found is None:
        return None
    from isolet.agent.transfer import s3  # the library is large, and most agents have no store

    access = s3.Access(
        name=found.name,
        endpoint=found.endpoint,
        bucket=found.bucket,
        prefix=found.prefix,
        region=found.region,
        credentials=found.credentials_file,
        authority=found.authority_file,
    )
    try:
        s3.read_credentials(access.credentials)
    except (OSError, ValueError) as error:
        raise errors.Invalid(f"checkpointStore: {error}", reason="InvalidConfig") from None
    store = s3.S3Store(access)
    stack.push_async_callback(store.close)
    return store


def _folders(settings: AgentSettings, stack: AsyncExitStack) -> None:
    """Make both folders, closed to others, and hold the one that the store does not hold."""
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(settings.run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise errors.Conflict(
            f"another agent uses {settings.run_dir}; give each its own runDir and stateDir"
        ) from None


def node_key(state: Path) -> bytes:
    """The node's own key, made with the state folder.

    Raises:
        Corrupt: it is damaged, or gone while records made with it are there.
    """
    path = state / "node.key"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        if (state / "state.db").exists():
            raise errors.Corrupt(
                f"{path} is gone, and the records beside it were made with it: restore it, or move "
                f"{state} away to begin anew"
            ) from None
        key = secrets.token_bytes(KEY_BYTES)
        wholefile.write(path, key)
    if len(key) != KEY_BYTES:
        raise errors.Corrupt(f"{path} has {len(key)} bytes and not {KEY_BYTES}: restore it")
    return key


def read_policy(file: Path | None, facts: model.NodeFacts) -> model.NodePolicy:
    """The node's policy.

    Raises:
        Invalid: the file cannot be read or says what cannot be; the message names file and key.
    """
    if file is None:
        return model.default(facts)
    try:
        return model.parse(file.read_text(), facts)
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"policy file {file}: {error}", reason="InvalidPolicy") from None
    except errors.Invalid as error:
        raise errors.Invalid(f"policy file {file}: {error}", reason="InvalidPolicy") from None


async def _facts(disks: DiskWorkspaces) -> model.NodeFacts:
    """What the node has; disks that are there already count as room that it gives to disks."""
    held = sum(disk.size_bytes for disk in await disks.list())
    return model.NodeFacts(
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk_bytes=disks.space().free_bytes + held,
    )


def is_gvisor(pid: int) -> bool:
    """Whether this host process is gVisor's sandbox: its program is runsc.

    Its name and arguments are no proof: the tenant's own words may be among them.
    """
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return os.path.basename(program).startswith("runsc")


class Guardian:
    """Keeps a watchdog running beside the agent, as a process that outlives it.

    It has a session of its own, so that what ends the agent does not end it. An agent that starts
    puts a new one in the place of its predecessor's, which may be of another version: the new one
    first, then the end of the old one, so that there is never none. One that dies is started again;
    one that somebody else started (a unit or container of its own) is left alone.
    """

    def __init__(self, settings: AgentSettings, *, look_seconds: float = _LOOK_SECONDS) -> None:
        self._settings = settings
        self._look_seconds = look_seconds
        self._note = settings.run_dir / "watchdog.pid"
        self._child: subprocess.Popen[bytes] | None = None
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Have a watchdog of this version, from now on."""
        before = self._noted()
        if before is not None or not watchdog.is_alive(self._settings.journal):
            self._spawn()
        if before is not None:
            with suppress(ProcessLookupError):
                os.kill(before, signal.SIGTERM)
        self._loop = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop looking after it; it goes on."""
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        if self._child is not None:
            # It is meant to outlive us; without this, Popen would complain that it does.
            self._child.returncode = 0

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                self.look()
            except OSError as error:
                _log.error("watchdog cannot be started", extra={"error": str(error)})

    def look(self) -> None:
        """Start another if there is none."""
        if self._child is not None and self._child.poll() is not None:
            _log.error("watchdog ended", extra={"code": self._child.returncode})
            self._child = None
        if self._child is None and not watchdog.is_alive(self._settings.journal):
            self._spawn()

    def _spawn(self) -> None:
        settings = self._settings
        argv = [sys.executable, "-m", _WATCHDOG]
        argv += ["--deadlines", str(settings.deadlines), "--engine", str(settings.engine_socket)]
        argv += ["--journal", str(settings.journal)]
        self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        note = {"pid": self._child.pid, "start": deadlines.start_of(self._child.pid)}
        wholefile.write(self._note, json.dumps(note).encode())
        _log.info("watchdog started", extra={"pid": self._child.pid})

    def _noted(self) -> int | None:
        """The pid of the watchdog that an agent before us started, if that one still runs."""
        try:
            note = json.loads(self._note.read_bytes())
            pid, start = int(note["pid"]), note["start"]
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        same = start is not None and deadlines.start_of(pid) == start
        return pid if same and _WATCHDOG.encode() in command else None
