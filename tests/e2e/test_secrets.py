"""Where a value can be found that a user gave: in the object that the user wrote, and nowhere else.

A command, a session, and a Process in each kind of sandbox get unique words by every way there is.
Then all that a node and a cluster write is searched: engine, agents, etcd, logs, the API server's
own record, and every command line. Each search also looks for something that is known to be there.
"""

import asyncio
import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isolet.client.http import HTTPAgent
from isolet.wire.execution import EnvVar, ExecRequest
from tests.e2e.looks import eventually, held
from tests.e2e.world import World, a_template, an_execution

Found = dict[str, set[str]]
"""Kind of canary → places."""

KINDS = ("secret", "plain", "config", "argument", "output")
PLACES = ("own", "inside")
GIVEN = ("env", "stdin", "file", "code")
"""What a Process is given in its object: env, input, a file, its program."""
OF_PROCESSES = tuple(f"{place} {given}" for place in PLACES for given in GIVEN)
GO = "/tmp/go"
BEGAN, LOOKED = "/tmp/began", "/tmp/looked"
EXEC_KINDS = ("exec env", "exec argument", "exec stdin", "exec output")
SEARCH = ("grep", "-raoHF", "--devices=skip")


def halves(word: str) -> tuple[str, str]:
    """A word that only whoever joins both can say."""
    return word[: len(word) // 2], word[len(word) // 2 :]


class CommandLines(threading.Thread):
    """Looks at every command line on the machine, about a hundred times a second."""

    def __init__(self, words: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.words = {kind: word.encode() for kind, word in words.items()}
        self.found: Found = {}
        self.rounds = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            began = time.monotonic()
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                self.look(pid)
            self.rounds += 1
            self.over.wait(max(0.0, 0.01 - (time.monotonic() - began)))

    def look(self, pid: str) -> None:
        try:
            with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
                line = file.read(1 << 18) or b""
        except OSError:
            return
        for kind, word in self.words.items():
            if word in line:
                self.found.setdefault(kind, set()).add(line[:200].decode(errors="replace"))


@dataclass
class Story:
    """What was planted, and what each search found at each moment."""

    world: World
    words: dict[str, str]
    node: str = ""
    container: str = ""
    files: dict[str, Found] = field(default_factory=dict)
    """Moment → canary → kinds of files."""
    told: dict[str, str] = field(default_factory=dict)
    """What docker, the API and the agent say."""
    objects: Found = field(default_factory=dict)
    lines: CommandLines | None = None
    refusal: str = ""

    def search(self, moment: str) -> None:
        """Every file of the cluster, its engines and its agents."""
        layout = self.world.stack.layout
        words = {**self.words, "container name": self.container}
        patterns = "\n".join(word for word in words.values() if word)
        done = subprocess.run(
            [*SEARCH, "-f", "-", str(layout.run), str(layout.data)],
            input=patterns.encode(),
            capture_output=True,
            check=False,
            timeout=120,
        )
        names = {word: kind for kind, word in words.items()}
        found: Found = {kind: set() for kind in words}
        for line in set(done.stdout.splitlines()):
            path, _, word = line.decode(errors="replace").rpartition(":")
            found[names[word]].add(self.place(path))
        self.files[moment] = found

    def place(self, path: str) -> str:
        """What kind of file it is; its path where it should hold nothing."""
        stack = self.world.stack
        agents = [str(stack.agent_folder(name) / "output") for name in stack.nodes()]
        if path.startswith(str(stack.layout.data / "etcd")):
            return "etcd"
        if any(path.startswith(folder) for folder in agents):
            return "output file"
        if "-ws/_data/" in path or any(
            path.startswith(str(stack.agent_folder(name) / "disks")) for name in stack.nodes()
        ):
            return "workspace"
        if path.endswith("/local-logs/container.log"):
            return "engine's log of the output"
        if "/docker/containers/" in path and path.endswith((".json", "/hostname", "/hosts")):
            return "engine's configuration"
        return path


def plant(story: Story) -> None:
    """A command that has all five, and checks for itself that they arrived."""
    world, words = story.world, story.words
    for kind, name, key in (("Secret", "vault", "secret"), ("ConfigMap", "settings", "config")):
        data = (
            {"stringData": {"k": words[key]}} if kind == "Secret" else {"data": {"k": words[key]}}
        )
        world.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **data})
    env = [
        {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "vault", "key": "k"}}},
        {"name": "SETTING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "k"}}},
        {"name": "GREETING", "value": words["plain"]},
    ]
    said, unsaid = halves(words["output"])
    script = (
        f"printf '%s%s\\n' {said} {unsaid};"
        " test ${#API_TOKEN}${#SETTING}${#GREETING}${#1} = 41414141 || exit 3;"
        f" while [ ! -e {GO} ]; do sleep 0.2; done"
    )
    world.execution("command", "sh", "-c", script, "sh", words["argument"], env=env)


