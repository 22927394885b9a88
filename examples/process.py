"""The process runner without Kubernetes: an artifact, a host that restarts, a cancel, cleaning up.

Run as root on a machine whose Docker daemon has gVisor (hack/cluster up makes one):

    python examples/process.py /run/docker.sock sha256:<image id>
"""

import asyncio
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from isolet.agent.operations import StartRequest
from isolet.agent.run import embedded
from isolet.agent.runner import ProcessRunner
from isolet.agent.settings import AgentSettings
from isolet.wire.execution import Medium, Resources, Workspace
from isolet.wire.process import Sandbox, StagedFile

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


def report(image: str) -> StartRequest:
    """Counts the lines of a staged file and leaves the number in an artifact."""
    script = "mkdir out; wc -l < data/input.txt > out/lines.txt; sleep 1; echo done"
    disk = Workspace(medium=Medium.DISK)
    return StartRequest(
        operation_id="report",
        scope="acme",
        sandbox=Sandbox(image=image, resources=LIMITS, workspace=disk),
        command=("sh", "-c", script),
        files=(StagedFile(path="data/input.txt", content=b"three\nlines\nhere\n"),),
        artifacts=("out/*",),
        deadline_at=datetime(2100, 1, 1, tzinfo=UTC),
    )


async def first_host(runner: ProcessRunner, image: str) -> None:
    """Start it and go away."""
    started = await runner.start(report(image))
    print("report:", started.state)


async def second_host(runner: ProcessRunner, image: str) -> None:
    """The same call finds what runs; nothing is started again."""
    await runner.start(report(image))
    ended = await runner.wait("acme", "report")
    output = await runner.read_output("acme", "report")
    print("report:", ended.state, ended.exit_code, output.stdout.decode().strip())
    artifact = await runner.read_artifact("acme", "report", "out/lines.txt")
    print("report:", artifact.path, artifact.content.decode().strip(), artifact.digest[:14])


async def cancel(runner: ProcessRunner, sandbox: Sandbox) -> None:
    """Something that will not end by itself."""
    stubborn = "trap '' TERM; while :; do sleep 1; done"
    await runner.start(
        StartRequest(operation_id="stubborn", scope="acme", sandbox=sandbox, shell=stubborn)
    )
    await runner.cancel("acme", "stubborn")
    ended = await runner.wait("acme", "stubborn")
    print("stubborn:", ended.state, ended.reason)


async def clean_up(runner: ProcessRunner) -> None:
    """Sandboxes go on `dispose`, records on `prune`; what has no record is only reported."""
    for operation in ("report", "stubborn"):
        print("disposed:", (await runner.dispose("acme", operation)).operation_id)
    found = await runner.reconcile("acme")
    print("reconciled:", len(found.matched), "matched,", len(found.orphans), "orphans")
    print("pruned:", await runner.prune(terminal_before=datetime.now(UTC) + timedelta(seconds=1)))


async def main(engine: str, image: str) -> None:
    """Two agents in this process, one after the other, over the same folders."""
    with tempfile.TemporaryDirectory() as folder:
        settings = AgentSettings(
            node="example",
            installation="example-process",
            state_dir=Path(folder) / "state",
            run_dir=Path(folder) / "run",
            engine_socket=Path(engine),
            watchdog=False,
        )
        async with embedded(settings) as agent:
            await agent.qualified()
            await first_host(ProcessRunner(agent), image)
        async with embedded(settings) as agent:
            await agent.qualified()
            runner = ProcessRunner(agent)
            await second_host(runner, image)
            sandbox = Sandbox(image=image, resources=LIMITS)
            await cancel(runner, sandbox)
            result = await runner.run_shell("echo $((6 * 7))", sandbox)
            print("once:", result.exit_code, result.stdout.decode().strip())
            await clean_up(runner)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
