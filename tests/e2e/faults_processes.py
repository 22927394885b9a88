"""Processes that run while parts of Isolet are killed: each at most once, each with its outcome.

Whether one ran is not asked of Isolet: of a sandbox of its own the engine tells, and of one in a
session the line that it left in that session's workspace.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.e2e.faults_arena import HOST, TAIL, Arena, Sandbox, runs
from tests.e2e.faults_watch import Object, verdict
from tests.e2e.world import a_process, a_template, an_execution, condition, is_finished

KINDS = {
    "good": ("exit 0", ("True", "Succeeded"), 0),
    "bad": ("sleep 1; exit 3", ("False", "NonZeroExit"), 3),
    "dropped": ("exec sleep 600", ("False", "Cancelled"), None),
}
"""How it ends → the end of its script, the outcome, the exit code; the last one is cancelled."""


@dataclass(frozen=True)
class Errand:
    """One Process, and what it must come to."""

    name: str
    node: str
    kind: str
    session: str = ""

    @property
    def document(self) -> Object:
        """It writes its name to a file that outlives it, tells what is in there, and ends."""
        script = f"echo {self.name} >> ran; echo {self.name}; {KINDS[self.kind][0]}"
        spec: Object = {"shell": script, "timeoutSeconds": 600, "output": TAIL}
        if self.session:
            return a_process(self.name, executionRef={"name": self.session}, **spec)
        place = {"nodeSelector": {HOST: self.node}, "workspace": {"medium": "Disk"}}
        template = a_template(**place)
        return a_process(self.name, template=template, artifacts=[{"glob": "ran"}], **spec)

    def wrong(self, seen: Object) -> str:
        """How its end differs from what it must be; empty when it does not."""
        _, outcome, code = KINDS[self.kind]
        status = seen["status"]
        found = verdict(seen)[:2]
        if found != outcome or (code is not None and status.get("exitCode") != code):
            return f"{self.name}: wanted {outcome} {code}, came to {verdict(seen)}"
        line = f"{self.name}\n"
        if code is not None and status["output"].get("stdoutTail") != line:
            return f"{self.name}: its output is {status['output']}"
        kept = [] if self.session or code is None else [artifact(line.encode())]
        if code is not None and status.get("artifacts", []) != kept:
            return f"{self.name}: kept {status.get('artifacts')}"
        return ""


def artifact(content: bytes) -> Object:
    """What the status says of the file `ran`."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"path": "ran", "size": len(content), "digest": digest}


def errands(arena: Arena, tag: str) -> list[Errand]:
    """Of every kind in a sandbox of its own, and those that leave their session alive inside."""
    found = []
    for node in arena.nodes:
        session = f"room-{tag}-{node}"
        found += [Errand(f"own-{kind}-{tag}-{node}", node, kind) for kind in KINDS]
        for kind in ("good", "bad"):
            found.append(Errand(f"in-{kind}-{tag}-{node}", node, kind, session))
    return found


@contextlib.contextmanager
def through(arena: Arena, tag: str) -> Iterator[None]:
    """Have Processes of every kind, in sessions too, live through what is done meanwhile."""
    work = errands(arena, tag)
    rooms = sorted({errand.session for errand in work if errand.session})
    nodes = {errand.session: errand.node for errand in work}
    disk = {"workspace": {"medium": "Disk"}}
    documents = [an_execution(r, nodeSelector={HOST: nodes[r]}, **disk) for r in rooms]
    documents += [errand.document for errand in work]
    arena.world.apply({"apiVersion": "v1", "kind": "List", "items": documents})
    yield
    for errand in work:
        if errand.kind == "dropped":
            arena.processes.until(errand.name, has_started)
            change = {"spec": {"desiredState": "Cancelled"}}
            arena.world.patch("process", errand.name, change)
    ends = {e.name: arena.processes.until(e.name, is_finished, 120) for e in work}
    assert not [w for e in work if (w := e.wrong(ends[e.name]))], ends
    for errand in work:
        if not errand.session:
            uid = ends[errand.name]["metadata"]["uid"]
            arena.tapes[errand.node].until("start", uid)
            assert arena.starts(uid) == 1, f"{errand.name} was started {arena.starts(uid)} times"
    for room in rooms:
        uid = arena.sight.until(room, runs)["metadata"]["uid"]
        witness = arena.world.witness(nodes[room])
        told = witness.docker("exec", Sandbox.of(witness, uid).id, "cat", "/workspace/ran")
        wanted = {errand.name: 1 for errand in work if errand.session == room}
        assert Counter(told.split()) == wanted, f"{room}: {told}"
    _forget(arena, [errand.name for errand in work], rooms)


def _forget(arena: Arena, work: list[str], rooms: list[str]) -> None:
    world = arena.world
    for kind, names in (("processes", work), ("executions", rooms)):
        world.kubectl("delete", kind, "--wait=false", "--ignore-not-found", *names)
    for name in work:
        arena.processes.until(name, lambda o: o is None)
    for name in rooms:
        arena.sight.until(name, lambda o: o is None)


def has_started(seen: Object | None) -> bool:
    """Whether its command runs, as its status says."""
    reason = condition(seen, "Succeeded").get("reason")
    return reason == "Running" and bool((seen or {})["status"].get("startTime"))
