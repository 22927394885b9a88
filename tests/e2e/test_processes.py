"""Processes as a user has them: in sandboxes of their own and in sessions, with kubectl."""

import hashlib
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.looks import a_cheap_life, eventually, held, outcome
from tests.e2e.world import ROOT, World, a_process, a_template, condition

TAIL = {"statusTailBytes": 1024}


def ended(world: World, name: str, seconds: float = 150) -> dict:
    return world.finished(name, seconds, kind="process")


def started(world: World, name: str, seconds: float = 150) -> dict:
    return world.until(
        "process", name, lambda o: o and o.get("status", {}).get("startTime"), seconds
    )


def message(status: dict) -> str:
    return condition({"status": status}, "Succeeded")["message"]


def a_session(world: World, name: str = "session", **spec) -> dict:
    world.execution(name, **{"workspace": {"medium": "Disk"}, **spec})
    world.kubectl("wait", "--for=condition=Ready", "--timeout=120s", f"execution/{name}")
    return world.get("execution", name)


@pytest.fixture
def standard(world: World):
    example = str(ROOT / "examples" / "class-standard.yaml")
    world.kubectl("apply", "-f", example)
    yield
    world.kubectl("delete", "-f", example)


def test_the_example_from_apply_to_the_digest_of_its_artifact(world: World, standard) -> None:
    world.kubectl("apply", "-f", str(ROOT / "examples" / "process.yaml"))
    world.kubectl("wait", "--for=condition=Finished", "--timeout=120s", "process/report")
    row = world.kubectl("get", "process", "report", "--no-headers").split()
    assert row[:3] == ["report", "True", "Succeeded"], row
    status = ended(world, "report")
    assert status["output"]["stdoutTail"] == "pears cost 4\n"
    content = json.dumps({"item": "pears", "price": 4}).encode()
    assert status["artifacts"] == [
        {
            "path": "out/report.json",
            "size": len(content),
            "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        }
    ]
    assert status["observedGeneration"] == world.get("process", "report")["metadata"]["generation"]
    assert status["requestDigest"]
    assert "retainedUntil" in status


def test_a_cancel_ends_one_that_ignores_the_request_and_says_so(world: World) -> None:
    world.process("stubborn", shell="trap '' TERM; while :; do sleep 1; done", timeoutSeconds=600)
    uid = started(world, "stubborn")["metadata"]["uid"]
    node = world.get("process", "stubborn")["spec"]["nodeName"]
    world.patch("process", "stubborn", {"spec": {"desiredState": "Cancelled"}})
    status = ended(world, "stubborn")
    assert outcome(status) == ("False", "Cancelled")
    assert not condition({"status": status}, "Stalled")
    running = world.witness(node).docker("ps", "-q", "--filter", f"label=dev.isolet.uid={uid}")
    assert running.split() == []


def test_the_happy_path_costs_four_writes(world: World) -> None:
    with a_cheap_life(world, "processes", "cheap"):
        world.process("cheap", shell="sleep 2")
        ended(world, "cheap")
        world.delete("process", "cheap")
        world.gone("process", "cheap")


def test_several_at_once_in_one_session_and_their_end_with_it(world: World) -> None:
    session = a_session(world)
    where = {"executionRef": {"name": "session"}}
    # Each waits until all are there, and a bit longer: times have whole seconds.
    meet = "while [ $(ls here-* | wc -l) -lt 3 ]; do sleep 0.1; done; sleep 2"
    for number in range(3):
        script = f"echo {number}; touch here-{number}; {meet}"
        world.process(f"p{number}", **where, shell=script, output=TAIL)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda n: ended(world, f"p{n}"), range(3)))
    assert [s["output"]["stdoutTail"] for s in found] == ["0\n", "1\n", "2\n"]
    spans = [(s["startTime"], s["completionTime"]) for s in found]
    assert max(s for s, _ in spans) < min(e for _, e in spans), spans
    assert {s["executionUID"] for s in found} == {session["metadata"]["uid"]}
    node = session["spec"]["nodeName"]
    assert all(world.get("process", f"p{n}")["spec"]["nodeName"] == node for n in range(3))
    world.process("left", **where, command=["sleep", "100"])
    started(world, "left")
    world.patch("execution", "session", {"spec": {"desiredState": "Terminated"}})
    status = ended(world, "left")
    assert outcome(status) == ("False", "ExecutionEnded")
    assert "Terminated" in message(status)
    world.process("late", **where, command=["true"])
    status = ended(world, "late")
    assert outcome(status) == ("False", "ExecutionEnded")
    assert "Execution session has ended (Terminated)" in message(status)


