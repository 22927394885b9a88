"""The cases that a durable process runner has to pass, one test each, on real sandboxes."""

import asyncio
import contextlib
import hashlib
import itertools
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isolet.agent.operations import TERMINAL, State, uid_of
from isolet.agent.runner import ONE_SHOT_SCOPE, ProcessRunner
from isolet.agent.store import folder, migrations
from isolet.agent.store.sqlite import SQLiteStore
from isolet.base import errors, names
from isolet.plan import reasons
from isolet.wire.execution import EnvVar, Medium, OOMSeen, Step
from isolet.wire.process import OutputPolicy, StagedFile
from tests.contract.engine.proxy import Proxy
from tests.contract.store.records import a_record
from tests.integration.agent.conftest import Node, environment
from tests.integration.processes.conftest import MIB, in_seconds, leave
from witness import Witness, contents_below, loops_below

SECRET = "sk-plant-5f2b9c"


def nothing_is_left(node: Node, witness: Witness) -> None:
    # The agent's own probes come and go: they are of another kind.
    labels = (f"{names.LABEL_INSTALLATION}={node.installation}", f"{names.LABEL_KIND}=process")
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    assert witness.docker("ps", "-aq", *filters) == ""
    assert witness.volumes(node.installation) == []
    assert loops_below(node.root) == []
    assert [p for p in (node.run / "launch").iterdir() if p.name != ".staging"] == []


def files_with(text: str, *roots: Path) -> list[Path]:
    return [path for path, content in contents_below(*roots) if text.encode() in content]


# One-shot runs.


async def test_case_01_a_run_has_no_network(runner, sandbox):
    script = "ls /sys/class/net; wget -q -T 2 -O- http://192.0.2.1 || echo offline"
    result = await runner.run_shell(script, sandbox())
    assert result.exit_code == 0
    assert result.stdout.split()[-1] == b"offline"
    assert b"eth" not in result.stdout


@pytest.mark.parametrize("cwd", ["../etc", "/etc", "a/../../etc", "/workspace/../etc"])
async def test_case_02_a_cwd_outside_runs_nothing(runner, sandbox, node, witness, cwd):
    result = await runner.run_shell("ls", sandbox(), cwd=cwd)
    assert result.exit_code is None
    assert b"outside the workspace" in result.stderr
    assert (await node.service.snapshot()).processes == ()
    nothing_is_left(node, witness)


async def test_case_02_a_cwd_through_a_link_runs_nothing(runner, request_of, host, node, session):
    await host.exec(session, _command("sh", "-c", "ln -s /tmp away; mkdir real; ln -s real near"))
    await runner.start(request_of("touch", "/tmp/ran", execution_uid=session, cwd="away"))
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.FAILED, reasons.START_FAILED)
    assert "outside" in ended.message
    looked = await host.exec(session, _command("test", "-e", "/tmp/ran"))
    assert looked.exit_code == 1
    near = request_of("pwd", execution_uid=session, cwd="near", operation_id="two")
    await runner.start(near)
    assert (await runner.wait("acme", "two")).exit_code == 0


async def test_case_03_an_unknown_language_creates_nothing(runner, sandbox, node, witness):
    result = await runner.run_code("cobol", "DISPLAY 'X'.", sandbox())
    assert result.exit_code is None
    assert b"'cobol'" in result.stderr
    assert (await node.service.snapshot()).sequence == 0
    nothing_is_left(node, witness)


async def test_case_03_a_missing_interpreter_is_said(runner, sandbox):
    result = await runner.run_code("node", "1", sandbox())
    assert result.exit_code is None
    assert b"'node' was not found" in result.stderr


async def test_case_04_a_run_without_a_timeout_is_killed_at_30_seconds(runner, sandbox):
    began = time.monotonic()
    result = await runner.run_shell("trap '' TERM; echo on; sleep 600", sandbox())
    assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"on\n")
    assert 30 <= time.monotonic() - began < 120


