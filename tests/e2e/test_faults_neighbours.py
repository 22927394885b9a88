"""Others on the node: a second installation, strangers' containers, a store nobody can read, a full
disk."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.base import errors
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecutionSpec, Resources, Workspace
from isolet_cluster.processes import Process, spawn
from tests.e2e.faults_arena import HOST, Sandbox, ask_agent, eventually
from tests.e2e.looks import outcome
from tests.e2e.world import World, a_class, condition

pytestmark = pytest.mark.faults

MIB = 1 << 20
LIMITS = Resources(
    cpu_millis=500,
    memory_bytes=64 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=4 * MIB,
    shm_bytes=MIB,
    pids=64,
    output_bytes=MIB,
)


@dataclass
class Neighbour:
    """An agent of another installation on the engine of node-0, used without Kubernetes."""

    world: World
    folder: Path
    process: Process
    host: ExecutionHost
    installation: str

    def containers(self) -> list[str]:
        """What it has, as the engine tells."""
        return self.world.witness("node-0").containers(self.installation)


async def qualified(agent: HTTPAgent) -> None:
    """Wait until the agent serves and takes work."""
    async with asyncio.timeout(180):
        while True:
            with contextlib.suppress(errors.Unavailable):
                if "runsc" in (await agent.node()).runtimes:
                    return
            await asyncio.sleep(0.1)


def start(world: World, folder: Path, installation: str) -> Process:
    """Start the other agent with its state and run folders below `folder`."""
    stack = world.stack
    argv = [*stack.command, "agent", "--node", "node-0", "--installation", installation]
    argv += ["--state-dir", str(folder / "state"), "--run-dir", str(folder / "run")]
    argv += ["--engine-socket", str(stack.layout.node(0).socket)]
    log = stack.layout.log("neighbour")
    return spawn(stack.layout.run, "neighbour", argv, log, stack.environment({}))


@contextlib.asynccontextmanager
async def neighbour(world: World, folder: Path) -> AsyncIterator[Neighbour]:
    """The other agent, running and qualified; nothing of it is left afterwards."""
    installation = f"n-{uuid.uuid4().hex[:8]}"
    process = start(world, folder, installation)
    agent = HTTPAgent(f"unix://{folder}/run/agent.sock")
    try:
        found = Neighbour(world, folder, process, ExecutionHost(agent), installation)
        await qualified(agent)
        yield found
    finally:
        await agent.close()
        end(process, folder)
        witness = world.witness("node-0")
        for container in witness.containers(installation):
            witness.docker("rm", "-f", container)


def end(process: Process, folder: Path) -> None:
    """End the agent, its watchdog and its mount."""
    process.signal(signal.SIGTERM)
    eventually("the agent ends", lambda: not process.alive(), 60)
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads((folder / "run" / "watchdog.pid").read_text())
        watchdog = Process.now(int(kept["pid"]))
        if watchdog is not None and watchdog.start == int(kept["start"]):
            watchdog.kill()
    with contextlib.suppress(subprocess.CalledProcessError):
        umount(folder / "run" / "launch")


def umount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def a_session(medium: str) -> ExecutionSpec:
    """A session of the neighbour's."""
    return ExecutionSpec(
        image=os.environ["ISOLET_IMAGE_SHELL"],
        resources=LIMITS,
        workspace=Workspace.model_validate({"medium": medium}),
        idle_timeout_seconds=600,
    )


async def test_two_installations_on_one_engine_never_touch_each_other(
    world: World, tmp_path: Path
) -> None:
    where = {"nodeSelector": {HOST: "node-0"}, "workspace": {"medium": "Disk"}}
    world.execution("ours", "sleep", "300", **where)
    uid = world.running("ours")["metadata"]["uid"]
    witness = world.witness("node-0")
    ours = Sandbox.of(witness, uid)
    async with neighbour(world, tmp_path) as other:
        theirs = await other.host.provision(a_session("Disk"), deadline_seconds=300)
        kept = Sandbox.of(witness, theirs.uid)
        # A restart is when an agent looks for everything that it might have to clear away.
        world.stack.kill("agent-node-0")
        world.stack.start_agent("node-0")
        eventually("our agent answers", lambda: answers(world, "node-0"))
        strays = json.loads(ask_agent(world.stack, "node-0", "/v1/node"))["strays"]
        assert strays == []
        listed = json.loads(ask_agent(world.stack, "node-0", "/v1/executions"))["executions"]
        assert [record["uid"] for record in listed] == [uid]
        assert Sandbox.of(witness, theirs.uid) == kept
        await other.host.reclaim(theirs.uid)
        assert other.containers() == []
        assert witness.volumes(other.installation) == []
    assert Sandbox.of(witness, uid) == ours


def answers(world: World, node: str) -> bool:
    """Whether the node's agent can be asked."""
    with contextlib.suppress(OSError):
        return bool(ask_agent(world.stack, node, "/v1/node"))
    return False