def test_a_session_that_is_deleted_ends_its_processes(world: World) -> None:
    a_session(world)
    world.process("left", executionRef={"name": "session"}, command=["sleep", "100"])
    started(world, "left")
    world.delete("execution", "session")
    assert outcome(ended(world, "left"))[0] == "False"
    world.gone("execution", "session")
    said = outcome(world.get("process", "left")["status"])
    assert said == ("False", "ExecutionEnded"), said


def test_more_than_may_run_at_once_have_their_turns(world: World) -> None:
    bounds = {"cpu": "1", "memory": "128Mi", "workspace": "16Mi", "pids": 256}
    a_session(world, resources=bounds)
    for number in range(20):
        world.process(f"p{number}", executionRef={"name": "session"}, shell="sleep 5")
    found = [ended(world, f"p{number}", 120) for number in range(20)]
    assert [outcome(status) for status in found] == [("True", "Succeeded")] * 20


def test_one_that_comes_before_its_session_waits_for_it(world: World) -> None:
    world.process("early", executionRef={"name": "session"}, shell="echo ran", output=TAIL)
    world.until(
        "process",
        "early",
        lambda o: condition(o, "Scheduled").get("reason") == "AwaitingExecution",
    )
    a_session(world)
    assert ended(world, "early")["output"]["stdoutTail"] == "ran\n"


def test_a_process_never_outlives_its_execution(world: World) -> None:
    a_session(world, activeDeadlineSeconds=30)
    where = {"executionRef": {"name": "session"}}
    world.process("short", **where, command=["true"])
    assert outcome(ended(world, "short")) == ("True", "Succeeded")
    world.process("long", **where, command=["sleep", "500"], timeoutSeconds=600)
    status = ended(world, "long")
    assert outcome(status) == ("False", "SandboxDestroyed")
    assert "DeadlineExceeded" in message(status)
    assert status["deadline"] <= world.finished("session")["deadline"]
    assert outcome(ended(world, "short")) == ("True", "Succeeded")
    world.process("pending", **where, command=["true"])
    status = ended(world, "pending")
    assert outcome(status) == ("False", "ExecutionEnded")
    assert "startTime" not in status


def test_a_command_execution_takes_no_processes(world: World) -> None:
    world.execution("command", "sleep", "20")
    world.running("command")
    world.process("guest", executionRef={"name": "command"}, command=["true"])
    status = ended(world, "guest")
    assert outcome(status) == ("False", "InvalidSpec")
    assert "executionRef" in message(status)


def test_an_unknown_language_is_refused_and_starts_nothing(world: World) -> None:
    since = time.time()
    document = a_process("cobol", code={"language": "cobol", "source": "STOP RUN."})
    told = world.refused("apply", "-f", "-", stdin=json.dumps(document))
    assert "spec.code.language" in told
    world.process("missing", code={"language": "node", "source": "1"})
    status = ended(world, "missing")
    assert outcome(status)[0] == "False"
    assert "startTime" not in status or status.get("exitCode") != 0
    assert len(world.starts(since)) <= 1


