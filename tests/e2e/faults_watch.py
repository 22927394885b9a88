"""Two who look on and write down: one what the API showed, one what each engine started."""

import contextlib
import json
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.world import condition, is_finished
from witness import Witness

Object = dict[str, Any]


def verdict(seen: Object | None) -> tuple[Any, ...]:
    """What an object is recorded to have come to; empty while it has not."""
    if not is_finished(seen):
        return ()
    assert seen is not None
    outcome, status = condition(seen, "Succeeded"), seen["status"]
    told = (outcome.get("status"), outcome.get("reason"), outcome.get("message"))
    return (*told, status.get("exitCode"), status.get("completionTime"))


@dataclass
class Sight:
    """Every state of a kind's objects in a namespace, as a watch of the API server shows it.

    What was recorded once must stay so: a change of it is kept in `broken`.
    """

    kubectl: list[str]
    namespace: str
    plural: str = "executions"
    objects: dict[str, Object] = field(default_factory=dict)
    verdicts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    said: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By name, the reasons of `Succeeded` that it went through."""
    deleted: set[str] = field(default_factory=set)
    """Names of those that were seen to go."""

    def __post_init__(self) -> None:
        self._bell = threading.Condition()
        self._closed = False
        self._stream: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def _path(self) -> str:
        return f"/apis/isolet.dev/v1alpha1/namespaces/{self.namespace}/{self.plural}"

    def until(
        self, name: str, reached: Callable[[Object | None], Any], seconds: float = 150
    ) -> Object:
        """Wait until an object is as asked; returns it. What it passes through can be missed."""
        deadline = time.monotonic() + seconds
        with self._bell:
            while not reached(self.objects.get(name)):
                left = deadline - time.monotonic()
                if left <= 0:
                    shown = json.dumps(self.objects.get(name), indent=1)
                    raise AssertionError(f"{name} is not as awaited after {seconds} s: {shown}")
                self._bell.wait(left)
            return self.objects.get(name) or {}

    def close(self) -> None:
        """Stop looking."""
        self._closed = True
        if self._stream is not None:
            self._stream.kill()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(ValueError, KeyError, OSError):
                self._follow()
            time.sleep(0.2)

    def _follow(self) -> None:
        done = subprocess.run(
            [*self.kubectl, "get", "--raw", self._path], capture_output=True, text=True, check=False
        )
        listed = json.loads(done.stdout)
        with self._bell:
            self.objects = {o["metadata"]["name"]: o for o in listed["items"]}
        for each in listed["items"]:
            self._take("MODIFIED", each)
        version = listed["metadata"]["resourceVersion"]
        self._stream = subprocess.Popen(
            [*self.kubectl, "get", "--raw", f"{self._path}?watch=1&resourceVersion={version}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with self._stream as stream:
            if self._closed:  # While it was begun.
                stream.kill()
            assert stream.stdout is not None
            for line in stream.stdout:
                event = json.loads(line)
                self._take(event["type"], event["object"])

    def _take(self, kind: str, seen: Object) -> None:
        name, uid = seen["metadata"]["name"], seen["metadata"]["uid"]
        with self._bell:
            self._check(f"{name} ({uid})", uid, seen)
            self.said[name].add(condition(seen, "Succeeded").get("reason", ""))
            if kind == "DELETED":
                self.objects.pop(name, None)
                self.deleted.add(name)
            else:
                self.objects[name] = seen
            self._bell.notify_all()

    def _check(self, who: str, uid: str, seen: Object) -> None:
        now, before = verdict(seen), self.verdicts.get(uid)
        if before and now != before:
            self.broken.append(f"{who}: recorded {before}, later {now or 'not finished'}")
        started, known = seen.get("status", {}).get("startTime"), self.starts.get(uid)
        if known and started != known:
            self.broken.append(f"{who}: started at {known}, later {started}")
        if now:
            self.verdicts[uid] = now
        if started:
            self.starts[uid] = started


@dataclass(frozen=True)
class Told:
    """One event of an engine about a container of ours."""

    action: str
    name: str
    uid: str
    container: str
    at: float
    """Wall time, of the engine."""


@dataclass
class Tape:
    """All that one engine tells of containers of an installation, kept from the beginning.

    The engine itself forgets: it keeps the last 256 events, and none over a restart.
    """

    witness: Witness
    installation: str
    hear: Callable[[Told], None] = lambda told: None
    """Is told of each as it comes, by the thread that listens."""
    events: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bell = threading.Condition()
        self._closed = False
        self._since = time.time()
        self._known: set[tuple[str, str, float]] = set()
        self._stream: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def doubles(self) -> dict[str, int]:
        """Names and uids of what was started more often than once."""
        with self._bell:
            started = [e for e in self.events if e.action == "start"]
        counts = Counter(e.name for e in started) + Counter(e.uid for e in started)
        return {name: count for name, count in counts.items() if count > 1}

    def starts(self, uid: str) -> int:
        """How often a container of that uid was started."""
        with self._bell:
            return sum(1 for e in self.events if (e.action, e.uid) == ("start", uid))

    def until(self, action: str, uid: str, seconds: float = 150) -> Told:
        """Wait for an event about a uid."""
        deadline = time.monotonic() + seconds
        with self._bell:
            while True:
                for event in self.events:
                    if (event.action, event.uid) == (action, uid):
                        return event
                left = deadline - time.monotonic()
                if left <= 0:
                    seen = [e for e in self.events if e.uid == uid]
                    raise AssertionError(f"no {action} of {uid} in {seconds} s; seen: {seen}")
                self._bell.wait(left)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._stream is not None:
            self._stream.kill()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._closed:
            self._follow()
            time.sleep(0.2)

    def _follow(self) -> None:
        label = f"label=dev.isolet.installation={self.installation}"
        command = ["docker", "-H", f"unix://{self.witness.socket}", "events"]
        command += ["--since", f"{self._since:.6f}", "--filter", "type=container"]
        command += ["--filter", label, "--format", "{{json .}}"]
        self._stream = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with self._stream as stream:
            if self._closed:  # While it was begun.
                stream.kill()
            assert stream.stdout is not None
            for line in stream.stdout:
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))

    def _take(self, event: Object) -> None:
        attributes, at = event["Actor"]["Attributes"], event["timeNano"] / 1e9
        if attributes.get("dev.isolet.kind") == "probe":
            return
        key = (event["Actor"]["ID"], event["Action"], at)
        if key in self._known:
            return
        self._known.add(key)
        told = Told(
            action=event["Action"],
            name=attributes.get("name", ""),
            uid=attributes.get("dev.isolet.uid", ""),
            container=event["Actor"]["ID"],
            at=at,
        )
        self.hear(told)
        with self._bell:
            self.events.append(told)
            self._bell.notify_all()


@contextlib.contextmanager
def tapes(witnesses: dict[str, Witness], installation: str) -> Iterator[dict[str, Tape]]:
    """A tape for each node."""
    running = {node: Tape(witness, installation) for node, witness in witnesses.items()}
    try:
        yield running
    finally:
        for tape in running.values():
            tape.close()


def doubles(running: dict[str, Tape]) -> dict[str, int]:
    """What was started more often than once, on all nodes together."""
    total: dict[str, int] = defaultdict(int)
    for tape in running.values():
        for uid in {e.uid for e in tape.events}:
            total[uid] += tape.starts(uid)
    found = {uid: count for uid, count in total.items() if count > 1}
    for tape in running.values():
        found |= tape.doubles()
    return found
