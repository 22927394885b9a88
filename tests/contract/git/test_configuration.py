"""Nothing that a repository configures runs a program or changes what is read."""

import os
from pathlib import Path

import pytest

from isolet.base import errors
from isolet.plan import reasons
from tests.contract.git.conftest import Reader
from tests.git_repo import COMMITTED_AT, Repo
from tests.untar import Entry

FILE = Entry("file", 0o644, b"text\n", COMMITTED_AT)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What `program` leaves behind when somebody runs it."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    return folder / "ran"


@pytest.fixture
def program(tmp_path: Path, mark: Path) -> str:
    made = tmp_path / "program"
    made.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    made.chmod(0o755)
    return str(made)


SETTINGS = {
    "a smudge filter": ("filter.x.smudge", ["archive", "HEAD"]),
    "a filter that is a process": ("filter.x.process", None),
    "a command for an archive's form": ("tar.tar.command", None),
    "a monitor of the file system": ("core.fsmonitor", ["status"]),
    "an alias": ("alias.archive", None),
    "a pager": ("core.pager", None),
    "a text converter": ("diff.x.textconv", None),
    "a command for ssh": ("core.sshCommand", None),
}


@pytest.mark.parametrize(("key", "control"), SETTINGS.values(), ids=SETTINGS.keys())
async def test_a_program_that_is_configured_is_not_run(
    reader: Reader, repo: Repo, program: str, mark: Path, key: str, control: list[str] | None
) -> None:
    repo.commit({"f": "text\n", ".gitattributes": "f filter=x diff=x\n"})
    repo.git("config", key, program)
    if control is not None:
        repo.git(*control)
        assert mark.exists(), "the control: git itself runs it"
        mark.unlink()
    assert (await reader.files(repo))[b"f"] == FILE
    assert not mark.exists()


async def test_hooks_are_not_run(reader: Reader, repo: Repo, program: str, mark: Path) -> None:
    repo.commit({"f": "text\n"})
    hooks = repo.folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-checkout", "post-index-change"):
        (hooks / name).symlink_to(program)
    repo.git("update-ref", "refs/heads/other", "HEAD")
    assert mark.exists(), "the control: git itself runs them"
    mark.unlink()
    assert await reader.files(repo) == {b"f": FILE}
    assert not mark.exists()


async def test_a_configuration_that_is_included_or_broken_is_not_read(
    reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({"f": "text\n"})
    (repo.folder / ".git" / "more").write_text("[core]\n\tautocrlf = true\n[extensions]\n\tx = y\n")
    repo.git("config", "include.path", "more")
    assert await reader.files(repo) == {b"f": FILE}
    with (repo.folder / ".git" / "config").open("a") as file:
        file.write("[core\n")
    assert await reader.files(repo) == {b"f": FILE}


async def test_attributes_beside_the_tree_replacements_and_grafts_change_nothing(
    reader: Reader, repo: Repo
) -> None:
    commit = repo.commit({"f": "text\n"})
    other = repo.commit({"f": "other\n"})
    info = repo.folder / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text("f export-ignore\n")
    (info / "grafts").write_text(f"{commit} {other}\n")
    repo.git("replace", commit, other)
    assert await reader.files(repo, commit) == {b"f": FILE}


async def test_alternates_do_not_lead_out_of_the_repository(
    reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({"f": "text\n"})
    commit = repo.git("rev-parse", "HEAD")
    shared = Repo(tmp_path / "shared")
    alternates = shared.folder / ".git/objects/info/alternates"
    alternates.write_text(f"{repo.folder}/.git/objects\n")
    shared.git("update-ref", "refs/heads/main", commit)
    assert shared.git("cat-file", "-t", "HEAD") == "commit", "the control: git itself follows it"
    assert (await reader.refusal(shared, "HEAD"))[0] == reasons.REVISION_NOT_FOUND


async def test_links_in_a_repository_lead_nowhere_else(
    reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({"f": "text\n"})
    os.rename(repo.folder / ".git" / "refs", tmp_path / "refs")
    os.symlink(tmp_path / "refs", repo.folder / ".git" / "refs")
    with pytest.raises(errors.Refused) as caught:
        await reader.resolve(repo, "main")
    assert caught.value.reason == reasons.REPOSITORY_UNAVAILABLE


@pytest.mark.parametrize("key", ["refStorage", "somethingNew"])
async def test_a_form_that_is_not_known_is_said_so(reader: Reader, repo: Repo, key: str) -> None:
    repo.commit({"f": "text\n"})
    repo.git("config", "core.repositoryformatversion", "1")
    with (repo.folder / ".git" / "config").open("a") as file:
        file.write(f"[extensions]\n\t{key} = reftable\n")
    reason, message = await reader.refusal(repo)
    assert reason == reasons.REPOSITORY_UNAVAILABLE
    assert key.lower() in message


async def test_a_repository_of_longer_ids(reader: Reader, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "long", "--object-format=sha256")
    commit = repo.commit({"f": "text\n"})
    assert len(commit) == 64
    assert await reader.resolve(repo, "main") == commit
    assert await reader.files(repo) == {b"f": FILE}