async def test_case_05_the_tail_is_kept_and_the_cut_stream_is_named(runner, request_of):
    script = "i=0; while [ $i -lt 3000 ]; do echo line-$i; i=$((i+1)); done; printf end >&2"
    await runner.start(request_of("sh", "-c", script, output=OutputPolicy(limit_bytes=1000)))
    ended = await runner.wait("acme", "one")
    found = await runner.read_output("acme", "one")
    whole = b"".join(b"line-%d\n" % i for i in range(3000))
    assert ended.exit_code == 0
    assert found.stdout == whole[-1000:]
    assert found.stderr == b"end"
    assert found.truncated == ("stdout",)


async def test_case_06_no_value_is_in_argv_inspect_or_the_state(
    runner, request_of, node, witness, session
):
    values = {
        "env": (EnvVar(name="TOKEN", value=SECRET.encode(), secret=True),),
        "stdin": SECRET.encode(),
        "files": (StagedFile(path="f", content=SECRET.encode()),),
    }
    own = request_of("sleep", "60", **values)
    inside = request_of("sleep", "60", execution_uid=session, operation_id="two", **values)
    for request in (own, inside):
        await runner.start(request)
    await until(lambda: not files_with(SECRET, node.run))
    for container in witness.containers(node.installation):
        assert SECRET not in str(witness.inspect(container))
    assert files_with(SECRET, node.root / "state", node.run) == []
    # The program itself, and nobody else, has the value.
    lines = command_lines()
    assert not [line for line in lines if SECRET.encode() in line and b"pytest" not in line]


async def test_case_07_nothing_is_left_after_any_end(runner, sandbox, node, witness):
    assert (await runner.run_shell("true", sandbox())).exit_code == 0
    nothing_is_left(node, witness)
    assert (await runner.run_shell("exit 3", sandbox(medium=Medium.DISK))).exit_code == 3
    nothing_is_left(node, witness)
    assert (await runner.run_shell("sleep 9", sandbox(), timeout_seconds=1)).timed_out
    nothing_is_left(node, witness)
    aborted = asyncio.create_task(runner.run_shell("sleep 60", sandbox()))
    await until(lambda: witness.containers(node.installation))
    aborted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await aborted
    await until(lambda: not witness.containers(node.installation))
    await until(lambda: not [*(node.run / "launch").glob("run-*")])


async def test_case_08_what_a_run_changes_stays_in_it(runner, request_of, node, witness, tmp_path):
    given = tmp_path / "given"
    given.write_bytes(b"before")
    staged = StagedFile(path="f", content=given.read_bytes())
    script = f"printf '%s%s' {SECRET[:8]} {SECRET[8:]} > f; cat f; echo; sleep 60"
    await runner.start(request_of("sh", "-c", script, files=(staged,)))
    await until_output(runner, f"{SECRET}\n".encode())
    (container,) = witness.containers(node.installation)
    mounts = witness.inspect(container)["Mounts"]
    assert [(m["Destination"], m["RW"]) for m in mounts if m["Type"] == "bind"] == [
        ("/.isolet", False)
    ]
    assert given.read_bytes() == b"before"
    written = files_with(SECRET, tmp_path, node.run)
    # What it printed is kept, and shows that the search finds it; what it wrote is not.
    assert {path.relative_to(node.root).parts[:2] for path in written} == {("state", "output")}


@pytest.fixture
async def proxied(socket, tmp_path):
    """A node whose engine is reached through a proxy that can be stopped."""
    upstream = Proxy(tmp_path / "docker.sock", socket)
    await upstream.start()
    node = Node(str(tmp_path / "docker.sock"), tmp_path)
    await node.open()
    yield node, upstream
    await leave(node)
    await upstream.stop()


async def test_case_09_a_missing_image_is_an_error_and_is_not_pulled(proxied, sandbox, witness):
    node, upstream = proxied
    with pytest.raises(errors.Unavailable) as caught:
        await ProcessRunner(node.service).run_shell("true", sandbox(image="sha256:" + "0" * 64))
    assert caught.value.reason == reasons.IMAGE_MISSING
    assert upstream.count("GET .*/images/sha256:000") > 0
    assert upstream.count("POST .*/images/create") == 0
    assert witness.containers(node.installation) == []


