"""Real repositories for tests, made by the real git and, where it refuses, by its plumbing."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "someone",
    "GIT_AUTHOR_EMAIL": "someone@git.example",
    "GIT_COMMITTER_NAME": "someone",
    "GIT_COMMITTER_EMAIL": "someone@git.example",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}

COMMITTED_AT = 1767323045
"""The time of every commit, in seconds."""


class Repo:
    """A repository in a folder that all may read."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        for parent in (folder.parent, *folder.parents):
            if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/pytest-of"):
                parent.chmod(parent.stat().st_mode | 0o011)
        folder.mkdir()
        self.git("init", "-q", "-b", "main", *options)

    def clone(self, folder: Path, *options: str) -> "Repo":
        """A clone, over git's own protocol."""
        self.git("clone", "-q", *options, f"file://{self.folder}", str(folder))
        made = Repo.__new__(Repo)
        made.folder = folder
        return made

    def git(self, *arguments: str, data: bytes = b"", **env: str) -> str:
        """What git prints."""
        done = subprocess.run(
            ["git", "-C", str(self.folder), "-c", "safe.directory=*", *arguments],
            env={**_ENV, **env},
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(errors="surrogateescape").strip()

    def commit(self, files: Mapping[str | bytes, str | bytes] = {}, *, add: bool = True) -> str:
        """Write files and commit all there is; the commit's id."""
        for name, content in files.items():
            path = Path(os.fsdecode(os.path.join(os.fsencode(self.folder), os.fsencode(name))))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        if add:
            self.git("add", "-A", "-f")
        self.git("commit", "-q", "--allow-empty", "--no-verify", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def content(self, oid: str) -> bytes:
        """The bytes of a blob."""
        argv = ["git", "-C", str(self.folder), "-c", "safe.directory=*", "cat-file", "blob", oid]
        return subprocess.run(argv, env=_ENV, capture_output=True, check=True).stdout

    def blob(self, content: bytes) -> str:
        """A blob that no tree has yet."""
        return self.git("hash-object", "-w", "--stdin", data=content)

    def tree(self, *entries: tuple[str, bytes, str]) -> str:
        """A tree of (mode, name, id) as they are: git checks nothing here."""
        data = b"".join(
            mode.encode() + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries
        )
        options = ("hash-object", "-t", "tree", "-w", "--stdin", "--literally")
        return self.git(*options, data=data)

    def commit_tree(self, tree: str) -> str:
        """A commit of a tree, on main."""
        commit = self.git("commit-tree", tree, "-m", "odd")
        self.git("update-ref", "refs/heads/main", commit)
        return commit
