"""Hundreds of Processes through one node, at once: each runs once, and none is left in error.

The judge is not Isolet's own record: what has a sandbox of its own by the engine's events, what
runs in a session by the lines that it wrote into that session's workspace.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from isolet.client.http import HTTPAgent
from isolet.wire.agent_api import Snapshot
from isolet_cluster.errors import ClusterError, say

from . import kube, raw
from .place import NAMESPACE, Place, a_process, an_execution
from .report import Report, Target

SESSIONS = 2
INSIDE_EVERY = 5
"""Each fifth runs in a session."""
CPUS = 5
"""What the node promises meanwhile: room for the sessions and for eight sandboxes at once."""
SECONDS = 1800
LOOK_SECONDS = 1.0
USER = "65532:65532"


def many(place: Place, engine: raw.Raw, report: Report, count: int) -> None:
    """Create, follow, judge, delete."""
    with _promising(place, CPUS):
        _many(place, engine, report, count)


@contextlib.contextmanager
def _promising(place: Place, cpus: int) -> Iterator[None]:
    """The agent with another policy: that of the tests promises far more than there is."""
    path = place.stack.policy_file()
    usual = path.read_text()
    try:
        path.write_text(f"[capacity]\ncpu = {cpus}\n")
        _restart(place)
        yield
    finally:
        path.write_text(usual)
        _restart(place)


def _restart(place: Place) -> None:
    place.stack.end("agent-node-0")
    place.stack.start_missing()
    place.stack.wait_ready()


def _many(place: Place, engine: raw.Raw, report: Report, count: int) -> None:
    run = uuid.uuid4().hex[:6]
    sessions = [f"s-{run}-{number}" for number in range(SESSIONS)]
    uids = {name: _session(place, name) for name in sessions}
    wanted = {f"p-{run}-{n:04}": _place_of(n, sessions) for n in range(count)}
    with _tape(engine, place.stack.installation) as tape:
        began = time.monotonic()
        seconds = _through(place, wanted) - began
        found = place.kube.list(NAMESPACE, kube.PROCESSES)
        written = {name: _written(engine, uid) for name, uid in uids.items()}
        snapshot = asyncio.run(_snapshot(place))
        place.clear(600)
        left = engine.ours(place.stack.installation)
    wrong = _wrong(found, wanted, snapshot)
    not_once = _not_once(found, wanted, tape, written)
    table = report.table(f"{count} Processes through one node, created at once", "", "")
    inside = sum(1 for session in wanted.values() if session)
    table.add("in sandboxes of their own / in sessions", f"{count - inside} / {inside}")
    table.add("first created -> last one's outcome is seen", f"{seconds:.0f} s")
    table.add("a second", f"{count / seconds:.2f}")
    table.add("records in an error state, or waiting after the end", str(len(wrong)))
    table.add("not run exactly once", str(len(not_once)))
    table.add("containers left after the deletion", str(len(left)))
    report.numbers["many"] = {"seconds": seconds, "wrong": wrong, "not_once": not_once}
    report.targets += [
        Target("records in an error state", len(wrong), 0, ""),
        Target("Processes that did not run exactly once", len(not_once), 0, ""),
        Target("containers left", len(left), 0, ""),
    ]


def _place_of(number: int, sessions: list[str]) -> str | None:
    return None if number % INSIDE_EVERY else sessions[number // INSIDE_EVERY % len(sessions)]


def _session(place: Place, name: str) -> str:
    with place.kube.watch(NAMESPACE) as watch:
        made = place.kube.create(an_execution(name))
        watch.until(name, kube.is_ready)
    return str(made["metadata"]["uid"])


def _through(place: Place, wanted: dict[str, str | None]) -> float:
    """Create them all; when the last outcome was seen, to a look."""
    for name, session in wanted.items():
        script = f"echo {name} >> ran; echo {name}"
        place.kube.create(a_process(name, script, session))
    say(f"{len(wanted)} Processes created")
    deadline, ended, told = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        with contextlib.suppress(OSError):  # a busy API server may take its time
            found = place.kube.list(NAMESPACE, kube.PROCESSES)
            ended = sum(1 for item in found if kube.is_finished(item))
            if ended == len(wanted):
                return time.monotonic()
            if ended >= told + 50:
                told = ended
                say(f"many: {ended} of {len(wanted)} have ended")
    raise ClusterError(f"{len(wanted) - ended} Processes have not ended after {SECONDS} s")


def _written(engine: raw.Raw, uid: str) -> list[str]:
    """The lines in a session's file."""
    script = ("cat", "/workspace/ran")
    _, output = engine.exec(engine.of_uid(uid)["Id"], script, USER)
    return output.decode().split()


async def _snapshot(place: Place) -> Snapshot:
    agent = HTTPAgent(f"unix://{place.agent_socket}")
    try:
        return await agent.snapshot()
    finally:
        await agent.close()


def _wrong(
    found: list[kube.Object], wanted: dict[str, str | None], snapshot: Snapshot
) -> list[str]:
    """Objects and records that are not as those of a success are."""
    seen = {item["metadata"]["name"]: item for item in found}
    wrong = []
    for name in wanted:
        item = seen.get(name, {})
        good = kube.condition(item, "Succeeded") == "True" and not kube.condition(item, "Stalled")
        if not good or item["status"]["output"]["stdoutTail"] != f"{name}\n":
            wrong.append(f"{name}: {json.dumps(item.get('status'))}")
    records = [
        f"record of {record.name}: {record.outcome or record.waiting}"
        for record in snapshot.processes
        if record.waiting or not (record.outcome and record.outcome.succeeded)
    ]
    return wrong + records


def _not_once(
    found: list[kube.Object],
    wanted: dict[str, str | None],
    tape: Tape,
    written: dict[str, list[str]],
) -> list[str]:
    """Names of those that nobody saw run, or that ran again."""
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in found}
    lines = {name: collections.Counter(ran) for name, ran in written.items()}
    bad = []
    for name, session in wanted.items():
        uid = uids.get(name, "")
        if session:
            others = sum(counter[name] for where, counter in lines.items() if where != session)
            once = lines[session][name] == 1 and not others
        else:
            once = tape.starts[uid] == 1 and tape.exits[uid] == ["0"]
        if not once:
            bad.append(name)
    return bad


@dataclass
class Tape:
    """What an engine tells of the containers of an installation, by uid."""

    starts: collections.Counter[str] = field(default_factory=collections.Counter)
    exits: dict[str, list[str]] = field(default_factory=lambda: collections.defaultdict(list))

    def take(self, event: kube.Object) -> None:
        about = event["Actor"]["Attributes"]
        uid = about.get("dev.isolet.uid", "")
        if event["Action"] == "start":
            self.starts[uid] += 1
        elif event["Action"] == "die":
            self.exits[uid].append(about["exitCode"])


@contextlib.contextmanager
def _tape(engine: raw.Raw, installation: str) -> Iterator[Tape]:
    """Listen from now on."""
    tape = Tape()
    filters = {"type": ["container"], "label": [f"dev.isolet.installation={installation}"]}
    connection = raw.UnixConnection(engine.socket_path)
    connection.timeout = None
    connection.request("GET", f"{raw.API}/events?filters={quote(json.dumps(filters))}")
    sock, answer = connection.sock, connection.getresponse()

    def listen() -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in answer:
                tape.take(json.loads(line))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield tape
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(2)
        thread.join(10)
        connection.close()
