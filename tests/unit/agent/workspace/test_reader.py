"""The confined reader's own rules, on a folder here: which paths it opens and what globs mean."""

import json
import os
import socket
from pathlib import Path

import pytest

from isolet.agent.workspace import reader

LIMITS = {"max_file": 100, "max_total": 150, "max_files": 10}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_text("ok")
    (tmp_path / "link").symlink_to("real/f")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    return tmp_path


def told(root: Path, capfdbinary: pytest.CaptureFixture[bytes], *paths: str) -> list[dict]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    sender = reader.Sender(descriptor, LIMITS)
    for path in paths:
        sender.take(path)
    reader.sys.stdout.buffer.flush()
    os.close(descriptor)
    return [
        json.loads(line) for line in capfdbinary.readouterr().out.splitlines() if line[:1] == b"{"
    ]


REJECTED = ["link", "folder/f", "out", "loop", "pipe", "socket", "real", "real/f/x", "../x"]


@pytest.mark.parametrize("path", REJECTED)
def test_nothing_but_a_plain_file_reached_plainly(root, capfdbinary, path):
    (line,) = told(root, capfdbinary, path)
    assert (line["problem"], line["reason"]) == (path, "ArtifactRejected")


def test_what_is_not_there_is_missing(root, capfdbinary):
    (line,) = told(root, capfdbinary, "none")
    assert line["reason"] == "ArtifactMissing"


def test_a_file_comes_once_and_within_the_bounds(root, capfdbinary):
    (root / "a").write_bytes(b"x" * 99 + b"\n")
    (root / "b").write_bytes(b"x" * 60)
    (root / "c").write_bytes(b"x" * 101)
    lines = told(root, capfdbinary, "a", "a", "b", "c")
    assert [line.get("found") for line in lines] == ["a", None, None]
    assert {line["reason"] for line in lines[1:]} == {"ArtifactTooLarge"}


def test_a_walk_follows_no_link(root):
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    found = list(reader.walk(descriptor))
    os.close(descriptor)
    assert found == ["folder", "link", "loop", "out", "pipe", "socket", "real/f"]


GLOBS = {
    "*": (["a", ".a"], ["a/b", "d/e/f"]),
    "out/*.txt": (["out/a.txt", "out/.txt"], ["out/a/b.txt", "a.txt", "out/atxt"]),
    "**": (["a", "a/b/c"], []),
    "out/**": (["out/a", "out/a/b"], ["outer/a", "a"]),
    "**/r": (["r", "a/r", "a/b/r"], ["ar", "a/rr"]),
    "a/**/z": (["a/z", "a/b/z", "a/b/c/z"], ["az", "b/z"]),
    "?": (["a", "ü"], ["", "ab", "/"]),
    "[x]+": (["[x]+"], ["x", "xx"]),
}


@pytest.mark.parametrize("glob", GLOBS)
def test_globs(glob):
    matching, others = GLOBS[glob]
    expression = reader.pattern(glob)
    assert [path for path in matching if not expression.match(path)] == []
    assert [path for path in others if expression.match(path)] == []
