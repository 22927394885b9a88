"""What this node can be trusted with, proved by doing it. What fails closes that capability.

Nothing falls back: a node without a proved `runsc` takes no work, and its condition names the cure.
"""

import asyncio
from dataclasses import dataclass

from isolet.agent.engine import config as engine_config
from isolet.agent.engine.base import EngineInfo, SandboxConfig, Status, Stream
from isolet.agent.service.context import Context
from isolet.base import errors, names
from isolet.wire.node import NodeCondition

REQUIRED_ARGUMENTS = ("--network=none", "--host-uds=open")
"""Arguments that the daemon's configuration must give to the runtime."""

REQUALIFY_SECONDS = 600.0
RETRY_SECONDS = 10.0
PROBE_SECONDS = 20.0
_PROBE_LOOK_SECONDS = 0.05
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Qualification:
    """The verdicts of one round."""

    conditions: tuple[NodeCondition, ...]
    runtimes: tuple[str, ...] = ()
    media: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def is_serving(self) -> bool:
        """Whether sandboxes can be started at all; an optional capability may be closed."""
        return bool(self.runtimes)

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed, of what is optional neither."""
        return all(condition.status == "True" for condition in self.conditions)


def next_round_in(found: Qualification, failed: int) -> float:
    """Seconds until the next round. PURE.

    A node that serves nothing is looked at often. One that lacks something optional may lack it for
    good, and each round starts a sandbox: it is looked at soon, then ever less often.

    Args:
        found: what the last round found.
        failed: how many rounds in a row have found it serving and not whole, this one included.
    """
    if found.is_whole:
        return REQUALIFY_SECONDS
    if not found.is_serving:
        return RETRY_SECONDS
    return min(REQUALIFY_SECONDS, RETRY_SECONDS * 2.0 ** min(max(0, failed - 1), 16))


def verdict(kind: str, problem: str | None, reason: str, good: str) -> NodeCondition:
    """A condition that is True, or False with the problem and its cure."""
    if problem is None:
        return NodeCondition(type=kind, status="True", reason="OK", message=good)
    return NodeCondition(type=kind, status="False", reason=reason, message=problem)


def runtime_problem(info: EngineInfo, runtime: str) -> str | None:
    """Why the engine's configuration of a runtime cannot be used, from what it says. Pure."""
    if runtime not in info.runtimes:
        return f"the engine knows no runtime {runtime!r}: add it to daemon.json and restart it"
    _, arguments = info.runtimes[runtime]
    missing = [argument for argument in REQUIRED_ARGUMENTS if argument not in arguments]
    if runtime == "runsc" and missing:
        return f"runtime {runtime!r} lacks {' '.join(missing)}: add it to its runtimeArgs"
    return None


