"""What people reported of systems like this one, tried on the whole stack; docs/reports.md has all.

Here are the cases that need Kubernetes. A test is named after its report.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecRequest
from tests.e2e.looks import OPERATOR, events, eventually, held, node_of, outcome, scheduled, writes
from tests.e2e.world import World, a_class, a_process, an_execution, condition

CLOSED = "only-blue"
OPEN = "with-git"


@pytest.fixture(scope="module")
def shared(whole: World) -> Iterator[World]:
    """One namespace for all: names do not meet, and nothing is left at the end."""
    whole.stack.start_missing()
    whole.stack.wait_ready()
    whole.apply(a_class(CLOSED, namespaceSelector={"matchLabels": {"team": "blue"}}))
    workspace = {"gitRepositories": ["r"], "maximumRetainSeconds": 600}
    whole.apply(a_class(OPEN, workspace=workspace))
    with whole.in_namespace() as world:
        yield world
    whole.stack.kube("delete", "executionclass", CLOSED, OPEN)
    whole.nothing_left()


def documents(**changes: Any) -> str:
    return json.dumps(an_execution("wrong", "true", **changes))


def without(field: str) -> str:
    document = an_execution("wrong", "true")
    del document[field]
    return json.dumps(document)


TOKEN = "hf_0123456789abcdef"
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "an image without tag or digest": (
        documents(image="alpine"),
        ("spec.image", "must be pinned: name@sha256:<64 lower-case hex digits>"),
    ),
    "memory as a number": (
        documents(resources={"memory": 512}),
        ("spec.resources.memory", "must be of type string"),
    ),
    "memory in a unit of its own": (
        documents(resources={"memory": "512mb"}),
        ("spec.resources.memory", "must be a quantity such as 512Mi"),
    ),
    "a field that does not exist": (
        documents(resources={"cpus": "1"}),
        ('unknown field "spec.resources.cpus"',),
    ),
    "a command line as one string": (
        documents(command="echo hi"),
        ("spec.command", "must be of type array"),
    ),
    "the environment as a map": (
        documents(env={"GREETING": "hi"}),
        ('unknown field "spec.env.GREETING"',),
    ),
    "a number as a value": (
        documents(env=[{"name": "LEVEL", "value": 1}]),
        ("spec.env[0].value", "must be of type string"),
    ),
    "a name twice": (
        documents(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        ("spec.env[1]", "Duplicate value"),
    ),
    "a credential in the open": (
        documents(env=[{"name": "HF_TOKEN", "value": TOKEN}]),
        ("spec.env[0]", "HF_TOKEN looks like a credential", "valueFrom.secretKeyRef"),
    ),
    "a state that does not exist": (
        documents(desiredState="Stopped"),
        ("spec.desiredState", '"Running", "Terminated"'),
    ),
    "a network that this version has not": (
        documents(network={"mode": "Bridge"}),
        ("spec.network.mode", '"None"'),
    ),
    "a deadline beyond a day": (
        documents(activeDeadlineSeconds=86401),
        ("spec.activeDeadlineSeconds", "should be less than or equal to 86400"),
    ),
    "an idle timeout of what is no session": (
        documents(idleTimeoutSeconds=60),
        ("spec.idleTimeoutSeconds", "only a session can be idle"),
    ),
    "more memory than the class allows": (
        documents(resources={"memory": "4Gi"}),
        ("spec.resources.memory", "class test allows at most 2Gi"),
    ),
    "a class for another team": (
        documents(className=CLOSED),
        ("spec.className", f"class {CLOSED} is not granted to this namespace"),
    ),
    "a node of one's own choice": (
        documents(nodeName="node-1"),
        ("spec.nodeName", "only by Isolet's own service accounts"),
    ),
    "no spec": (without("spec"), ("spec", "Required value")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_yaml_is_refused_with_field_and_rule(shared: World, name: str) -> None:
    text, words = MISTAKES[name]
    said = shared.refused("apply", "-f", "-", stdin=text)
    for word in words:
        assert word in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("execution.spec.resources", "Bounds of the sandbox"),
        ("execution.spec.resources.memory", "exceeding it kills the sandbox"),
        ("execution.spec.command", "run once and without a shell"),
        ("executionclass.spec.namespaceSelector", "{} means all"),
        ("executionnode.spec.drain.onDeadline", "Wait lets work end by itself"),
        ("process.spec.stdin", "What it reads"),
        ("checkpoint.spec.executionRef", "The Execution whose workspace is taken"),
    ],
)
def test_kubectl_explains(shared: World, path: str, words: str) -> None:
    said = " ".join(shared.kubectl("explain", path).split())
    assert words in said
    assert "<no description>" not in said.lower()


def later_kinds(world: World) -> None:
    """A Process and a Checkpoint that wait for their Execution."""
    for kind, spec in (
        ("Process", {"executionRef": {"name": "any"}, "command": ["true"]}),
        ("Checkpoint", {"executionRef": {"name": "any"}}),
    ):
        metadata = {"name": "later"}
        api = "isolet.dev/v1alpha1"
        world.apply({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})


COLUMNS = {
    "executions": "NAME SUCCEEDED REASON NODE AGE",
    "processes": "NAME SUCCEEDED REASON NODE AGE",
    "checkpoints": "NAME READY REASON EXECUTION NODE AGE",
    "executionclasses": "NAME DEFAULT RUNTIME AGE",
    "executionnodes": "NAME READY REASON UNSCHEDULABLE EXECUTIONS AGENT AGE",
}


def test_what_kubectl_get_shows_of_each_kind(shared: World) -> None:
    later_kinds(shared)
    shared.execution("shown", "true")
    shared.finished("shown")
    for kind, header in COLUMNS.items():
        lines = shared.kubectl("get", kind).splitlines()
        assert " ".join(lines[0].split()) == header
        assert len(lines) > 1
    row = shared.kubectl("get", "execution", "shown", "--no-headers").split()
    assert row[1:3] == ["True", "Succeeded"]
    assert row[3] in shared.stack.nodes()
    for node in shared.stack.nodes():
        row = shared.kubectl("get", "executionnode", node, "--no-headers").split()
        assert row[:4] == [node, "True", "NodeReady", "false"]
    listed = shared.kubectl("get", "isolet", "-o", "name").split()
    assert {name.split(".")[0] for name in listed} >= {"execution", "process", "checkpoint"}


# A, B: how things end, and when.


@pytest.mark.parametrize("kind", ["execution", "process"])
def test_a07_a_kill_is_a_failure_to_whoever_waits(shared: World, kind: str) -> None:
    name = f"a07-{kind}"
    command = ("sh", "-c", "kill -9 $$")
    if kind == "execution":
        shared.execution(name, *command)
    else:
        shared.process(name, command=list(command))
    shared.kubectl("wait", "--for=condition=Succeeded=False", "--timeout=120s", f"{kind}/{name}")
    status = shared.finished(name, kind=kind)
    assert (outcome(status), status["exitCode"]) == (("False", "NonZeroExit"), 137)
    refused = shared.refused("wait", "--for=condition=Succeeded", "--timeout=1s", f"{kind}/{name}")
    assert "timed out" in refused


@asynccontextmanager
async def slow_to_open(path: Path, target: Path, seconds: float) -> Any:
    """A socket that leads to another one, some seconds after each connect."""
    relays: set[Any] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.add(asyncio.current_task())
        await asyncio.sleep(seconds)
        there, back = await asyncio.open_unix_connection(str(target))
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)
        for end in (writer, back):
            end.close()
            await end.wait_closed()

    server = await asyncio.start_unix_server(relay, str(path))
    async with server:
        yield path
        await asyncio.gather(*relays)


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


def test_b04_a_slow_connection_is_not_charged_to_the_command(shared: World, tmp_path: Path) -> None:
    shared.execution("b04")
    seen = shared.running("b04")
    socket = shared.stack.agent_run(seen["spec"]["nodeName"]) / "agent.sock"

    async def call() -> int:
        async with slow_to_open(tmp_path / "s", socket, 12) as slow:
            agent = HTTPAgent(f"unix://{slow}")
            request = ExecRequest(command=("sleep", "0.5"), timeout_seconds=10)
            try:
                return (await agent.exec(seen["metadata"]["uid"], request)).exit_code
            finally:
                await agent.close()

    assert asyncio.run(call()) == 0
    assert condition(shared.get("execution", "b04"), "Finished").get("status") != "True"


def test_b06_b07_what_has_expired_is_cleared_once_and_says_one_thing(shared: World) -> None:
    shared.execution("b06", activeDeadlineSeconds=2)
    status = shared.finished("b06")
    assert outcome(status) == ("False", "DeadlineExceeded")
    said = {c["type"]: c["status"] for c in status["conditions"]}
    ended = {"Scheduled": "True", "Ready": "False", "Finished": "True", "Succeeded": "False"}
    assert said == {**ended, "Stalled": "True"}
    found = shared.get("execution", "b06")
    assert found is not None
    current = found["metadata"]["generation"]
    assert {c["observedGeneration"] for c in status["conditions"]} == {current}
    uid, node = found["metadata"]["uid"], found["spec"]["nodeName"]
    eventually(lambda: not held(shared, node, uid), "it is cleared")
    log = shared.stack.layout.log(f"agent-{node}")
    before, begin = log.read_text().count(uid), sum(1 for _ in shared.audit())
    for number in range(15):
        shared.kubectl("label", "execution", "b06", "--overwrite", f"edit=n{number}")
    time.sleep(2)
    assert log.read_text().count(uid) == before
    assert [w for w in writes(shared, begin) if w["objectRef"].get("name") == "b06"] == []


# H: the operator and those who apply.


def test_h07_what_an_object_holds_is_copied_nowhere(shared: World) -> None:
    values = {"env": "canary-h07-env", "command": "canary-h07-argument"}
    document = an_execution("h07", "true", values["command"])
    document["spec"]["env"] = [{"name": "GREETING", "value": values["env"]}]
    shared.kubectl("create", "-f", "-", stdin=json.dumps(document))
    shared.finished("h07")
    found = shared.get("execution", "h07")
    assert found is not None
    whole, spec = json.dumps(found), json.dumps(found["spec"])
    for value in values.values():
        assert (whole.count(value), spec.count(value)) == (1, 1)
    assert found["metadata"]["annotations"].keys() == {"isolet.dev/binding"}


def test_d08_what_a_process_is_given_is_copied_nowhere(shared: World) -> None:
    values = {"env": "canary-d08-env", "stdin": "canary-d08-stdin", "file": "canary-d08-file"}
    document = a_process(
        "d08",
        command=["sh", "-c", "test $GREETING && cat - f | wc -c"],
        env=[{"name": "GREETING", "value": values["env"]}],
        stdin={"value": values["stdin"] + "x" * 100_000},
        files=[{"path": "f", "content": values["file"]}],
        output={"statusTailBytes": 32},
    )
    shared.kubectl("create", "-f", "-", stdin=json.dumps(document))
    status = shared.finished("d08", kind="process")
    given = len(values["stdin"]) + 100_000 + len(values["file"])
    assert status["output"]["stdoutTail"] == f"{given}\n"
    found = shared.get("process", "d08")
    assert found is not None
    whole, spec = json.dumps(found), json.dumps(found["spec"])
    for value in values.values():
        assert (whole.count(value), spec.count(value)) == (1, 1)
    assert found["metadata"]["annotations"].keys() == {"isolet.dev/binding"}


def test_h09_long_names_are_never_mixed_up(shared: World) -> None:
    stem = "a" * 200
    names = [f"{stem}{'b' * 53}", f"{stem}{'c' * 53}", "d" * 63, "d" * 64]
    since = time.time()
    for number, name in enumerate(names):
        shared.execution(name, "echo", f"number {number}", output={"statusTailBytes": 32})
    for number, name in enumerate(names):
        status = shared.finished(name)
        assert status["output"]["stdoutTail"] == f"number {number}\n"
    assert len(shared.starts(since)) == len(set(shared.starts(since))) == len(names)
    for name in names:
        shared.delete("execution", name)
    for name in names:
        shared.gone("execution", name)


@pytest.mark.parametrize("mode", [[], ["--server-side"]], ids=["client-side", "server-side"])
def test_h17_a_manifest_is_equal_after_it_ran(shared: World, mode: list[str]) -> None:
    name = f"h17-{len(mode)}"
    spec = {"className": "test", "command": ["true"], "workspace": {"medium": "Memory"}}
    spec["image"] = an_execution("x")["spec"]["image"]
    spec["resources"] = {"cpu": "1000m", "memory": "1024Mi"}
    api = {"apiVersion": "isolet.dev/v1alpha1", "kind": "Execution"}
    text = json.dumps({**api, "metadata": {"name": name}, "spec": spec})
    shared.kubectl("apply", *mode, "-f", "-", stdin=text)
    shared.finished(name)
    assert shared.kubectl("diff", *mode, "-f", "-", stdin=text) == ""
    before = shared.get("execution", name) or {}
    shared.kubectl("apply", *mode, "-f", "-", stdin=text)
    after = shared.get("execution", name) or {}
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_h18_applying_again_runs_nothing_again_while_the_record_stays(shared: World) -> None:
    since = time.time()
    kept = json.dumps(an_execution("h18-kept", "true"))
    brief = json.dumps(an_execution("h18-brief", "true", ttlSecondsAfterFinished=2))
    uids: set[str] = set()
    deadline = time.monotonic() + 120
    ask = ("apply", "-f", "-", "-o", "jsonpath={.metadata.uid}")
    while len(uids) < 3 and time.monotonic() < deadline:
        shared.kubectl(*ask, stdin=kept, check=False)
        # The answer itself names the object: it may be gone before one could look.
        uids |= set(shared.kubectl(*ask, stdin=brief, check=False).split())
        time.sleep(0.5)
    shared.gone("execution", "h18-brief")
    kept_uid = (shared.get("execution", "h18-kept") or {})["metadata"]["uid"]
    assert outcome(shared.finished("h18-kept")) == ("True", "Succeeded")
    starts = shared.starts(since)
    # A record with a time to live goes, and what is applied then is a new object. Each ran once.
    assert len(starts) == len(set(starts)) == len(uids) + 1
    assert kept_uid not in uids
    assert len(uids) >= 3
    explained = " ".join(
        shared.kubectl("explain", "execution.spec.ttlSecondsAfterFinished").split()
    )
    assert "applied again and again" in explained


def test_h19_no_edit_changes_what_runs_but_its_end_can_be_asked_for(shared: World) -> None:
    shared.execution("h19", env=[{"name": "A", "value": "1"}])
    shared.running("h19")
    for change in (
        {"command": ["true"]},
        {"env": [{"name": "A", "value": "2"}]},
        {"env": None},
        {"image": "isolet/python:dev"},
        {"workspace": {"medium": "Disk"}},
        {"resources": {"cpu": "1"}},
        {"nodeName": "node-9"},
    ):
        (field,) = change
        patch = json.dumps({"spec": change})
        said = shared.refused("patch", "execution", "h19", "--type=merge", "-p", patch)
        assert f"spec.{field}" in said or f"spec: Invalid value: {field}" in said, said
    status = json.dumps({"status": {"exitCode": 0}})
    said = shared.refused(
        *("patch", "execution", "h19", "--subresource=status", "--type=merge", "-p", status)
    )
    assert "Isolet" in said
    shared.patch("execution", "h19", {"spec": {"desiredState": "Terminated"}})
    assert outcome(shared.finished("h19")) == ("True", "Terminated")


def test_h22_one_event_for_each_wait_however_long_and_whoever_leads(shared: World) -> None:
    missing = {"secretKeyRef": {"name": "not-there", "key": "k"}}
    waits = {
        "h22-nowhere": ("Unschedulable", {"nodeSelector": {"disk": "none"}}),
        "h22-class": ("ClassNotFound", {"className": "not-there"}),
        "h22-input": ("AwaitingInputs", {"env": [{"name": "K", "valueFrom": missing}]}),
    }
    for name, (reason, spec) in waits.items():
        shared.execution(name, "true", **spec)
        scheduled(shared, name, reason)
    for name in waits:
        eventually(lambda name=name: events(shared, name), f"an Event on {name}")
    begin = sum(1 for _ in shared.audit())
    for number in range(10):
        for name in waits:
            shared.kubectl("label", "execution", name, "--overwrite", f"edit=n{number}")
    shared.stack.end("operator-0")
    shared.stack.start_operator()
    shared.stack.wait_ready()
    time.sleep(10)
    for name, (reason, _) in waits.items():
        (told,) = events(shared, name)
        assert (told["reason"], told["count"]) == (reason, 1)
    done = [(w["verb"], w["objectRef"]) for w in writes(shared, begin, shared.namespace, OPERATOR)]
    assert [ref for ref in done if ref[1]["name"].startswith("h22")] == []
    for name in waits:
        shared.delete("execution", name)


# I: the node.


def test_i13_a_tag_is_resolved_once_to_the_id_that_runs(shared: World) -> None:
    shared.execution("i13", image="isolet/shell:dev")
    node = node_of(shared, "i13")
    found = shared.running("i13")
    (ident,) = held(shared, node, found["metadata"]["uid"])
    image = shared.witness(node).inspect(ident)["Image"]
    assert found["status"]["resolved"]["image"] == "isolet/shell:dev"
    assert found["status"]["resolved"]["imageID"] == image
    assert shared.witness(node).inspect(ident)["Config"]["Image"] == image


def test_i15_nothing_runs_on_after_a_cancel_that_was_cut_short(shared: World) -> None:
    for name in ("i15-cancelled", "i15-deleted"):
        shared.execution(name, "sleep", "600")
    where = {name: node_of(shared, name) for name in ("i15-cancelled", "i15-deleted")}
    uids = {name: (shared.get("execution", name) or {})["metadata"]["uid"] for name in where}
    asked = threading.Thread(
        target=shared.patch,
        args=("execution", "i15-cancelled", {"spec": {"desiredState": "Terminated"}}),
    )
    asked.start()
    shared.delete("execution", "i15-deleted")
    shared.stack.kill("operator-0")
    asked.join()
    shared.stack.start_operator()
    assert outcome(shared.finished("i15-cancelled")) == ("False", "Cancelled")
    shared.gone("execution", "i15-deleted")
    for name, node in where.items():
        eventually(lambda n=node, u=uids[name]: not held(shared, n, u), f"{name} is gone")


def test_i15_a_caller_that_hangs_up_leaves_nothing_running(shared: World) -> None:
    shared.execution("i15-left")
    seen = shared.running("i15-left")
    node, uid = seen["spec"]["nodeName"], seen["metadata"]["uid"]
    (ident,) = held(shared, node, uid)

    def began() -> bool:
        return "began" in shared.witness(node).docker("exec", ident, "ls", "/tmp")

    async def ask_and_leave() -> None:
        agent = HTTPAgent(f"unix://{shared.stack.agent_run(node)}/agent.sock")
        command = ("sh", "-c", "touch /tmp/began; sleep 600")
        asked = asyncio.create_task(agent.exec(uid, ExecRequest(command=command)))
        await asyncio.to_thread(eventually, began, "the command runs")
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await agent.close()

    asyncio.run(ask_and_leave())
    assert outcome(shared.finished("i15-left")) == ("False", "Cancelled")
    eventually(lambda: not held(shared, node, uid), "it is gone")
