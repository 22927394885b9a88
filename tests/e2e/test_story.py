"""What a user does with kubectl, and what it says."""

import json
import subprocess
import time

import pytest

from tests.e2e.looks import a_cheap_life
from tests.e2e.world import World, a_class, an_execution, condition

FINISHED = ["Scheduled", "Finished", "Succeeded"]


def test_a_command_from_apply_to_output(world: World) -> None:
    world.execution("hello", "sh", "-c", "echo hi; echo oops >&2", output={"statusTailBytes": 64})
    world.kubectl("wait", "--for=condition=Finished", "--timeout=120s", "execution/hello")
    row = world.kubectl("get", "execution", "hello", "--no-headers").split()
    assert row[:4] == ["hello", "True", "Succeeded", row[3]]
    status = world.finished("hello")
    assert [c["type"] for c in status["conditions"]] == FINISHED
    assert (status["exitCode"], status["output"]["stdoutTail"]) == (0, "hi\n")
    assert status["output"]["stderrTail"] == "oops\n"
    told = world.kubectl("describe", "execution", "hello")
    assert "exited with code 0" in told


def test_a_failed_command_is_a_failure_with_its_code(world: World) -> None:
    world.execution("fails", "sh", "-c", "exit 7")
    status = world.finished("fails")
    succeeded = next(c for c in status["conditions"] if c["type"] == "Succeeded")
    assert (succeeded["status"], succeeded["reason"]) == ("False", "NonZeroExit")
    assert status["exitCode"] == 7


def test_a_session_lives_until_it_is_told_to_end(world: World) -> None:
    world.execution("session", workspace={"medium": "Disk"})
    world.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "execution/session")
    world.patch("execution", "session", {"spec": {"desiredState": "Terminated"}})
    status = world.finished("session")
    succeeded = next(c for c in status["conditions"] if c["type"] == "Succeeded")
    assert (succeeded["status"], succeeded["reason"]) == ("True", "Terminated")
    refused = world.refused(
        "patch", "execution", "session", "--type=merge", "-p", '{"spec":{"desiredState":"Running"}}'
    )
    assert "desiredState" in refused


def test_the_happy_path_costs_four_writes(world: World) -> None:
    with a_cheap_life(world, "executions", "cheap"):
        world.execution("cheap", "sh", "-c", "sleep 2")
        world.finished("cheap")
        world.delete("execution", "cheap")
        world.gone("execution", "cheap")


def test_delete_and_apply_again_within_a_second(world: World) -> None:
    since = time.time()
    world.execution("again", "sh", "-c", "echo one; sleep 30", output={"statusTailBytes": 16})
    world.running("again")
    world.kubectl("delete", "execution", "again", "--wait=true", "--timeout=120s")
    world.execution("again", "sh", "-c", "echo two", output={"statusTailBytes": 16})
    assert world.finished("again")["output"]["stdoutTail"] == "two\n"
    assert len(set(world.starts(since))) == 2


def test_a_class_that_comes_later_and_is_edited_meanwhile(world: World) -> None:
    name = f"late-{world.namespace}"
    world.execution("waits", "sh", "-c", "sleep 4", className=name)
    waiting = world.until(
        "execution", "waits", lambda o: condition(o, "Scheduled").get("reason") == "ClassNotFound"
    )
    assert name in condition(waiting, "Scheduled")["message"]
    try:
        world.apply(a_class(name))
        world.running("waits")
        world.apply(a_class(name, images={"allowed": ["sha256:" + "1" * 64]}))
        status = world.finished("waits")
        assert next(c for c in status["conditions"] if c["type"] == "Succeeded")["status"] == "True"
        assert status["resolved"]["classGeneration"] == 1
        refused = an_execution("refused", "true", className=name)
        told = world.refused("apply", "-f", "-", stdin=json.dumps(refused))
        assert f"spec.image: class {name} does not allow this image" in told
    finally:
        world.stack.kube("delete", "executionclass", name)


def test_an_image_that_is_nowhere_fails_in_seconds_and_is_named(world: World) -> None:
    image = "sha256:" + "0" * 64
    began = time.monotonic()
    world.execution("nowhere", "true", image=image)
    status = world.finished("nowhere")
    succeeded = next(c for c in status["conditions"] if c["type"] == "Succeeded")
    assert (succeeded["reason"], image in succeeded["message"]) == ("ImageMissing", True)
    assert time.monotonic() - began < 60


def test_work_that_fits_no_node_waits_and_says_what_each_lacks(world: World) -> None:
    world.execution("big", "true", nodeSelector={"disk": "none"})
    seen = world.until(
        "execution", "big", lambda o: condition(o, "Scheduled").get("reason") == "Unschedulable"
    )
    assert "0/2 nodes" in condition(seen, "Scheduled")["message"]
    world.delete("execution", "big")
    world.gone("execution", "big")


def test_namespace_deletion_takes_everything(world: World) -> None:
    for number in range(3):
        world.execution(f"e{number}", "sleep", "100")
    for number in range(3):
        world.running(f"e{number}")
    world.stack.kube("delete", "namespace", world.namespace, "--timeout=120s")
    world.nothing_left()
    world.stack.kube("create", "namespace", world.namespace)


@pytest.mark.parametrize("when", ["pending", "running", "finished"])
def test_deletion_at_any_time(world: World, when: str) -> None:
    world.execution("short", "sh", "-c", "sleep 3")
    if when == "running":
        world.running("short")
    if when == "finished":
        world.finished("short")
    world.delete("execution", "short")
    world.gone("execution", "short")


def test_the_time_to_live_removes_the_record(world: World) -> None:
    world.execution("brief", "true", ttlSecondsAfterFinished=1)
    world.gone("execution", "brief")


def test_secrets_reach_the_program_and_nothing_else(world: World) -> None:
    canary = f"canary-{world.namespace}"
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "key"},
            "stringData": {"token": canary},
        }
    )
    reference = {"secretKeyRef": {"name": "key", "key": "token"}}
    world.execution(
        "reader",
        "sh",
        "-c",
        'test "$API_TOKEN" = ' + canary[:7] + '"' + canary[7:] + '"; sleep 5',
        env=[{"name": "API_TOKEN", "valueFrom": reference}],
    )
    node = world.running("reader")["spec"]["nodeName"]
    witness = world.witness(node)
    told = json.dumps([witness.inspect(i) for i in witness.containers("isolet")])
    assert "API_TOKEN" not in told
    assert canary not in told
    assert world.finished("reader")["exitCode"] == 0
    folders = [world.stack.layout.run / "logs", world.stack.agent_folder(node)]
    found = subprocess.run(
        ["grep", "-rl", canary, *map(str, folders)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


def test_an_edit_of_what_runs_is_refused_with_its_field(world: World) -> None:
    world.execution("fixed", "sleep", "600")
    world.running("fixed")
    changed = an_execution("fixed", "sleep", "601")
    assert "command" in world.refused("apply", "-f", "-", stdin=json.dumps(changed))
    world.patch("execution", "fixed", {"spec": {"activeDeadlineSeconds": 900}})