class Qualifier:
    """Runs the checks of one node."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def run(self) -> Qualification:
        """One round. Never raises: what cannot be checked is a condition."""
        try:
            info = await self._context.engine.info()
        except errors.IsoletError as error:
            return _engine_down(error.message)
        live = (
            None
            if info.live_restore
            else (
                "live-restore is off: a restart of the engine would kill every sandbox; "
                'set "live-restore": true in daemon.json'
            )
        )
        conditions = [
            verdict("EngineReady", None, "", f"engine {info.version} answers"),
            verdict("LiveRestore", live, "LiveRestoreOff", "sandboxes outlive the engine"),
        ]
        runtimes = [await self._runtime(info, name) for name in self._context.policy.runtimes]
        conditions.append(_runtimes_condition(runtimes))
        disk = await self._disk()
        conditions.append(verdict("DiskWorkspaces", disk, "LoopDevicesMissing", "a disk was made"))
        git, repositories = await self._git()
        conditions += git
        proved = tuple(name for name, problem in runtimes if problem is None)
        return Qualification(
            conditions=tuple(conditions),
            runtimes=proved if live is None else (),
            media=("Memory", "Disk") if disk is None else ("Memory",),
            repositories=repositories,
            architecture=info.architecture,
        )

    async def _git(self) -> tuple[list[NodeCondition], tuple[str, ...]]:
        """Of a node whose policy names repositories."""
        names_ = self._context.policy.git.names()
        if not names_:
            return [], ()
        problem = await self._context.trees.usable()
        good = f"{len(names_)} named by the policy"
        found = verdict("GitRepositories", problem, "GitUnusable", good)
        return [found], names_ if problem is None else ()

    async def _disk(self) -> str | None:
        try:
            return await self._context.disks.usable()
        except errors.IsoletError as error:
            return error.message

    async def _runtime(self, info: EngineInfo, runtime: str) -> tuple[str, str | None]:
        problem = runtime_problem(info, runtime)
        if problem is None:
            problem = await self._prove(runtime)
        return runtime, problem

    async def _prove(self, runtime: str) -> str | None:
        """Start a real sandbox and see on the host that the runtime is what runs it."""
        image = await self._probe_image()
        if image is None:
            return (
                "no image with a shell is on the node, so no sandbox could be started to prove it"
            )
        wanted = _probe(self._context.installation, image, runtime)
        engine = self._context.engine
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await engine.remove(wanted.name)
                return await self._probe_with(wanted)
        except TimeoutError:
            return f"a sandbox of runtime {runtime!r} did not start in {PROBE_SECONDS:.0f} s"
        except errors.IsoletError as error:
            return f"a sandbox of runtime {runtime!r} could not be started: {error.message}"
        finally:
            await _quietly_remove(self._context, wanted.name)

    async def _probe_with(self, wanted: SandboxConfig) -> str | None:
        engine = self._context.engine
        made = await engine.create(wanted)
        differences = engine_config.differences(
            engine_config.bounds(wanted), (await engine.inspect(made)).seen
        )
        if differences:
            return "the engine does not keep the bounds asked for: " + "; ".join(differences)
        await engine.start(made)
        seen = await engine.inspect(made)
        while seen.status is Status.CREATED:
            await asyncio.sleep(_PROBE_LOOK_SECONDS)
            seen = await engine.inspect(made)
        return await self._not_gvisor(made, seen.pid) if wanted.runtime == "runsc" else None

    async def _not_gvisor(self, container_id: str, pid: int) -> str | None:
        """Why a running sandbox is not gVisor's, seen from the host and from inside.

        Another runtime, which the node's own policy must name, only has to start: it is for work
        that needs no such boundary.
        """
        if not self._context.proof_of_runtime(pid):
            return "the host process of a runsc sandbox is not runsc"
        if await self._first_line(container_id) in ("", self._context.kernel):
            return "a program under runsc sees the host's own kernel"
        return None

    async def _first_line(self, container_id: str) -> str:
        """What the probe printed: the kernel that it sees."""
        nothing = dict.fromkeys(Stream, 0)
        frames = self._context.engine.output(container_id, after=nothing, follow=True)
        async for frame in frames:
            return frame.data.decode(errors="replace").strip()
        return ""

    async def _probe_image(self) -> str | None:
        for image in await self._context.engine.images():
            has = await self._context.engine.image_has(image.id, ["/bin/sh", "/bin/sleep"])
            if all(has.values()):
                return image.id
        return None


def _runtimes_condition(runtimes: list[tuple[str, str | None]]) -> NodeCondition:
    problems = [problem for _, problem in runtimes if problem is not None]
    good = "a sandbox was started with " + ", ".join(name for name, _ in runtimes)
    return verdict(
        "RuntimeQualified", "; ".join(problems) if problems else None, "RuntimeUnqualified", good
    )


def _engine_down(message: str) -> Qualification:
    unknown = "not checked: the engine does not answer"
    return Qualification(
        conditions=(
            verdict("EngineReady", message, "EngineUnavailable", ""),
            NodeCondition(
                type="RuntimeQualified", status="Unknown", reason="NotProbed", message=unknown
            ),
        )
    )


async def _quietly_remove(context: Context, name: str) -> None:
    """A probe that stays is found by its label later; it must not fail the round."""
    try:
        await context.engine.remove(name)
    except errors.IsoletError:
        return


def _probe(installation: str, image: str, runtime: str) -> SandboxConfig:
    """A small sandbox with every bound that a real one has."""
    return SandboxConfig(
        name=names.container_name(installation, f"probe-{runtime}"),
        image=image,
        runtime=runtime,
        user="65532:65532",
        command=("/bin/sh", "-c", 'read -r k </proc/version; echo "$k"; exec sleep 30'),
        labels={names.LABEL_INSTALLATION: installation, names.LABEL_KIND: "probe"},
        cpu_millis=500,
        memory_bytes=64 * _MIB,
        nproc=8,
        pids_limit=280,
        nofile=256,
        shm_bytes=_MIB,
        log_bytes=_MIB,
        working_dir="/",
    )
