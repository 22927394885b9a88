"""Reads files out of a workspace that a tenant has written. A program of its own; standard library.

Run by `isolet.agent.workspace.artifacts` as root, it gives everything away before it looks at the
first name: a mount namespace with the disk read-only, a network namespace with nothing in it, a
root folder that is the workspace, the sandbox's own user and group, no new privileges, and limits
on memory, time and files. Every path is resolved by openat2(2) beneath a folder that is held open,
through no link of any kind. What it finds goes to stdout as JSON lines, each file's bytes after
its line; the other side believes nothing of it but the bytes.

    reader.py <device> <empty folder> <uid> <gid> <request as JSON>
"""

import ctypes
import errno
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator

_NEW_NS, _NEW_NET, _NEW_IPC = 0x00020000, 0x40000000, 0x08000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18
_NO_NEW_PRIVS = 38
_OPENAT2 = 437
# RESOLVE_NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 64 << 10
_MOST_ENTRIES = 200_000
_MOST_DEPTH = 64
_MOST_PROBLEMS = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class Full(Exception):
    """A bound on all of it together was reached."""


def give_up_rights(device: str, view: str, uid: int, gid: int) -> None:
    """Become somebody who can read this workspace and nothing else."""
    _checked(_libc.unshare(_NEW_NS | _NEW_NET | _NEW_IPC))
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    source, target = os.fsencode(device), os.fsencode(view)
    _checked(_libc.mount(source, target, b"ext4", ctypes.c_ulong(flags), None))
    os.chroot(view)
    os.chdir("/")
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 4 * _MOST_DEPTH),
        (resource.RLIMIT_CPU, 120),
        (resource.RLIMIT_AS, 512 << 20),
    ):
        resource.setrlimit(kind, (most, most))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def open_beneath(folder: int, path: str, flags: int = _READ) -> int:
    """Open a path below an open folder, through no link.

    Raises:
        OSError: ELOOP and EXDEV where something in the path is a link or leads away.
    """
    how = _How(flags=flags, mode=0, resolve=_RESOLVE)
    found: int = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(folder),
        os.fsencode(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return found


def pattern(glob: str) -> "re.Pattern[str]":
    """A glob as an expression: `*` and `?` stay within a folder, `**` crosses folders."""
    parts = []
    words = glob.split("/")
    for number, word in enumerate(words):
        last = number == len(words) - 1
        if word == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
            continue
        escaped = re.escape(word).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append(escaped if last else escaped + "/")
    return re.compile("".join(parts) + r"\Z", re.DOTALL)


def has_wildcard(glob: str) -> bool:
    """Whether it may stand for more than one path."""
    return "*" in glob or "?" in glob


def walk(root: int) -> Iterator[str]:
    """Paths of everything that is no folder, in order."""
    seen = 0
    stack = [("", 0)]
    while stack:
        path, depth = stack.pop()
        try:
            folder = open_beneath(root, path or ".", _READ | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            with os.scandir(folder) as entries:
                found = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
        finally:
            os.close(folder)
        seen += len(found)
        if seen > _MOST_ENTRIES:
            raise Full(f"the workspace has more than {_MOST_ENTRIES} entries")
        for name, _ in (each for each in found if not each[1]):
            yield f"{path}{name}"
        if depth < _MOST_DEPTH:
            stack.extend((f"{path}{n}/", depth + 1) for n, is_dir in reversed(found) if is_dir)


class Sender:
    """Looks at one path after the other, within the bounds of the request."""

    def __init__(self, root: int, request: dict[str, object]) -> None:
        self._root = root
        self._max_file = int(str(request["max_file"]))
        self._left_bytes = int(str(request["max_total"]))
        self._left_files = int(str(request["max_files"]))
        self._problems = 0
        self._done: set[str] = set()

    def take(self, path: str) -> None:
        """Send the file, or what is wrong with it."""
        if path in self._done:
            return
        self._done.add(path)
        try:
            path.encode()
        except UnicodeEncodeError:
            self.problem(ascii(path), "ArtifactRejected", "its name is not UTF-8")
            return
        try:
            descriptor = open_beneath(self._root, path)
        except OSError as error:
            self.problem(path, *_refusal(error))
            return
        try:
            self._send(path, descriptor)
        finally:
            os.close(descriptor)

    def _send(self, path: str, descriptor: int) -> None:
        at = os.fstat(descriptor)
        if not stat.S_ISREG(at.st_mode):
            self.problem(path, "ArtifactRejected", f"{path} is not a regular file")
        elif at.st_size > min(self._max_file, self._left_bytes) or self._left_files < 1:
            most = f"{self._max_file} bytes a file, {self._left_bytes} left of all together"
            message = f"{path} has {at.st_size} bytes; at most {most}"
            self.problem(path, "ArtifactTooLarge", message)
        else:
            self._left_bytes -= at.st_size
            self._left_files -= 1
            _line({"found": path, "size": at.st_size})
            left = at.st_size
            while left:
                piece = os.read(descriptor, min(_PIECE, left))
                if not piece:
                    raise OSError(errno.EIO, f"{path} is shorter than it says")
                sys.stdout.buffer.write(piece)
                left -= len(piece)

    def problem(self, path: str, reason: str, message: str) -> None:
        """Tell what is wrong, so many times."""
        self._problems += 1
        if self._problems <= _MOST_PROBLEMS:
            _line({"problem": path, "reason": reason, "message": message[:512]})


def _refusal(error: OSError) -> tuple[str, str]:
    path = error.filename
    if error.errno == errno.ENOENT:
        return "ArtifactMissing", f"{path} is not there"
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return "ArtifactRejected", f"{path} is a link, or is reached through one"
    if error.errno == errno.ENOTDIR:
        return "ArtifactRejected", f"a parent of {path} is not a folder"
    return "ArtifactRejected", f"{path} cannot be opened: {error.strerror}"


def _line(fields: dict[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")


def main(device: str, view: str, uid: str, gid: str, text: str) -> None:
    """One request, one answer."""
    request = json.loads(text)
    give_up_rights(device, view, int(uid), int(gid))
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sender = Sender(root, request)
    globs = [str(glob) for glob in request["globs"]]
    for glob in globs:
        if not has_wildcard(glob):
            sender.take(glob)
    patterns = [pattern(glob) for glob in globs if has_wildcard(glob)]
    try:
        for path in walk(root) if patterns else ():
            if any(each.match(path) for each in patterns):
                sender.take(path)
    except Full as error:
        sender.problem("", "ArtifactTooLarge", str(error))
    _line({"done": True})
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
