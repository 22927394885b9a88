"""A container engine in memory, held to the same suite as the real one (tests/contract/engine).

A program is an async function that gets a `containers.Process` and returns its exit code;
`programs` says which one a command line stands for. Nothing here depends on time or chance:
containers get ids by number, and time is the clock that was given. Faults are asked for with
`fault`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto

from fakes import containers as parts
from isolet.agent.engine import config as engine_config
from isolet.agent.engine.base import (
    Container,
    ContainerSummary,
    EngineEvent,
    EngineInfo,
    ExecFacts,
    ExecStream,
    Image,
    InputStream,
    OutputFrame,
    SandboxConfig,
    Status,
    Stream,
    Volume,
)
from isolet.base import errors, names
from isolet.base.clock import Clock, FixedClock


class Kind(Enum):
    """What a fault does to a call."""

    HANG = auto()
    """No effect and no answer: ends by the time limit."""
    DROP = auto()
    """The effect takes place, the answer is lost."""
    REFUSE = auto()
    """No effect, and the given error."""


@dataclass
class Fault:
    """One fault: which call, on which container or volume (any if empty), how often."""

    call: str
    kind: Kind
    name: str = ""
    times: int = 1
    error: errors.IsoletError = field(default_factory=lambda: errors.Unavailable("fault"))
    struck: int = 0


_OF_CONTAINERS = ("create", "start", "stop", "kill", "pause", "unpause", "remove", "exec", "rename")
CHANGES = frozenset((*_OF_CONTAINERS, "create_volume", "remove_volume"))


class FakeEngine:
    """Implements `isolet.agent.engine.base.Engine`."""

    def __init__(
        self, *, installation: str = "test", clock: Clock | None = None, time_limit: float = 0.05
    ) -> None:
        self.installation = installation
        self.clock = clock or FixedClock()
        self.time_limit = time_limit
        self.programs: dict[tuple[str, ...], parts.Program] = {}
        """What each command line does; `default_program` for all others."""
        self.default_program: parts.Program = parts.prints()
        self.unstartable: dict[tuple[str, ...], str] = {}
        """Command lines whose start the engine refuses, with what it says."""
        self.ignores_term: set[tuple[str, ...]] = set()
        self.image_files: dict[str, set[str]] = {}
        self.local_images: dict[str, Image] = {}
        self.runtimes = {"runsc": ("/usr/bin/runsc", ("--network=none", "--host-uds=open"))}
        self.records: dict[str, parts.Record] = {}
        self.local_volumes: dict[str, Volume] = {}
        self.calls: list[tuple[str, str]] = []
        """Every call and its subject, in order, also those that a fault struck."""
        self.reachable = True
        self.up_at = self.clock.boottime()
        self._faults: list[Fault] = []
        self._events: list[EngineEvent] = []
        self._event_came = asyncio.Event()
        self._went = asyncio.Event()
        self._execs: dict[str, parts.Exec] = {}
        self._number = 0

    # --- what a test does to it -------------------------------------------------------------------

    def add_image(self, reference: str, *, files: Sequence[str] = (), **facts: object) -> Image:
        """A local image; its id is made from the reference unless that is one."""
        image_id = reference
        if not reference.startswith("sha256:"):
            image_id = names.digest(reference.encode())
        image = replace(Image(id=image_id, tags=(reference,), architecture="amd64"), **facts)  # type: ignore[arg-type]
        self.local_images[reference] = self.local_images[image_id] = image
        self.image_files[image_id] = set(files)
        return image

    def fault(self, call: str, kind: Kind, **more: object) -> Fault:
        """Have the next call of that name fail."""
        fault = Fault(call, kind, **more)  # type: ignore[arg-type]
        self._faults.append(fault)
        return fault

    def go_down(self) -> None:
        """The engine dies; containers run on (live-restore)."""
        self.reachable = False
        self._went.set()

    def come_up(self) -> None:
        """It is back, without its execs; what ended meanwhile has lost its output."""
        self.reachable = True
        self.up_at = self.clock.boottime()
        self._went = asyncio.Event()
        self._execs.clear()
        self._events.clear()

    def end(self, name_or_id: str, code: int, *, oom: bool = False) -> None:
        """End a running container's program from outside."""
        self._end(self._find(name_or_id), code, oom=oom)

    def print(self, name_or_id: str, data: bytes, stream: Stream = Stream.STDOUT) -> None:
        """Have a running container write."""
        self._find(name_or_id).store(stream, data)

    def count(self, call: str) -> int:
        """How often it was called."""
        return sum(1 for made, _ in self.calls if made == call)

    # --- images and identity ----------------------------------------------------------------------

    async def up_since(self) -> float | None:
        return self.up_at if self.reachable else None

    async def info(self) -> EngineInfo:
        async with self._call("info", ""):
            return EngineInfo(
                id="fake",
                version="20.10.24",
                api_version="1.41",
                architecture="amd64",
                data_root="/nonexistent",
                live_restore=True,
                runtimes=self.runtimes,
                storage_driver="overlay2",
                cpus=2,
                memory_bytes=8 << 30,
                cgroup_version="1",
            )

    async def images(self) -> Sequence[Image]:
        async with self._call("images", ""):
            return list({image.id: image for image in self.local_images.values()}.values())

    async def image(self, reference: str) -> Image:
        async with self._call("image", reference):
            if reference not in self.local_images:
                raise errors.NotFound(f"No such image: {reference}")
            return self.local_images[reference]

    async def image_has(self, image_id: str, paths: Sequence[str]) -> Mapping[str, bool]:
        async with self._call("image_has", image_id):
            image = self.local_images.get(image_id)
            if image is None:
                raise errors.NotFound(f"No such image: {image_id}")
            return {path: path in self.image_files[image.id] for path in paths}

    # --- containers -------------------------------------------------------------------------------

    async def containers(self, labels: Mapping[str, str]) -> Sequence[ContainerSummary]:
        async with self._call("containers", ""):
            return [
                ContainerSummary(
                    id=record.id,
                    name=record.config.name,
                    labels=record.config.labels,
                    status=record.status,
                    created_at=record.created_at,
                )
                for record in self.records.values()
                if labels.items() <= record.config.labels.items()
            ]

    async def inspect(self, name_or_id: str) -> Container:
        async with self._call("inspect", name_or_id):
            record = self._find(name_or_id)
            return Container(
                id=record.id,
                name=record.config.name,
                image_id=record.image_id,
                labels=record.config.labels,
                status=record.status,
                pid=4242 if record.status in parts.ALIVE else 0,
                exit_code=record.exit_code,
                oom_killed=record.oom_killed,
                error=record.error,
                created_at=record.created_at,
                started_at=record.started_at,
                finished_at=record.finished_at,
                seen={**engine_config.bounds(record.config), **record.altered},
            )

    async def create(self, config: SandboxConfig) -> str:
        async with self._call("create", config.name):
            for volume in config.volumes:
                self._volume(volume.name)
            if config.runtime not in self.runtimes:
                raise errors.Refused(f"Unknown runtime specified {config.runtime}")
            if config.image not in self.local_images:
                raise errors.NotFound(f"No such image: {config.image}")
            if any(record.config.name == config.name for record in self.records.values()):
                raise errors.Conflict(f"The name {config.name} is in use")
            self._number += 1
            record = parts.Record(
                id=f"{self._number:064x}",
                config=config,
                image_id=self.local_images[config.image].id,
                created_at=self.clock.now(),
            )
            self.records[record.id] = record
            self._tell("create", record)
            return record.id

    async def start(self, container_id: str) -> None:
        async with self._call("start", container_id):
            record = self._find(container_id)
            if record.status in parts.ALIVE:
                return
            argv = record.config.command
            if argv in self.unstartable:
                record.error = self.unstartable[argv]
                raise errors.Refused(record.error)
            record.starts += 1
            record.status = Status.RUNNING
            record.started_at, record.finished_at, record.exit_code = self.clock.now(), None, None
            record.process = parts.Process(argv, record.store)
            if not record.config.open_stdin:
                record.process.end_stdin()
            self._tell("start", record)
            record.task = asyncio.create_task(self._run(record, record.process))

    async def stop(self, container_id: str, *, grace_seconds: int) -> None:
        async with self._call("stop", container_id):
            await self._finish(container_id, parts.TERMINATED)

    async def kill(self, container_id: str) -> None:
        async with self._call("kill", container_id):
            await self._finish(container_id, parts.KILLED)

    async def rename(self, container_id: str, name: str) -> None:
        async with self._call("rename", container_id):
            record = self._find(container_id)
            others = [found for found in self.records.values() if found is not record]
            if any(found.config.name == name for found in others):
                raise errors.Conflict(f"The name {name} is in use")
            record.config = replace(record.config, name=name)

    async def pause(self, container_id: str) -> None:
        async with self._call("pause", container_id):
            record = self._find(container_id)
            if record.status not in parts.ALIVE or record.process is None:
                raise errors.Conflict(f"{container_id} is not running")
            if record.status is Status.RUNNING:
                record.status = Status.PAUSED
                record.process.resumed.clear()
                self._tell("pause", record)

    async def unpause(self, container_id: str) -> None:
        async with self._call("unpause", container_id):
            self._thaw(self._find(container_id))

    async def remove(self, container_id: str) -> None:
        async with self._call("remove", container_id):
            with contextlib.suppress(errors.NotFound):
                record = self._find(container_id)
                self._thaw(record)
                self._end(record, parts.KILLED)
                del self.records[record.id]
                self._tell("destroy", record)

    # --- streams ----------------------------------------------------------------------------------

    async def output(
        self, container_id: str, *, after: Mapping[Stream, int], follow: bool
    ) -> AsyncIterator[OutputFrame]:
        async with self._call("output", container_id):
            record = self._find(container_id)
        indices = dict.fromkeys(Stream, 0)
        at = 0
        while True:
            changed = record.changed
            for stream, data in record.frames[at:]:
                at += 1
                indices[stream] += 1
                if indices[stream] > after.get(stream, 0):
                    yield OutputFrame(stream=stream, index=indices[stream], data=data)
            if at < len(record.frames):
                continue
            if not follow or record.status not in parts.ALIVE:
                break
            await self._either(changed)
        if short := [s for s in Stream if indices[s] < after.get(s, 0)]:
            raise errors.Conflict(f"output of {', '.join(short)} is lost", reason="OutputLost")

    async def events(
        self, *, since: datetime | None, installation: str
    ) -> AsyncIterator[EngineEvent]:
        async with self._call("events", ""):
            at = len(self._events) if since is None else 0
        while True:
            came = self._event_came
            for event in self._events[at:]:
                at += 1
                if event.labels.get(names.LABEL_INSTALLATION) == installation and (
                    since is None or event.at >= since
                ):
                    yield event
            if at >= len(self._events):
                await self._either(came)

    # --- exec -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def exec(
        self,
        container_id: str,
        command: Sequence[str],
        *,
        user: str,
        working_dir: str,
        stdin: bool,
    ) -> AsyncIterator[ExecStream]:
        async with self._call("exec", container_id):
            record = self._find(container_id)
            if record.status is not Status.RUNNING:
                raise errors.Conflict(f"{container_id} is {record.status}")
            self._number += 1
            argv = tuple(command)
            running = parts.Exec(f"{self._number:064x}", argv)
            self._execs[running.id] = running
            record.execs.append(running)
            program = self.programs.get(argv, self.default_program)
            running.task = asyncio.create_task(running.run(program))
        if not stdin:
            await running.close_stdin()
        yield running

    @contextlib.asynccontextmanager
    async def attach(self, container_id: str) -> AsyncIterator[InputStream]:
        async with self._call("attach", container_id):
            record = self._find(container_id)
            assert record.process is not None
        yield parts.Input(record.process, self._went)

    async def inspect_exec(self, exec_id: str) -> ExecFacts:
        async with self._call("inspect_exec", exec_id):
            if exec_id not in self._execs:
                raise errors.NotFound(f"No such exec instance: {exec_id}")
            code = self._execs[exec_id].exit_code
            return ExecFacts(running=code is None, exit_code=code)

    # --- volumes ----------------------------------------------------------------------------------

    async def volumes(self, labels: Mapping[str, str]) -> Sequence[Volume]:
        async with self._call("volumes", ""):
            found = self.local_volumes.values()
            return [volume for volume in found if labels.items() <= volume.labels.items()]

    async def create_volume(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str]
    ) -> Volume:
        async with self._call("create_volume", name):
            return self.local_volumes.setdefault(
                name,
                Volume(
                    name=name,
                    labels=dict(labels),
                    driver="local",
                    options=dict(options),
                    mountpoint=f"/nonexistent/{name}",
                    created_at=self.clock.now(),
                ),
            )

    async def remove_volume(self, name: str) -> None:
        async with self._call("remove_volume", name):
            mounts = [m for record in self.records.values() for m in record.config.volumes]
            if any(mount.name == name for mount in mounts):
                raise errors.Conflict(f"volume {name} is in use")
            self.local_volumes.pop(name, None)

    async def close(self) -> None:
        tasks = [record.task for record in self.records.values()]
        tasks += [running.task for record in self.records.values() for running in record.execs]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(t for t in tasks if t is not None), return_exceptions=True)

    # --- how it works -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _call(self, call: str, subject: str) -> AsyncIterator[None]:
        self.calls.append((call, subject))
        await asyncio.sleep(0)
        if not self.reachable:
            raise errors.Unavailable("the engine cannot be reached")
        fault = self._struck_by(call, subject)
        if fault is not None and fault.kind is Kind.REFUSE:
            raise fault.error
        if fault is not None and fault.kind is Kind.HANG:
            await asyncio.sleep(self.time_limit)
            raise self._no_answer(call)
        yield
        if fault is not None:
            raise self._no_answer(call)

    def _no_answer(self, call: str) -> errors.IsoletError:
        if call in CHANGES:
            return errors.Unconfirmed("the engine did not confirm")
        return errors.Unavailable("the engine did not answer")

    def _struck_by(self, call: str, subject: str) -> Fault | None:
        subjects = {subject}
        with contextlib.suppress(errors.NotFound):
            record = self._find(subject)
            subjects |= {record.id, record.config.name}
        for fault in self._faults:
            meant = fault.call == call and (not fault.name or fault.name in subjects)
            if meant and fault.struck < fault.times:
                fault.struck += 1
                return fault
        return None

    def _find(self, name_or_id: str) -> parts.Record:
        for record in self.records.values():
            if name_or_id in (record.id, record.config.name):
                return record
        raise errors.NotFound(f"No such container: {name_or_id}")

    def _volume(self, name: str) -> Volume:
        if name not in self.local_volumes:
            raise errors.NotFound(f"no such volume: {name}")
        return self.local_volumes[name]

    async def _run(self, record: parts.Record, process: parts.Process) -> None:
        program = self.programs.get(record.config.command, self.default_program)
        code = await program(process)
        await process.resumed.wait()
        record.task = None
        self._end(record, code, oom=process.oom_killed)

    async def _finish(self, container_id: str, code: int) -> None:
        with contextlib.suppress(errors.NotFound):
            record = self._find(container_id)
            self._thaw(record)
            self._end(record, parts.KILLED if record.config.command in self.ignores_term else code)
            await asyncio.sleep(0)

    def _thaw(self, record: parts.Record) -> None:
        if record.status is Status.PAUSED and record.process is not None:
            record.status = Status.RUNNING
            record.process.resumed.set()
            self._tell("unpause", record)

    def _end(self, record: parts.Record, code: int, *, oom: bool = False) -> None:
        if record.status not in parts.ALIVE:
            return
        for task in (record.task, *(running.task for running in record.execs)):
            if task is not None:
                task.cancel()
        if self.reachable:
            record.flush()
        else:
            record.frames.clear()
            record.logging = False
        record.status, record.exit_code, record.oom_killed = Status.EXITED, code, oom
        record.finished_at = self.clock.now()
        if oom:
            self._tell("oom", record)
        self._tell("die", record, code)
        record.ring()

    def _tell(self, action: str, record: parts.Record, code: int | None = None) -> None:
        self._events.append(
            EngineEvent(
                action=action,
                container_id=record.id,
                container_name=record.config.name,
                labels=engine_config.own_labels(record.config.labels),
                at=self.clock.now(),
                exit_code=code,
            )
        )
        self._event_came.set()
        self._event_came = asyncio.Event()

    async def _either(self, something: asyncio.Event) -> None:
        """Wait for it, or for the end of the engine, which ends every stream."""
        went = self._went
        waits = [asyncio.ensure_future(e.wait()) for e in (something, went)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if went.is_set():
            raise errors.Unavailable("the engine's stream broke off")
