"""The execution host without Kubernetes: a session, a command in it, one command of its own.

Run as root on a machine whose Docker daemon has gVisor (hack/cluster up makes one):

    python examples/host.py /run/docker.sock sha256:<image id>
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from isolet.agent.host import ExecutionHost
from isolet.agent.run import embedded
from isolet.agent.settings import AgentSettings
from isolet.base import errors
from isolet.wire.execution import EnvVar, ExecRequest, ExecutionSpec, Resources

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


async def session(host: ExecutionHost, image: str) -> None:
    """A sandbox that takes commands until it is ended."""
    spec = ExecutionSpec(image=image, resources=LIMITS, idle_timeout_seconds=60)
    sandbox = await host.provision(spec, deadline_seconds=120)

    greeting = EnvVar(name="GREETING", value=b"hello")
    script = 'echo "$GREETING" > note; wc -c < note'
    write = ExecRequest(command=("sh", "-c", script), env=(greeting,))
    result = await host.exec(sandbox.uid, write)
    print("session:", result.exit_code, result.stdout.decode().strip())

    # A command that passes its time takes its whole session with it.
    try:
        await host.exec(sandbox.uid, ExecRequest(command=("sleep", "60"), timeout_seconds=0.5))
    except errors.Refused as refusal:
        print("session:", refusal.reason)
    ended = await host.terminate(sandbox.uid)
    print("session:", "nothing left" if ended.nothing_left else "something is left")
    await host.reclaim(sandbox.uid)


async def rewind(host: ExecutionHost, image: str) -> None:
    """A workspace is taken, spoilt, and taken up again as it was, in another sandbox."""
    sandbox = await host.provision(ExecutionSpec(image=image, resources=LIMITS))
    await host.exec(sandbox.uid, ExecRequest(command=("sh", "-c", "echo good > note")))
    taken = await host.checkpoint(sandbox.uid, reason="before the experiment")
    await host.exec(sandbox.uid, ExecRequest(command=("sh", "-c", "echo bad > note")))
    await host.reclaim(sandbox.uid)

    again = await host.restore(taken.uid)
    note = await host.exec(again.uid, ExecRequest(command=("cat", "note")))
    print("rewind:", note.stdout.decode().strip())
    await host.reclaim(again.uid)
    await host.delete_checkpoint(taken.uid)


async def run_once(host: ExecutionHost, image: str) -> None:
    """One command in a sandbox of its own; the same id never runs it twice."""
    spec = ExecutionSpec(image=image, resources=LIMITS, command=("sh", "-c", "id -u; exit 3"))
    for _ in range(2):
        await host.provision(spec, uid="example-once")
        result = await host.wait("example-once")
        outcome = result.outcome
        print("once:", outcome.reason, outcome.exit_code, result.stdout.decode().strip())
    await host.reclaim("example-once")


async def main(engine: str, image: str) -> None:
    """An agent in this process, with folders of its own."""
    with tempfile.TemporaryDirectory() as folder:
        settings = AgentSettings(
            node="example",
            installation="example",
            state_dir=Path(folder) / "state",
            run_dir=Path(folder) / "run",
            engine_socket=Path(engine),
            watchdog=False,
        )
        async with embedded(settings) as agent:
            await agent.qualified()
            host = ExecutionHost(agent)
            await session(host, image)
            await rewind(host, image)
            await run_once(host, image)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
