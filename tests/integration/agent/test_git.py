"""Git revisions as workspaces, on a real engine with gVisor."""

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.agent.policy.git import GitPolicy, GitRepository
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import ExecRequest, ExecutionSpec, ExecutionWanted, GitSource, Medium
from tests.git_repo import COMMITTED_AT, Repo
from tests.integration.agent.conftest import MIB, Node

Spec = Callable[..., ExecutionSpec]
LISTING = """\
cd /workspace; find . -mindepth 1 | sort | while read -r f; do
  at=$(stat -c %Y "$f")
  if [ -L "$f" ]; then what=$(readlink "$f") at=any; elif [ -d "$f" ]; then what=folder at=any
  else what=$(sha256sum <"$f" | cut -c1-64); fi
  echo "$f $(stat -c '%A %u:%g' "$f") $at $what"
done
"""


@pytest.fixture
def repo(node: Node, tmp_path: Path) -> Repo:
    """`project` of the node's policy: a tag, and a branch that has gone on."""
    made = Repo(tmp_path / "project")
    (made.folder / "tool.sh").write_text("#!/bin/sh\necho a tool\n")
    (made.folder / "tool.sh").chmod(0o755)
    os.symlink("/etc/passwd", made.folder / "link")
    made.commit(
        {
            "README": "first\n",
            "src/" + "d" * 120 + "/main.py": "print(1)\n",
            "data": bytes(range(256)) * 999,
        }
    )
    made.git("tag", "v1")
    made.commit({"README": "second\n"})
    git = GitPolicy(repositories={"project": GitRepository(path=str(made.folder))})
    node.service._context.policy = node.policy = node.policy.model_copy(update={"git": git})
    return made


@pytest.fixture
def git_spec(spec: Spec) -> Spec:
    def make(*command: str, revision: str = "v1", medium: Medium = Medium.MEMORY) -> ExecutionSpec:
        plain = spec(*command, medium=medium)
        workspace = plain.workspace.model_copy(
            update={"git": GitSource(repository="project", revision=revision)}
        )
        return plain.model_copy(update={"workspace": workspace})

    return make


def expected(repo: Repo, commit: str) -> list[str]:
    """The listing by git's own word: names, modes and blobs of the tree."""
    lines = []
    for line in repo.git("ls-tree", "-r", "-t", commit).splitlines():
        (mode, kind, oid), name = line.split("\t")[0].split(), line.split("\t")[1]
        shown = {"120000": 0o120777, "100755": 0o100755, "100644": 0o100644}.get(mode, 0o040755)
        content = repo.content(oid) if kind == "blob" else b""
        what = hashlib.sha256(content).hexdigest() if kind == "blob" else "folder"
        at = str(COMMITTED_AT)
        if mode in ("120000", "040000"):
            at = "any"  # Some tars give links and folders the time of their making.
        if mode == "120000":
            what = content.decode()
        lines.append(f"./{name} {stat.filemode(shown)} 65532:65532 {at} {what}")
    return sorted(lines)


@pytest.mark.parametrize("medium", list(Medium))
async def test_a_tag_is_there_byte_for_byte_before_the_command_starts(
    host: ExecutionHost, node: Node, repo: Repo, git_spec: Spec, medium: Medium
) -> None:
    commit = repo.git("rev-parse", "v1")
    seen = await host.provision(git_spec("sh", "-c", LISTING, medium=medium))
    result = await host.wait(seen.uid)
    assert result.outcome.succeeded, result.outcome
    assert result.stdout.decode().splitlines() == expected(repo, commit)
    ended = await host.list()
    assert [(e.git.commit, e.git.entries) for e in ended if e.git] == [(commit, 7)]
    await host.terminate(seen.uid)
    assert not list((node.root / "trees").iterdir())


@pytest.mark.parametrize("medium", list(Medium))
async def test_a_session_has_its_tree_from_its_first_command_on(
    host: ExecutionHost, node: Node, repo: Repo, git_spec: Spec, medium: Medium
) -> None:
    git = GitSource(repository="project", revision="main")
    seen = await host.provision(git_spec(medium=medium), git=git)
    command = "cat README; cmp data /dev/stdin && ./tool.sh; ls -a"
    data = (repo.folder / "data").read_bytes()
    result = await host.exec(seen.uid, ExecRequest(command=("sh", "-c", command), stdin=data))
    assert result.stdout.decode().split() == [
        *("second", "a", "tool", ".", "..", "README", "data", "link", "src", "tool.sh")
    ], result.stderr
    assert list((node.root / "trees" / seen.uid).iterdir()) == []
    await host.reclaim(seen.uid)


async def test_a_revision_that_is_not_there_is_an_end_in_seconds(
    host: ExecutionHost, repo: Repo, git_spec: Spec
) -> None:
    with pytest.raises(errors.Refused, match="has no commit v9") as caught:
        await host.provision(git_spec("true", revision="v9"))
    assert caught.value.reason == reasons.REVISION_NOT_FOUND


async def test_a_tree_that_does_not_fit_is_refused_and_leaves_nothing(
    host: ExecutionHost, node: Node, repo: Repo, git_spec: Spec
) -> None:
    repo.commit({"large": os.urandom(20 * MIB)})
    with pytest.raises(errors.Refused, match="needs more than") as caught:
        await host.provision(git_spec("true", revision="main"), uid="big")
    assert caught.value.reason == reasons.TREE_TOO_LARGE
    await host.reclaim("big")
    assert not list((node.root / "trees").iterdir())


async def test_a_repository_that_the_policy_does_not_name_is_refused(
    host: ExecutionHost, repo: Repo, git_spec: Spec
) -> None:
    plain = git_spec("true")
    other = GitSource(repository="other", revision="v1")
    workspace = plain.workspace.model_copy(update={"git": other})
    with pytest.raises(errors.Refused, match="other is not among the repositories of this node"):
        await host.provision(plain.model_copy(update={"workspace": workspace}))


async def test_f13_an_agent_that_is_restarted_imports_the_commit_that_it_recorded(
    node: Node, repo: Repo, git_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repo.git("rev-parse", "main")
    wanted = ExecutionWanted(
        uid="pinned",
        name="pinned",
        spec=git_spec("cat", "README", revision="main"),
        active_deadline_seconds=60,
    )
    assert node.service is not None
    monkeypatch.setattr(node.service._imports, "read", lambda record: None)
    await node.service.put(wanted, None)
    async with asyncio.timeout(60):
        while (await node.service.get("pinned")).git is None:
            await asyncio.sleep(0.05)
    await node.close()
    assert repo.commit({"README": "third\n"}) != commit
    service = await node.open()
    await service.put(wanted, None)
    result = await ExecutionHost(service).wait("pinned")
    assert result.stdout == b"second\n"
    seen = await service.get("pinned")
    assert seen.git is not None
    assert seen.git.commit == commit
