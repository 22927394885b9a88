"""Ending what runs on of a container that is gone: which processes those are, and no others."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolet.agent.engine import leftovers
from isolet.base import errors

OURS, OTHER = "ab" * 32, "cd" * 32
CGROUPS = {
    "cgroup v1": "9:name=systemd:/docker/{}\n4:memory:/docker/{}\n",
    "cgroup v2": "0::/system.slice/docker-{}.scope\n",
    "as a container sees it": "0::/../docker-{}.scope\n",
}


class Proc:
    """Processes of this test, in cgroups of its choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def begins(self, cgroup: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "60"])
        self.running.append(process)
        here = self.folder / str(process.pid)
        here.mkdir()
        (here / "cgroup").write_text(cgroup)
        (here / "stat").symlink_to(f"/proc/{process.pid}/stat")
        return process


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Proc]:
    made = Proc(tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", CGROUPS)
async def test_all_of_it_ends_and_nothing_else(proc: Proc, name: str) -> None:
    mine = [proc.begins(CGROUPS[name].replace("{}", OURS)) for _ in range(2)]
    others = [proc.begins(CGROUPS[name].replace("{}", OTHER)), proc.begins("0::/\n")]
    await leftovers.end(OURS, proc.folder)
    assert [process.wait() for process in mine] == [-9, -9]
    assert [process.poll() for process in others] == [None, None]


@pytest.mark.parametrize("name", ["", "isolet-1", "docker", OURS[:12], OURS.upper()])
async def test_what_is_no_id_ends_nothing(proc: Proc, name: str) -> None:
    mine = proc.begins(CGROUPS["cgroup v1"].replace("{}", f"{OURS}isolet-1"))
    await leftovers.end(name, proc.folder)
    assert mine.poll() is None


async def test_one_that_does_not_die_is_told(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_LOOKS", 3)
    mine = proc.begins(CGROUPS["cgroup v2"].replace("{}", OURS))
    stat = proc.folder / str(mine.pid) / "stat"
    stat.unlink()
    stat.write_text(f"{mine.pid} (sleep) D 1 1 1 0")
    with pytest.raises(errors.Unconfirmed, match="1 processes of"):
        await leftovers.end(OURS, proc.folder)
    assert mine.wait() == -9
