"""Every way in which a sandbox can end or fail to start, on a real engine."""

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import EnvVar, ExecRequest, Medium
from witness import Witness, loops_below

MIB = 1 << 20


async def outcome_of(host: ExecutionHost, spec, *command: str, **changes: object):
    deadline = changes.pop("deadline_seconds", None)
    wanted = spec(*command, **changes)
    try:
        seen = await host.provision(wanted, uid="one", deadline_seconds=deadline)
    except errors.Unavailable as error:
        return error
    return await host.wait(seen.uid)


async def nothing_is_left(node, socket: str) -> None:
    host = ExecutionHost(node.service)
    for seen in await host.list():
        await host.reclaim(seen.uid)
    witness = Witness(socket)
    assert witness.containers(node.installation) == []
    assert witness.volumes(node.installation) == []
    assert loops_below(node.root) == []
    assert [p for p in (node.run / "launch").iterdir() if p.name != ".staging"] == []


async def printed(node, uid: str, wanted: bytes) -> None:
    """Wait until it has printed this, and the agent has it."""
    async with asyncio.timeout(60):
        while (await node.service.output(uid, "stdout", 0, 100)).data != wanted:
            await asyncio.sleep(0.05)


OWN_ENDS = {
    "nothing printed": (["true"], reasons.SUCCEEDED, 0, b""),
    "its own 125": (["sh", "-c", "exit 125"], reasons.NON_ZERO_EXIT, 125, b""),
    "its own 126": (["sh", "-c", "exit 126"], reasons.NON_ZERO_EXIT, 126, b""),
    "its own 127": (["sh", "-c", "exit 127"], reasons.NON_ZERO_EXIT, 127, b""),
    "a crash": (["sh", "-c", "kill -SEGV $$"], reasons.NON_ZERO_EXIT, 139, b""),
    "its own kill": (["sh", "-c", "kill -9 $$"], reasons.NON_ZERO_EXIT, 137, b""),
    "arguments arrive literally": (
        ["printf", "%s\\n", "$(id)", "a b", "*", ";", "--help"],
        reasons.SUCCEEDED,
        0,
        b"$(id)\na b\n*\n;\n--help\n",
    ),
    "a long line keeps its bytes": (
        ["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo; printf '\\377\\000\\r'"],
        reasons.SUCCEEDED,
        0,
        b"x" * 100000 + b"\n\xff\x00\r",
    ),
}


@pytest.mark.parametrize("name", OWN_ENDS)
async def test_how_a_program_ends_by_itself(host, spec, name):
    command, reason, code, stdout = OWN_ENDS[name]
    result = await outcome_of(host, spec, *command)
    assert (result.outcome.reason, result.outcome.exit_code) == (reason, code)
    assert (result.stdout, result.truncated, result.incomplete) == (stdout, False, False)


NEVER_STARTS = {
    "a missing program": (["/no/such/bin"], {}, reasons.START_FAILED, "'/no/such/bin' was not"),
    "a missing name": (["no-such"], {}, reasons.START_FAILED, "'no-such' was not found"),
    "a folder": (["/etc"], {}, reasons.START_FAILED, "'/etc' is not an executable"),
    "no image": (
        ["true"],
        {"image": "sha256:" + "0" * 64},
        reasons.IMAGE_MISSING,
        "sha256:" + "0" * 64,
    ),
}


@pytest.mark.parametrize("name", NEVER_STARTS)
async def test_what_cannot_start_says_so_in_seconds(host, node, spec, socket, name):
    command, changes, reason, words = NEVER_STARTS[name]
    began = time.monotonic()
    result = await outcome_of(host, spec, *command, **changes)
    found = result if isinstance(result, errors.IsoletError) else result.outcome
    assert found.reason == reason
    assert words in found.message
    assert time.monotonic() - began < 60
    await nothing_is_left(node, socket)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("ISOLET_IMAGE_NO_SH", "no sh"),
        ("ISOLET_IMAGE_NO_TAR", "no tar"),
        ("ISOLET_IMAGE_SECRET_ENV", "API_TOKEN"),
    ],
)
async def test_an_image_that_cannot_serve_names_what_is_wrong(host, spec, image, words):
    import os

    result = await outcome_of(host, spec, "true", image=os.environ[image])
    assert isinstance(result, errors.Unavailable)
    assert result.reason == reasons.IMAGE_UNSUITABLE
    assert words in result.message


async def test_an_images_entrypoint_is_reset(host, spec):
    import os

    result = await outcome_of(host, spec, "echo", "ok", image=os.environ["ISOLET_IMAGE_ENTRYPOINT"])
    assert result.stdout == b"ok\n"