async def test_case_10_an_engine_that_is_down_is_an_error(proxied, sandbox):
    node, upstream = proxied
    await upstream.stop()
    with pytest.raises(errors.Unavailable) as caught:
        await ProcessRunner(node.service).run_shell("true", sandbox())
    assert caught.value.reason == reasons.ENGINE_UNAVAILABLE
    await upstream.start()


async def test_case_11_an_entrypoint_is_reset(runner, sandbox):
    own = sandbox(image=environment("ISOLET_IMAGE_ENTRYPOINT"))
    assert (await runner.run_shell("echo ok", own)).stdout == b"ok\n"


async def test_case_12_the_root_is_read_only_and_the_volume_goes(runner, request_of, node, witness):
    script = (
        "for d in / /etc /usr /.isolet; do touch $d/x 2>/dev/null && echo $d; done; touch /tmp/x x"
    )
    await runner.start(request_of("sh", "-c", script, medium=Medium.DISK))
    assert (await runner.wait("acme", "one")).exit_code == 0
    assert (await runner.read_output("acme", "one")).stdout == b""
    assert len(witness.volumes(node.installation)) == 1
    await runner.dispose("acme", "one")
    nothing_is_left(node, witness)


# Cases 13 to 18, a host that dies between two steps, are in test_seed_crashes.py.

# Idempotency.


async def test_case_19_the_same_request_is_the_same_container(runner, request_of):
    request = request_of("sleep", "60")
    first = await runner.start(request)
    again = await runner.start(request)
    assert (again.container_id, again.started_at) == (first.container_id, first.started_at)


CHANGES = {
    "command": {"command": ("sleep", "61")},
    "an env value": {"env": (EnvVar(name="A", value=b"2"),)},
    "a file's content": {"files": (StagedFile(path="f", content=b"2"),)},
    "a file's mode": {"files": (StagedFile(path="f", content=b"1", mode=0o600),)},
    "stdin": {"stdin": b"2"},
    "the deadline": {"deadline_at": datetime(2100, 1, 1, tzinfo=UTC)},
    "the timeout": {"timeout_seconds": 61},
}


async def test_case_20_any_change_is_a_conflict(runner, request_of):
    base = {
        "command": ("sleep", "60"),
        "env": (EnvVar(name="A", value=b"1"),),
        "files": (StagedFile(path="f", content=b"1"),),
        "stdin": b"1",
    }
    first = await runner.start(request_of(**base))
    for what, change in CHANGES.items():
        with pytest.raises(errors.Conflict):
            await runner.start(request_of(**{**base, **change}))
        assert (await runner.poll("acme", "one")).container_id == first.container_id, what


async def test_case_21_an_old_container_under_the_name_is_a_conflict(
    runner, request_of, node, witness, shell
):
    uid = uid_of("acme", "one")
    name = names.container_name(node.installation, uid)
    labels = {
        names.LABEL_INSTALLATION: node.installation,
        names.LABEL_UID: uid,
        names.LABEL_KIND: "process",
        names.LABEL_SPEC_DIGEST: "an older one",
    }
    flags = [word for k, v in labels.items() for word in ("--label", f"{k}={v}")]
    witness.docker("create", "--network=none", "--name", name, *flags, shell, "true")
    await runner.start(request_of("true"))
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.FAILED, reasons.CONTAINER_CONFLICT)
    await runner.dispose("acme", "one")
    assert await runner.prune(terminal_before=in_seconds(1)) == 1
    await runner.start(request_of("true"))
    assert (await runner.wait("acme", "one")).state is State.EXITED


async def test_case_22_the_record_holds_no_value(runner, request_of, node):
    request = request_of(
        "sh",
        "-c",
        f"# {SECRET}\ncat f; cat",
        env=(EnvVar(name="A", value=SECRET.encode()),),
        files=(StagedFile(path="f", content=f"{SECRET}\n".encode() * 20),),
        stdin=f"{SECRET}\n".encode(),
    )
    await runner.start(request)
    await runner.wait("acme", "one")
    found = [p.relative_to(node.root) for p in files_with(SECRET, node.root / "state")]
    # The program printed it: its output is the only place.
    assert {path.parts[:2] for path in found} == {("state", "output")}


