"""Reports about Git imports, each as a small repository of the real git (docs/reports.md)."""

import asyncio
import os
from pathlib import Path

import pytest

from isolet.base import errors, gitnames
from isolet.plan import reasons
from isolet.wire.execution import GitSource
from tests.contract.git.conftest import MIB, Reader
from tests.git_repo import Repo
from tests.untar import Entry

TEXT = Entry("file", 0o644, b"text\n", 1767323045)

F01 = ["--output=/tmp/x", "--remote=/srv/other.git", "--exec=touch /tmp/x", "-l", "--", "-"]
F02 = [
    ":/fix",
    "HEAD@{yesterday}",
    "@{-1}",
    "HEAD^{/x}",
    "",
    "main..v1",
    "main:README",
    "a b",
    "a\n",
]


@pytest.mark.parametrize("revision", F01 + F02)
def test_f01_f02_a_revision_that_is_an_option_or_moves_never_reaches_a_node(revision: str) -> None:
    assert not gitnames.is_revision(revision)
    with pytest.raises(ValueError, match="revision"):
        GitSource(repository="project", revision=revision)


@pytest.mark.parametrize("revision", F01 + F02[:-3])
async def test_f01_f02_and_would_do_nothing_there(
    reader: Reader, repo: Repo, revision: str, tmp_path: Path
) -> None:
    repo.commit({"f": "fix\n"})
    repo.git("tag", "v1")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(errors.Refused) as caught:
        await reader.resolve(repo, revision)
    assert caught.value.reason == reasons.REVISION_NOT_FOUND
    assert {p for p in set(tmp_path.rglob("*")) - before if "trees" not in p.parts} == set()


async def test_f02_what_names_no_commit_is_refused(reader: Reader, repo: Repo) -> None:
    repo.commit({"f": "text\n"})
    repo.git("tag", "blob", "HEAD:f")
    repo.git("tag", "tree", "HEAD^{tree}")
    repo.git("tag", "-a", "-m", "annotated", "good")
    assert await reader.resolve(repo, "good") == repo.git("rev-parse", "HEAD")
    for name in ("blob", "tree"):
        assert await reader.refusal(repo, name) == (
            reasons.REVISION_NOT_FOUND,
            f"{name} names a {name} and no commit",
        )


async def test_f04_no_configuration_or_attribute_changes_a_byte(reader: Reader, repo: Repo) -> None:
    content = {
        ".gitattributes": "*.crlf text eol=crlf\n*.id ident\n* text\n"
        "*.utf text working-tree-encoding=UTF-16\n",
        "lf": "one\ntwo\n",
        "a.crlf": "one\ntwo\n",
        "b.id": "$Id$\n",
        "c.utf": "plain\n",
    }
    tree = repo.tree(*(("100644", n.encode(), repo.blob(c.encode())) for n, c in content.items()))
    repo.commit_tree(tree)
    repo.git("config", "core.autocrlf", "true")
    repo.git("config", "core.eol", "crlf")
    found = await reader.files(repo)
    assert {n: e.content for n, e in found.items()} == {
        n.encode(): c.encode() for n, c in content.items()
    }


async def test_f05_export_ignore_holds_and_export_subst_does_not(
    reader: Reader, repo: Repo
) -> None:
    subst = "$Format:%h %D$\n"
    repo.commit(
        {
            ".gitattributes": "s.txt export-subst\nhidden export-ignore\n"
            "*.log export-ignore\n*.keep.log -export-ignore\n",
            **{"s.txt": subst, "hidden/f": "x", "a.log": "x", "b.keep.log": "x"},
        }
    )
    before = await reader.files(repo)
    assert set(before) == {b".gitattributes", b"s.txt", b"b.keep.log"}
    assert before[b"s.txt"].content == subst.encode()
    repo.git("tag", "later")
    assert await reader.files(repo) == before


async def test_f06_only_commits_are_taken_so_the_tops_attributes_count(
    reader: Reader, repo: Repo
) -> None:
    repo.commit({".gitattributes": "src/s.txt export-ignore\n", "src/s.txt": "x", "src/t": "x"})
    with pytest.raises(errors.Refused):
        await reader.resolve(repo, "HEAD:src")
    assert set(await reader.files(repo)) == {b".gitattributes", b"src", b"src/t"}