async def test_the_environment_arrives_exactly_and_the_agents_own_never(host, spec, monkeypatch):
    monkeypatch.setenv("AGENT_ONLY", "leak")
    env = {"A": b"x\ny'\"$(id)`", "EMPTY": b"", "RAW": b"\xff\xfe", "DOCKER_HOST": b"x"}
    variables = tuple(EnvVar(name=name, value=value) for name, value in env.items())
    result = await outcome_of(host, spec, "cat", "/proc/self/environ", env=variables)
    seen = dict(item.split(b"=", 1) for item in result.stdout.split(b"\0") if item)
    assert {name.encode(): value for name, value in env.items()}.items() <= seen.items()
    assert b"AGENT_ONLY" not in seen


@pytest.mark.parametrize(("count", "overflows"), [(999, False), (1000, False), (1001, True)])
async def test_the_output_cap_is_exact(host, spec, count, overflows):
    script = f"head -c {count - 600} /dev/zero; head -c 600 /dev/zero >&2; sleep 0.2"
    result = await outcome_of(host, spec, "sh", "-c", script, resources={"output_bytes": 1000})
    assert (result.outcome.reason == reasons.OUTPUT_LIMIT_EXCEEDED) is overflows
    assert result.truncated is overflows
    assert len(result.stdout) + len(result.stderr) == min(count, 1000)


async def test_a_flood_ends_at_the_cap_and_leaves_nothing(host, node, spec, socket):
    result = await outcome_of(host, spec, "yes", deadline_seconds=60)
    assert result.outcome.reason == reasons.OUTPUT_LIMIT_EXCEEDED
    assert len(result.stdout) == MIB
    assert result.stdout == (b"y\n" * MIB)[:MIB]
    await nothing_is_left(node, socket)