def plant_processes(story: Story) -> None:
    """One in a sandbox of its own, one in the session: they check what they got, and wait."""
    places = {"own": {"template": a_template()}, "inside": {"executionRef": {"name": "session"}}}
    vault = {"secretKeyRef": {"name": "vault", "key": "k"}}
    for place, where in places.items():
        given = {kind: story.words[f"{place} {kind}"] for kind in GIVEN}
        source = (
            f': {given["code"]}; read -r line; set -- "$line" "$GREETING" "$(cat plain)"'
            ' "$API_TOKEN" "$(cat secret)"; test ${#1}${#2}${#3}${#4}${#5} = 4141414141 || exit 3;'
            f" while [ ! -e {GO} ]; do sleep 0.2; done"
        )
        story.world.process(
            place,
            code={"language": "sh", "source": source},
            env=[
                {"name": "API_TOKEN", "valueFrom": vault},
                {"name": "GREETING", "value": given["env"]},
            ],
            stdin={"value": given["stdin"]},
            files=[{"path": "plain", "content": given["file"]}, {"path": "secret", **vault}],
            timeoutSeconds=300,
            **where,
        )


def let_go(story: Story, session: str) -> None:
    """The Processes end; each was still there."""
    own = story.world.get("process", "own")["metadata"]["uid"]
    for uid in (own, session):
        places = [(node, held(story.world, node, uid)) for node in story.world.stack.nodes()]
        ((node, (ident,)),) = [place for place in places if place[1]]
        story.world.witness(node).docker("exec", ident, "touch", GO)
    for place in PLACES:
        status = story.world.finished(place, kind="process")
        story.told["status"] += json.dumps(status)
        assert status["exitCode"] == 0, status
    # The workspace of the one that had a sandbox of its own goes with that.
    left = story.world.left_on
    eventually(
        lambda: not any(f"{own}.img" in left(node)["disks"] for node in story.world.stack.nodes()),
        "its workspace removed",
        90,
    )


async def run_in(world: World, node: str, uid: str, words: dict[str, str]) -> bytes:
    """A command in a session, with everything a command can have."""
    agent = HTTPAgent(f"unix://{world.stack.agent_run(node)}/agent.sock")
    said, unsaid = halves(words["exec output"])
    wait = f"while [ ! -e {LOOKED} ]; do sleep 0.2; done"
    script = f"cat >/dev/null; touch {BEGAN}; {wait}; printf '%s%s\\n' {said} {unsaid}"
    request = ExecRequest(
        command=("sh", "-c", script, "sh", words["exec argument"]),
        env=(EnvVar(name="GREETING", value=words["exec env"].encode()),),
        stdin=words["exec stdin"].encode(),
        timeout_seconds=300,
    )
    try:
        snapshot = (await agent.snapshot()).to_json()
        return snapshot + (await agent.exec(uid, request)).stdout
    finally:
        await agent.close()


def api_objects(world: World, words: dict[str, str]) -> Found:
    """Every object that can be listed: which kinds hold which word."""
    kube = world.stack.kube
    kinds = kube("api-resources", "--verbs=list", "-o", "name").split()
    items = json.loads(kube("get", ",".join(kinds), "-A", "-o", "json"))["items"]
    found: Found = {kind: set() for kind in words}
    for item in items:
        text = json.dumps(item)
        if item["kind"] == "Secret":
            text += json.dumps(item.get("data", {}))
        for kind, word in words.items():
            if word in text:
                found[kind].add(item["kind"])
    return found


def docker_says(world: World, node: str) -> str:
    """All that the engine tells of what it has, events included."""
    witness = world.witness(node)
    ids = witness.docker("ps", "-aq").split()
    # A probe may be gone meanwhile.
    told = [witness.docker("inspect", one, check=False) for one in ids]
    told.append(witness.docker("events", "--since", "10m", "--until", "0s"))
    told += [witness.docker("top", one, check=False) for one in ids]
    return "\n".join(told)


@pytest.fixture(scope="module")
def story(whole: World) -> Iterator[Story]:
    whole.stack.start_missing()
    whole.stack.wait_ready()
    words = {kind: f"canary-{uuid.uuid4().hex}-x"[:41].ljust(41, "x") for kind in
             (*KINDS, *EXEC_KINDS, *OF_PROCESSES, "refused", "known command line")}  # fmt: skip
    lines = CommandLines(words)
    with whole.in_namespace() as world:
        story = Story(world, words, lines=lines)
        lines.start()
        try:
            live(story)
        finally:
            lines.over.set()
            lines.join()
    yield story
    whole.nothing_left()


def known_command_line(story: Story) -> None:
    """Show a word for 0.3 seconds at a time, until it was seen or never will be."""
    assert story.lines is not None
    for _ in range(20):
        subprocess.run(["sh", "-c", "sleep 0.3", story.words["known command line"]], check=True)
        if story.lines.found:
            return


