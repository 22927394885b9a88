"""The engine as the agent sees it: our own types, no `docker` dict leaves this package.

Every call is bounded in time by kind of call. What a call can raise:

- `NotFound`: the engine answered that there is no such container, image, volume or exec.
- `Conflict`: the name is taken, or the object is not in a state that allows the call.
- `Refused`: the engine rejected the request itself; its message is kept (start of a program that
  cannot be run, a runtime it does not know).
- `Unavailable`: the engine did not answer or is shutting down, and the call changed nothing.
- `Unconfirmed`: a call that changes something was sent and its answer never came, or said that it
  failed on the way. It is never repeated by the engine package; the caller looks.
- `Invalid`: a name or reference that no engine object can have; nothing was sent.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Status(StrEnum):
    """State of a container as the engine gives it."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    EXITED = "exited"
    DEAD = "dead"


class Stream(StrEnum):
    """One of a program's two output streams."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """What the engine says of itself."""

    id: str
    version: str
    api_version: str
    architecture: str
    data_root: str
    live_restore: bool
    runtimes: Mapping[str, tuple[str, tuple[str, ...]]]
    """Runtime name → (binary path, its arguments)."""
    storage_driver: str
    cpus: int
    memory_bytes: int
    cgroup_version: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A local image."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    """`name@sha256:…` under which it was pulled; empty for one built here."""
    env: tuple[str, ...] = ()
    """Names only; values of an image's ENV are never read further."""
    architecture: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tmpfs:
    """A bounded tmpfs mount; always nosuid and nodev."""

    path: str
    size_bytes: int
    uid: int
    gid: int
    mode: int
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BindMount:
    """A folder of the host, always mounted read-only."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeMount:
    """A named volume, mounted read-write."""

    name: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxConfig:
    """A sandbox as it is asked for. What is not here cannot be asked for.

    The engine adds what is the same for all: network none, read-only root, all capabilities
    dropped, no-new-privileges, no restart, an init, no entrypoint of the image, log driver `local`
    with its bounds, ulimit core 0, memory swap equal to memory.
    """

    name: str
    image: str
    runtime: str
    user: str
    command: tuple[str, ...]
    """The whole argv; the image's ENTRYPOINT and CMD are reset."""
    labels: Mapping[str, str]
    cpu_millis: int
    memory_bytes: int
    nproc: int
    """`ulimit nproc` inside: the bound a tenant meets (EAGAIN)."""
    pids_limit: int
    """The cgroup's backstop, above what the sandbox's own threads need."""
    nofile: int
    shm_bytes: int
    log_bytes: int
    """The log is kept up to this size, which must exceed the output cap (rotation loses lines)."""
    tmpfs: tuple[Tmpfs, ...] = ()
    binds: tuple[BindMount, ...] = ()
    volumes: tuple[VolumeMount, ...] = ()
    working_dir: str = "/workspace"
    open_stdin: bool = False
    stop_signal: str = "SIGTERM"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A container as inspect shows it."""

    id: str
    name: str
    image_id: str
    labels: Mapping[str, str]
    status: Status
    pid: int
    """Host pid of the sandbox; 0 when it does not run."""
    exit_code: int | None
    """None until it has ended; a created, never started container has none."""
    oom_killed: bool
    error: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    seen: Mapping[str, object] = field(default_factory=dict)
    """Every bound as read back: the same keys as `bounds(config)` gives for what was asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSummary:
    """A container as the list shows it."""

    id: str
    name: str
    labels: Mapping[str, str]
    status: Status
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """A named volume."""

    name: str
    labels: Mapping[str, str]
    driver: str
    options: Mapping[str, str]
    mountpoint: str
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFrame:
    """A piece of one stream, exact bytes.

    `index` counts the frames of that stream from 1 in stored order, which is stable: a reader that
    saw index n resumes after it. (Resuming by time loses lines: the two streams are stamped apart.)
    """

    stream: Stream
    index: int
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEvent:
    """Something the engine says has happened to a container; a hint, never the truth."""

    action: str
    """create, start, die, oom, destroy, kill, pause, unpause, exec_die …"""
    container_id: str
    container_name: str
    labels: Mapping[str, str]
    at: datetime
    exit_code: int | None = None
    """Of a `die`, and of an `exec_die`: true there also when the exec's client had left."""
    exec_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecFacts:
    """What the engine knows of an exec."""

    running: bool
    exit_code: int | None


