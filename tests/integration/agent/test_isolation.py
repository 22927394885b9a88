"""A sandbox proves its bounds from inside; a witness reads them from the engine."""

import socket as sockets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.plan import reasons
from isolet.wire.execution import ExecRequest, Medium
from witness import Witness

MIB = 1 << 20


async def say(host: ExecutionHost, uid: str, script: str, timeout: float = 30) -> str:
    request = ExecRequest(command=("sh", "-c", f"exec 2>&1; {script}"), timeout_seconds=timeout)
    result = await host.exec(uid, request)
    return result.stdout.decode()


async def test_every_bound_is_what_the_engine_was_told(host, node, spec, socket):
    seen = await host.provision(spec(medium=Medium.DISK))
    (container,) = Witness(socket).containers(node.installation)
    told = Witness(socket).inspect(container)
    limits = told["HostConfig"]
    assert {
        "user": told["Config"]["User"],
        "entrypoint": told["Config"]["Entrypoint"],
        "command": told["Config"]["Cmd"],
        "runtime": limits["Runtime"],
        "network": limits["NetworkMode"],
        "read-only": limits["ReadonlyRootfs"],
        "dropped": limits["CapDrop"],
        "added": limits["CapAdd"],
        "security": limits["SecurityOpt"],
        "privileged": limits["Privileged"],
        "cpu": limits["NanoCpus"],
        "memory": limits["Memory"],
        "swap": limits["MemorySwap"],
        "shm": limits["ShmSize"],
        "restart": limits["RestartPolicy"]["Name"],
        "auto-remove": limits["AutoRemove"],
        "init": limits["Init"],
        "devices": limits["Devices"] or [],
        "pid": limits["PidMode"],
        "log": limits["LogConfig"]["Type"],
        "ulimits": {u["Name"]: (u["Soft"], u["Hard"]) for u in limits["Ulimits"]},
        "tmpfs": sorted(limits["Tmpfs"]),
        "mounts": sorted((m["Type"], m["Destination"], m["RW"]) for m in told["Mounts"]),
    } == {
        "user": "65532:65532",
        "entrypoint": [],
        "command": ["/bin/sh", "/.isolet/run"],
        "runtime": "runsc",
        "network": "none",
        "read-only": True,
        "dropped": ["ALL"],
        "added": None,
        "security": ["no-new-privileges:true"],
        "privileged": False,
        "cpu": 1_000_000_000,
        "memory": 64 * MIB,
        "swap": 64 * MIB,
        "shm": MIB,
        "restart": "no",
        "auto-remove": False,
        "init": True,
        "devices": [],
        "pid": "",
        "log": "local",
        # 64 of the tenant's, and Isolet's own four: init, the guard's shells and its sleep.
        "ulimits": {"nproc": (68, 68), "nofile": (1024, 1024), "core": (0, 0)},
        "tmpfs": ["/tmp"],
        "mounts": [("bind", "/.isolet", False), ("volume", "/workspace", True)],
    }
    assert limits["PidsLimit"] > 68
    assert {"noexec", "nosuid", "nodev"} <= set(limits["Tmpfs"]["/tmp"].split(","))
    await host.terminate(seen.uid)


async def test_inside_there_is_gvisor_and_nothing_to_gain(host, spec):
    seen = await host.provision(spec())
    told = await say(
        host,
        seen.uid,
        "cat /proc/version; id -u; id -g; cut -d: -f1 -s /proc/net/dev | tr -d ' '; "
        "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; "
        "grep ' / ' /proc/mounts; touch /x; echo '#!/bin/sh' > /tmp/s; chmod +x /tmp/s; /tmp/s",
    )
    host_version = Path("/proc/version").read_text().strip()
    lines = told.splitlines()
    assert lines[0] != host_version
    assert lines[0].startswith("Linux version 4.")
    assert lines[1:4] == ["65532", "65532", "lo"]
    assert "CapEff:\t0000000000000000" in told
    assert "CapBnd:\t0000000000000000" in told
    (root,) = [line for line in lines if " / " in line]
    assert root.split()[3].split(",")[0] == "ro"
    assert "/x: Permission denied" in told
    assert "/tmp/s: Permission denied" in told
    # The witness of the runtime: a kernel log that only gVisor writes.
    assert "gVisor" in await say(host, seen.uid, "dmesg")


