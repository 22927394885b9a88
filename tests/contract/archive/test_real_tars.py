"""The content as the tars of sandboxes read it, and what they write as we read it.

GNU tar and busybox are what images have. Isolet gives them only archives of its own making, and
takes from them whatever they write.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isolet.agent.archive import program
from isolet.agent.archive.entries import Figures, Owner
from tests.unit.agent.archive.tars import archive, folder, member, normalised, pax, record
from tests.unit.agent.archive.trees import Grower, look, packed, unpacked, verified

TARS = {"gnu": ("tar",), "busybox": ("busybox", "tar")}
USER = 61_184
SEEDS = range(12)


def run(argv: tuple[str, ...], folder: Path, data: bytes = b"", *, user: int = 0) -> bytes:
    """Run a tar in a folder, as somebody."""
    done = subprocess.run(
        argv, cwd=folder, input=data, capture_output=True, user=user, group=user, extra_groups=[],
        umask=0, env={"PATH": os.environ["PATH"]}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def whole_seconds(seen: dict[bytes, tuple[Any, ...]]) -> dict[bytes, tuple[Any, ...]]:
    return {name: (*f[:3], f[3] // 10**9 * 10**9, *f[4:]) for name, f in seen.items()}


def contents(seen: dict[bytes, tuple[Any, ...]]) -> dict[bytes, tuple[Any, ...]]:
    """What a name is, what it holds and which other names it has."""
    return {name: (f[0][:-4], *f[4:]) for name, f in seen.items()}


def grown(top: Path, seed: int) -> Path:
    source = top / "source"
    source.mkdir()
    Grower(seed).grow(source)
    return source


@pytest.mark.parametrize("seed", SEEDS)
def test_gnu_tar_makes_the_same_of_it(tmp_path: Path, seed: int) -> None:
    source = grown(tmp_path, seed)
    (tmp_path / "out").mkdir()
    run(("tar", "-x", "-p", "-f", "-"), tmp_path / "out", packed(source)[1])
    assert look(tmp_path / "out") == whole_seconds(look(source))


@pytest.mark.parametrize("seed", SEEDS)
def test_busybox_makes_the_same_names_and_contents_of_it(tmp_path: Path, seed: int) -> None:
    source = grown(tmp_path, seed)
    (tmp_path / "out").mkdir()
    run(("busybox", "tar", "-x", "-f", "-"), tmp_path / "out", packed(source)[1])
    assert contents(look(tmp_path / "out")) == contents(look(source))


@pytest.mark.parametrize("tar", TARS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_user_without_rights_can_load_all_of_it(tmp_path: Path, tar: str, seed: int) -> None:
    """Folders that their owner may not write to as well."""
    source = grown(tmp_path, seed)
    out = tmp_path / "out"
    out.mkdir()
    for place in (out, *out.parents[:3]):
        place.chmod(0o755)
    os.chown(out, USER, USER)
    run((*TARS[tar], "-x", "-p", "-f", "-"), out, packed(source)[1], user=USER)
    seen = look(out)
    assert contents(seen) == contents(look(source))
    assert {f[1] for f in seen.values()} == {USER}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_gnu_tar_writes_is_read(tmp_path: Path, seed: int) -> None:
    source = grown(tmp_path, seed)
    entries, content, figures = normalised(run(("tar", "-c", "-f", "-", "."), source))
    assert verified(entries, content) == figures
    unpacked(entries, content, tmp_path / "out")
    assert look(tmp_path / "out") == whole_seconds(look(source))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_busybox_writes_is_read(tmp_path: Path, seed: int) -> None:
    """It has no times before 1970, and cuts large ids off: the owner is known without it."""
    source = grown(tmp_path, seed)
    owner, stream = Owner(USER, USER), run(("busybox", "tar", "-c", "-f", "-", "."), source)
    entries, content, figures = normalised(stream, owner=owner)
    assert verified(entries, content) == figures
    unpacked(entries, content, tmp_path / "out")
    assert look(tmp_path / "out") == {
        name: (f[0], *owner, max(0, f[3]), *f[4:])
        for name, f in whole_seconds(look(source)).items()
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_with_pax_records_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    source = grown(tmp_path, seed)
    stream = run(("tar", "--format=posix", "-c", "-f", "-", "."), source)
    assert normalised(stream) == packed(source)


@pytest.mark.parametrize("user", [2_097_151, 2_097_152, 1_718_009_175])
def test_g12_owners_that_fit_no_octal_field(tmp_path: Path, user: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("mine")
    for path in (source, source / "f"):
        os.chown(path, user, user)
    for tar in TARS.values():
        stream = run((*tar, "-c", "-f", "-", "."), source)
        entries, content, _ = normalised(stream, owner=Owner(user, user))
        assert b'"uid":%d,"gid":%d' % (user, user) in entries
        out = tmp_path / tar[0]
        out.mkdir()
        run((*tar, "-x", "-p", "-f", "-"), out, content)
        assert look(out)[b"f"][1:3] == (user, user)


def names_in(tar: tuple[str, ...], data: bytes, folder: Path) -> set[str]:
    done = subprocess.run((*tar, "-t", "-f", "-"), cwd=folder, input=data, capture_output=True)
    return set(done.stdout.decode().split())


def test_g04_g05_the_tars_do_disagree_about_what_is_refused(tmp_path: Path) -> None:
    """The control: a check by one of them would be none for the other."""
    hidden = member(b"hidden.txt", b"smuggled")
    for data in (
        archive(pax(size=b"0"), member(b"plain.txt", hidden)),
        archive(
            pax(size=b"2048"),
            record(b"L", b"n" * 120 + b"\0"),
            member(b"n", b"a" * 512),
            folder(b"b"),
        ),
    ):
        seen = [names_in(tar, data, tmp_path) for tar in TARS.values()]
        assert seen[0] != seen[1]


def test_it_runs_from_its_folder_alone(tmp_path: Path) -> None:
    """As a helper does: without site packages, environment, and the rest of this package."""
    top = tmp_path / "helper"
    (top / "isolet" / "agent").mkdir(parents=True)
    (top / "isolet" / "agent" / "archive").symlink_to(program.FOLDER)
    source = grown(tmp_path, 5)
    places = {"entries": f"{tmp_path}/e", "content": f"{tmp_path}/c"}

    def said(what: str, request: dict[str, object], data: bytes = b"") -> Figures:
        argv = program.argv(sys.executable, what, request, str(top))
        done = subprocess.run(
            argv, input=data, stdout=subprocess.PIPE, env={}, cwd="/", check=False
        )
        return program.figures(done.stdout)

    figures = said("pack", {"root": str(source), **places})
    assert figures == packed(source)[2]
    assert said("verify", places) == figures
    (tmp_path / "out").mkdir()
    assert said("unpack", {"root": f"{tmp_path}/out", **places}) == figures
    assert look(tmp_path / "out") == look(source)
    stream = run(("tar", "--format=posix", "-c", "-f", "-", "."), source)
    assert said("normalise", {"stream": 0, "aside": f"{tmp_path}/a", **places}, stream) == figures