def test_a_secret_reaches_stdin_and_a_file_and_nothing_else(world: World) -> None:
    canary = f"canary-{world.namespace}"
    for kind, field in (("Secret", "stringData"), ("ConfigMap", "data")):
        world.apply(
            {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": {"name": "given"},
                field: {"value": canary if kind == "Secret" else "plain"},
            }
        )
    reference = {"name": "given", "key": "value"}
    world.process(
        "reader",
        stdin={"secretKeyRef": reference},
        files=[
            {"path": "in/secret", "secretKeyRef": reference, "mode": 0o600},
            {"path": "in/config", "configMapKeyRef": reference},
        ],
        env=[{"name": "API_TOKEN", "valueFrom": {"secretKeyRef": reference}}],
        shell='test "$(cat)" = "$(cat in/secret)" && test "$API_TOKEN" = "$(cat in/secret)"'
        " && cat in/config && while [ ! -e go ]; do sleep 0.2; done",
        output=TAIL,
    )
    seen = started(world, "reader")
    node = seen["spec"]["nodeName"]
    witness = world.witness(node)
    told = json.dumps([witness.inspect(i) for i in witness.containers("isolet")])
    assert canary not in told
    (ident,) = held(world, node, seen["metadata"]["uid"])
    witness.docker("exec", ident, "touch", "/workspace/go")
    status = ended(world, "reader")
    assert (status["exitCode"], status["output"]["stdoutTail"]) == (0, "plain")
    kinds = {item["kind"] for item in status["resolved"]["inputs"]}
    assert kinds == {"Secret", "ConfigMap"}
    # Its workspace is where the file was to be, and goes with its sandbox.
    disk = f"{seen['metadata']['uid']}.img"
    eventually(lambda: disk not in world.left_on(node)["disks"], "its workspace removed")
    folders = [world.stack.layout.run / "logs", world.stack.agent_folder(node)]
    found = subprocess.run(
        ["grep", "-rl", canary, *map(str, folders)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert canary not in json.dumps(world.get("process", "reader"))


@pytest.mark.parametrize("when", ["pending", "running", "finished", "inside"])
def test_deletion_at_any_time(world: World, when: str) -> None:
    spec: dict = {"shell": "sleep 4"}
    if when == "inside":
        a_session(world)
        spec["executionRef"] = {"name": "session"}
    world.process("short", **spec)
    if when in ("running", "inside"):
        started(world, "short")
    if when == "finished":
        ended(world, "short")
    uid = world.get("process", "short")["metadata"]["uid"]
    world.delete("process", "short")
    world.gone("process", "short")
    assert all(not held(world, node, uid) for node in world.stack.nodes())


def test_timeouts_deadlines_and_the_time_to_live(world: World) -> None:
    world.process("slow", shell="sleep 60", timeoutSeconds=2)
    world.process("past", command=["true"], deadlineAt="2026-01-01T00:00:00Z")
    world.process("brief", command=["true"], ttlSecondsAfterFinished=1)
    assert outcome(ended(world, "slow")) == ("False", "DeadlineExceeded")
    status = ended(world, "past")
    assert outcome(status) == ("False", "DeadlineExceeded")
    assert "startTime" not in status
    world.gone("process", "brief")


def test_what_is_not_kept_is_said(world: World) -> None:
    world.process(
        "keeper",
        shell="ln -s /etc/passwd out.txt; head -c 3000000 /dev/zero | tr '\\0' x; echo end",
        artifacts=[{"glob": "out.txt"}],
        output={"statusTailBytes": 4, "limit": "64Ki"},
    )
    status = ended(world, "keeper")
    assert status["output"]["stdoutTail"] == "end\n"
    assert status["output"]["truncatedStreams"] == ["stdout"]
    assert [p["reason"] for p in status["artifactProblems"]] == ["ArtifactRejected"]
    assert "artifacts" not in status


def test_work_of_both_nodes_is_followed_while_the_operator_is_replaced(world: World) -> None:
    for number in range(6):
        world.process(
            f"n{number}",
            shell="sleep 6; echo done",
            output=TAIL,
            template=a_template(nodeSelector={"kubernetes.io/hostname": f"node-{number % 2}"}),
        )
    for number in range(6):
        started(world, f"n{number}")
    world.stack.end("operator-0")
    world.stack.start_missing()
    world.stack.wait_ready()
    found = [ended(world, f"n{number}") for number in range(6)]
    assert [s["output"]["stdoutTail"] for s in found] == ["done\n"] * 6
    nodes = {world.get("process", f"n{n}")["spec"]["nodeName"] for n in range(6)}
    assert nodes == {"node-0", "node-1"}


@pytest.fixture
def node(world: World):
    """A node that a test may take out; it is whole again afterwards."""
    yield "node-1"
    world.stack.start_missing()
    world.patch("executionnode", "node-1", {"spec": {"drain": None, "outOfService": None}})
    world.stack.wait_ready()


def test_a_drain_ends_what_is_left_and_names_the_reason(world: World, node: str) -> None:
    there = {"nodeSelector": {"kubernetes.io/hostname": node}}
    a_session(world, **there)
    world.process("inside", executionRef={"name": "session"}, command=["sleep", "100"])
    world.process("own", command=["sleep", "100"], template=a_template(**there))
    started(world, "inside")
    started(world, "own")
    change = {"spec": {"drain": {"onDeadline": "Terminate", "deadlineSeconds": 1}}}
    world.patch("executionnode", node, change)
    assert outcome(ended(world, "own")) == ("False", "Drained")
    status = ended(world, "inside")
    assert outcome(status) == ("False", "ExecutionEnded")
    assert "Drained" in message(status)
    assert outcome(world.finished("session")) == ("False", "Drained")


def test_a_node_that_is_declared_off_ends_and_releases_its_processes(
    world: World, node: str
) -> None:
    there = {"nodeSelector": {"kubernetes.io/hostname": node}}
    for name in ("lost", "released"):
        world.process(name, command=["sleep", "100"], template=a_template(**there))
        started(world, name)
    uids = [world.get("process", name)["metadata"]["uid"] for name in ("lost", "released")]
    world.stack.end(f"agent-{node}")
    world.delete("process", "released")
    world.patch("executionnode", node, {"spec": {"outOfService": {"reason": "unplugged"}}})
    assert outcome(ended(world, "lost")) == ("False", "NodeLost")
    world.gone("process", "released")
    world.delete("process", "lost")
    world.gone("process", "lost")
    assert any(held(world, node, uid) for uid in uids), "nobody could end them yet"
    world.patch("executionnode", node, {"spec": {"outOfService": None}})
    world.stack.start_missing()
    eventually(lambda: not any(held(world, node, uid) for uid in uids), "they are removed")