async def test_f07_a_pointer_of_lfs_stays_one_and_is_counted(reader: Reader, repo: Repo) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"
    repo.commit({".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    (repo.folder / "a.bin").write_text(pointer)
    repo.git("-c", "filter.lfs.clean=cat", "add", "-A")
    repo.commit(add=False)
    repo.git("config", "filter.lfs.smudge", "false")
    repo.git("config", "filter.lfs.required", "true")
    assert (await reader.files(repo))[b"a.bin"].content == pointer.encode()
    assert (await reader.export(repo, repo.git("rev-parse", "HEAD"))).lfs == 1


async def test_f08_a_submodule_is_an_empty_folder_and_is_named(reader: Reader, repo: Repo) -> None:
    commit = repo.commit({"f": "text\n"})
    tree = repo.tree(
        ("100644", b"f", repo.blob(b"text\n")),
        *(("160000", f"sub{n}\n".encode(), commit) for n in range(10)),
    )
    odd = repo.commit_tree(tree)
    found = await reader.files(repo)
    assert found[b"sub0\n"].kind == "folder"
    said = await reader.export(repo, odd)
    assert said.submodules == tuple(f"sub{n}\\n" for n in range(8))
    assert said.more_submodules == 2


@pytest.fixture
async def listener():
    heard = []

    async def hear(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(1)
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], heard
    server.close()


async def test_f09_missing_objects_are_not_fetched(
    reader: Reader, repo: Repo, tmp_path: Path, listener
) -> None:
    port, heard = listener
    repo.commit({"f": "text\n", "g": "other\n"})
    repo.git("config", "uploadpack.allowFilter", "true")
    partial = repo.clone(tmp_path / "partial", "--bare", "--filter=blob:none", "--no-local")
    partial.git("config", "remote.origin.url", f"git://127.0.0.1:{port}/x.git")
    # The control: git itself asks there.
    with pytest.raises(AssertionError):
        await asyncio.to_thread(partial.git, "archive", "HEAD")
    assert heard
    del heard[:]
    reason, message = await reader.refusal(partial)
    assert reason == reasons.GIT_IMPORT_FAILED
    assert "missing or damaged" in message
    assert heard == []


async def test_f09_a_shallow_clone_works(reader: Reader, repo: Repo, tmp_path: Path) -> None:
    repo.commit({"f": "old\n"})
    head = repo.commit({"f": "text\n"})
    shallow = repo.clone(tmp_path / "shallow", "--depth", "1")
    assert await reader.files(shallow) == {b"f": TEXT}
    assert await reader.resolve(shallow, "main") == head
    assert (await reader.refusal(shallow, "main~1"))[0] == reasons.REVISION_NOT_FOUND


@pytest.mark.parametrize("owner", [0, 1234])
async def test_f11_whoever_owns_the_repository(reader: Reader, repo: Repo, owner: int) -> None:
    repo.commit({"f": "text\n"})
    for path in (repo.folder, *repo.folder.rglob("*")):
        os.lchown(path, owner, owner)
    config = {p: p.read_bytes() for p in repo.folder.rglob("config")}
    assert await reader.files(repo) == {b"f": TEXT}
    assert {p: p.read_bytes() for p in repo.folder.rglob("config")} == config


async def test_f11_what_the_helper_may_not_read_is_said_so(reader: Reader, repo: Repo) -> None:
    repo.commit({"f": "text\n"})
    repo.folder.chmod(0o700)
    reason, message = await reader.refusal(repo)
    assert reason == reasons.REPOSITORY_UNAVAILABLE
    assert "chmod -R o+rX" in message


async def test_f12_a_name_of_two_commits_is_ambiguous(reader: Reader, repo: Repo) -> None:
    one = repo.commit({"f": "1"})
    repo.git("tag", "v1")
    two = repo.commit({"f": "2"})
    repo.git("branch", "v1")
    reason, message = await reader.refusal(repo, "v1")
    assert reason == reasons.REVISION_AMBIGUOUS
    assert "refs/heads/" in message
    assert await reader.resolve(repo, "refs/tags/v1") == one
    assert await reader.resolve(repo, "refs/heads/v1") == two
    repo.git("update-ref", f"refs/heads/{one}", two)
    assert (await reader.refusal(repo, one))[0] == reasons.REVISION_AMBIGUOUS
    repo.git("tag", "-f", "v1", two)
    assert await reader.resolve(repo, "v1") == two, "both mean the same"


async def test_f12_a_short_id(reader: Reader, repo: Repo) -> None:
    commit = repo.commit({"f": "1"})
    assert await reader.resolve(repo, commit[:10]) == commit
    assert await reader.resolve(repo, commit.upper()) == commit
    assert (await reader.refusal(repo, "0" * 40))[0] == reasons.REVISION_NOT_FOUND


ODD_NAMES = [
    b"new\nline",
    b'quote"back\\slash',
    b"\xff\xfe",
    b"-dash",
    b"x" * 181,
    b" ",
    b"\xc3\xa9",
]


async def test_f14_odd_names_are_there_exactly(reader: Reader, repo: Repo) -> None:
    deep = b"/".join([b"d" * 100] * 5) + b"/f"
    commit = repo.commit({name: "text\n" for name in [*ODD_NAMES, deep]})
    found = await reader.files(repo, commit)
    assert {n: e for n, e in found.items() if e.kind == "file"} == dict.fromkeys(
        [*ODD_NAMES, deep], TEXT
    )


async def test_f15_links_stay_links(reader: Reader, repo: Repo) -> None:
    targets = {"abs": "/etc/passwd", "up": "../../outside", "long": "t" * 300, "self": "self"}
    for name, target in targets.items():
        os.symlink(target, repo.folder / name)
    repo.commit()
    found = await reader.files(repo)
    assert {n: (e.kind, e.content) for n, e in found.items()} == {
        name.encode(): ("link", target.encode()) for name, target in targets.items()
    }


@pytest.mark.parametrize("name", [b".git", b".GIT", b"..", b".", b".git.", b"git~1"])
async def test_f17_no_repository_and_no_way_out(reader: Reader, repo: Repo, name: bytes) -> None:
    inner = repo.tree(("100755", b"hook", repo.blob(b"#!/bin/sh\n")))
    repo.commit_tree(repo.tree(("40000", name, inner)))
    reason, message = await reader.refusal(repo)
    assert reason == reasons.TREE_UNSUPPORTED, message


@pytest.mark.parametrize(
    "second", [("120000", b"x"), ("100644", b"x"), ("40000", b"x")], ids=["link", "file", "folder"]
)
async def test_f17_a_name_that_is_there_twice(
    reader: Reader, repo: Repo, second: tuple[str, bytes]
) -> None:
    mode, name = second
    inner = repo.tree(("100644", b"f", repo.blob(b"/etc")))
    oid = inner if mode == "40000" else repo.blob(b"/etc")
    repo.commit_tree(repo.tree(("120000", b"x", repo.blob(b"/etc")), (mode, name, oid)))
    reason, _ = await reader.refusal(repo)
    assert reason in (reasons.TREE_UNSUPPORTED, reasons.GIT_IMPORT_FAILED)


async def test_f18_an_empty_tree_is_a_tree(reader: Reader, repo: Repo) -> None:
    commit = repo.commit()
    assert await reader.files(repo) == {}
    assert (await reader.export(repo, commit)).entries == 0


async def test_f19_a_tree_that_does_not_fit(reader: Reader, repo: Repo) -> None:
    repo.commit({f"f{n}": os.urandom(8 * MIB) for n in range(9)})
    reason, message = await reader.refusal(repo)
    assert reason == reasons.TREE_TOO_LARGE
    assert str(64 * MIB) in message


async def test_f19_too_many_entries(reader: Reader, repo: Repo) -> None:
    repo.commit({f"d{n % 7}/f{n}": "" for n in range(10_001)})
    assert (await reader.refusal(repo))[0] == reasons.TREE_TOO_LARGE


async def test_f19_a_tree_without_end(reader: Reader, repo: Repo) -> None:
    """Ten levels of ten times the same: ten thousand million files in eleven objects."""
    oid, mode = repo.blob(b"x"), "100644"
    for _ in range(10):
        oid = repo.tree(*((mode, f"n{n}".encode(), oid) for n in range(10)))
        mode = "40000"
    repo.commit_tree(oid)
    assert (await reader.refusal(repo))[0] == reasons.TREE_TOO_LARGE


async def test_f20_only_the_root_of_a_repository_is_one(
    reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({"sub/f": "text\n"})
    assert (await reader.refusal(repo.folder / "sub"))[0] == reasons.REPOSITORY_UNAVAILABLE
    nested = tmp_path / "nested"
    nested.mkdir()
    inner = repo.clone(nested / "inner.git", "--bare")
    assert (await reader.refusal(nested))[0] == reasons.REPOSITORY_UNAVAILABLE
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", str(linked), "-b", "other")
    assert (await reader.refusal(linked))[0] == reasons.REPOSITORY_UNAVAILABLE
    assert set(await reader.files(inner)) == {b"sub", b"sub/f"}
    (tmp_path / "link").symlink_to(repo.folder)
    with pytest.raises(errors.Unavailable, match="is a link"):
        await reader.resolve(tmp_path / "link", "HEAD")
