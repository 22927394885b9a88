"""Reads one revision out of a Git repository. A program of its own; standard library only.

Run as a helper (`isolet.agent.helper.spawn`) that sees one repository at /repo, read-only. Nothing
of the repository's configuration is used: git works in a folder of our own that has a configuration
of ours, and takes from the repository its objects, its refs and its HEAD. So no filter, hook,
monitor, command, include, remote, replacement or graft of it means anything, and what is missing is
not fetched. Attributes are the tree's own; of those only export-ignore has an effect, and every
file comes out as the bytes of its blob.

The request is one line of JSON on stdin, the answer on stdout:

    {"do": "resolve", "revision": …}        {"commit": …}
    {"do": "export", "commit": …, "most_bytes": …, "most_entries": …}
        frames of a tar archive (four bytes of length, then so many), one of length 0, and
        {"entries": …, "bytes": …, "submodules": [names…], "more_submodules": …, "lfs": …}

or, in place of the last line of either, {"problem": <kind>, "message": …}. The archive has plain
files, folders and symbolic links, each path once and after its folder, and GNU's long names only.
"""

import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from typing import IO, Any

REPOSITORY = "/repo"
_OWN = "/tmp/git"
_GIT = "git"
_ENV = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_ALLOW_PROTOCOL": "",
}
_CONFIG = """\
[core]
repositoryformatversion = 1
bare = true
bigFileThreshold = 8m
packedGitWindowSize = 32m
packedGitLimit = 256m
attributesFile = /dev/null
[tar]
umask = 0022
[extensions]
objectFormat = %s
"""
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-subst\n"
"""In the place that outranks a tree's own attributes: no conversion of any kind."""

_HARMLESS = {"noop", "noop-v1", "partialclone", "worktreeconfig", "preciousobjects"}
_LFS = b"version https://git-lfs.github.com/spec/v1\n"
_SUBMODULE = "160000"
_MOST_NAMED = 8
_PIECE = 256 << 10
_BLOCK = 512
_PAGE = 4096
_LATEST = 2**33 - 1
"""Seconds that the eleven octal digits of a header hold."""


class Problem(Exception):
    """Why it cannot be done, with a kind for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def _git(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    env = {**_ENV, "GIT_DIR": _OWN, "GIT_OBJECT_DIRECTORY": os.path.join(_folder(), "objects")}
    return subprocess.Popen(
        [_GIT, "--no-pager", *arguments], env=env, stdout=subprocess.PIPE, cwd="/tmp", **options
    )


def _folder() -> str:
    """The folder with objects and refs: a repository's root, bare or not, and nothing else."""
    try:
        names = set(os.listdir(REPOSITORY))
    except OSError as error:
        cure = "the helper's user has to be able to read all of it (chmod -R o+rX)"
        raise Problem("unreadable", f"it cannot be read ({error.strerror}): {cure}") from None
    inner = os.path.join(REPOSITORY, ".git")
    folder = REPOSITORY
    if ".git" in names:
        if not stat.S_ISDIR(os.lstat(inner).st_mode):
            raise Problem("no-repository", "it is a linked worktree or a submodule")
        folder = inner
    for name, is_kind in (("objects", os.path.isdir), ("refs", os.path.isdir)):
        if not is_kind(os.path.join(folder, name)):
            raise Problem("no-repository", f"it is not the root of a repository (no {name} in it)")
    if os.path.exists(os.path.join(folder, "commondir")):
        raise Problem("no-repository", "it is a linked worktree")
    return folder


def prepare() -> None:
    """Make the folder that git works in."""
    folder = _folder()
    os.makedirs(os.path.join(_OWN, "info"))
    with open(os.path.join(_OWN, "config"), "w") as file:
        file.write(_CONFIG % _object_format(folder))
    with open(os.path.join(_OWN, "info", "attributes"), "w") as file:
        file.write(_ATTRIBUTES)
    os.symlink(os.path.join(folder, "refs"), os.path.join(_OWN, "refs"))
    for name in ("packed-refs", "shallow"):
        if os.path.exists(os.path.join(folder, name)):
            os.symlink(os.path.join(folder, name), os.path.join(_OWN, name))
    with open(os.path.join(_OWN, "HEAD"), "wb") as file:
        file.write(_head(folder))