# Start.


async def test_case_23_a_missing_executable_fails_the_start(runner, request_of):
    await runner.start(request_of("/no/such/bin"))
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.FAILED, reasons.START_FAILED)
    assert "'/no/such/bin'" in ended.message


FLAG, EVENT = OOMSeen(engine_flag=True), OOMSeen(engine_event=True)
BOTH = OOMSeen(engine_flag=True, engine_event=True)


async def test_case_24_a_memory_bomb_is_told_as_one(runner, request_of, node):
    await runner.start(request_of("sh", "-c", "tail /dev/zero"))
    ended = await runner.wait("acme", "one")
    assert ended.reason == reasons.OOM_KILLED
    (seen,) = (await node.service.snapshot()).processes
    assert seen.outcome.oom in (EVENT, FLAG, BOTH)


@pytest.mark.parametrize("size", [0, 6, 200_000])
async def test_case_25_stdin_is_delivered_and_closed(runner, request_of, session, size):
    data = bytes(i % 251 for i in range(size))
    for place in ({}, {"execution_uid": session}):
        operation = f"op-{len(place)}"
        await runner.start(
            request_of("sh", "-c", "cat; echo done", stdin=data, operation_id=operation, **place)
        )
        assert (await runner.wait("acme", operation)).exit_code == 0
        assert (await runner.read_output("acme", operation)).stdout == data + b"done\n"


# Cancel.


async def test_case_26_a_program_that_ignores_term_is_dead_in_seconds(runner, request_of, witness):
    await runner.start(request_of("sh", "-c", "trap '' TERM; echo on; while :; do sleep 1; done"))
    await until_output(runner, b"on\n")
    began = time.monotonic()
    await runner.cancel("acme", "one")
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.CANCELLED)
    assert time.monotonic() - began < 60
    assert not witness.inspect(ended.container_id)["State"]["Running"]


async def test_case_27_a_cancel_waits_for_the_engines_word(proxied, request_of):
    node, upstream = proxied
    runner = ProcessRunner(node.service)
    await runner.start(request_of("sleep", "60"))
    await upstream.stop()
    await runner.cancel("acme", "one")
    async with asyncio.timeout(60):
        while (seen := await runner.poll("acme", "one")).reason != reasons.ENGINE_UNAVAILABLE:
            await asyncio.sleep(0.1)
    assert seen.state is State.CANCEL_REQUESTED
    await upstream.start()
    assert (await runner.wait("acme", "one")).state is State.CANCELLED


async def test_case_28_alive_after_the_kill_is_said(runner, request_of, node, monkeypatch):
    await runner.start(request_of("sleep", "60"))
    engine = node.service._context.engine

    async def nothing(*_: object, **__: object) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(engine, "kill", nothing)
        patched.setattr(engine, "stop", nothing)
        await runner.cancel("acme", "one")
        async with asyncio.timeout(60):
            while (seen := await runner.poll("acme", "one")).reason != reasons.CANCEL_UNVERIFIED:
                await asyncio.sleep(0.1)
        assert seen.state is State.CANCEL_REQUESTED
    assert (await runner.wait("acme", "one")).state is State.CANCELLED


async def test_case_29_already_gone_counts_as_stopped(
    runner, request_of, node, witness, monkeypatch
):
    await runner.start(request_of("sleep", "60"))
    engine = node.service._context.engine
    stop = engine.stop

    async def gone_first(name: str, *, grace_seconds: int) -> None:
        witness.docker("rm", "-f", name)
        await stop(name, grace_seconds=grace_seconds)

    monkeypatch.setattr(engine, "stop", gone_first)
    await runner.cancel("acme", "one")
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.CANCELLED)


# Deadlines.


async def test_case_30_the_deadline_fires(runner, request_of):
    deadline = in_seconds(12)
    started = await runner.start(request_of("sh", "-c", "echo on; sleep 600", deadline_at=deadline))
    assert started.deadline_at == deadline
    assert started.durable_timeout
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    assert 0 <= (ended.updated_at - deadline).total_seconds() < 60
    assert (await runner.read_output("acme", "one")).stdout == b"on\n"


