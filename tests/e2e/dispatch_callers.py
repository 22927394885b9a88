"""Callers of two front doors that are killed now and then: what they send, and what they were told.

They keep to what docs/dispatch.md says of an answer: sent again only where certainly nothing was
begun, otherwise looked for by the run's id, at whichever door is there. Some break that rule on
purpose, with the same run id: it must not matter.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.e2e.dispatch_witness import says
from tests.e2e.front_door import TOKEN, FrontDoor

PATIENCE = 240.0
"""Seconds until a caller gives up; nothing is judged by it."""
_PAUSE = 0.3
NOTHING = (429, 503)
"""Answers of a door that has certainly begun nothing, with the marker that says so."""


@dataclass
class Answer:
    """What one door answered; no status where nobody can say what became of the call."""

    status: int | None = None
    nothing: bool = False
    """Certainly nothing was begun."""
    lines: list[dict[str, Any]] = field(default_factory=list)


def ask(door: FrontDoor, method: str, path: str, body: Any = None) -> Answer:
    """One call, as far as it comes."""
    answer = Answer()
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=PATIENCE)
    try:
        try:
            connection.connect()
        except OSError:
            return Answer(nothing=True)
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"X-Execution-Manager-Token": TOKEN})
        response = connection.getresponse()
        answer.status = response.status
        answer.nothing = response.headers.get("x-execution-admitted") == "false"
        for line in _lines(response):
            answer.lines.append(json.loads(line))
    except (OSError, http.client.HTTPException):
        if answer.status != 200:
            return Answer()
    finally:
        connection.close()
    return answer


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Whole lines, or the whole body where its length is known."""
    if response.length is not None:
        if body := response.read():
            yield body
        return
    while (line := response.readline()).endswith(b"\n"):
        yield line


@dataclass
class Run:
    """One run id: how it is asked for, and all that anybody was told of it."""

    run_id: str
    result: int
    seconds: float = 0.0
    path: str = "/execute/stream"
    both: bool = False
    """Sent at both doors at the same moment."""
    stubborn: bool = False
    """Sent again even where nobody can say."""
    mark: str = ""
    """What its runner says, instead of the run id."""
    answers: list[int | None] = field(default_factory=list)
    events: dict[int, Any] = field(default_factory=dict)
    ended: dict[str, Any] | None = None
    """The payload of its terminal event, as it was told first."""
    failed: str = ""
    """Why it failed, as the end of a stream said."""
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def document(self) -> dict[str, Any]:
        """It says that it runs, takes a while, and gives its result."""
        steps = (says(self.mark or self.run_id), {"sleep": self.seconds}, {"echo": self.result})
        return {"run_id": self.run_id, "payload": list(steps)}

    def hear(self, lines: list[dict[str, Any]]) -> None:
        """Take up events; one that was told before must be told the same."""
        with self.lock:
            for line in lines:
                sequence = line.pop("sequence", None)
                if sequence is not None and self.events.setdefault(sequence, line) != line:
                    self.wrong.append(f"event {sequence} was {self.events[sequence]}, then {line}")
                if line.get("event_type") == "completed":
                    self._end(line["payload"])
                elif line.get("event_type") == "error" and sequence is None:
                    self.failed = line["payload"].get("reason", "")

    def hear_result(self, payload: dict[str, Any]) -> None:
        """Take up the answer of a call that gives the result alone."""
        with self.lock:
            self._end(payload)

    def _end(self, payload: dict[str, Any]) -> None:
        self.ended = self.ended or payload
        if payload != self.ended or payload["result"] != self.result:
            self.wrong.append(f"its result was {self.ended}, then {payload}")


@dataclass
class Callers:
    """Whoever sends runs, to either door."""

    doors: tuple[FrontDoor, FrontDoor]
    dice: Random
    may_go_on: Callable[[int], bool] = lambda _: True
    """Whether the next may be sent after so many: whoever disturbs them keeps up with them."""
    settled: int = 0
    bell: threading.Condition = field(default_factory=threading.Condition)

    def perform(self, run: Run) -> None:
        """Send a run, and stay with it as long as there is something to learn from the doors."""
        with self.bell:
            while not self.may_go_on(self.settled):
                self.bell.wait(1)
        doors = list(self.doors)
        self.dice.shuffle(doors)
        if run.both:
            gate = threading.Barrier(2)
            other = threading.Thread(target=self._send, args=(run, doors[1], gate.wait))
            other.start()
            self._send(run, doors[0], gate.wait)
            other.join()
        else:
            self._send(run, doors[0])
        if run.ended is None and not run.failed:
            self._come_back(run)
        with self.bell:
            self.settled += 1
            self.bell.notify_all()

    def until_settled(self, count: int) -> None:
        """Wait until so many runs are over for their callers."""
        with self.bell:
            self.bell.wait_for(lambda: self.settled >= count)

    def other(self, door: FrontDoor) -> FrontDoor:
        """The other one."""
        return self.doors[self.doors[0] is door]

    def _send(self, run: Run, door: FrontDoor, ready: Callable[[], Any] = lambda: None) -> None:
        ready()
        again, deadline = run.stubborn, time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = ask(door, "POST", run.path, run.document)
            run.answers.append(answer.status)
            self._take(run, answer)
            if answer.nothing:
                if answer.status not in (None, *NOTHING):
                    run.wrong.append(f"{answer.status} says that nothing was begun")
            elif answer.status is None and again:
                again = False
            else:
                return
            time.sleep(_PAUSE)
            door = door if run.both else self.other(door)
        run.wrong.append(f"nobody took it: {run.answers}")

    def _take(self, run: Run, answer: Answer) -> None:
        if answer.status == 200 and run.path == "/execute":
            for payload in answer.lines:
                run.hear_result(payload)
        elif answer.status == 200:
            run.hear(answer.lines)

    def _come_back(self, run: Run) -> None:
        """Read on behind what was seen, until it ends or no door knows more of it."""
        door, deadline = self.dice.choice(self.doors), time.monotonic() + PATIENCE
        while run.ended is None and not run.failed and time.monotonic() < deadline:
            after = max(run.events, default=0)
            answer = ask(door, "GET", f"/execute/{run.run_id}/events?after={after}")
            run.hear(answer.lines)
            unknown = answer.status == 200 and answer.lines[-1:] and run.ended is None
            if answer.status == 404 or unknown:
                return
            time.sleep(_PAUSE)
            door = self.other(door)


def kept(door: FrontDoor, run: Run) -> Run:
    """What can be read back of a run from its beginning, once whoever has it can be reached."""
    found, deadline = Run(run.run_id, run.result), time.monotonic() + PATIENCE
    path = f"/execute/{run.run_id}/events?after=0"
    while (answer := ask(door, "GET", path)).status not in (200, 404):
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    found.answers.append(answer.status)
    found.hear(answer.lines)
    return found
