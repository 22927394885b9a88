"""Fetches a repository into a mirror. A program of its own; standard library only.

Run as a helper (`isolet.agent.helper.spawn`) that has the network and the mirror at /mirror; or no
network, and the source of a `file://` remote at /source. One line of JSON on stdin: the URL, and
what is needed to be let in. Says `done` where the mirror has all branches and tags of the remote.
"""

import base64
import json
import os
import subprocess
import sys

MIRROR = "/mirror"
SOURCE = "/source"
_KEY, _HOSTS, _CA = "/tmp/key", "/tmp/known_hosts", "/tmp/ca"
_SAFE = "/tmp/gitconfig"
"""Also for the other end of a `file://` remote: whoever owns it, it is the one that is meant."""

_SSH = (
    f"ssh -F /dev/null -i {_KEY} -o IdentitiesOnly=yes -o BatchMode=yes -o ConnectTimeout=20"
    f" -o StrictHostKeyChecking=yes -o UserKnownHostsFile={_HOSTS}"
    " -o GlobalKnownHostsFile=/dev/null"
)
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.fsync": "none",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.fsckObjects": "false",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "30",
    "protocol.allow": "never",
    "submodule.recurse": "false",
}
_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def _environment(request: dict[str, str]) -> dict[str, str]:
    scheme = request["url"].partition(":")[0]
    settings = {**_SETTINGS, f"protocol.{scheme}.allow": "always"}
    if "ca" in request:
        settings["http.sslCAInfo"] = _CA
    if "token" in request:
        word = base64.b64encode(f"x-access-token:{request['token'].strip()}".encode()).decode()
        settings["http.extraHeader"] = f"Authorization: Basic {word}"
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": _SAFE,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": _SSH,
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (key, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def _keep(path: str, content: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)


def _clear() -> None:
    """Take away what a fetch that was killed has left; there is never another one at work here.

    Its locks would stop all that follow, and its half packs would pile up.
    """
    for folder, _, names in os.walk(MIRROR):
        among_objects = folder.startswith(f"{MIRROR}/objects")
        for name in names:
            # No ref can be called so: git-check-ref-format(1).
            if name.endswith(".lock") or (among_objects and name.startswith("tmp_")):
                os.unlink(os.path.join(folder, name))


def main() -> int:
    """One fetch; the exit code of git."""
    request: dict[str, str] = json.loads(sys.stdin.buffer.readline(4 << 20))
    for name, path in (("key", _KEY), ("known_hosts", _HOSTS), ("ca", _CA)):
        if name in request:
            _keep(path, request[name])
    _keep(_SAFE, "[safe]\n\tdirectory = *\n")
    env = _environment(request)
    url = request["url"]
    if url.startswith("file://"):
        url = f"file://{SOURCE}"
    git = ["git", "--git-dir", MIRROR]
    _clear()
    # Always: no single file tells that an earlier one was not killed half way, and it changes
    # nothing where it was not (git-init(1)).
    init = ["git", "init", "-q", "--bare", "--template=", MIRROR]
    subprocess.run(init, env=env, check=True, stdout=subprocess.DEVNULL)
    fetch = [*git, "fetch", "-q", "--prune", "--no-tags", "--no-write-fetch-head", "--force"]
    done = subprocess.run(
        [*fetch, "--no-recurse-submodules", "--", url, *_REFS], env=env, check=False
    )
    if done.returncode == 0:
        print("done", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
