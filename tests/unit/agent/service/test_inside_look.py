"""What a look at a Process in a session tells: read whole, or worth nothing."""

import subprocess
from pathlib import Path

import pytest

from isolet.agent.service.inside_look import LOOK, MOST_A_LOOK, Told, told
from isolet.base import errors

MARK = b"0123456789abcdef"
NUMBERS = b"1\n2\n3\n18\n"


def look(folder: Path, out: int = 0, err: int = 0, most: int = MOST_A_LOOK) -> tuple[bytes, bytes]:
    """Both streams of the shell's own look."""
    words = (str(folder), str(out), str(err), str(most), MARK.decode())
    run = subprocess.run(("/bin/sh", "-c", LOOK, "isolet", *words), capture_output=True, check=True)
    return run.stdout, run.stderr


def process(folder: Path, *, out: bytes = b"", err: bytes = b"", code: bytes | None = None) -> Path:
    """The folder of a Process that has written this."""
    (folder / "out").write_bytes(out)
    (folder / "err").write_bytes(err)
    if code is not None:
        (folder / "code").write_bytes(code)
    return folder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Told(b"running", b"", b"")),
        ({"out": NUMBERS}, Told(b"running", NUMBERS, b"")),
        ({"out": NUMBERS, "code": b"3\n"}, Told(b"3", NUMBERS, b"")),
        ({"out": b"no newline", "err": b"nor here", "code": b"0\n"},
         Told(b"0", b"no newline", b"nor here")),
        ({"out": b"\n\n", "err": b"\n", "code": b"137\n"}, Told(b"137", b"\n\n", b"\n")),
        ({"out": MARK + b" 0\n", "err": MARK + b"\n"},
         Told(b"running", MARK + b" 0\n", MARK + b"\n")),
        ({"out": b"\0\xff\n", "err": b"\0"}, Told(b"running", b"\0\xff\n", b"\0")),
    ],
)  # fmt: skip
def test_what_was_written_is_told_exactly(
    given: dict[str, bytes], expected: Told, tmp_path: Path
) -> None:
    assert told(MARK, *look(process(tmp_path, **given))) == expected  # type: ignore[arg-type]


def test_one_that_never_began_is_absent(tmp_path: Path) -> None:
    assert told(MARK, *look(tmp_path / "none")) == Told(b"absent", b"", b"")


def test_what_was_read_before_is_not_read_again_and_no_more_than_asked(tmp_path: Path) -> None:
    folder = process(tmp_path, out=b"abcdef", err=b"uvwxyz", code=b"0\n")
    assert told(MARK, *look(folder, 2, 4, most=3)) == Told(b"0", b"cde", b"yz")
    assert told(MARK, *look(folder, 6, 6)) == Told(b"0", b"", b"")


@pytest.mark.parametrize("code", [None, b"3\n"])
def test_a_look_that_is_cut_short_anywhere_tells_nothing(
    code: bytes | None, tmp_path: Path
) -> None:
    """Lines of a program that count, or say what our own last line says, are no exit code."""
    wrote = NUMBERS + b"absent\n0\nrunning\n7\n"
    stdout, stderr = look(process(tmp_path, out=wrote, err=wrote, code=code))
    assert told(MARK, stdout, stderr).out == wrote
    for length in range(len(stdout)):
        with pytest.raises(errors.Unavailable, match="cut short"):
            told(MARK, stdout[:length], stderr)
    for length in range(len(stderr)):
        with pytest.raises(errors.Unavailable, match="cut short"):
            told(MARK, stdout, stderr[:length])


@pytest.mark.parametrize("code", [b"x\n", b"-1\n", b"", b"3 4\n"])
def test_a_code_that_the_tenant_spoiled_tells_nothing(code: bytes, tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable):
        told(MARK, *look(process(tmp_path, code=code)))