class ExecStream(Protocol):
    """A running exec, attached."""

    id: str

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Output as it comes; ends when the exec's streams are closed, and its input with them.

        The end does not tell how the exec ended: ask `inspect_exec`.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Send to its stdin, with back-pressure; a closed reader is not an error."""
        ...

    async def close_stdin(self) -> None:
        """Deliver end of input."""
        ...


class InputStream(Protocol):
    """The stdin of a running container, attached. Closing it does not end the input."""

    async def write(self, data: bytes) -> None:
        """Send all of it. Raises Unconfirmed when the connection is gone: part may have come."""
        ...

    async def ended(self) -> None:
        """Wait until the engine ends the connection; an engine that dies does. Cancel at will."""
        ...


class Engine(Protocol):
    """A container engine on this node."""

    async def info(self) -> EngineInfo:
        """Identity and configuration of the engine."""
        ...

    async def up_since(self) -> float | None:
        """When the process of the engine that would answer now was started, in boot-time seconds.

        What ended while no engine ran has lost its log. None if the agent cannot see that process,
        or there is none.
        """
        ...

    async def images(self) -> Sequence[Image]:
        """All local images."""
        ...

    async def image(self, reference: str) -> Image:
        """The local image that `reference` names; never pulls. Raises NotFound."""
        ...

    async def image_has(self, image_id: str, paths: Sequence[str]) -> Mapping[str, bool]:
        """For each absolute path, whether the image has a file there (links followed).

        Uses a container that is never started, with the installation's label and the kind `probe`,
        and removes it.
        """
        ...

    async def containers(self, labels: Mapping[str, str]) -> Sequence[ContainerSummary]:
        """All containers, running or not, that carry all of `labels`."""
        ...

    async def inspect(self, name_or_id: str) -> Container:
        """One container. Raises NotFound."""
        ...

    async def create(self, config: SandboxConfig) -> str:
        """Create, do not start. Returns the id. Raises Conflict when the name is taken."""
        ...

    async def start(self, container_id: str) -> None:
        """Start once. Raises Refused when the engine says it cannot be started."""
        ...

    async def stop(self, container_id: str, *, grace_seconds: int) -> None:
        """TERM, wait, KILL. Not running counts as stopped. Unpauses first."""
        ...

    async def kill(self, container_id: str) -> None:
        """KILL the whole sandbox. Not running or gone is not an error. Unpauses first.

        A paused runsc container that is killed leaks its shim and its cgroup.
        """
        ...

    async def rename(self, container_id: str, name: str) -> None:
        """Give it another name; the one that it has is not an error. Raises Conflict, NotFound."""
        ...

    async def pause(self, container_id: str) -> None:
        """Freeze."""
        ...

    async def unpause(self, container_id: str) -> None:
        """Thaw; not paused is not an error."""
        ...

    async def remove(self, container_id: str) -> None:
        """Remove by force and wait until inspect says NotFound. Already gone is not an error.

        Raises Unconfirmed when the engine does not confirm in time.
        """
        ...

    def output(
        self, container_id: str, *, after: Mapping[Stream, int], follow: bool
    ) -> AsyncIterator[OutputFrame]:
        """Stored output after the given frame index of each stream, then, if `follow`, live.

        Ends when what is stored has been read, with `follow` at the container's end. Newlines that
        the log driver dropped are restored. Raises Unavailable when the engine ends it sooner, and
        Conflict when fewer frames are stored than `after` says or the container is being removed.
        """
        ...

    def events(self, *, since: datetime | None, installation: str) -> AsyncIterator[EngineEvent]:
        """Events of containers with our installation label; ends or raises when the engine goes."""
        ...

    def exec(
        self,
        container_id: str,
        command: Sequence[str],
        *,
        user: str,
        working_dir: str,
        stdin: bool,
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run a command in a running container, attached over a hijacked socket."""
        ...

    def attach(self, container_id: str) -> AbstractAsyncContextManager[InputStream]:
        """The stdin of a container that was made with `open_stdin`, while it runs.

        The engine attaches to one that has ended too, and then nothing is read: look first.
        """
        ...

    async def inspect_exec(self, exec_id: str) -> ExecFacts:
        """State of an exec. Raises NotFound (an engine restart forgets execs)."""
        ...

    async def volumes(self, labels: Mapping[str, str]) -> Sequence[Volume]:
        """All volumes that carry all of `labels`."""
        ...

    async def create_volume(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str]
    ) -> Volume:
        """A `local` volume. One that exists under the name is returned as it is."""
        ...

    async def remove_volume(self, name: str) -> None:
        """Remove; gone is not an error. Raises Conflict while it is in use."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...
