"""The launch script: argv and environment of any bytes, as a POSIX sh script. Pure.

It is the sandbox's main program (`/bin/sh /.isolet/<name>` below docker-init) and lies in a folder
that only this sandbox mounts, so that no value is ever in the container's configuration, which
`docker inspect` and the engine's own files would show. What it does, in order:

0. waits for a file, if it was told one: its workspace is filled meanwhile, by commands that need
   the few processes which the next steps take; or unpacks the archive that the workspace begins
   with, if there is one;
1. forks the lifetime guard, if asked to: left to PID 1, or the program would own a child that it
   never made; by `kill -9 1`, which also ends a sandbox whose PID 1 was stopped;
2. unpacks the files given, changes to the working folder, opens the input given, exports the
   environment, finds the program; if it cannot run, one line `<nonce> start-failed <why>` on stdout
   and exit 126 or 127;
3. writes `<nonce> started` and becomes the program. If the kernel refuses that after all (a bad
   interpreter, a foreign binary, too many bytes) `<nonce> exec-failed <code>` follows, so that a
   program's own 126 or 127 is told apart. `isolet.agent.workspace.control` reads these lines.

The script keeps no variables of its own (positional parameters only), so that none can leak or
clash. What the program sees beside the given environment is the image's, HOME and HOSTNAME from the
engine, and nothing of the shell: PWD, OLDPWD, SHLVL and `_` are unset unless given (bash as sh
still adds SHLVL=0). Works in busybox ash, dash and bash. Two limits: a file that has no `#!` line
and is no binary is run by sh, as execvp(3) does; and where sh is a busybox that prefers its own
applets to files, a program found on PATH gets its whole path as argv[0].
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from isolet.base import errors

MAX_STRING_BYTES = 131_071
"""The kernel's bound on one argument or `NAME=value`, its NUL apart (MAX_ARG_STRLEN)."""

MAX_TOTAL_BYTES = (2 << 20) - 8192
"""The kernel's bound on all of them (a quarter of an 8 MiB stack), less some room."""

MOUNT_POINT = "/.isolet"
"""Where a sandbox has its launch folder."""

TREE_MOUNT_POINT = "/.isolet-tree"
"""Where it has the archive that its workspace begins with, if there is one."""

TREE = f"{TREE_MOUNT_POINT}/tree.tar"

_NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Names that some sh computes itself, refuses to set or parses (dash: OPTIND; bash: the others), so
# that they are given by env(1) instead of `export`.
_SHELLS_OWN = frozenset(
    {"_", "OPTIND", "LINENO", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME"}
    | {"PPID", "UID", "EUID", "GROUPS", "SHLVL", "FUNCNAME", "SHELLOPTS", "DIRSTACK", "HISTCMD"}
    | {"PIPESTATUS"}
)

_GUARD = b"( ( sleep %d; kill -9 1 ) </dev/null >/dev/null 2>&1 & )\n"

_WAIT = b"""\
while [ ! -e %(wait)s ]; do sleep 0.02 2>/dev/null || sleep 1; done
"""

_FAIL = b"""\
isolet_fail() { echo '%(nonce)s start-failed' "$1"; exit "$2"; }
"""

# A slot's own script. Nothing but these lines runs before the tenant's: it says that it waits, and
# that is the only thing on its stdout; its input carries one line, which only says when.
_LINE = b"""\
echo '%(nonce)s started'
read -r isolet_line || exit 0
unset isolet_line
exec </dev/null
. %(script)s
"""

# Only bash goes on after a failed exec, and it does not run the EXIT trap then.
_RUN = b"""\
isolet_run() {
echo '%(nonce)s started'
trap 'echo "%(nonce)s exec-failed $?"' EXIT
[ -z "${BASH_VERSION-}" ] || shopt -s execfail
%(exec)s
set -- "$?"
trap - EXIT
echo '%(nonce)s exec-failed' "$1"
exit "$1"
}
"""

_TREE = b"""\
tar -xpf %(tree)s -C /workspace >/dev/null 2>&1 || isolet_fail no-tree 126
"""

_FILES = b"""\
tar -xpf %(files)s -C /workspace >/dev/null 2>&1 || isolet_fail no-files 126
"""

# The shell's own idea of where it is may still hold a link: `pwd -P` asks the kernel.
_CONFINE = b"""\
case "$(pwd -P)/" in /workspace/*) ;; *) isolet_fail bad-cwd 126 ;; esac
"""

# Opened before `started` is said: from then on the file may be taken away.
_STDIN = b"""\
[ -r %(stdin)s ] || isolet_fail bad-stdin 126
exec <%(stdin)s
"""

# A runner's input: the first line of the slot's own input, and then its end. The slot's input stays
# open, so that the slot outlives an agent. What copies the line waits for it already: under gVisor
# a program that has yet to be started, or a shell that reads byte by byte, costs many times that.
_DOCUMENT = b"""\
exec 3<&0
mkfifo -m 600 /tmp/.isolet-input || isolet_fail bad-stdin 126
head -n 1 <&3 >/tmp/.isolet-input 2>/dev/null &
exec 3<&- </tmp/.isolet-input 2>/dev/null
rm -f /tmp/.isolet-input
"""

_PREPARE = b"""\
cd %(cwd)s 2>/dev/null || isolet_fail bad-cwd 126
"""

_CLEAN = b"""\
unset OLDPWD PWD SHLVL _
"""

_RUN_PATH = b"""\
[ -e %(path)s ] || isolet_fail missing 127
[ -f %(path)s ] && [ -x %(path)s ] || isolet_fail not-executable 126
isolet_run %(path)s
"""

# Looks through PATH as execvp does; "$1" is what is left of it, "$2" the verdict so far. A shell
# that finds `cat` with no PATH at all would run its applet and not the file.
_RUN_FOUND = b"""\
isolet_find() {
while [ -n "$1" ]; do
set -- "${1#*:}" "$2" "$3" "${1%%%%:*}"
if [ -f "${4:-.}/"%(name)s ]; then
if [ -x "${4:-.}/"%(name)s ]; then
%(choose)s
fi
set -- "$1" not-executable 126
fi
done
isolet_fail "$2" "$3"
}
isolet_find "$PATH:" missing 127
"""
_CHOOSE = b"""\
if PATH=/.isolet command -v cat >/dev/null 2>&1; then isolet_run "${4:-.}/"%(name)s
else isolet_run %(name)s; fi"""
_CHOOSE_PATH = b"""isolet_run "${4:-.}/"%(name)s"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What a sandbox, or a command inside a session, is to run."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, bytes], ...] = ()
    cwd: str = "/workspace"
    nonce: str
    guard_seconds: int | None = None
    """End the whole sandbox after this long; None forks no guard. Takes two processes."""
    tree: bool = False
    """Whether the archive at `TREE` is unpacked into the workspace before all else."""
    files: str | None = None
    """Name of a tar archive in the launch folder, unpacked into the workspace by the user."""
    stdin: str | None = None
    """Name of a file in the launch folder that the program reads; None: what the engine gives."""
    wait: str | None = None
    """Name of a file in the launch folder; nothing is done before it is there."""
    document: bool = False
    """Whether the program is a runner: its input is a line that comes later (see `line`), and what
    it writes to stderr is thrown away. Takes one process until the document has come."""
    confined: bool = False
    """Whether the working folder must lie in the workspace, links followed."""


def session(maximum_seconds: int) -> tuple[str, ...]:
    """The argv that keeps a session's sandbox alive, at most this long."""
    return ("sleep", str(maximum_seconds))


def wait(nonce: str, guard_seconds: int, script: str) -> bytes:
    """The script of a warm slot: waits for one line, then becomes the launch script of that name.

    Reading costs a moment for each byte under gVisor, so the line is empty. What it starts has no
    input, as without a slot, and no guard of its own: this one's lasts for both.

    Raises:
        Invalid: see `validate`.
    """
    validate(Launch(argv=("sh",), nonce=nonce, guard_seconds=guard_seconds))
    return _GUARD % guard_seconds + _LINE % {b"nonce": nonce.encode(), b"script": _place(script)}


def line(document: bytes) -> bytes:
    """What a waiting runner's slot is sent, which is the document: the end of its line is its end.

    Raises:
        Invalid: it is not one line, so that the runner would be given less, or wait for the rest.
    """
    if not document.endswith(b"\n") or document.count(b"\n") != 1:
        raise errors.Invalid("document: must be one line with a newline at its end")
    return document


GO = b"\n"
"""What a waiting slot is sent once its launch script lies in its folder."""


def build(launch: Launch) -> bytes:
    """The script.

    Raises:
        Invalid: see `validate`.
    """
    validate(launch)
    argv = [_encode(word) for word in launch.argv]
    nonce = launch.nonce.encode()
    special = [pair for pair in launch.env if _is_shells_own(pair[0])]
    plain = [pair for pair in launch.env if not _is_shells_own(pair[0])]
    parts = [
        b"" if launch.wait is None else _WAIT % {b"wait": _place(launch.wait)},
        _FAIL % {b"nonce": nonce},
        _TREE % {b"tree": _quote(TREE.encode())} if launch.tree else b"",
        b"" if launch.guard_seconds is None else _GUARD % launch.guard_seconds,
        _RUN % {b"nonce": nonce, b"exec": _exec(argv[1:], special)},
        b"" if launch.files is None else _FILES % {b"files": _place(launch.files)},
        _PREPARE % {b"cwd": _quote(_encode(launch.cwd))},
        _CONFINE if launch.confined else b"",
        b"" if launch.stdin is None else _STDIN % {b"stdin": _place(launch.stdin)},
        _DOCUMENT if launch.document else b"",
        _CLEAN,
        _exports(plain),
        _start(argv[0]),
    ]
    return b"".join(parts)


def validate(launch: Launch) -> None:
    """Check all that the kernel or the shell could not carry.

    Raises:
        Invalid: with a message that names the place and the bound, and no value.
    """
    if not launch.argv or not launch.argv[0]:
        raise errors.Invalid("command: the program is empty")
    if not _NONCE.fullmatch(launch.nonce):
        raise errors.Invalid("nonce: 16 to 64 of A-Z, a-z, 0-9, _ and -")
    if launch.guard_seconds is not None and launch.guard_seconds < 1:
        raise errors.Invalid("guard: at least one second")
    if not launch.cwd.startswith("/") or "\0" in launch.cwd:
        raise errors.Invalid("cwd: must be an absolute path")
    total = sum(_checked(f"command[{i}]", _encode(word)) for i, word in enumerate(launch.argv))
    total += sum(_checked(f"env {name}", pair) for name, pair in _pairs(launch.env))
    if total > MAX_TOTAL_BYTES:
        raise errors.Invalid(
            f"command and env: {total} bytes in all; argument list too long (at most "
            f"{MAX_TOTAL_BYTES})"
        )
    if "=" in launch.argv[0] and any(_is_shells_own(name) for name, _ in launch.env):
        raise errors.Invalid("command[0]: a program with `=` in its name and shell variables")


def _place(name: str) -> bytes:
    """A file of the launch folder as a word."""
    return _quote(f"{MOUNT_POINT}/{name}".encode())


def _pairs(env: Iterable[tuple[str, bytes]]) -> Iterable[tuple[str, bytes]]:
    """(name, `NAME=value`), each name checked to be an identifier and alone."""
    seen = set()
    for name, value in env:
        if not _NAME.fullmatch(name):
            raise errors.Invalid("env: a name is not an identifier")
        if name in seen:
            raise errors.Invalid(f"env {name}: given twice")
        seen.add(name)
        yield name, name.encode() + b"=" + value


def _checked(where: str, raw: bytes) -> int:
    """The room that one string takes in the kernel's list."""
    if b"\0" in raw:
        raise errors.Invalid(f"{where}: holds a NUL byte")
    if len(raw) > MAX_STRING_BYTES:
        raise errors.Invalid(
            f"{where}: {len(raw)} bytes; argument too long (at most {MAX_STRING_BYTES})"
        )
    return len(raw) + 1 + 8  # its NUL and its pointer


def _exports(env: list[tuple[str, bytes]]) -> bytes:
    """The exports; a shell's remarks (an unknown locale) are not the program's stderr."""
    if not env:
        return b""
    lines = b"".join(b"export %s=%s\n" % (n.encode(), _quote(v)) for n, v in env)
    return b"{\n" + lines + b"} 2>/dev/null\n"


def _exec(arguments: list[bytes], special: list[tuple[str, bytes]]) -> bytes:
    """The exec line of `isolet_run`, whose "$1" is the program."""
    words = b"".join(b" " + _quote(word) for word in arguments)
    if not special:
        return b'exec "$1"' + words
    pairs = b"".join(b" " + _quote(n.encode() + b"=" + v) for n, v in special)
    choose = b'if [ -x /usr/bin/env ]; then set -- "$1" /usr/bin/env\n'
    choose += b'else set -- "$1" /bin/env; fi\n'
    return choose + b'exec "$2"' + pairs + b' "$1"' + words


def _start(program: bytes) -> bytes:
    """Check the program and run it."""
    if b"/" in program:
        # A path that begins with a dash would be an option of exec or test.
        path = b"./" + program if program.startswith(b"-") else program
        return _RUN_PATH % {b"path": _quote(path)}
    name = _quote(program)
    choose = _CHOOSE_PATH if program.startswith(b"-") else _CHOOSE
    return _RUN_FOUND % {b"name": name, b"choose": choose % {b"name": name}}


def _is_shells_own(name: str) -> bool:
    """Whether `export` may not set this name exactly in some shell."""
    return name in _SHELLS_OWN or name.startswith("BASH")


def _encode(word: str) -> bytes:
    """The word's bytes; surrogates stand for bytes that are not UTF-8, as in os.fsencode."""
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise errors.Invalid("command: holds a lone surrogate") from error


def _quote(raw: bytes) -> bytes:
    """The bytes as one word of sh."""
    return b"'" + raw.replace(b"'", b"'\\''") + b"'"
