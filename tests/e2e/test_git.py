"""Workspaces that begin with a Git revision, as a user has them."""

import hashlib
import json
import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.world import ROOT, World, a_template, an_execution, condition
from tests.git_repo import Repo


@pytest.fixture
def repo(world: World) -> Iterator[Repo]:
    """`samples/project` of every node: tag v1, and main beyond it."""
    folder = world.stack.repositories / "project"
    made = Repo(folder)
    made.commit({"README": "the first\n", "src/tool.py": "print(6 * 7)\n"})
    made.git("tag", "-a", "-m", "the first", "v1")
    made.commit({"README": "the second\n"})
    yield made
    shutil.rmtree(folder)


def git(revision: str, repository: str = "samples/project", **workspace: object) -> dict:
    return {"workspace": {"git": {"repository": repository, "revision": revision}, **workspace}}


def test_a_tag_from_apply_to_the_commit_in_the_status(world: World, repo: Repo) -> None:
    world.kubectl("apply", "-f", str(ROOT / "examples" / "class-standard.yaml"))
    world.kubectl("apply", "-f", str(ROOT / "examples" / "git.yaml"))
    status = world.finished("checkout")
    commit = repo.git("rev-parse", "v1^{commit}")
    assert condition({"status": status}, "Succeeded")["reason"] == "Succeeded", status
    assert status["resolved"]["commit"] == commit
    assert status["output"]["stdoutTail"].endswith("the first\n")
    assert "README" in status["output"]["stdoutTail"]
    assert condition({"status": status}, "WorkspaceComplete") == {}
    for node in world.stack.nodes():
        seen = world.get("executionnode", node)
        assert seen is not None
        assert seen["status"]["repositories"] == ["samples/*"]
        assert condition(seen, "GitRepositories")["status"] == "True"
    world.kubectl("delete", "-f", str(ROOT / "examples" / "class-standard.yaml"))


def test_a_branch_that_moves_on_is_the_commit_that_was_recorded(world: World, repo: Repo) -> None:
    commit = repo.git("rev-parse", "main")
    world.execution("branch", **git("main", medium="Disk"))
    world.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "execution/branch")
    repo.commit({"README": "the third\n"})
    world.process(
        "reads", shell="cat README", executionRef={"name": "branch"}, output={"statusTailBytes": 64}
    )
    assert world.finished("reads", kind="process")["output"]["stdoutTail"] == "the second\n"
    seen = world.get("execution", "branch")
    assert seen is not None
    assert seen["status"]["resolved"]["commit"] == commit


def test_a_process_of_its_own_keeps_a_file_of_the_tree(world: World, repo: Repo) -> None:
    template = a_template(**git("v1", medium="Disk"))
    world.process(
        "builds", shell="cp src/tool.py out", template=template, artifacts=[{"glob": "out"}]
    )
    status = world.finished("builds", kind="process")
    assert status["resolved"]["commit"] == repo.git("rev-parse", "v1^{commit}")
    (kept,) = status["artifacts"]
    assert kept["digest"] == "sha256:" + hashlib.sha256(b"print(6 * 7)\n").hexdigest()


REFUSED = {
    "no such revision": (git("v9"), "RevisionNotFound", "has no commit v9"),
    "no such folder": (git("v1", "samples/none"), "RepositoryUnavailable", "there is no folder"),
    "a repository of no node": (
        git("v1", "elsewhere"),
        "RepositoryUnavailable",
        "in no node's policy",
    ),
}


@pytest.mark.parametrize(("spec", "reason", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_imported_ends_by_itself(
    world: World, repo: Repo, spec: dict, reason: str, message: str
) -> None:
    world.execution("refused", "true", **spec)
    found = condition({"status": world.finished("refused")}, "Succeeded")
    assert (found["status"], found["reason"]) == ("False", reason), found
    assert message in found["message"]


def test_a_repository_that_the_class_does_not_grant_is_refused_at_once(world: World) -> None:
    document = an_execution("other", "true", **git("v1", "samples/other"))
    said = world.refused("apply", "-f", "-", stdin=json.dumps(document))
    assert "does not allow this repository" in said
