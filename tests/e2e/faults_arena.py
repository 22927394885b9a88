"""Where parts are killed: work that runs through it all, traps, and a keeper who starts anew."""

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isolet_cluster.processes import Process
from isolet_stack.stack import NAMESPACE, ROOT, Stack
from tests.e2e.faults_watch import Object, Sight, Tape, doubles, tapes, verdict
from tests.e2e.world import World, an_execution, condition, is_finished
from witness import Witness

SEED = int(os.environ.get("ISOLET_FAULT_SEED") or random.randrange(1 << 32))
"""Of every choice that the fault tests leave to chance; the run prints it."""

HOST = "kubernetes.io/hostname"
TAIL = {"statusTailBytes": 4096}


def chance(*about: str) -> random.Random:
    """Choices of one test, the same for the same seed."""
    return random.Random("/".join((str(SEED), *about)))


def cluster(*arguments: str) -> None:
    """hack/cluster: kill, restart, freeze or thaw a part."""
    done = subprocess.run(
        [str(ROOT / "hack" / "cluster"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def eventually(what: str, reached: Callable[[], Any], seconds: float = 150) -> Any:
    """Look again and again until it is so; returns what was found."""
    deadline = time.monotonic() + seconds
    while True:
        found = reached()
        if found:
            return found
        assert time.monotonic() < deadline, f"not so after {seconds} s: {what}"
        time.sleep(0.1)


def counting(count: int, pause: str = "0.1", end: str = "exit 0") -> tuple[str, ...]:
    """A program that prints the numbers from 1 on, one a line."""
    step = "i=$((i+1)); echo $i" + (f"; sleep {pause}" if pause else "")
    return ("sh", "-c", f"i=0; while [ $i -lt {count} ]; do {step}; done; {end}")


def counting_until(gate: str, end: str = "exit 0") -> tuple[str, ...]:
    """A program that prints the numbers from 1 on until there is a file /tmp/`gate`."""
    step = "i=$((i+1)); echo $i; sleep 0.3"
    return ("sh", "-c", f"i=0; while [ ! -e /tmp/{gate} ]; do {step}; done; {end}")


def numbers(count: int) -> str:
    """What that program prints in all."""
    return "".join(f"{n + 1}\n" for n in range(count))


@dataclass
class Trap:
    """The steps at which a component is to be killed, one after the other."""

    folder: Path
    part: str
    action: str = "kill"
    later: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Whoever sets the next step: a test, and the keeper who finds the component dead."""

    @property
    def env(self) -> dict[str, str]:
        """What the component is started with."""
        return {
            "ISOLET_STOP_AT": f"@{self._wish}",
            "ISOLET_STOP_ACTION": self.action,
            "ISOLET_STOP_FILE": str(self._noted),
        }

    @property
    def _wish(self) -> Path:
        return self.folder / f"{self.part}.wish"

    @property
    def _noted(self) -> Path:
        return self.folder / f"{self.part}.noted"

    def set(self, *steps: str) -> None:
        """Kill the component when it comes to the first step, its successor at the next."""
        with self._lock:
            self.later = list(steps)
            self._arm()

    def until_sprung(self, seconds: float = 150) -> None:
        """Wait until all steps have killed."""
        eventually(
            f"{self.part} comes to its steps",
            lambda: not (self.later or self._wish.exists()),
            seconds,
        )

    def next(self) -> None:
        """Set the next step, if there is one and the last has had its effect."""
        with self._lock:
            self._arm()

    def _arm(self) -> None:
        if self.later and not self._wish.exists():
            aside = self._wish.with_suffix(".new")
            aside.write_text(self.later[0])
            aside.rename(self._wish)
            # Last: a step that is neither here nor there would seem to have killed.
            self.later.pop(0)

    def clear(self) -> None:
        """Let it live, and forget what was."""
        with self._lock:
            self.later = []
            self._wish.unlink(missing_ok=True)
            self._noted.unlink(missing_ok=True)

    def sprung(self) -> list[str]:
        """Steps at which it was killed since it was cleared."""
        return self._noted.read_text().split() if self._noted.exists() else []


@dataclass
class Keeper:
    """Starts again what died, at once, as a kubelet would."""

    stack: Stack
    traps: dict[str, Trap]
    extra: Mapping[str, str] = field(default_factory=dict)
    """More environment of what is started."""

    def __post_init__(self) -> None:
        self._closed = False
        self._dead: set[str] = {""}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def lease_held(self) -> None:
        """Wait until the operator that lives now leads."""
        eventually("an operator leads", self._leads, 120)

    def _leads(self) -> bool:
        holder = lease_holder(self.stack)
        # In this order: whose successor lives is known to be dead.
        alive = all(self.stack.alive(part) for part in self.traps if part.startswith("operator-"))
        return alive and holder not in self._dead

    def start(self) -> None:
        """Have every part running, with its trap."""
        for part in self.traps:
            self.stack.end(part)
            self._begin(part)
        self._thread.start()
        self.stack.wait_ready()

    def close(self) -> None:
        """Stop looking after them; they are left running, without traps."""
        self._closed = True
        self._thread.join(60)
        for part, trap in self.traps.items():
            trap.clear()
            self.stack.end(part)
        self.stack.start_missing()
        self.stack.wait_ready()

    def _run(self) -> None:
        while not self._closed:
            for part in self.traps:
                if not self.stack.alive(part):
                    self.traps[part].next()
                    self._begin(part)
            time.sleep(0.05)

    def _begin(self, part: str) -> None:
        env = {**self.extra, **self.traps[part].env}
        if part.startswith("agent-"):
            self.stack.start_agent(part.removeprefix("agent-"), env)
        else:
            self._dead.add(lease_holder(self.stack))
            hand_over_lease(self.stack)
            self.stack.start_operator(part.removeprefix("operator-"), env)


def hand_over_lease(stack: Stack) -> None:
    """Spare the next operator the 15 s until the dead one's lease has run out."""
    change = json.dumps({"spec": {"holderIdentity": ""}})
    stack.kube(
        *("-n", NAMESPACE, "patch", "lease", "isolet-operator", "--type=merge", "-p", change),
        check=False,
    )


def lease_holder(stack: Stack) -> str:
    """Who leads, as the Lease says."""
    path = "jsonpath={.spec.holderIdentity}"
    lease = ("get", "lease", "isolet-operator", "--ignore-not-found", "-o", path)
    return stack.kube("-n", NAMESPACE, *lease, check=False)


@dataclass(frozen=True)
class Sandbox:
    """What the engine's own client says of a sandbox that is to run on."""

    uid: str
    id: str
    process: Process
    """On the host; a later one with the same number is another."""
    started: str

    @classmethod
    def of(cls, witness: Witness, uid: str) -> "Sandbox":
        """The one sandbox of a uid."""
        ids = witness.docker("ps", "-q", "--no-trunc", "--filter", f"label=dev.isolet.uid={uid}")
        assert len(ids.split()) == 1, f"containers of {uid} that run: {ids.split()}"
        seen = witness.inspect(ids)
        process = Process.now(seen["State"]["Pid"])
        assert process is not None, f"the sandbox of {uid} has ended"
        return cls(uid, seen["Id"], process, seen["State"]["StartedAt"])

    def ended(self) -> bool:
        """Whether its process on the host is gone; no engine is asked."""
        return not self.process.alive()


@dataclass(frozen=True)
class Work:
    """An Execution of the mix, and what it must come to."""

    name: str
    spec: Object
    succeeded: str
    reason: str
    code: int | None = None
    lines: int | None = None
    errands: tuple[str, ...] = ()
    """What is done to it while it lives: `extend`, `terminate`, `delete`."""

    def wrong(self, seen: Object) -> str:
        """How its end differs from what it must be; empty when it does not."""
        status, output = seen["status"], seen["status"].get("output", {})
        code = None if self.code is None else status.get("exitCode")
        found = (*verdict(seen)[:2], code)
        wanted = (self.succeeded, self.reason, self.code)
        if found != wanted:
            return f"{self.name}: wanted {wanted}, came to {verdict(seen)}"
        if self.lines is None:
            return ""
        if output.get("incomplete"):
            return f"{self.name}: output incomplete though its engine was there all the time"
        if output.get("stdoutTail", "") != numbers(self.lines):
            return f"{self.name}: lines missing or doubled: {output.get('stdoutTail')!r}"
        return ""


def mix(node: str, tag: str, dice: random.Random) -> list[Work]:
    """Work of every kind for one node."""
    where = {"nodeSelector": {HOST: node}, "output": TAIL}
    counts = dice.randint(3, 30), dice.randint(1, 9)
    return [
        Work(
            f"runs-{tag}",
            {"command": list(counting(counts[0])), **where},
            *("True", "Succeeded", 0, counts[0]),
        ),
        Work(
            f"fails-{tag}",
            {"command": list(counting(counts[1], "", "exit 3")), **where},
            *("False", "NonZeroExit", 3, counts[1]),
        ),
        Work(
            f"disk-{tag}",
            {"workspace": {"medium": "Disk"}, **where},
            *("True", "Terminated"),
            errands=("extend", "terminate"),
        ),
        Work(
            f"dropped-{tag}",
            {"command": ["sleep", "600"], "workspace": {"medium": "Disk"}, **where},
            *("False", "Cancelled"),
            errands=("delete",),
        ),
    ]


@dataclass
class Arena:
    """A namespace in which work of every kind runs while parts of Isolet are killed."""

    world: World
    sight: Sight
    processes: Sight
    tapes: dict[str, Tape]
    keeper: Keeper
    standing: dict[str, Sandbox] = field(default_factory=dict)
    """By name, the sandbox of work that runs through all tests."""

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes."""
        return self.world.stack.nodes()

    def trap(self, part: str) -> Trap:
        """The trap of a part."""
        return self.keeper.traps[part]

    def settle_in(self) -> None:
        """Start the work that runs through all tests, one on each node."""
        for node in self.nodes:
            self.world.execution(
                f"stands-{node}",
                *counting(100_000, "0.2"),
                nodeSelector={HOST: node},
                activeDeadlineSeconds=3600,
            )
        for node in self.nodes:
            seen = self.sight.until(f"stands-{node}", runs)
            witness = self.world.witness(node)
            self.standing[node] = Sandbox.of(witness, seen["metadata"]["uid"])

    def perform(self, works: Sequence[Work]) -> None:
        """Apply the works, do their errands, wait for their ends, judge them and delete them."""
        self.begin(works)
        self.finish(works)

    def begin(self, works: Sequence[Work]) -> None:
        """Apply the works."""
        documents = [an_execution(work.name, **work.spec) for work in works]
        self.world.apply({"apiVersion": "v1", "kind": "List", "items": documents})

    def finish(self, works: Sequence[Work]) -> None:
        """Do their errands, wait for their ends, judge them and delete them."""
        uids = {w.name: self.sight.until(w.name, bool)["metadata"]["uid"] for w in works}
        for work in works:
            for errand in work.errands:
                self._errand(work.name, errand)
        kept = [work for work in works if "delete" not in work.errands]
        wrong = [work.wrong(self.sight.until(work.name, is_finished)) for work in kept]
        names = [work.name for work in works]
        self.world.kubectl("delete", "executions", "--wait=false", "--ignore-not-found", *names)
        for work in works:
            self.sight.until(work.name, lambda o: o is None)
        assert not any(wrong), "\n".join(filter(None, wrong))
        for work in works:
            self._ran_once(work.name, uids[work.name], ran=work.succeeded == "True")

    def _errand(self, name: str, errand: str) -> None:
        self.sight.until(name, runs)
        if errand == "extend":
            self.world.patch("execution", name, {"spec": {"activeDeadlineSeconds": 900}})
        elif errand == "terminate":
            self.world.patch("execution", name, {"spec": {"desiredState": "Terminated"}})
        else:
            self.world.delete("execution", name)

    def _ran_once(self, name: str, uid: str, *, ran: bool) -> None:
        if ran:
            eventually(f"an engine tells that {name} was started", lambda: self.starts(uid))
        count = self.starts(uid)
        assert count == 1 if ran else count <= 1, f"{name} was started {count} times"

    def starts(self, uid: str) -> int:
        """How often the engines have told of a start."""
        return sum(tape.starts(uid) for tape in self.tapes.values())

    def judge(self) -> None:
        """Nothing ran twice, nothing recorded has changed, nothing is left, what runs runs on."""
        assert doubles(self.tapes) == {}
        assert self.sight.broken == []
        assert self.processes.broken == []
        for node, sandbox in self.standing.items():
            assert Sandbox.of(self.world.witness(node), sandbox.uid) == sandbox, node
        self.only_standing_left()

    def only_standing_left(self) -> None:
        """On every node there is what stands, and nothing else."""
        wanted = {node: self._only(self.standing.get(node)) for node in self.nodes}
        eventually(
            f"on the nodes there is {wanted}",
            lambda: {node: self.world.left_on(node) for node in self.nodes} == wanted,
        )

    def _only(self, sandbox: Sandbox | None) -> dict[str, list[str]]:
        left: dict[str, list[str]] = {"volumes": [], "loops": [], "disks": []}
        left |= {"copies": [], "trees": []}
        left["containers"] = [sandbox.id] if sandbox else []
        left["launches"] = [sandbox.uid] if sandbox else []
        return left

    def end_standing(self, *, whole: bool = True) -> None:
        """End what ran through it all.

        Its output has every line once, unless its engine was down for a while (not `whole`): then
        no line is there twice or out of order, and what is missing is said to be missing.
        """
        for node in self.nodes:
            name = f"stands-{node}"
            self.world.patch("execution", name, {"spec": {"desiredState": "Terminated"}})
            seen = self.sight.until(name, is_finished)
            assert verdict(seen)[:2] == ("False", "Cancelled"), verdict(seen)
            told = seen["status"]["output"].get("incomplete", False)
            self._compare(name, output(self.world.stack, node, seen["metadata"]["uid"]), told)
            assert not (whole and told), f"{name}: its engine was there all the time"
            self.world.delete("execution", name, wait=True)
        self.standing.clear()

    def _compare(self, name: str, out: str, told: bool) -> None:
        lines = [int(line) for line in out.split()]
        assert lines == sorted(set(lines)), f"{name}: lines doubled or out of order"
        missing = sorted(set(range(1, lines[-1] + 1)) - set(lines))
        assert told or not missing, f"{name}: {missing} missing, and nothing says so"


def runs(seen: Object | None) -> bool:
    """Whether an Execution is said to run."""
    reason = condition(seen, "Succeeded").get("reason")
    return reason == "Running" or condition(seen, "Ready").get("status") == "True"


class Unix(http.client.HTTPConnection):
    """HTTP over an agent's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self._path)


def ask_agent(stack: Stack, node: str, path: str) -> bytes:
    """GET from an agent's Unix socket."""
    connection = Unix(stack.agent_run(node) / "agent.sock")
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body


def output(stack: Stack, node: str, uid: str) -> str:
    """All of an Execution's stdout."""
    return ask_agent(stack, node, f"/v1/executions/{uid}/output/stdout").decode()


@contextlib.contextmanager
def arena_of(
    world: World, folder: Path, *parts: str, extra: Mapping[str, str] | None = None
) -> Iterator[Arena]:
    """An arena in the world's namespace, with traps in these parts."""
    stack = world.stack
    kubectl = [stack.kubectl, "--kubeconfig", str(stack.kubeconfig)]
    witnesses = {node: world.witness(node) for node in stack.nodes()}
    keeper = Keeper(stack, {part: Trap(folder, part) for part in parts}, extra or {})
    with tapes(witnesses, stack.installation) as running:
        sights = Sight(kubectl, world.namespace), Sight(kubectl, world.namespace, "processes")
        arena = Arena(world, *sights, running, keeper)
        keeper.start()
        try:
            yield arena
        finally:
            keeper.close()
            arena.sight.close()
            arena.processes.close()