def test_a_stranger_with_our_name_and_a_container_removed_by_hand(world: World) -> None:
    later = f"later-{world.namespace}"
    world.execution("taken", "true", className=later)
    waiting = world.until(
        "execution", "taken", lambda o: condition(o, "Scheduled").get("reason") == "ClassNotFound"
    )
    name = container_name(world, waiting["metadata"]["uid"])
    strangers = {node: a_stranger(world, node, name) for node in world.stack.nodes()}
    try:
        world.apply(a_class(later))
        status = world.finished("taken")
        assert outcome(status) == ("False", "ContainerConflict")
        assert name in condition({"status": status}, "Succeeded")["message"]
        for node, stranger in strangers.items():
            assert world.witness(node).inspect(name)["Id"] == stranger
    finally:
        world.stack.kube("delete", "executionclass", later, "--ignore-not-found")
        for node, stranger in strangers.items():
            world.witness(node).docker("rm", "-f", stranger)
    world.execution("removed", "sleep", "300", workspace={"medium": "Disk"})
    seen = world.running("removed")
    witness = world.witness(seen["spec"]["nodeName"])
    witness.docker("rm", "-f", Sandbox.of(witness, seen["metadata"]["uid"]).id)
    assert outcome(world.finished("removed")) == ("False", "ContainerLost")


def container_name(world: World, uid: str) -> str:
    """The name that a sandbox of ours will have: found by the words of the documents."""
    scope, digits = world.stack.installation, hashlib.sha256()
    for part in (scope, uid):
        digits.update(f"{len(part)}:{part}".encode())
    return f"isolet-{digits.hexdigest()[:40]}"


def a_stranger(world: World, node: str, name: str) -> str:
    """Somebody's own container under a name; returns its id."""
    image = os.environ["ISOLET_IMAGE_SHELL"]
    return world.witness(node).docker("create", "--name", name, image, "sleep", "1")


# A store that cannot be used.


@pytest.fixture
def closed(world: World) -> Iterator[tuple[World, Path, Sandbox]]:
    """An agent that is down in good order while a sandbox of its runs; its file is put back."""
    world.execution("runs", "sleep", "300", nodeSelector={HOST: "node-0"})
    uid = world.running("runs")["metadata"]["uid"]
    world.stack.end("agent-node-0")
    file = world.stack.agent_folder("node-0") / "state.db"
    good = file.read_bytes()
    yield world, file, Sandbox.of(world.witness("node-0"), uid)
    file.write_bytes(good)
    world.stack.start_missing()


def newer(file: Path) -> None:
    """As a later version would have left it."""
    with contextlib.closing(sqlite3.connect(file)) as base:
        base.execute("PRAGMA user_version = 999")


def torn(file: Path) -> None:
    """With a page of nonsense in its middle."""
    data = bytearray(file.read_bytes())
    data[4096:8192] = b"\x5a" * 4096
    file.write_bytes(data)


def other(file: Path) -> None:
    """Not a database at all."""
    file.write_text("nothing of ours\n" * 100)


@pytest.mark.parametrize("spoil", [newer, torn, other])
def test_a_store_that_cannot_be_read_is_named_and_left(
    closed: tuple[World, Path, Sandbox], spoil: Callable[[Path], None]
) -> None:
    world, file, sandbox = closed
    good = file.read_bytes()
    spoil(file)
    spoilt, log = file.read_bytes(), world.stack.layout.log("agent-node-0")
    before = log.stat().st_size
    world.stack.start_agent("node-0")
    eventually("the agent gives up", lambda: not world.stack.alive("agent-node-0"))
    said = log.read_bytes()[before:].decode()
    assert str(file) in said, said
    assert "Traceback" not in said, said
    assert file.read_bytes() == spoilt
    assert Sandbox.of(world.witness("node-0"), sandbox.uid) == sandbox
    file.write_bytes(good)
    world.stack.start_agent("node-0")
    world.stack.wait_ready()
    world.patch("execution", "runs", {"spec": {"desiredState": "Terminated"}})
    assert outcome(world.finished("runs")) == ("False", "Cancelled")


# No room for the agent's own state.


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 48 MiB."""
    image, folder = tmp_path / "small.img", tmp_path / "small"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(48 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m0", str(image)], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    yield folder
    umount(folder)


async def test_a_full_disk_is_said_and_gets_over(world: World, small: Path) -> None:
    async with neighbour(world, small) as other:
        first = await other.host.provision(a_session("Memory"), deadline_seconds=300)
        kept = Sandbox.of(world.witness("node-0"), first.uid)
        ballast = small / "ballast"
        fill(ballast)
        assert await refusal(other.host) == "NodeStorageFull"
        assert other.process.alive()
        assert Sandbox.of(world.witness("node-0"), first.uid) == kept
        ballast.unlink()
        second = await other.host.provision(a_session("Memory"), deadline_seconds=300)
        for seen in await other.host.list():
            await other.host.reclaim(seen.uid)
        assert second.uid not in [seen.uid for seen in await other.host.list()]
        assert other.containers() == []


async def refusal(host: ExecutionHost) -> str:
    """Why the node takes no more; a database has some room left inside for a while."""
    try:
        for _ in range(50):
            await host.provision(a_session("Memory"), deadline_seconds=300)
    except errors.IsoletError as error:
        return error.reason
    return ""


def fill(file: Path) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    out.write(b"x" * size)