HOSTILE = {
    "ignores TERM": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "stops everything": "kill -STOP -1; sleep 600",
    "kills everything but itself": "kill -9 -1; while :; do :; done",
    "forks and hides": "setsid sh -c 'while :; do sleep 1; done' & sleep 600",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_the_deadline_holds_against(host, node, spec, socket, name):
    began = time.monotonic()
    result = await outcome_of(
        host, spec, "sh", "-c", f"echo one; {HOSTILE[name]}", deadline_seconds=5
    )
    took = time.monotonic() - began
    assert result.stdout.startswith(b"one")
    if name == "kills everything but itself":
        assert result.outcome.reason in (reasons.DEADLINE_EXCEEDED, reasons.NON_ZERO_EXIT)
    else:
        assert result.outcome.reason == reasons.DEADLINE_EXCEEDED
    assert took < 120
    await nothing_is_left(node, socket)


async def test_a_cancel_of_a_program_that_ignores_term(host, node, spec, socket):
    stubborn = "trap '' TERM; echo on; while :; do sleep 1; done"
    seen = await host.provision(spec("sh", "-c", stubborn))
    await printed(node, seen.uid, b"on\n")
    ended = await host.terminate(seen.uid)
    assert (ended.outcome.reason, ended.outcome.succeeded) == (reasons.CANCELLED, False)
    assert ended.outcome.exit_code == 137
    await nothing_is_left(node, socket)


async def test_terminate_works_while_a_command_runs(host, node, spec, socket):
    seen = await host.provision(spec())
    running = asyncio.create_task(
        host.exec(seen.uid, ExecRequest(command=("sleep", "60"), timeout_seconds=60))
    )
    await asyncio.sleep(0.5)
    ended = await host.terminate(seen.uid)
    assert ended.outcome.reason == reasons.TERMINATED
    told = (await asyncio.gather(running, return_exceptions=True))[0]
    assert isinstance(told, errors.IsoletError) or told.exit_code != 0
    await nothing_is_left(node, socket)


@pytest.mark.parametrize(
    ("script", "timeout", "reason"),
    [
        ("sleep 5; touch late", 0.5, reasons.COMMAND_TIMEOUT),
        ("head -c 2000000 /dev/zero", 60.0, reasons.OUTPUT_LIMIT_EXCEEDED),
    ],
)
async def test_a_command_over_its_bound_destroys_its_session(
    host, node, spec, socket, script, timeout, reason
):
    seen = await host.provision(spec(medium=Medium.DISK))
    with pytest.raises(errors.Refused) as caught:
        await host.exec(
            seen.uid, ExecRequest(command=("sh", "-c", script), timeout_seconds=timeout)
        )
    assert caught.value.reason == reason
    ended = await host.terminate(seen.uid)
    assert (ended.outcome.reason, ended.outcome.succeeded) == (reason, False)
    with pytest.raises(errors.Conflict):
        await host.exec(seen.uid, ExecRequest(command=("true",)))
    await nothing_is_left(node, socket)


async def test_an_idle_session_ends_and_a_used_one_does_not(host, spec):
    seen = await host.provision(spec(idle_timeout_seconds=2))
    for _ in range(4):
        await host.exec(seen.uid, ExecRequest(command=("sleep", "0.7")))
    result = await host.wait(seen.uid)
    assert (result.outcome.reason, result.outcome.succeeded) == (reasons.IDLE_TIMEOUT, True)


async def test_removed_by_hand(host, node, spec, socket):
    seen = await host.provision(spec("sh", "-c", "echo kept; sleep 60"))
    witness = Witness(socket)
    (container,) = witness.containers(node.installation)
    await printed(node, seen.uid, b"kept\n")
    witness.docker("rm", "-f", container)
    result = await host.wait(seen.uid)
    assert result.outcome.reason == reasons.CONTAINER_LOST
    assert (result.stdout, result.incomplete) == (b"kept\n", True)
    await nothing_is_left(node, socket)


async def test_a_strangers_container_with_our_name_is_left_alone(host, node, spec, socket, shell):
    from isolet.base import names

    name = names.container_name(node.installation, "one")
    witness = Witness(socket)
    stranger = witness.docker("create", "--network=none", "--name", name, shell, "true")
    try:
        result = await outcome_of(host, spec, "true")
        assert result.reason == reasons.CONTAINER_CONFLICT
        assert name in result.message
        await host.reclaim("one")
        assert witness.inspect(name)["Id"] == stranger
    finally:
        witness.docker("rm", "-f", stranger)


async def test_a_uid_stands_for_one_spec_and_runs_once(host, spec):
    first = await host.provision(spec("sh", "-c", "echo once"), uid="one")
    await host.wait("one")
    again = await host.provision(spec("sh", "-c", "echo once"), uid="one")
    assert again.started_at == first.started_at
    with pytest.raises(errors.Conflict):
        await host.provision(spec("sh", "-c", "echo twice"), uid="one")
    await host.reclaim("one")
    with pytest.raises(errors.Conflict) as caught:
        await host.provision(spec("sh", "-c", "echo once"), uid="one")
    assert caught.value.reason == "AlreadyEnded"


async def test_a_removed_uid_that_never_was_cannot_start_later(host, spec):
    await host.reclaim("never")
    with pytest.raises(errors.Conflict):
        await host.provision(spec("true"), uid="never")


async def test_a_caller_that_leaves_ends_its_command_and_the_session(node, spec, socket):
    """Over HTTP: the command must not run on behind the back of who aborted it."""
    from prometheus_client import CollectorRegistry

    from isolet.agent.server.metrics import ServerMetrics
    from isolet.agent.server.server import AgentServer
    from isolet.client.http import HTTPAgent

    server = AgentServer(node.service, metrics=ServerMetrics(CollectorRegistry()))
    await server.listen_unix(node.run / "agent.sock")
    agent = HTTPAgent(f"unix://{node.run}/agent.sock")
    try:
        host = ExecutionHost(agent)
        seen = await host.provision(spec())
        begun = ExecRequest(command=("sh", "-c", "touch begun; sleep 600"), timeout_seconds=600)
        running = asyncio.create_task(host.exec(seen.uid, begun))
        async with asyncio.timeout(60):
            while not await node.service.list_files(seen.uid, ""):
                await asyncio.sleep(0.1)
        running.cancel()
        result = await host.wait(seen.uid)
        assert (result.outcome.reason, result.outcome.succeeded) == (reasons.CANCELLED, False)
    finally:
        await agent.close()
        await server.close()
    await nothing_is_left(node, socket)


CLUSTER = Path(__file__).parents[3] / "hack" / "cluster"


def cluster(what: str) -> None:
    subprocess.run([CLUSTER, what, "dockerd-0"], check=True, capture_output=True)


@pytest.mark.faults
async def test_an_end_that_the_engine_has_forgotten_is_no_success(node, spec, socket: str) -> None:
    """dockerd is killed after it took in an end and before it wrote it down.

    The file that it would have left is put back. The other program ends just so, and its end stays
    written.
    """
    witness, host = Witness(socket), ExecutionHost(node.service)
    held = {}
    waits = "trap 'exit 3' USR1; echo on; while :; do sleep 0.1; done"
    for uid in ("forgotten", "kept"):
        await host.provision(spec("sh", "-c", waits), uid=uid)
        await printed(node, uid, b"on\n")
        record = await node.store.get(uid)
        assert record is not None
        assert record.container_id
        folder = Path(os.environ["ISOLET_DATA"]) / "node-0/docker/containers" / record.container_id
        held[uid] = (record.container_id, folder / "config.v2.json")
    running = held["forgotten"][1].read_bytes()
    assert b'"Running":true' in running
    await node.close()
    for container, _ in held.values():
        witness.docker("kill", "--signal", "USR1", container)
        assert witness.docker("wait", container).strip() == "3"
    cluster("kill")
    try:
        held["forgotten"][1].write_bytes(running)
    finally:
        cluster("restart")
    host = ExecutionHost(await node.open())
    forgotten = (await host.wait("forgotten")).outcome
    assert (forgotten.reason, forgotten.exit_code) == (reasons.CONTAINER_LOST, None)
    kept = (await host.wait("kept")).outcome
    assert (kept.reason, kept.exit_code) == (reasons.NON_ZERO_EXIT, 3)
    await nothing_is_left(node, socket)
