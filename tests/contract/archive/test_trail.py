"""What copies leave of themselves in the node's memory, as the kernel counts it."""

import os
import subprocess
from pathlib import Path

import pytest

from isolet.agent.archive.__main__ import answer

MIB = 1 << 20
SIZE = 64 * MIB
FEW = 20 * MIB
"""Two stretches, and what the kernel reads ahead."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f").write_bytes(os.urandom(MIB) * (SIZE // MIB))
    (tmp_path / "again").mkdir()
    return {key: f"{tmp_path}/{key}" for key in ("root", "entries", "content")}


def in_memory(path: str) -> int:
    command = ("fincore", "--bytes", "--noheadings", "--output", "RES", path)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def on_disk(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def test_a_copy_that_was_read_is_not_kept_in_memory(places: dict[str, str], tmp_path: Path) -> None:
    assert "done" in answer("pack", places)
    on_disk(places["content"])
    assert "done" in answer("verify", places)
    assert in_memory(places["content"]) > SIZE - FEW, "it will be read once more"
    assert "done" in answer("unpack", {**places, "root": f"{tmp_path}/again"})
    assert in_memory(places["content"]) <= FEW
    assert (tmp_path / "again" / "f").read_bytes() == (tmp_path / "root" / "f").read_bytes()
    assert in_memory(f"{tmp_path}/root/f") > SIZE - FEW, "what the tenant has in memory stays"
