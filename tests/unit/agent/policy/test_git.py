"""Which repositories a node serves: what its file may say, and what it finds."""

import pytest

from isolet.agent.policy import model
from isolet.base import errors

FACTS = model.NodeFacts(cpus=4, memory_bytes=8 << 30, disk_bytes=10 << 30)


def parsed(text: str) -> model.NodePolicy:
    return model.parse(text, FACTS)


GOOD = """
[git]
maximumEntries = 5
timeoutSeconds = 7
[git.roots]
team = "/srv/git/team"
[git.repositories.project]
path = "/srv/git/project.git"
[git.repositories."team/other"]
remote = "https://git.example/other.git"
tokenFile = "/etc/isolet/token"
[git.repositories.inner]
remote = "ssh://git@git.example:22/inner.git"
keyFile = "/k"
knownHostsFile = "/h"
refreshSeconds = 0
[git.repositories.near]
remote = "file:///srv/near.git"
"""


def test_what_a_file_may_say() -> None:
    git = parsed(GOOD).git
    assert (git.maximum_entries, git.timeout_seconds) == (5, 7)
    assert git.names() == ("inner", "near", "project", "team/*", "team/other")


@pytest.mark.parametrize(
    ("name", "path", "remote"),
    [
        ("project", "/srv/git/project.git", None),
        ("team/tool", "/srv/git/team/tool", None),
        ("team/a/b", "/srv/git/team/a/b", None),
        ("team/other", None, "https://git.example/other.git"),
    ],
)
def test_a_name_finds_its_repository(name: str, path: str | None, remote: str | None) -> None:
    found = parsed(GOOD).git.find(name)
    assert found is not None
    assert (found.path, found.remote) == (path, remote)
    assert found.below == ("/srv/git/team" if name in ("team/tool", "team/a/b") else None)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "other",
        "team",
        "team/",
        "team/../x",
        "team/.git",
        "/srv/git/project.git",
        "project/x",
        "team//x",
    ],
)
def test_a_name_that_finds_nothing(name: str) -> None:
    assert parsed(GOOD).git.find(name) is None


def test_a_node_that_says_nothing_serves_nothing() -> None:
    assert parsed("").git.names() == ()


BAD = {
    "neither": ("", "exactly one of path and remote"),
    "both": ('path = "/a"\nremote = "https://a/b"', "exactly one of path and remote"),
    "relative": ('path = "a"', "no absolute path"),
    "upwards": ('path = "/a/../b"', "no absolute path"),
    "another scheme": ('remote = "ext::sh -c id"', "must be a URL with one of"),
    "plain http": ('remote = "http://a/b"', "must be a URL with one of"),
    "scp form": ('remote = "git@a:b"', "must be a URL with one of"),
    "a password": ('remote = "https://a:b@c/d"', "must hold no credential"),
    "a token as name": ('remote = "https://token@c/d"', "must hold no credential"),
    "a newline": ('remote = "https://a/b\\nx"', "must be a URL with one of"),
    "no host": ('remote = "https:///b"', "must name a host"),
    "a host that is an option": (
        'remote = "ssh://-oProxyCommand=x/b"\nkeyFile = "/k"\nknownHostsFile = "/h"',
        "must name a host",
    ),
    "a file on a host": ('remote = "file://host/b"', "must name a host, or for file://"),
    "ssh without a key": ('remote = "ssh://a/b"', "keyFile and knownHostsFile"),
    "a key for https": ('remote = "https://a/b"\nkeyFile = "/k"', "keyFile and knownHostsFile"),
    "a token for ssh": (
        'remote = "ssh://a/b"\nkeyFile = "/k"\nknownHostsFile = "/h"\ntokenFile = "/t"',
        "tokenFile and caFile go with",
    ),
    "a key that is none": ('path = "/a"\nbranch = "main"', "there is no such key"),
}


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD.keys())
def test_what_a_file_may_not_say(text: str, why: str) -> None:
    with pytest.raises(errors.Invalid, match=r"git\.repositories\.x") as caught:
        parsed(f"[git.repositories.x]\n{text}\n")
    assert why in caught.value.message


@pytest.mark.parametrize("name", ["../x", "-x", "", "a/../b"])
def test_a_name_that_cannot_be(name: str) -> None:
    with pytest.raises(errors.Invalid, match="no name of a repository"):
        parsed(f'[git.repositories."{name}"]\npath = "/a"\n')
    with pytest.raises(errors.Invalid):
        parsed(f'[git.roots]\n"{name}" = "/a"\n')


def test_the_name_of_a_root_has_no_slash() -> None:
    with pytest.raises(errors.Invalid, match="has no slash"):
        parsed('[git.roots]\n"a/b" = "/a"\n')