@pytest.mark.parametrize("medium", list(Medium))
@pytest.mark.parametrize("write", ["dd if=/dev/zero of=big bs=1M count=32", "fallocate -l 10G big"])
async def test_a_full_workspace_is_enospc_and_not_a_kill(host, spec, medium, write):
    seen = await host.provision(spec(medium=medium))
    told = await say(host, seen.uid, f"{write}; echo code $?; stat -c %s big || echo 0")
    assert "code 1" in told
    assert int(told.split()[-1]) <= 16 * MIB
    assert await say(host, seen.uid, "rm -f big; echo alive") == "alive\n"


async def test_a_full_disk_workspace_explains_a_failed_command(host, spec):
    command = ("sh", "-c", "dd if=/dev/zero of=big bs=1M count=32")
    seen = await host.provision(spec(*command, medium=Medium.DISK))
    assert (await host.wait(seen.uid)).outcome.reason == reasons.WORKSPACE_FULL


async def test_the_pid_bound_is_eagain_and_the_sandbox_lives(host, spec):
    seen = await host.provision(spec())
    script = (
        "n=0; while [ $n -lt 100 ]; do (sleep 60 &) 2>/tmp/e || break; n=$((n+1)); done; "
        "while read -r l; do echo $l; done </tmp/e; echo started $n"
    )
    told = await say(host, seen.uid, script, timeout=60)
    assert "Resource temporarily unavailable" in told or "can't fork" in told
    running = int(told.split()[-1])
    assert 40 <= running <= 70
    assert await say(host, seen.uid, "echo alive") == "alive\n"


async def test_the_memory_bound_kills_and_says_so(host, spec):
    command = ("sh", "-c", "echo before; tail -c 200m /dev/zero | tail -n 1 >/dev/null; echo after")
    seen = await host.provision(spec(*command))
    result = await host.wait(seen.uid)
    assert result.outcome.reason == reasons.OOM_KILLED
    assert result.outcome.exit_code == 137
    assert result.stdout == b"before\n"


METADATA = "169.254.169.254"


@pytest.fixture
def listeners() -> Iterator[list[tuple[str, int]]]:
    """Live listeners on loopback, on an address of the host, and on the metadata address.

    The last one stands in a network namespace of its own, reached through a veth pair.
    """

    def sh(*argv: str) -> None:
        subprocess.run(argv, check=True, timeout=20, capture_output=True)

    name = "isolet-meta"
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    sh("ip", "netns", "add", name)
    server = None
    opened = []
    try:
        sh("ip", "link", "add", "isolet-m0", "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "addr", "add", "10.255.77.1/30", "dev", "isolet-m0")
        sh("ip", "link", "set", "isolet-m0", "up")
        sh("ip", "-n", name, "addr", "add", "10.255.77.2/30", "dev", "eth0")
        sh("ip", "-n", name, "addr", "add", f"{METADATA}/32", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        sh("ip", "route", "add", f"{METADATA}/32", "via", "10.255.77.2", "dev", "isolet-m0")
        server = subprocess.Popen(
            ["ip", "netns", "exec", name, "python3", "-c", _SERVER.format(host=METADATA)],
            stdout=subprocess.PIPE,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        found = [(METADATA, 80)]
        for address in ("127.0.0.1", "10.255.77.1"):
            listener = sockets.create_server((address, 0))
            opened.append(listener)
            found.append((address, listener.getsockname()[1]))
        yield found
    finally:
        for listener in opened:
            listener.close()
        if server is not None:
            server.kill()
            server.wait()
            server.stdout.close()
        sh("ip", "netns", "del", name)


_SERVER = """
import socket
listener = socket.create_server(("{host}", 80))
print("ready", flush=True)
while True:
    listener.accept()[0].close()
"""


async def test_no_address_is_reached_that_the_host_reaches(host, spec, python, listeners):
    for address in listeners:  # The positive control: each listener is live.
        sockets.create_connection(address, timeout=5).close()
    seen = await host.provision(spec(image=python, resources={"memory_bytes": 256 * MIB}))
    script = (
        "import socket\n"
        f"for a in {listeners!r} + [('1.1.1.1', 443)]:\n"
        "    try:\n"
        "        socket.create_connection(a, timeout=3)\n"
        "        print(a, 'REACHED')\n"
        "    except OSError as e:\n"
        "        print(a, type(e).__name__)\n"
        "try:\n"
        "    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))\n"
        "    print('udp REACHED')\n"
        "except OSError as e:\n"
        "    print('udp', type(e).__name__)\n"
    )
    request = ExecRequest(command=("python3", "-c", script), timeout_seconds=60)
    told = (await host.exec(seen.uid, request)).stdout.decode()
    assert "REACHED" not in told
    assert len(told.splitlines()) == len(listeners) + 2