async def test_case_30_a_deadline_that_has_passed_starts_nothing(runner, request_of):
    await runner.start(request_of("touch", "x", deadline_at=in_seconds(-1)))
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    assert "nothing had run" in ended.message
    assert ended.started_at is None


# Case 31, a deadline that passes while the host is down, is in test_seed_crashes.py.

# Output and artifacts.


async def test_case_32_live_then_stored_then_after_disposal(runner, request_of, witness):
    script = "trap 'on=yes' USR1; echo one; until [ \"$on\" ]; do sleep 0.1; done; echo two"
    await runner.start(request_of("sh", "-c", script))
    await until_output(runner, b"one\n")
    running = await runner.poll("acme", "one")
    assert running.state is State.RUNNING
    witness.docker("kill", "--signal", "USR1", running.container_id)
    await runner.wait("acme", "one")
    assert (await runner.read_output("acme", "one")).stdout == b"one\ntwo\n"
    assert (await runner.dispose("acme", "one")).state is State.DISPOSED
    assert (await runner.read_output("acme", "one")).stdout == b"one\ntwo\n"


async def test_case_33_no_artifact_while_it_runs(runner, request_of):
    await runner.start(request_of("sh", "-c", "echo 1 > f; sleep 60", medium=Medium.DISK))
    with pytest.raises(errors.Conflict) as caught:
        await runner.read_artifact("acme", "one", "f")
    assert caught.value.reason == reasons.STILL_RUNNING


MAKE = (
    "mkdir real; echo ok > real/f; ln -s real/f link; ln -s real folder; ln -s /etc/passwd out;"
    "echo x > locked; chmod 0 locked; ln real/f hard"
)
REJECTED = [
    "link", "folder/f", "out", "real", "locked", "real/f/x",
    "../etc/passwd", "/etc/passwd", "real/../real/f", "./real/f", "real//f", "real/", "", "a\0b",
]  # fmt: skip


async def test_case_34_only_plain_files_at_plain_paths(runner, request_of):
    await runner.start(request_of("sh", "-c", MAKE, medium=Medium.DISK))
    await runner.wait("acme", "one")
    for path in REJECTED:
        with pytest.raises(errors.Refused) as caught:
            await runner.read_artifact("acme", "one", path)
        assert caught.value.reason == reasons.ARTIFACT_REJECTED, path
    for path in ("real/f", "hard"):
        assert (await runner.read_artifact("acme", "one", path)).content == b"ok\n"


SPECIAL = {"fifo": ("p", 0o010666), "zero": ("c 1 5", 0o020666), "loop": ("b 7 0", 0o060666)}


async def test_case_34_a_fifo_or_a_device_on_the_disk_is_rejected_at_once(runner, request_of, node):
    """Planted: a FIFO that a program makes stays inside gVisor, and it can make no device."""
    await runner.start(request_of("sh", "-c", "echo ok > plain", medium=Medium.DISK))
    await runner.wait("acme", "one")
    (loop,) = loops_below(node.root)
    for path, (kind, mode) in SPECIAL.items():
        for change in (f"mknod {path} {kind}", f"set_inode_field {path} mode 0{mode:o}"):
            debugfs(loop, change)
    for path in SPECIAL:
        async with asyncio.timeout(60):
            with pytest.raises(errors.Refused) as caught:
                await runner.read_artifact("acme", "one", path)
        assert caught.value.reason == reasons.ARTIFACT_REJECTED, path
    assert (await runner.read_artifact("acme", "one", "plain")).content == b"ok\n"