def _head(folder: str) -> bytes:
    try:
        descriptor = os.open(os.path.join(folder, "HEAD"), os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            head = file.read(4096)
    except OSError:
        head = b""
    plain = re.fullmatch(rb"(ref: refs/[^\s]+|[0-9a-f]{40}(?:[0-9a-f]{24})?)\n?", head)
    return head if plain else b"ref: refs/heads/main\n"


def _object_format(folder: str) -> str:
    """What its own configuration says of its form; nothing else is read of that."""
    config = os.path.join(folder, "config")
    form = "sha1"
    if not os.path.isfile(config):
        return form
    argv = [_GIT, "config", "--file", config, "--no-includes", "--null", "--get-regexp"]
    argv.append(r"^(core\.repositoryformatversion|extensions\..*)$")
    done = subprocess.run(argv, env=_ENV, stdout=subprocess.PIPE, cwd="/tmp", check=False)
    for item in done.stdout.decode(errors="replace").split("\0"):
        name, _, value = item.partition("\n")
        extension = name.removeprefix("extensions.")
        if extension == "objectformat" and value in ("sha1", "sha256"):
            form = value
        elif name == "core.repositoryformatversion":
            if value not in ("0", "1"):
                raise Problem("no-repository", f"its format {value[:20]!r} is not known here")
        elif extension == "refstorage" and value == "files":
            continue
        elif name and extension not in _HARMLESS:
            raise Problem("no-repository", f"its extension {extension[:40]!r} is not known here")
    return form


def resolve(revision: str) -> str:
    """The full id of the commit that a revision names, if it names exactly one.

    Raises:
        Problem: not-found, ambiguous.
    """
    base, rest = re.fullmatch(r"([^~^]*)(.*)", revision).groups()  # type: ignore[union-attr]
    asked = dict(_meanings(base))
    names = [f"{name}{rest}" for name in asked.values()]
    commits = _looked_up([f"{name}^{{commit}}" for name in names])
    found: dict[str, list[str]] = {}
    for meaning, (commit, kind) in zip(asked, commits, strict=True):
        if kind == "ambiguous":
            raise Problem("ambiguous", f"{revision} is short for more than one object: give more")
        if commit is not None:
            found.setdefault(commit, []).append(meaning)
    if len(found) > 1:
        meanings = "; ".join(f"{' and '.join(m)} is {commit}" for commit, m in found.items())
        cure = "say refs/heads/… or refs/tags/…, or the whole id"
        raise Problem("ambiguous", f"{revision} means several commits ({meanings}): {cure}")
    if not found:
        others = [kind for _, kind in _looked_up(names) if kind in ("blob", "tree", "tag")]
        if others:
            raise Problem("not-found", f"{revision} names a {others[0]} and no commit")
        raise Problem("not-found", f"the repository has no commit {revision}")
    return next(iter(found))


def _meanings(base: str) -> Iterator[tuple[str, str]]:
    """What a name may stand for, in words, and how it is spelt in full."""
    if base == "HEAD":
        yield "HEAD", "HEAD"
    if base.startswith("refs/"):
        yield base, base
    else:
        yield f"tag {base}", f"refs/tags/{base}"
        yield f"branch {base}", f"refs/heads/{base}"
        yield f"remote branch {base}", f"refs/remotes/{base}"
    if re.fullmatch(r"[0-9a-fA-F]{7,64}", base):
        yield f"commit {base}", base


def _looked_up(names: list[str]) -> list[tuple[str | None, str]]:
    """(id, kind) of each; (None, "missing") or (None, "ambiguous") where there is none."""
    git = _git("cat-file", "--batch-check", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    said, _ = git.communicate("".join(f"{name}\n" for name in names).encode())
    lines = said.decode(errors="replace").splitlines()
    if git.returncode or len(lines) != len(names):
        raise Problem("damaged", "its refs or objects cannot be read")
    found: list[tuple[str | None, str]] = []
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{40,64}) (commit|tree|blob|tag) [0-9]+", line)
        if match:
            found.append((match[1], match[2]))
        else:
            found.append((None, line.rpartition(" ")[2]))
    return found


def check_name(path: str) -> None:
    """Raises Problem for what would leave the workspace, or be a repository in it."""
    for part in path.split("/"):
        plain = part.rstrip(". ").casefold()
        if part in ("", ".", "..") or plain in (".git", "git~1") or len(os.fsencode(part)) > 255:
            raise Problem("unsupported", f"the tree has an entry {path[:200]!r}")
    if len(os.fsencode(path)) > 4000 or "\0" in path:
        raise Problem("unsupported", f"the tree has an entry {path[:100]!r}…, which is too long")


def submodules(commit: str, most: int) -> list[str]:
    """Paths of the submodules of a commit, all of its names checked on the way.

    Git holds the whole list of an archive in memory, so a tree without end is found out here.
    """
    git = _git("ls-tree", "-r", "-z", "--full-tree", commit, stderr=subprocess.DEVNULL)
    assert git.stdout is not None
    found, seen, held = [], 0, b""
    while piece := git.stdout.read(_PIECE):
        *lines, held = (held + piece).split(b"\0")
        seen += len(lines)
        if seen > most:
            git.kill()
            raise Problem("too-large", f"the tree has more than {most} files")
        for line in lines:
            head, _, name = line.partition(b"\t")
            path = os.fsdecode(name)
            check_name(path)
            if head.startswith(_SUBMODULE.encode()):
                found.append(path)
    if git.wait():
        raise Problem("damaged", _why(b""))
    return found


class Archive:
    """The archive on its way out, in frames."""

    def __init__(self, out: IO[bytes], most_bytes: int, most_entries: int) -> None:
        self._out = out
        self._most_bytes = most_bytes
        self._most_entries = most_entries
        self._folders: dict[str, bool] = {"": True}
        self._held = bytearray()
        self._room = 0
        self.entries = 0
        self.bytes = 0
        self.lfs = 0

    def add(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Pass one member on. Raises Problem."""
        path = member.name.rstrip("/")
        if not (member.isreg() or member.isdir() or member.issym()):
            raise Problem("unsupported", f"{path[:200]!r} is no file, folder or link")
        check_name(path)
        if path in self._folders or not self._folders.get(path.rpartition("/")[0]):
            raise Problem("unsupported", f"{path[:200]!r} is there twice, or below something else")
        self._folders[path] = member.isdir()
        size = member.size if member.isreg() else 0
        self.entries += 1
        self.bytes += size
        self._room += -(-size // _PAGE) * _PAGE + (0 if member.isreg() else _PAGE)
        if self._room > self._most_bytes:
            most = f"the {self._most_bytes} bytes of the workspace"
            raise Problem("too-large", f"the tree needs more than {most}")
        if self.entries > self._most_entries:
            raise Problem("too-large", f"the tree has more than {self._most_entries} entries")
        self.write(_plain(path, member, size).tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        if size:
            assert content is not None
            self._copy(content, size)

    def _copy(self, content: IO[bytes], size: int) -> None:
        left, first = size, True
        while left:
            piece = content.read(min(_PIECE, left))
            if not piece:
                raise Problem("damaged", "a file of the commit cannot be read to its end")
            if first and size < 1024 and piece.startswith(_LFS):
                self.lfs += 1
            first = False
            self.write(piece)
            left -= len(piece)
        self.write(bytes(-size % _BLOCK))

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send more of it, in frames that are worth their handling."""
        self._held += data
        if last or len(self._held) >= _PIECE:
            self._out.write(len(self._held).to_bytes(4, "big") + self._held)
            self._held.clear()


def _plain(path: str, member: tarfile.TarInfo, size: int) -> tarfile.TarInfo:
    """The member with nothing but what an archive of ours may have."""
    made = tarfile.TarInfo(path)
    made.size = size
    made.mtime = min(max(int(member.mtime), 0), _LATEST)
    if member.isdir():
        made.type, made.mode = tarfile.DIRTYPE, 0o755
    elif member.issym():
        made.type, made.mode, made.linkname = tarfile.SYMTYPE, 0o777, member.linkname
        if not 0 < len(os.fsencode(member.linkname)) < 4096:
            raise Problem("unsupported", f"link {path[:200]!r} has no target that can be")
    else:
        made.mode = 0o755 if member.mode & 0o100 else 0o644
    return made


def export(request: dict[str, Any], out: IO[bytes]) -> dict[str, Any]:
    """Write the archive of a commit; returns what is to be said of it."""
    commit = str(request["commit"])
    if not re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", commit):
        raise Problem("not-found", "a full commit id is needed")
    if _looked_up([f"{commit}^{{commit}}"]) != [(commit, "commit")]:
        raise Problem("not-found", f"the repository has no commit {commit} any more")
    most = int(request["most_entries"])
    inner = submodules(commit, 2 * most)  # Some may be left out by export-ignore.
    archive = Archive(out, int(request["most_bytes"]), most)
    git = _git("archive", "--format=tar", commit, stderr=subprocess.PIPE)
    assert git.stdout is not None
    assert git.stderr is not None
    whole = True
    try:
        with tarfile.open(
            fileobj=git.stdout, mode="r|", encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := tar.next()) is not None:
                archive.add(member, tar.extractfile(member) if member.isreg() else None)
                tar.members.clear()  # type: ignore[attr-defined]  # A large tree has many.
        while git.stdout.read(_PIECE):
            pass  # the padding behind the end
    except tarfile.TarError:
        # Also where there is nothing behind the global header, which is no fault.
        whole = archive.entries == 0
    said = git.stderr.read()
    if git.wait() or not whole:
        raise Problem("damaged", _why(said))
    archive.write(bytes(2 * _BLOCK), last=True)
    return {
        "entries": archive.entries,
        "bytes": archive.bytes,
        "submodules": [ascii(name)[1:-1][:200] for name in inner[:_MOST_NAMED]],
        "more_submodules": max(0, len(inner) - _MOST_NAMED),
        "lfs": archive.lfs,
    }


def _why(said: bytes) -> str:
    """Git's last word, for the agent's log; what the status says is ours."""
    lines = said.decode(errors="replace").strip().splitlines()
    sys.stderr.write((lines or ["no word of git"])[-1][:300])
    return "objects of the commit are missing or damaged: a partial clone, or lost alternates?"


def main() -> None:
    """One request, one answer."""
    out = sys.stdout.buffer
    request = json.loads(sys.stdin.buffer.readline(65536))
    answer: dict[str, Any]
    exporting = request["do"] == "export"
    try:
        prepare()
        answer = export(request, out) if exporting else {"commit": resolve(request["revision"])}
    except Problem as problem:
        answer = {"problem": problem.kind, "message": problem.message}
    except MemoryError:
        answer = {"problem": "too-large", "message": "the tree needs too much memory to be read"}
    if exporting:
        out.write(bytes(4))
    out.write(json.dumps(answer).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    main()
