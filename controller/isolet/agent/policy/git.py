"""Which Git repositories a node serves, and how. Pure.

[git]
maximumEntries = 200000         # files, folders and links of one tree
timeoutSeconds = 120            # for one reading or one fetch

[git.roots]
team = "/srv/git/team"          # `team/tool` is the repository /srv/git/team/tool

[git.repositories.project]
path = "/srv/git/project.git"   # on this node

[git.repositories."vendor/lib"]
remote = "https://git.example/lib.git"  # or ssh://, file://: a mirror that the agent keeps
refreshSeconds = 60             # how old it may be where a name is resolved
tokenFile = "/etc/isolet/token" # https only
    caFile = "/etc/isolet/ca.crt"   # https only: who signed its certificate, if not the public ones
keyFile = "/etc/isolet/key"     # ssh only, with
knownHostsFile = "/etc/isolet/known_hosts"
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from isolet.base import gitnames

SCHEMES = ("https", "ssh", "file")
_NAME = re.compile(gitnames.REPOSITORY_PATTERN.removesuffix("$") + r"\Z")


def _name(text: str) -> str:
    if not _NAME.match(text) or len(text) > gitnames.MAX_REPOSITORY:
        raise ValueError(f"{text!r} is no name of a repository: {gitnames.REPOSITORY_PATTERN}")
    return text


def _root(text: str) -> str:
    if "/" in _name(text):
        raise ValueError(f"{text!r}: the name of a root has no slash")
    return text


def _absolute(text: str) -> str:
    parts = text.split("/")
    if not text.startswith("/") or ".." in parts or "\0" in text:
        raise ValueError(f"{text!r} is no absolute path")
    return text


def _remote(text: str) -> str:
    found = urlsplit(text)
    if found.scheme not in SCHEMES or any(ord(c) <= 32 or ord(c) == 127 for c in text):
        raise ValueError(f"must be a URL with one of {', '.join(s + '://' for s in SCHEMES)}")
    if found.password is not None or (found.username is not None and found.scheme != "ssh"):
        raise ValueError("must hold no credential: give a tokenFile")
    if bool(found.hostname) is (found.scheme == "file") or (found.hostname or "x").startswith("-"):
        raise ValueError("must name a host, or for file:// a path and no host")
    return text


Name = Annotated[str, AfterValidator(_name)]
RootName = Annotated[str, AfterValidator(_root)]
Place = Annotated[str, AfterValidator(_absolute)]
_Seconds = Annotated[int, Field(ge=1, le=3600, strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class GitRepository(_Table):
    """One repository: on the node, or elsewhere with a mirror on it."""

    path: Place | None = None
    remote: Annotated[str, AfterValidator(_remote)] | None = None
    refresh_seconds: Annotated[int, Field(ge=0, le=86_400, strict=True)] = 60
    token_file: Place | None = None
    ca_file: Place | None = None
    key_file: Place | None = None
    known_hosts_file: Place | None = None
    below: Place | None = Field(default=None, exclude=True)
    """Root that it has to lie in, links followed; set where a root names it."""

    @pydantic.model_validator(mode="after")
    def _makes_sense(self) -> "GitRepository":
        if (self.path is None) is (self.remote is None):
            raise ValueError("exactly one of path and remote")
        scheme = urlsplit(self.remote or "").scheme
        if (scheme == "ssh") is not (self.key_file is not None) or (scheme == "ssh") is not (
            self.known_hosts_file is not None
        ):
            raise ValueError(
                "keyFile and knownHostsFile go with an ssh:// remote, and it with both"
            )
        if (self.token_file or self.ca_file) and scheme != "https":
            raise ValueError("tokenFile and caFile go with an https:// remote")
        return self


class GitPolicy(_Table):
    """All that a node serves; nothing unless it says so."""

    repositories: dict[Name, GitRepository] = Field(default_factory=dict)
    roots: dict[RootName, Place] = Field(default_factory=dict)
    maximum_entries: Annotated[int, Field(ge=1, le=2_000_000, strict=True)] = 200_000
    timeout_seconds: _Seconds = 120

    def find(self, name: str) -> GitRepository | None:
        """The repository of this name."""
        exact = self.repositories.get(name)
        if exact is not None or not _NAME.match(name):
            return exact
        root, slash, rest = name.partition("/")
        folder = self.roots.get(root)
        if folder is None or not slash:
            return None
        return GitRepository(path=f"{folder.rstrip('/')}/{rest}", below=folder)

    def names(self) -> tuple[str, ...]:
        """What is told of them: names, and `<root>/*`."""
        return tuple(sorted((*self.repositories, *(f"{root}/*" for root in self.roots))))
