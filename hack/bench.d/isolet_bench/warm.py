"""hack/bench warm: what waits in warm slots, beside what stdin itself costs and a cold start.

Measured is the time from a call until the first byte of what it runs, as that byte comes out of the
engine; and at the callers of the front door, until the first event is there. One at a time, in
turns with the floors; with calls that come at random, whatever became of those before; nine at
once; and as many as can be had. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from isolet.agent.engine.api import API, Timeouts
from isolet.agent.workspace import script
from isolet.base import names
from isolet.client.dispatch import HTTPDispatch
from isolet.plan import dispatch_document
from isolet.wire.dispatch import Mode
from isolet_cluster.errors import say

from . import slots
from .arrivals import open_loop, poisson
from .cold import launches
from .door import Caller, front_door
from .floors import SETTLE, Floors
from .outputs import Outputs, new_word
from .place import NAMESPACE, Place, an_execution
from .raw import Raw
from .report import Report
from .slots import COMMANDS, NONE, Slots, document
from .warm_report import Seen, tell

Work = Callable[[], Awaitable[None]]
Times = dict[str, float]
ROUNDS = 2
"""Times that nine come at once."""
AT_ONCE = 9
IN_FLIGHT = 6
SUSTAINED_SECONDS = 10.0
TURNS_SECONDS = 180.0
"""No turn is begun after so long: a busy machine has fewer of them."""
SEED = 6


def run(place: Place, options: argparse.Namespace) -> Report:
    """All of it."""
    report = Report("warm")
    report.conditions = {
        "cpus": os.cpu_count(),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "arrivals, of the sustained rate": f"{100 * options.load:.0f} %",
    }
    for body in slots.classes(place):
        place.kube.ensure("/apis/isolet.dev/v1alpha1/executionclasses", body)
    Raw(str(place.node.socket), launches(place)).clear()
    try:
        with front_door(place) as url:
            seen = asyncio.run(_measure(place, url, options))
    finally:
        place.clear()
        for body in slots.classes(place):
            name = body["metadata"]["name"]  # type: ignore[index]
            place.kube.call("DELETE", f"/apis/isolet.dev/v1alpha1/executionclasses/{name}")
    report.conditions["load after"] = f"{os.getloadavg()[0]:.1f}"
    tell(report, seen)
    return report


async def _measure(place: Place, url: str, options: argparse.Namespace) -> Seen:
    api = API(str(place.node.socket), Timeouts())
    async with contextlib.AsyncExitStack() as stack:
        outputs = await stack.enter_async_context(Outputs.of(api))
        folder, state = launches(place), place.stack.agent_folder("node-0")
        floors = Floors(api, outputs, folder, state)
        stack.callback(floors.close)
        agent = HTTPDispatch(f"unix://{place.agent_socket}", pool=64)
        stack.push_async_callback(agent.close)
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector))
        warm = Warm(place, floors, Slots(place, agent, outputs), Caller(session))
        await warm.measure(options)
        return warm.seen


@dataclass
class Warm:
    """One measurement."""

    place: Place
    floors: Floors
    slots: Slots
    caller: Caller
    seen: Seen = field(default_factory=Seen)

    async def measure(self, options: argparse.Namespace) -> None:
        """Every part, each from full pools."""
        await self.slots.full()
        await self._memory()
        await self._turns(options.n)
        await self._at_once()
        await self._sustained()
        for kind, one in self._kinds().items():
            # A run through the front door is a dispatch with an object around it.
            rate = self.seen.sustained["command" if kind == "command" else "dispatch"]
            await self._arrivals(kind, one, options.load * rate, options.arrivals)

    # One at a time.

    async def _turns(self, runs: int) -> None:
        until = time.monotonic() + TURNS_SECONDS
        for number in range(runs + 1):
            if time.monotonic() > until:
                break
            await self._turn(number)
            if number % 5 == 0:
                say(f"one at a time: {number} of {runs}")

    async def _turn(self, number: int) -> None:
        """Each from full pools, with nothing being made or removed."""
        words = [new_word() for _ in range(3)]
        commands, runners = slots.pool_of_commands(self.place), slots.pool_of_runners()
        async with contextlib.AsyncExitStack() as stack:
            line, launcher, runner = await asyncio.gather(
                stack.enter_async_context(self.floors.line(commands, words[0])),
                stack.enter_async_context(self.floors.launcher(commands, words[1])),
                stack.enter_async_context(self.floors.runner(runners)),
            )
            short: list[Work] = [
                self._kept("commit", self.floors.commit),
                self._kept("line", lambda: self.floors.write(line, script.GO, words[0])),
                self._kept("launcher", lambda: self.floors.write(launcher, script.GO, words[1])),
                self._kept(
                    "runner", lambda: self.floors.write(runner, _envelope(words[2]), words[2])
                ),
                self._timed("command", self._command),
                self._timed("dispatch", self._dispatch),
                self._timed("reserved", self._reserved),
                self._timed("door", self._door),
                self._timed("object", self._object),
            ]
            for one in short if number % 2 else reversed(short):
                await self._rest()
                await one()
        await self.slots.full()
        await self._timed("cold agent", self._cold)()
        word = new_word()
        await self._kept("docker run", lambda: self.floors.cold(commands, word))()
        await self._timed("cold object", self._cold_object)()
        if number == 0:  # The first of each pays for caches.
            self.seen.turns.clear()

    def _kept(self, kind: str, one: Callable[[], Awaitable[float]]) -> Work:
        async def kept() -> None:
            self.seen.turn(kind, await one())

        return kept

    def _timed(self, kind: str, one: Callable[[float], Awaitable[Times]]) -> Work:
        async def timed() -> None:
            for part, seconds in (await one(time.monotonic())).items():
                self.seen.turn(f"{kind}{part}", seconds)

        return timed

    async def _rest(self) -> None:
        """Wait until both pools are full and what was started last has begun to wait."""
        await self.slots.full()
        await asyncio.sleep(SETTLE)

    # Each kind: called when it was to arrive, it says how long after that its first byte came.

    async def _command(self, intended: float) -> Times:
        uid, first = await self.slots.command(new_word())
        self._leave(self.slots.gone(uid))
        return {"": first - intended}

    async def _cold(self, intended: float) -> Times:
        uid, first = await self.slots.command(new_word(), NONE)
        await self.slots.gone(uid)
        return {"": first - intended}

    async def _dispatch(self, intended: float) -> Times:
        _, first = await self.slots.dispatch(new_word())
        return {"": first - intended}

    async def _reserved(self, intended: float) -> Times:
        _, first = await self.slots.dispatch(new_word(), reserve=True)
        return {"": first - intended}

    async def _door(self, intended: float) -> Times:
        word = new_word()
        heard, first = await asyncio.gather(
            self.caller.execute(word), self.slots.outputs.first(word)
        )
        return {"": first - intended, " event": heard - intended}

    async def _object(self, intended: float) -> Times:
        return {"": await self._created(COMMANDS) - intended}

    async def _cold_object(self, intended: float) -> Times:
        return {"": await self._created(NONE) - intended}

    async def _created(self, class_name: str) -> float:
        word = new_word()
        body = an_execution(word, "echo", word)
        spec = body["spec"]
        assert isinstance(spec, dict)
        spec["className"] = class_name
        await asyncio.to_thread(self.place.kube.create, body)
        first = await self.slots.outputs.first(word)
        await asyncio.to_thread(self.place.kube.delete, NAMESPACE, word)
        return first

    def _kinds(self) -> dict[str, Callable[[float], Awaitable[Times]]]:
        return {"command": self._command, "dispatch": self._dispatch, "door": self._door}

    # Many.

    async def _at_once(self) -> None:
        for number in range(ROUNDS):
            await self._floors_at_once()
            for kind, one in self._kinds().items():
                await self._rest()
                began = time.monotonic()
                found = await asyncio.gather(*(one(began) for _ in range(AT_ONCE)))
                for each in found:
                    for part, seconds in each.items():
                        self.seen.at_once.setdefault(f"{kind}{part}", []).append(seconds)
            say(f"{AT_ONCE} at once: {number + 1} of {ROUNDS}")

    async def _floors_at_once(self) -> None:
        """As many bare containers of both kinds, written to at once."""
        commands, runners = slots.pool_of_commands(self.place), slots.pool_of_runners()
        words = [new_word() for _ in range(AT_ONCE)]
        floors = {
            "launcher": (lambda word: self.floors.launcher(commands, word), lambda _: script.GO),
            "runner": (lambda _: self.floors.runner(runners), _envelope),
        }
        for kind, (start, sent) in floors.items():
            async with contextlib.AsyncExitStack() as stack:
                started = [await stack.enter_async_context(start(word)) for word in words]
                await self._rest()
                writes = zip(started, words, strict=True)
                found = await asyncio.gather(
                    *(self.floors.write(one, sent(word), word) for one, word in writes)
                )
            self.seen.at_once.setdefault(kind, []).extend(found)

    async def _arrivals(
        self,
        kind: str,
        one: Callable[[float], Awaitable[Times]],
        rate: float,
        count: int,
    ) -> None:
        """Poisson arrivals, at a share of the rate that was just found to be had."""
        await self._rest()
        found: list[Times] = []
        none = self.slots.found_none + self.caller.found_none

        async def call(intended: float) -> None:
            found.append(await one(intended))

        seconds, late = await open_loop(poisson(rate, count, SEED), call)
        for each in found:
            for part, value in each.items():
                self.seen.arrivals.setdefault(f"{kind}{part}", []).append(value)
        none = self.slots.found_none + self.caller.found_none - none
        self.seen.loops[kind] = (len(found) / seconds, late, none)
        say(f"arrivals, {kind}: {count} in {seconds:.0f} s")

    async def _sustained(self) -> None:
        """As many as can be had, from full pools to full pools, beside the bare engine."""
        pool = slots.pool_of_commands(self.place)
        self.seen.sustained["engine"] = await _rate(lambda: self.floors.once(pool))

        async def command() -> None:
            uid, _ = await self.slots.command(new_word())
            await self.slots.gone(uid)

        async def dispatch() -> None:
            uid, _ = await self.slots.dispatch(new_word())
            await self.slots.gone(uid)

        for kind, one in (("command", command), ("dispatch", dispatch)):
            await self.slots.full()
            self.seen.sustained[kind] = await _rate(one, self.slots.full)

    async def _memory(self) -> None:
        labels = {names.LABEL_INSTALLATION: self.place.stack.installation}
        found = await self.floors.slots(labels)
        for class_name, containers in found.items():
            values = [await self.floors.memory(container) for container in containers]
            self.seen.memory[class_name] = values

    def _leave(self, rest: Awaitable[None]) -> None:
        """What comes after the first byte is nobody's latency."""
        task = asyncio.ensure_future(rest)
        self.seen.rest.add(task)
        task.add_done_callback(self.seen.rest.discard)


def _envelope(word: str) -> bytes:
    """What a runner is sent that is to say the word."""
    return dispatch_document.envelope(Mode.STREAM, document(word))


async def _rate(one: Work, rest: Work | None = None) -> float:
    """Runs a second, so many in flight; `rest`, what they left to do, is part of the time."""
    began, done = time.monotonic(), 0

    async def worker() -> None:
        nonlocal done
        while time.monotonic() - began < SUSTAINED_SECONDS:
            await one()
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker())
    if rest is not None:
        await rest()
    return done / (time.monotonic() - began)
