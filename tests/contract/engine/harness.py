"""The two engines under one suite: what a test needs of either, with the same words."""

import asyncio
import itertools
import os
import secrets
from pathlib import Path

import pytest

from fakes import containers as parts
from fakes.engine import FakeEngine, Kind
from isolet.agent.engine import api, base, docker
from isolet.base import names

USER = "65532:65532"
MIB = 1 << 20


def environment(name):
    """A value that hack/cluster gives; without it a test of the real engine fails, on purpose."""
    value = os.environ.get(name)
    if not value:
        pytest.fail(f'{name} is not set: run hack/cluster up, then eval "$(hack/cluster env)"')
    return value


class Bench:
    """What both have: unique names, sandbox configurations, running something to its end."""

    engine: base.Engine
    image: str
    runtime = "runsc"

    def __init__(self):
        self.installation = f"contract-{secrets.token_hex(6)}"
        self._numbers = itertools.count()

    def labels(self, **more):
        return {names.LABEL_INSTALLATION: self.installation, **more}

    def config(self, command, **changes):
        uid = f"{self.installation}-{next(self._numbers)}"
        values = {
            "name": names.container_name("contract", uid),
            "image": self.image,
            "runtime": self.runtime,
            "user": USER,
            "command": tuple(command),
            "labels": self.labels(**{names.LABEL_UID: uid}),
            "cpu_millis": 1000,
            "memory_bytes": 128 * MIB,
            "nproc": 64,
            "pids_limit": 600,
            "nofile": 256,
            "shm_bytes": MIB,
            "log_bytes": 64 * MIB,
            "tmpfs": (
                base.Tmpfs(path="/tmp", size_bytes=MIB, uid=65532, gid=65532, mode=0o1777),
                base.Tmpfs(
                    path="/workspace",
                    size_bytes=MIB,
                    uid=65532,
                    gid=65532,
                    mode=0o700,
                    executable=True,
                ),
            ),
        }
        return base.SandboxConfig(**{**values, **changes})

    async def started(self, command, **changes):
        """The id of a container that runs `command`."""
        container_id = await self.engine.create(self.config(command, **changes))
        await self.engine.start(container_id)
        return container_id

    async def ended(self, container_id, within=60.0):
        """The container, once it has ended."""
        async with asyncio.timeout(within):
            while True:
                found = await self.engine.inspect(container_id)
                if found.exit_code is not None:
                    return found
                await asyncio.sleep(0.01)

    async def output(self, container_id, *, after=None, follow=True):
        """All of its output by stream."""
        got = dict.fromkeys(base.Stream, b"")
        async for frame in self.engine.output(container_id, after=after or {}, follow=follow):
            got[frame.stream] += frame.data
        return got


class FakeBench(Bench):
    """The engine in memory."""

    is_fake = True

    def __init__(self):
        super().__init__()
        self.engine = FakeEngine(installation=self.installation)
        self.image = self.engine.add_image("shell:dev", files=["/bin/sh"]).id

    def shell(self, script, program=parts.sleeps):
        """The command that runs a shell script; the fake runs `program` instead."""
        return self.command("sh", "-c", script, program=program)

    def command(self, *argv, program=parts.sleeps):
        self.engine.programs[argv] = program
        return argv

    def copies(self, folder: Path, stdout: bytes, stderr: bytes = b""):
        """A command that writes these bytes, and the changes to the configuration it needs."""
        return self.command("copies", program=parts.prints(stdout, stderr)), {}

    def unstartable(self):
        """A command and changes with which the engine cannot start the container."""
        self.engine.unstartable["nobody",] = "unable to find user"
        return ("nobody",), {}

    def hang(self, call):
        return self.engine.fault(call, Kind.HANG)

    def drop(self, call):
        return self.engine.fault(call, Kind.DROP)

    async def away(self):
        self.engine.go_down()

    async def back(self):
        self.engine.come_up()

    def count(self, call):
        return self.engine.count(call)

    async def close(self):
        await self.engine.close()


_REQUESTS = {
    "create": "POST /v[0-9.]+/containers/create",
    "start": "POST /v[0-9.]+/containers/[^/]+/start",
    "kill": "POST /v[0-9.]+/containers/[^/]+/kill",
    "inspect": "GET /v[0-9.]+/containers/[^/]+/json",
    "remove": "DELETE /v[0-9.]+/containers/",
    "output": "GET /v[0-9.]+/containers/[^/]+/logs",
    "create_volume": "POST /v[0-9.]+/volumes/create",
}


class RealBench(Bench):
    """dockerd with runsc; through a proxy where faults are wanted."""

    is_fake = False

    def __init__(self, proxy=None):
        super().__init__()
        self.proxy = proxy
        self.socket = environment("ISOLET_DOCKER_SOCKETS").split()[0]
        self.image = environment("ISOLET_IMAGE_SHELL")
        # Some wait until one of them is over; a busy engine keeps within them all the same.
        limits = api.Timeouts(read=6.0, change=12.0, remove=15.0) if proxy else None
        self.engine = docker.DockerEngine(
            proxy.listen if proxy else self.socket,
            installation=self.installation,
            timeouts=limits,
        )

    def shell(self, script, program=None):
        return ("sh", "-c", script)

    def command(self, *argv, program=None):
        return argv

    def copies(self, folder, stdout, stderr=b""):
        (folder / "out").write_bytes(stdout)
        (folder / "err").write_bytes(stderr)
        folder.chmod(0o755)
        binds = (base.BindMount(source=str(folder), target="/in"),)
        return ("sh", "-c", "cat /in/out; cat /in/err >&2"), {"binds": binds}

    def unstartable(self):
        return ("true",), {"user": "nobody-has-this-name"}

    def hang(self, call):
        return self.proxy.rule(_REQUESTS[call], "hang")

    def drop(self, call):
        return self.proxy.rule(_REQUESTS[call], "drop")

    async def away(self):
        await self.proxy.stop()

    async def back(self):
        await self.proxy.start()

    def count(self, call):
        return self.proxy.count(_REQUESTS[call])

    async def close(self):
        """Remove whatever the test left, past the proxy."""
        engine = docker.DockerEngine(self.socket, installation=self.installation)
        labels = self.labels()
        for found in await engine.containers(labels):
            await engine.remove(found.id)
        for volume in await engine.volumes(labels):
            await engine.remove_volume(volume.name)
        await self.engine.close()
