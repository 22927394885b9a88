"""A reader of trees with real helpers and the node's real git."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from isolet.agent.workspace.trees import FILE, Bounds, Exported, Trees
from isolet.base import errors
from tests.git_repo import Repo
from tests.untar import Entry, entries

MIB = 1 << 20
SECONDS = 60.0


@dataclass
class Reader:
    """Resolves and exports as the agent does."""

    trees: Trees
    root: Path
    bounds: Bounds = Bounds(workspace_bytes=64 * MIB, entries=10_000, seconds=SECONDS)

    async def resolve(self, repo: Repo | Path, revision: str) -> str:
        return await self.trees.resolve(str(_folder(repo)), revision, seconds=SECONDS)

    async def export(self, repo: Repo | Path, commit: str) -> Exported:
        return await self.trees.export("u1", str(_folder(repo)), commit, self.bounds)

    async def files(self, repo: Repo | Path, revision: str = "HEAD") -> dict[bytes, Entry]:
        """What a sandbox would get, as a reader that shares no code with ours sees it."""
        await self.export(repo, await self.resolve(repo, revision))
        return entries(self.root / "u1" / FILE)

    async def refusal(self, repo: Repo | Path, revision: str = "HEAD") -> tuple[str, str]:
        """Reason and message; nothing may be left."""
        self.trees.remove("u1")
        with pytest.raises(errors.IsoletError) as caught:
            await self.export(repo, await self.resolve(repo, revision))
        left = [p for p in self.root.rglob("*") if not p.is_dir()]
        assert left == []
        return caught.value.reason, caught.value.message


def _folder(repo: Repo | Path) -> Path:
    return repo.folder if isinstance(repo, Repo) else repo


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    trees = Trees(tmp_path / "trees")
    trees.prepare()
    return Reader(trees, tmp_path / "trees")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")