def live(story: Story) -> None:
    """The whole life, with a look at each stage of it."""
    world, words = story.world, story.words
    known_command_line(story)
    wrong = an_execution("wrong", "true", env=[{"name": "API_TOKEN", "value": words["refused"]}])
    story.refusal = world.refused("apply", "-f", "-", stdin=json.dumps(wrong))
    world.execution("session")
    session = world.running("session")
    plant(story)
    plant_processes(story)
    for place in PLACES:
        world.until("process", place, lambda o: o and o.get("status", {}).get("startTime"))
    command = world.running("command")
    story.node = command["spec"]["nodeName"]
    (ident,) = held(world, story.node, command["metadata"]["uid"])
    story.container = world.witness(story.node).inspect(ident)["Name"].removeprefix("/")
    story.search("running")
    story.told["docker"] = docker_says(world, story.node)
    story.objects = api_objects(world, words)
    with ThreadPoolExecutor(1) as aside:
        place = (session["spec"]["nodeName"], session["metadata"]["uid"])
        answer = aside.submit(lambda: asyncio.run(run_in(world, *place, words)))
        (ident,) = held(world, *place)
        docker = world.witness(place[0]).docker
        eventually(lambda: "began" in docker("exec", ident, "ls", "/tmp"), "the command runs")
        story.search("during a command")
        story.told["docker, during a command"] = docker_says(world, place[0])
        assert not answer.done(), answer.result()
        docker("exec", ident, "touch", LOOKED)
        story.told["agent"] = answer.result().decode()
    world.witness(story.node).docker("exec", story.container, "touch", GO)
    story.told["status"] = json.dumps(world.finished("command"))
    assert '"exitCode": 0' in story.told["status"], story.told["status"]
    let_go(story, session["metadata"]["uid"])
    story.search("ended")
    for place in PLACES:
        world.delete("process", place, wait=True)
    for name in ("command", "session"):
        world.delete("execution", name)
    for name in ("command", "session"):
        world.gone("execution", name)
    outputs = [world.stack.agent_folder(node) / "output" for node in world.stack.nodes()]
    uids = [command["metadata"]["uid"], session["metadata"]["uid"]]
    eventually(
        lambda: not any((folder / uid).exists() for folder in outputs for uid in uids),
        "the output goes with its object",
    )
    story.search("gone")


USER_OBJECT = {"secret": "Secret", "config": "ConfigMap", "plain": "Execution"}
USER_OBJECT["argument"] = "Execution"
AS_FILES, LIVE = ("secret", "own file"), ("running", "during a command")
"""Given as a file too: it lies where the Process reads it, on its own disk, while that is there."""
USER_OBJECT |= dict.fromkeys(OF_PROCESSES, "Process")


@pytest.mark.parametrize("moment", ["running", "during a command", "ended", "gone"])
@pytest.mark.parametrize("kind", USER_OBJECT)
def test_a_value_is_in_no_file_but_etcds(story: Story, moment: str, kind: str) -> None:
    there = {"workspace"} if kind in AS_FILES and moment in LIVE else set()
    assert story.files[moment][kind] - there == {"etcd"}


@pytest.mark.parametrize("kind", USER_OBJECT)
def test_a_value_is_in_the_object_that_its_user_wrote_and_in_no_other(
    story: Story, kind: str
) -> None:
    if kind == "secret":  # The API gives Secrets as base64, and kubectl's own copy as it was.
        assert story.objects[kind] <= {"Secret"}
    else:
        assert story.objects[kind] == {USER_OBJECT[kind]}


def test_output_is_in_its_files_and_nowhere_else(story: Story) -> None:
    kept = {"output file", "engine's log of the output"}
    assert story.files["running"]["output"] <= kept
    assert "output file" in story.files["ended"]["output"]
    assert story.files["ended"]["output"] <= kept
    assert story.files["gone"]["output"] == set()
    assert story.objects["output"] == set()


@pytest.mark.parametrize("moment", ["during a command", "ended", "gone"])
@pytest.mark.parametrize("kind", EXEC_KINDS)
def test_a_command_in_a_session_leaves_nothing_in_any_file(
    story: Story, moment: str, kind: str
) -> None:
    assert story.files[moment][kind] == set()


def test_k03_no_command_line_shows_a_value(story: Story) -> None:
    assert story.lines is not None
    # The positive control: the sampler is quick enough to see what lives for 0.3 seconds.
    assert story.lines.found.keys() == {"known command line"}, story.lines.found
    assert story.lines.rounds > 300


def test_the_engine_and_the_status_tell_no_value(story: Story) -> None:
    for teller in ("docker", "docker, during a command", "status"):
        assert not [kind for kind, word in story.words.items() if word in story.told[teller]]
    assert story.container in story.told["docker"]
    # What the agent says: its records, and then the output of the command, which was asked for.
    said = {kind for kind, word in story.words.items() if word in story.told["agent"]}
    assert said == {"exec output"}


def test_a_refused_value_is_named_and_not_repeated(story: Story) -> None:
    assert "API_TOKEN" in story.refusal
    assert story.words["refused"] not in story.refusal
    assert story.files["ended"]["refused"] == set()
    assert story.objects["refused"] == set()


def test_each_search_finds_what_is_there(story: Story) -> None:
    assert "engine's configuration" in story.files["running"]["container name"]
    assert "etcd" in story.files["running"]["plain"]
    assert "workspace" in story.files["running"]["own file"]
    assert "output file" in story.files["ended"]["output"]
    assert story.objects["config"] == {"ConfigMap"}
    assert Path(story.world.stack.layout.audit_log).read_text().count(story.world.namespace) > 3
