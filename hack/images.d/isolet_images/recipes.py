"""What is in each image."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from isolet_cluster import leftovers
from isolet_cluster.errors import ClusterError, log_tail, say

from .archive import Layer, Settings, sha256

# Raise it when a change here must make new images of the same packages.
RECIPE = 1
PASSWD = """\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
sandbox:x:65532:65532:sandbox:/tmp:/bin/sh
"""
GROUP = "root:x:0:\nnogroup:x:65534:\nsandbox:x:65532:\n"
RUNTIME = Path(__file__).resolve().parents[3] / "examples" / "runner" / "runtime.py"
FOLDERS = ("bin", "dev", "etc", "proc", "root", "run", "sys", "usr", "var")

# The last three are what the runner checks signatures with; debootstrap finds no virtual package,
# so the one that gives cryptography its own is named.
PYTHON_PACKAGES = (
    "ca-certificates",
    "python3",
    "python3-cffi-backend",
    "python3-cryptography",
    "python3-jwt",
)
DEBOOTSTRAP_SECONDS = 1200
# Caches, the builder's own names, and what only a person at a terminal reads.
UNWANTED = re.compile(
    r"(dev|proc|sys|run|tmp|var/cache|var/log|var/tmp|var/lib/apt/lists|debootstrap|boot|media|mnt|srv)/.+"
    r"|debootstrap|etc/(hostname|resolv\.conf|machine-id)|var/lib/dpkg/.*-old"
    r"|usr/share/(doc|doc-base|info|lintian|locale|man)/.+"
)
# A shell of its own with its C library, for an image that truly lacks tar: busybox's shell has it
# built in.
SHELL_ONLY = re.compile(
    r"bin|sbin|lib|lib64|usr|usr/bin|usr/sbin|usr/lib|usr/lib64|usr/lib/[a-z0-9_]+-linux-gnu|tmp|etc"
    r"|etc/(passwd|group)|usr/bin/(dash|sh|sleep|cat|echo|env|true)"
    r"|usr/lib(64)?/([a-z0-9_]+-linux-gnu/)?(ld-linux[^/]*|libc\.so\.6)"
)


@dataclass(frozen=True)
class Recipe:
    """One image: its name, what decides its content, and how its layer is written."""

    name: str
    key: str
    write_layer: Callable[[Path], None]
    settings: Settings = field(default_factory=Settings)
    note: str = ""

    @property
    def tag(self) -> str:
        return f"isolet/{self.name}:dev"


def recipes(tools: Path, layer_of: Callable[[Recipe], Path], scratch: Path) -> list[Recipe]:
    """All images. `layer_of` gives the finished layer of another one."""
    busybox = (tools / "busybox").resolve()
    busybox_key = sha256(busybox)

    def small(name: str, settings: Settings | None = None) -> Recipe:
        chosen = settings or Settings()
        return Recipe(
            name,
            _key(name, busybox_key, vars(chosen)),
            lambda target: _busybox(target, busybox),
            chosen,
        )

    python = _python_recipe(tools, scratch)
    return [
        small("shell"),
        python,
        Recipe(
            "runner",
            _key("runner", python.key, sha256(RUNTIME)),
            lambda target: _runner(target, layer_of(python)),
            Settings(command=["/app/runtime", "--once", "warm"]),
        ),
        # From here on: what an image must not be, for tests.
        Recipe(
            "no-sh",
            _key("no-sh", busybox_key),
            lambda target: _one_binary(target, busybox),
            Settings(command=["/sleep", "3600"]),
        ),
        Recipe(
            "no-tar",
            _key("no-tar", python.key, SHELL_ONLY.pattern),
            lambda target: _shell_only(target, layer_of(python)),
        ),
        small(
            "entrypoint",
            Settings(
                entrypoint=["/bin/sh", "-c", 'echo WRAP; exec "$@"', "wrap"],
                stop_signal="SIGRTMIN+3",
            ),
        ),
        small("secret-env", Settings(environment=[*Settings().environment, "API_TOKEN=x"])),
    ]


def _key(*parts: object) -> str:
    text = json.dumps([RECIPE, platform.machine(), *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- busybox


def _busybox(target: Path, busybox: Path) -> None:
    done = subprocess.run(
        [str(busybox), "--list"], capture_output=True, text=True, timeout=10, check=True
    )
    with Layer(target) as layer:
        for name in FOLDERS:
            layer.folder(name)
        layer.folder("tmp", 0o1777)
        layer.folder("var/tmp", 0o1777)
        layer.file("etc/passwd", PASSWD.encode())
        layer.file("etc/group", GROUP.encode())
        layer.file("bin/busybox", busybox.read_bytes(), 0o755)
        for applet in sorted(set(done.stdout.split()) - {"busybox"}):
            layer.link(f"bin/{applet}", "busybox")
        for name in ("sbin", "usr/bin", "usr/sbin"):
            layer.link(name, "/bin")


def _one_binary(target: Path, busybox: Path) -> None:
    # It answers to the name it is called by, so here it is a `sleep` and nothing else.
    with Layer(target) as layer:
        layer.file("sleep", busybox.read_bytes(), 0o755)


def _shell_only(target: Path, python_layer: Path) -> None:
    with Layer(target) as layer:
        layer.part_of(python_layer, lambda name: SHELL_ONLY.fullmatch(name) is not None)


def _runner(target: Path, python_layer: Path) -> None:
    with Layer(target) as layer:
        layer.part_of(python_layer, lambda _: True)
        layer.folder("app")
        layer.file("app/runtime", RUNTIME.read_bytes(), 0o755)


# --- Debian


def _suite() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise ClusterError("/etc/os-release has no VERSION_CODENAME: is this Debian?")


def _mirror(suite: str) -> str | None:
    """Where this machine itself gets that suite from; None: debootstrap's own default."""
    done = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(CODENAME) $(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    for line in done.stdout.splitlines():
        uri, _, rest = line.partition(" ")
        if rest == f"{suite} main" and "security" not in uri:
            return uri
    return None


def _python_recipe(tools: Path, scratch: Path) -> Recipe:
    suite = _suite()

    def write(target: Path) -> None:
        root = scratch / "python-root"
        started = time.time()
        _debootstrap(tools, suite, root, scratch / "debootstrap.log")
        # A person's name for the uid that sandboxes run as, as in the small image.
        with (root / "etc/passwd").open("a") as passwd, (root / "etc/group").open("a") as group:
            passwd.write(PASSWD.splitlines()[-1] + "\n")
            group.write(GROUP.splitlines()[-1] + "\n")
        with Layer(target) as layer:
            layer.tree(root, lambda name: not UNWANTED.fullmatch(name), started - 1)
        clear(root)

    key = _key("python", suite, PYTHON_PACKAGES, UNWANTED.pattern)
    return Recipe(
        "python", key, write, Settings(command=["python3"]), "from Debian packages, about a minute"
    )


def _debootstrap(tools: Path, suite: str, root: Path, log: Path) -> None:
    mirror = _mirror(suite)
    argv = [
        str((tools / "debootstrap").resolve()),
        "--variant=minbase",
        f"--include={','.join(PYTHON_PACKAGES)}",
        suite,
        str(root),
        *([mirror] if mirror else []),
    ]
    with log.open("wb") as output, root.with_suffix(".lock").open("w") as lock:
        # The child holds the lock as well: should we be killed, the next call waits for the orphan
        # instead of working in its folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        clear(root)
        code = _run_bounded(argv, output, lock.fileno())
    if code is None:
        raise ClusterError(f"debootstrap took more than {DEBOOTSTRAP_SECONDS} s, see {log}")
    if code:
        raise ClusterError(f"debootstrap failed. The end of its log {log}:\n{log_tail(log)}")
    say("  Debian packages are unpacked, packing the image")


def _run_bounded(argv: list[str], output: IO[bytes], keep_open: int) -> int | None:
    """Its exit code; None when it took too long. Nothing of it outlives this call."""
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=[keep_open],
    )
    try:
        return child.wait(DEBOOTSTRAP_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def clear(root: Path) -> None:
    """Also of a debootstrap that was killed and left /proc mounted in there."""
    leftovers.unmount_below([root])
    leftovers.remove_tree(root)
