"""Mirrors of remotes: what a fetch that was cut off leaves, and what a remote may take."""

from pathlib import Path

import pytest

from isolet.agent.workspace import mirrors
from isolet.agent.workspace.mirrors import Mirrors, Remote
from isolet.base import errors
from tests.git_repo import Repo


def remote(repo: Repo) -> Remote:
    return Remote(name="project", url=f"file://{repo.folder}", refresh_seconds=0)


def heads(mirror: str) -> str:
    return Path(mirror, "refs/heads/main").read_text().strip()


@pytest.mark.parametrize("left", ["HEAD.lock", "refs/heads/main.lock", "packed-refs.lock"])
async def test_a_lock_of_a_fetch_that_was_killed_stops_no_later_one(
    tmp_path: Path, left: str
) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"f": "one"})
    repo.git("branch", "old")
    found = Mirrors(tmp_path / "mirrors")
    found.prepare()
    mirror = await found.path(remote(repo), fresh=True, seconds=60)
    Path(mirror, left).touch()
    repo.git("branch", "-D", "old")
    commit = repo.commit({"f": "two"})
    assert await found.path(remote(repo), fresh=True, seconds=60) == mirror
    assert heads(mirror) == commit


async def test_half_packs_do_not_pile_up_and_refs_are_left_alone(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"f": "one"})
    repo.git("branch", "tmp_mine")
    found = Mirrors(tmp_path / "mirrors")
    found.prepare()
    mirror = Path(await found.path(remote(repo), fresh=True, seconds=60))
    half = mirror / "objects" / "pack" / "tmp_pack_x1y2z3"
    half.write_bytes(b"half")
    await found.path(remote(repo), fresh=True, seconds=60)
    assert not half.exists()
    assert (mirror / "refs" / "heads" / "tmp_mine").exists()


async def test_a_remote_takes_no_room_that_the_node_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"f": "one"})
    found = Mirrors(tmp_path / "mirrors")
    found.prepare()
    monkeypatch.setattr(mirrors, "KEPT_FREE_BYTES", 1 << 62)
    with pytest.raises(errors.Refused) as caught:
        await found.path(remote(repo), fresh=True, seconds=60)
    assert caught.value.reason == mirrors.UNAVAILABLE
    monkeypatch.undo()
    await found.path(remote(repo), fresh=True, seconds=60)
