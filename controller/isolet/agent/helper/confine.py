"""Gives everything away and becomes another program. A program of its own; standard library only.

Run by `isolet.agent.helper.spawn` as root. What the other program gets:

- namespaces of its own for mounts, processes, IPC and host name, and for the network unless it was
  given the node's; as the first process of its own namespace it takes all its children with it;
- a root folder that holds the node's programs and libraries, read-only, a few devices, a `/tmp` in
  memory, and what `mounts` names; no `/proc`, no `/sys`, no socket of the engine;
- a numeric user and group that are not root's, no other group, no capability and no way to any,
  and limits on memory, time, files and processes.

It ends when its parent does, whatever ends that, and at once: the kernel kills it.

    confine.py <rights as JSON> <program> <arguments>...
"""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import stat
import sys
from typing import Any

_NEW_NS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_PID, _NEW_NET, _NEW_CGROUP = 0x20000000, 0x40000000, 0x02000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_REC, _PRIVATE = 0x4000, 1 << 18
_DETACH = 2
_SET_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 24, 38
_LAST_CAPABILITY = 63

_TOP = "/tmp"
"""Where the new root is put together; in a mount namespace of its own, so any folder will do."""
_ROOT = f"{_TOP}/root"
"""The root of the program lies below that of its namespace, and so it is in a chroot: the kernel
makes no user namespace for it, in which it would have every capability."""

SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
FAILED = 125
"""Exit code where the rights could not be given away, so nothing was run."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _checked(done, f"mount of {kind or 'a path'} on {target.removeprefix(_ROOT) or '/'}")


def _bind(descriptor: int, target: str, *, writable: bool, executable: bool = False) -> None:
    """Show what an open path stands for; the path is not looked up again."""
    place = f"{_ROOT}{target}"
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.makedirs(place, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    _mount(f"/proc/self/fd/{descriptor}", place, None, _BIND)
    is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
    flags = _REMOUNT | _BIND | _NOSUID | (0 if is_device else _NODEV)
    flags |= (0 if writable else _RDONLY) | (0 if executable else _NOEXEC)
    _mount("none", place, None, flags)


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def _source(path: str) -> int:
    found = _opened(path)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        raise OSError(errno.ELOOP, "what is to be shown is a link", path)
    return found


def _show_system(opened: dict[str, int]) -> None:
    """Programs and libraries, where links of the node point to each other as they do there."""
    for path, descriptor in opened.items():
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.symlink(os.readlink("", dir_fd=descriptor), f"{_ROOT}{path}")
        else:
            _bind(descriptor, path, writable=path in DEVICES, executable=path not in DEVICES)


def _show(item: dict[str, Any], descriptor: int) -> None:
    target, writable = str(item["target"]), bool(item["writable"])
    if item["kind"] == "bind":
        _bind(descriptor, target, writable=writable)
        return
    os.makedirs(f"{_ROOT}{target}", mode=0o755, exist_ok=True)
    device, place = f"/proc/self/fd/{descriptor}", f"{_ROOT}{target}"
    flags = _NOSUID | _NODEV | _NOEXEC
    try:
        _mount(device, place, "ext4", flags | (0 if writable else _RDONLY))
    except OSError as error:
        if writable or error.errno != errno.EBUSY:
            raise
        # A sandbox has it read-write, and then so is every mount; each can still forbid writing.
        _mount(device, place, "ext4", flags)
        _mount("none", place, None, flags | _REMOUNT | _BIND | _RDONLY)


def build_root(rights: dict[str, Any]) -> None:
    """Put the new root together and move into it. Sources are opened before anything is covered."""
    os.umask(0o022)  # The program's user goes through these folders, whatever the agent's own is.
    mounts = list(rights["mounts"])
    sources = [_source(str(item["source"])) for item in mounts]
    interpreter = os.path.realpath(sys.base_prefix)
    shown = [*SYSTEM, *DEVICES]
    if not interpreter.startswith("/usr"):
        shown.append(interpreter)
    system = {path: _opened(path) for path in shown if os.path.lexists(path)}
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", _TOP, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=0755")
    os.mkdir(_ROOT, mode=0o755)
    _show_system(system)
    for folder in ("/etc", "/tmp"):
        os.makedirs(f"{_ROOT}{folder}", mode=0o755, exist_ok=True)
    data = f"size={int(rights['tmp_bytes'])},mode=0700,uid={rights['uid']},gid={rights['gid']}"
    _mount("tmpfs", f"{_ROOT}/tmp", "tmpfs", _NOSUID | _NODEV | _NOEXEC, data)
    with open(f"{_ROOT}/etc/passwd", "w") as file:
        file.write(f"helper:x:{rights['uid']}:{rights['gid']}::/tmp:/bin/false\n")
    for item, descriptor in zip(mounts, sources, strict=True):
        _show(item, descriptor)
    _mount("none", _TOP, None, _REMOUNT | _RDONLY | _NOSUID | _NODEV)
    for descriptor in (*sources, *system.values()):
        os.close(descriptor)
    os.chdir(_TOP)
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _DETACH), "umount of the old root")
    os.chroot(_ROOT.removeprefix(_TOP))
    os.chdir("/")


def drop(rights: dict[str, Any]) -> None:
    """Become a user without rights, for good."""
    for name, most in rights["limits"].items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        resource.setrlimit(kind, (int(most), int(most)))
    os.umask(0o077)
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last one that this kernel knows
    os.setgroups([])
    os.setresgid(rights["gid"], rights["gid"], rights["gid"])
    os.setresuid(rights["uid"], rights["uid"], rights["uid"])
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _end_with_parent()  # A change of user forgets it.


def _end_with_parent() -> None:
    _checked(_libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "pdeathsig")


def _go_first() -> None:
    """Where the node has no memory left, what a stranger's files took of it is what goes.

    Without this it would be as dear to the kernel as the agent that it descends from.
    """
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _become(rights: dict[str, Any], argv: list[str], parent: int) -> None:
    """In the child: all of it, then the program. `parent`: a pipe that the parent holds open."""
    try:
        build_root(rights)
        drop(rights)
        # A parent that died before it could take this with it has closed its end: this is the end.
        if select.select([parent], [], [], 0)[0]:
            os._exit(FAILED)
        os.closerange(3, max(parent + 1, 64))
        os.execv(argv[0], argv)
    except OSError as error:
        what = error.strerror or str(error)
        place = f" ({error.filename})" if error.filename else ""
        os.write(2, f"confine: {what}{place}\n".encode())
    os._exit(FAILED)


def main(text: str, argv: list[str]) -> int:
    """Run the program and return its exit code, 128 + the signal's number if one ended it."""
    rights: dict[str, Any] = json.loads(text)
    _end_with_parent()
    if os.getppid() != rights["parent"]:
        return FAILED
    spaces = _NEW_NS | _NEW_UTS | _NEW_IPC | _NEW_PID | _NEW_CGROUP
    _checked(_libc.unshare(spaces | (0 if rights["network"] else _NEW_NET)), "unshare")
    _go_first()
    seen_by_child, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        _become(rights, argv, seen_by_child)
    os.close(seen_by_child)
    for standard in (0, 1):
        os.close(standard)  # or the other ends would never see that the program has closed them
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except OSError as error:
        os.write(2, f"confine: {error.strerror}\n".encode())
        sys.exit(FAILED)