def debugfs(loop: str, change: str) -> None:
    command = ("debugfs", "-w", "-R", change, f"/dev/{loop}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr.partition("\n")[2], done.stderr  # its first line is its version


async def test_case_35_missing_and_too_large(runner, request_of):
    script = f"head -c {65 * MIB} /dev/zero > large"
    large = {"workspace_bytes": 96 * MIB}
    await runner.start(request_of("sh", "-c", script, medium=Medium.DISK, resources=large))
    await runner.wait("acme", "one")
    with pytest.raises(errors.NotFound):
        await runner.read_artifact("acme", "one", "none")
    with pytest.raises(errors.Refused) as caught:
        await runner.read_artifact("acme", "one", "large")
    assert caught.value.reason == reasons.ARTIFACT_TOO_LARGE


async def test_case_36_the_digest_is_of_the_bytes(runner, request_of):
    script = (
        "mkdir -p out/deep; head -c 3000000 /dev/urandom > out/deep/r; echo 1 > out/s; echo 2 > t"
    )
    globs = ("out/**", "missing", "*.none")
    await runner.start(request_of("sh", "-c", script, medium=Medium.DISK, artifacts=globs))
    ended = await runner.wait("acme", "one")
    assert [artifact.path for artifact in ended.artifacts] == ["out/deep/r", "out/s"]
    await runner.dispose("acme", "one")  # what was kept outlives the workspace
    for artifact in ended.artifacts:
        found = await runner.read_artifact("acme", "one", artifact.path)
        assert found.digest == "sha256:" + hashlib.sha256(found.content).hexdigest()
        assert (found.digest, found.size) == (artifact.digest, len(found.content))
    with pytest.raises(errors.NotFound):
        await runner.read_artifact("acme", "one", "t")


# Reconcile.


async def test_case_37_a_container_removed_behind_our_back_is_lost(
    runner, request_of, node, witness
):
    await runner.start(request_of("sleep", "60"))
    await runner.start(request_of("sleep", "60", operation_id="two"))
    name = names.container_name(node.installation, uid_of("acme", "one"))
    witness.docker("rm", "-f", name)
    assert (await runner.wait("acme", "one")).state is State.LOST
    found = await runner.reconcile("acme")
    assert [s.operation_id for s in found.lost] == ["one"]
    assert [s.operation_id for s in found.matched] == ["two"]


def stray(witness: Witness, node: Node, shell: str, scope: str, uid: str, **labels: str) -> str:
    every = {
        names.LABEL_INSTALLATION: node.installation,
        names.LABEL_KIND: "process",
        names.LABEL_NAMESPACE: scope,
        names.LABEL_UID: uid,
        **labels,
    }
    flags = [word for k, v in every.items() for word in ("--label", f"{k}={v}")]
    name = f"{node.installation}-{uid}"
    witness.docker("create", "--network=none", "--name", name, *flags, shell, "true")
    witness.docker("volume", "create", *flags, f"{name}-ws")
    return name


async def test_case_38_a_stray_is_reported_and_removed_only_on_request(
    runner, node, witness, shell
):
    mine = stray(witness, node, shell, "acme", "x1")
    other = stray(witness, node, shell, "other", "x2")
    plain = witness.docker("create", "--network=none", shell, "true")
    try:
        await node.service._node.refresh()
        found = await runner.reconcile("acme")
        assert sorted(s.name for s in found.orphans) == [mine, f"{mine}-ws"]
        assert found.removed == ()
        assert mine in witness.docker("ps", "-a", "--format", "{{.Names}}").split()
        found = await runner.reconcile("acme", remove_orphans=True)
        assert sorted(s.name for s in found.removed) == [mine, f"{mine}-ws"]
        left = witness.docker("ps", "-a", "--no-trunc", "--format", "{{.Names}} {{.ID}}").split()
        assert mine not in left
        assert {other, plain} <= set(left)
        found = await runner.reconcile(remove_orphans=True)
        assert sorted(s.name for s in found.removed) == [other, f"{other}-ws"]
        assert plain in witness.docker("ps", "-a", "--no-trunc", "--format", "{{.ID}}").split()
    finally:
        witness.docker("rm", "-f", plain)


async def test_case_39_a_fresh_one_shot_sandbox_is_no_orphan(runner, node, witness, shell):
    name = stray(witness, node, shell, ONE_SHOT_SCOPE, "run-x")
    await node.service._node.refresh()
    assert (await runner.reconcile(remove_orphans=True)).orphans == ()
    (container, _) = sorted(node.service._node._strays, key=lambda s: s.kind)
    old = container.model_copy(update={"age_seconds": 30 * 60.0})
    node.service._node._strays = (old,)
    assert [s.name for s in (await runner.reconcile()).orphans] == [name]
    witness.docker("rm", "-f", name)
    witness.docker("volume", "rm", f"{name}-ws")


async def test_case_40_prune_is_exclusive_and_takes_only_what_has_ended(runner, request_of):
    for number in range(2):
        await runner.start(request_of("true", operation_id=f"done-{number}"))
        await runner.wait("acme", f"done-{number}")
    await runner.start(request_of("sleep", "60", operation_id="runs"))
    later = await runner.poll("acme", "done-1")
    for wrong in ("2026-01-01", 1, None, datetime(2100, 1, 1)):  # noqa: DTZ001
        with pytest.raises(TypeError):
            await runner.prune(terminal_before=wrong)
    assert len((await runner.list())[0]) == 3
    assert await runner.prune(terminal_before=later.updated_at) == 1
    with pytest.raises(errors.NotFound):
        await runner.poll("acme", "done-0")
    assert await runner.prune(terminal_before=later.updated_at + timedelta(microseconds=1)) == 1
    assert await runner.prune(terminal_before=in_seconds(3600)) == 0
    assert (await runner.poll("acme", "runs")).state is State.RUNNING


# The store.


async def test_case_41_a_stale_revision_is_refused(tmp_path):
    store = await SQLiteStore.open(tmp_path)
    first = await store.add(a_record())
    await store.update(first.with_(step=Step.ENDED))
    with pytest.raises(errors.Conflict) as caught:
        await store.update(first.with_(step=Step.DISPOSED))
    assert caught.value.reason == "StaleRevision"
    await store.close()


async def test_case_42_of_two_updaters_one_wins(tmp_path):
    store = await SQLiteStore.open(tmp_path)
    first = await store.add(a_record())
    both = [store.update(first.with_(generation=n)) for n in (1, 2)]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(isinstance(each, errors.Conflict) for each in results) == [False, True]
    await store.close()


async def test_case_43_a_newer_schema_is_refused_untouched(tmp_path):
    import sqlite3

    await (await SQLiteStore.open(tmp_path)).close()
    path = tmp_path / folder.DATABASE_NAME
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {migrations.SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(errors.Corrupt):
        await SQLiteStore.open(tmp_path)
    assert path.read_bytes() == before


async def test_case_44_pages_are_stable_and_complete(runner, request_of):
    operations = [("acme", "z"), ("acme", "ä"), ("acme", "𝄞"), ("b", "a"), ("acme", "a")]
    for scope, operation in operations:
        request = request_of(
            "true", scope=scope, operation_id=operation, deadline_at=in_seconds(-1)
        )
        await runner.start(request)
    whole, _ = await runner.list(limit=1000)
    assert [(s.scope, s.operation_id) for s in whole] == operations  # by creation
    seen, cursor = [], None
    for number in itertools.count():
        page, cursor = await runner.list(limit=2, cursor=cursor)
        seen += page
        if number == 0:  # one that comes meanwhile is on a later page, and nothing moves
            await runner.start(request_of("true", operation_id="new", deadline_at=in_seconds(-1)))
        if cursor is None:
            break
    assert [s.operation_id for s in seen] == [o for _, o in operations] + ["new"]
    assert len((await runner.list(scope="b"))[0]) == 1
    assert (await runner.list(states=[State.RUNNING]))[0] == ()
    assert len((await runner.list(states=tuple(TERMINAL)))[0]) == 6
    for wrong in ("", "x", "bm8=", 3):
        with pytest.raises(TypeError):
            await runner.list(cursor=wrong)
    for wrong in (0, 1001):
        with pytest.raises(ValueError, match="1 to 1000"):
            await runner.list(limit=wrong)


def _command(*words: str):
    from isolet.wire.execution import ExecRequest

    return ExecRequest(command=words)


def command_lines() -> list[bytes]:
    """Of every process on the machine; one that ends meanwhile has none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


async def until(reached) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.05)


async def until_output(runner: ProcessRunner, wanted: bytes) -> None:
    async with asyncio.timeout(60):
        while (await runner.read_output("acme", "one")).stdout != wanted:
            await asyncio.sleep(0.05)
