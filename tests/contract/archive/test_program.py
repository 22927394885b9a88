"""The program's answers where it cannot do what it was asked."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isolet.agent.archive import program
from isolet.agent.archive.__main__ import answer
from isolet.agent.archive.refusal import Reason, Refused
from isolet.base import errors

USER = 61_184


def ask(what: str, request: dict[str, Any], **options: Any) -> bytes:
    top = str(program.FOLDER.parents[2])
    argv = program.argv(os.path.realpath(sys.executable), what, request, top)
    return subprocess.run(argv, stdout=subprocess.PIPE, cwd="/", check=False, **options).stdout


def refusal(what: str, request: dict[str, Any], **options: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        program.figures(ask(what, request, **options))
    return refused.value


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """A folder of a user with a file in it, and room for the archive."""
    for place in tmp_path.parents[:2]:
        place.chmod(0o755)
    tmp_path.chmod(0o777)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f").write_bytes(b"x" * 2_000_000)
    for path in (tmp_path / "root", tmp_path / "root" / "f"):
        os.chown(path, USER, USER)
    return {key: f"{tmp_path}/{key}" for key in ("root", "entries", "content", "aside")}


def limits_of_file(size: int) -> dict[str, Any]:
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))}


def ask_as_user(what: str, request: dict[str, Any]) -> bytes:
    """In a fork, since a user may not be allowed to run the interpreter of these tests."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        os.write(into, json.dumps(answer(what, request)).encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def refusal_as_user(what: str, request: dict[str, Any]) -> Refused:
    with pytest.raises(Refused) as refused:
        program.figures(ask_as_user(what, request))
    return refused.value


def test_what_its_owner_may_not_read_is_named(places: dict[str, str]) -> None:
    assert program.figures(ask_as_user("pack", places)).entries == 2
    path = Path(places["root"], "f")
    path.chmod(0)
    refused = refusal_as_user("pack", places)
    assert (refused.reason, refused.member) == (Reason.UNREADABLE, b"f")


def test_another_owner_cannot_be_given_by_one_without_rights(
    places: dict[str, str], tmp_path: Path
) -> None:
    os.chown(Path(places["root"], "f"), USER + 1, USER)
    ask("pack", places)
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, USER, USER)
    for name in ("entries", "content"):
        Path(places[name]).chmod(0o644)
    request = {**places, "root": str(out)}
    assert refusal_as_user("unpack", request).reason is Reason.FAILED
    (out / "f").unlink()
    program.figures(ask_as_user("unpack", {**request, "owner": [USER, USER]}))
    assert (out / "f").stat().st_uid == USER


@pytest.mark.parametrize("what", ["pack", "normalise"])
def test_g18_no_room_for_what_is_written(places: dict[str, str], what: str) -> None:
    stream = subprocess.run(("tar", "-c", "."), cwd=places["root"], stdout=subprocess.PIPE).stdout
    request = {**places, "stream": 0}
    assert program.figures(ask(what, request, input=stream)).entries == 2
    refused = refusal(what, request, input=stream, **limits_of_file(1_000_000))
    assert refused.reason is Reason.NO_SPACE


def test_a_bound_of_the_request_holds(places: dict[str, str]) -> None:
    refused = refusal("pack", {**places, "limits": {"size_bytes": 1_999_999}})
    assert (refused.reason, refused.member) == (Reason.TOO_LARGE, b"f")


def test_a_folder_that_is_a_link_is_not_entered(places: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(places["root"])
    assert refusal("pack", {**places, "root": f"{tmp_path}/link"}).reason is Reason.FAILED


@pytest.mark.parametrize(
    "said", [b"", b"{", b"[]", b'{"done": 1}', b'{"refused": "Nonsense"}', b'{"done": {"x": 1}}']
)
def test_an_answer_that_is_none(said: bytes) -> None:
    with pytest.raises(errors.Unavailable):
        program.figures(said)


def test_its_answer_is_one_line(places: dict[str, str]) -> None:
    said = ask("pack", places)
    assert said.count(b"\n") == 1
    assert len(said) < program.MAX_ANSWER
    assert set(json.loads(said)) == {"done"}
