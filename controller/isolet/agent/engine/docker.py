"""The engine behind a Docker socket: implements `base.Engine` over the Engine API.

The agent's service is its only caller. It holds no state of its own and never repeats a call that
changes something, with one exception: a removal that the engine answered with "in progress".
"""

import asyncio
import contextlib
import dataclasses
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime

from isolet.agent.engine import (
    api,
    base,
    execs,
    inspected,
    leftovers,
    locallog,
    probe,
    process,
    streams,
    transport,
)
from isolet.agent.engine import config as sandbox_config
from isolet.base import errors, log, names

_IMAGE_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]*")
_POLL = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class DockerEngine:
    """One dockerd behind its local Unix socket."""

    def __init__(
        self,
        socket_path: str,
        *,
        installation: str,
        timeouts: api.Timeouts | None = None,
    ) -> None:
        self._timeouts = timeouts or api.Timeouts()
        self._api = api.API(socket_path, self._timeouts)
        self._process = process.EngineProcess(socket_path)
        self._installation = installation
        self._data_root: str | None = None
        self._log = log.get("engine", socket=socket_path)

    async def info(self) -> base.EngineInfo:
        """Identity and configuration of the engine."""
        reply = await self._api.get("/info", within=self._timeouts.scan)
        version = (await self._api.get("/version")).read(dict)
        spoken = await self._api.version()
        return reply.read(lambda raw: inspected.info(raw, version, spoken))

    async def up_since(self) -> float | None:
        """When the engine's process was started: its socket's credentials name its pid."""
        return await asyncio.to_thread(self._process.started_boottime)

    # --- images -----------------------------------------------------------------------------------

    async def images(self) -> Sequence[base.Image]:
        """All local images."""
        reply = await self._api.get("/images/json", within=self._timeouts.scan)
        return reply.read(lambda raw: [inspected.listed_image(entry) for entry in raw])

    async def image(self, reference: str) -> base.Image:
        """The local image that `reference` names; never pulls."""
        if not _IMAGE_REFERENCE.fullmatch(reference) or ".." in reference or "//" in reference:
            raise errors.Invalid(f"not an image reference: {reference!r}")
        return (await self._api.get(f"/images/{reference}/json")).read(inspected.image)

    async def image_has(self, image_id: str, paths: Sequence[str]) -> Mapping[str, bool]:
        """For each absolute path, whether the image has a file there."""
        name = f"{names.CONTAINER_PREFIX}-{probe.KIND}-{secrets.token_hex(8)}"
        try:
            container_id = await self._create(name, probe.create_body(image_id, self._installation))
            return await probe.has_files(self._api, container_id, paths)
        finally:
            await probe.to_the_end(self._remove_probe(name))

    async def _remove_probe(self, name: str) -> None:
        try:
            await self.remove(name)
        except errors.IsoletError as error:
            # Its labels let whoever looks for orphans find it; the answer stands without it.
            self._log.warning(
                "probe container left", extra={"container": name, "reason": error.reason}
            )

    # --- containers -------------------------------------------------------------------------------

    async def containers(self, labels: Mapping[str, str]) -> Sequence[base.ContainerSummary]:
        """All containers, running or not, that carry all of `labels`."""
        reply = await self._api.get(
            "/containers/json",
            {"all": "1", "filters": api.label_filter(labels)},
            within=self._timeouts.scan,
        )
        return reply.read(lambda raw: [inspected.summary(entry) for entry in raw])

    async def inspect(self, name_or_id: str) -> base.Container:
        """One container."""
        return (await self._api.get(_path(name_or_id, "json"))).read(inspected.container)

    async def create(self, config: base.SandboxConfig) -> str:
        """Create, do not start. Returns the id."""
        for mount in config.volumes:
            # The engine makes a missing volume on its own: unbounded, empty and without labels.
            await self._api.get(f"/volumes/{api.quoted(mount.name)}")
        return await self._create(config.name, sandbox_config.create_body(config))

    async def _create(self, name: str, body: Mapping[str, object]) -> str:
        reply = await self._api.change(
            "POST", "/containers/create", {"name": api.quoted(name)}, body
        )
        return reply.read(inspected.identity)

    async def start(self, container_id: str) -> None:
        """Start once.

        A failure that the engine answered is only called a refusal once inspect has confirmed that
        the container was never started; else it stays Unconfirmed.
        """
        try:
            await self._api.change(
                "POST",
                _path(container_id, "start"),
                within=self._timeouts.start,
                failed=errors.Refused,
            )
        except errors.Refused as refusal:
            if not await self._never_started(container_id):
                raise errors.Unconfirmed(refusal.message) from refusal
            raise

    async def _never_started(self, container_id: str) -> bool:
        try:
            return (await self.inspect(container_id)).started_at is None
        except errors.IsoletError:
            return False

    async def stop(self, container_id: str, *, grace_seconds: int) -> None:
        """TERM, wait, KILL."""
        if await self._thawed(container_id):
            with contextlib.suppress(errors.NotFound):
                await self._api.change(
                    "POST",
                    _path(container_id, "stop"),
                    {"t": grace_seconds},
                    within=grace_seconds + self._timeouts.stop_margin,
                )

    async def kill(self, container_id: str) -> None:
        """KILL the whole sandbox."""
        if await self._thawed(container_id):
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._api.change("POST", _path(container_id, "kill"), {"signal": "KILL"})

    async def _thawed(self, container_id: str) -> bool:
        """Unpause it if need be; whether there is anything to end."""
        try:
            status = (await self.inspect(container_id)).status
        except errors.NotFound:
            return False
        if status is base.Status.PAUSED:
            await self.unpause(container_id)
        return status in (base.Status.RUNNING, base.Status.PAUSED, base.Status.RESTARTING)

    async def rename(self, container_id: str, name: str) -> None:
        """Give it another name; the one that it has is not an error."""
        if (await self.inspect(container_id)).name != name:
            query = {"name": api.quoted(name)}
            await self._api.change("POST", _path(container_id, "rename"), query)

    async def pause(self, container_id: str) -> None:
        """Freeze; paused already is not an error."""
        try:
            await self._api.change("POST", _path(container_id, "pause"))
        except errors.Conflict:
            if (await self.inspect(container_id)).status is not base.Status.PAUSED:
                raise

    async def unpause(self, container_id: str) -> None:
        """Thaw; not paused is not an error."""
        try:
            await self._api.change("POST", _path(container_id, "unpause"))
        except (errors.Conflict, errors.Unavailable):
            # Docker 20.10 answers 500, newer ones 409.
            if (await self.inspect(container_id)).status is base.Status.PAUSED:
                raise

    async def remove(self, container_id: str) -> None:
        """Remove by force and wait until it is gone."""
        try:
            async with asyncio.timeout(self._timeouts.remove):
                await self._remove(container_id)
        except TimeoutError:
            raise errors.Unconfirmed(f"{container_id} is not confirmed to be gone") from None

    async def _remove(self, name_or_id: str) -> None:
        try:
            found = await self.inspect(name_or_id)
        except errors.NotFound:
            await leftovers.end(name_or_id)
            return
        if found.status is base.Status.PAUSED:
            await self.unpause(found.id)
        # By id from here on: the name may be given to another as soon as this one is gone.
        while True:
            being_removed = await self._delete(found.id)
            if await self._is_gone(found.id):
                if found.status is base.Status.CREATED:
                    await leftovers.end(found.id)
                return
            if not being_removed:
                raise errors.Unconfirmed(f"{found.id} is still there after its removal")

    async def _delete(self, container_id: str) -> bool:
        """Ask for the removal; whether the engine says that one is in progress already."""
        try:
            await self._api.change(
                "DELETE",
                _path(container_id),
                {"force": "1", "v": "1"},
                within=self._timeouts.remove,
            )
        except errors.Conflict:
            return True
        except (errors.NotFound, errors.Unconfirmed):
            # Whatever came of it, the look that follows decides.
            return False
        return False

    async def _is_gone(self, container_id: str) -> bool:
        """Look for about a second whether it is gone; no answer decides nothing."""
        for pause in _POLL:
            try:
                await self.inspect(container_id)
            except errors.NotFound:
                return True
            except errors.Unavailable:
                self._log.debug("no answer while waiting for a removal")
            await asyncio.sleep(pause)
        return False

    # --- streams ----------------------------------------------------------------------------------

    async def output(
        self, container_id: str, *, after: Mapping[base.Stream, int], follow: bool
    ) -> AsyncIterator[base.OutputFrame]:
        """Stored output after the given frame index of each stream, then, if `follow`, live."""
        reached = dict(after)
        if follow:
            async with contextlib.aclosing(self._logs(container_id, reached, follow=True)) as live:
                async for frame in live:
                    reached[frame.stream] = frame.index
                    yield frame
            await self._require_ended(container_id)
        # Docker 20.10 may end a live log before what was written last; the stored one has it all.
        async with contextlib.aclosing(self._logs(container_id, reached, follow=False)) as stored:
            async for frame in stored:
                yield frame

    async def _logs(
        self, container_id: str, after: Mapping[base.Stream, int], *, follow: bool
    ) -> AsyncGenerator[base.OutputFrame, None]:
        decoder = streams.StoredOutput(after)
        query = {"stdout": "1", "stderr": "1", "details": "1", "follow": int(follow)}
        async with self._api.stream(_path(container_id, "logs"), query) as body:
            try:
                async for data in body:
                    for frame in decoder.feed(data):
                        is_guess = decoder.is_guess(frame)
                        yield await self._checked(container_id, frame) if is_guess else frame
                decoder.end()
            except transport.Lost as error:
                raise errors.Unavailable(f"output cannot be read: {error}") from error
        if missing := decoder.missing():
            raise errors.Conflict(
                f"fewer frames of {', '.join(missing)} are stored than were read before",
                reason="OutputLost",
            )

    async def _checked(self, container_id: str, frame: base.OutputFrame) -> base.OutputFrame:
        """`frame` without the newline that was added to it, if the program wrote none."""
        if self._data_root is None:
            self._data_root = (await self.info()).data_root
        piece = frame.data[:-1]
        unended = await asyncio.to_thread(
            locallog.is_unended, self._data_root, container_id, frame.stream.value, piece
        )
        return dataclasses.replace(frame, data=piece) if unended else frame

    async def _require_ended(self, container_id: str) -> None:
        # An engine that shuts down ends a log in good order too, with the sandbox still alive.
        status = (await self.inspect(container_id)).status
        if status in (base.Status.RUNNING, base.Status.PAUSED, base.Status.RESTARTING):
            raise errors.Unavailable("the engine ended the output while the sandbox runs")

    async def events(
        self, *, since: datetime | None, installation: str
    ) -> AsyncIterator[base.EngineEvent]:
        """Events of containers with our installation label."""
        labels = {names.LABEL_INSTALLATION: installation}
        query = {"filters": api.label_filter(labels, type=["container"])}
        if since is not None:
            query["since"] = f"{since.timestamp():.6f}"
        decoder = streams.JSONLines()
        async with self._api.stream("/events", query) as body:
            try:
                async for data in body:
                    for raw in decoder.feed(data):
                        yield inspected.event(raw)
            except transport.Lost as error:
                raise errors.Unavailable(f"events cannot be read: {error}") from error

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
    ) -> AsyncIterator[base.ExecStream]:
        """Run a command in a running container, attached over a hijacked socket."""
        body = {
            "Cmd": list(command),
            "User": user,
            "WorkingDir": working_dir,
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
        }
        reply = await self._api.change("POST", _path(container_id, "exec"), body=body)
        exec_id = reply.read(inspected.identity)
        start = {"Detach": False, "Tty": False}
        async with self._api.hijack(f"/exec/{exec_id}/start", start) as (connection, rest):
            stream = execs.Exec(exec_id, connection, rest, self.inspect_exec)
            if not stdin:
                await stream.close_stdin()
            yield stream

    @contextlib.asynccontextmanager
    async def attach(self, container_id: str) -> AsyncIterator[base.InputStream]:
        """The stdin of a running container."""
        # Nothing but stdin: a program waits for who is attached to its output and does not read it.
        query = {"stream": "1", "stdin": "1"}
        async with self._api.hijack(_path(container_id, "attach"), query=query) as (connection, _):
            yield execs.Input(connection)

    async def inspect_exec(self, exec_id: str) -> base.ExecFacts:
        """State of an exec."""
        return (await self._api.get(f"/exec/{api.quoted(exec_id)}/json")).read(inspected.exec_facts)

    # --- volumes ----------------------------------------------------------------------------------

    async def volumes(self, labels: Mapping[str, str]) -> Sequence[base.Volume]:
        """All volumes that carry all of `labels`."""
        reply = await self._api.get(
            "/volumes", {"filters": api.label_filter(labels)}, within=self._timeouts.scan
        )
        return reply.read(lambda raw: [inspected.volume(entry) for entry in raw["Volumes"] or ()])

    async def create_volume(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str]
    ) -> base.Volume:
        """A `local` volume. One that exists under the name is returned as it is."""
        body = {
            "Name": api.quoted(name),
            "Driver": "local",
            "DriverOpts": dict(options),
            "Labels": dict(labels),
        }
        reply = await self._api.change("POST", "/volumes/create", body=body)
        return reply.read(inspected.volume)

    async def remove_volume(self, name: str) -> None:
        """Remove; gone is not an error."""
        with contextlib.suppress(errors.NotFound):
            await self._api.change("DELETE", f"/volumes/{api.quoted(name)}")

    async def close(self) -> None:
        """Nothing is kept open between calls; streams are closed by whoever reads them."""


def _path(name_or_id: str, action: str = "") -> str:
    path = f"/containers/{api.quoted(name_or_id)}"
    return f"{path}/{action}" if action else path
