"""What holds for every tree and every archive."""

import hashlib
import os
import random
import re
from pathlib import Path

import pytest

from isolet.agent.archive import headers
from isolet.agent.archive.entries import Owner, line, parse
from isolet.agent.archive.refusal import Reason, Refused
from tests.unit.agent.archive.trees import Grower, look, packed, unpacked, verified

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tree_comes_back_equal_and_has_the_same_archive_again(tmp_path: Path, seed: int) -> None:
    first = tmp_path / "first"
    first.mkdir()
    Grower(seed).grow(first)
    before = look(first)
    entries, content, figures = packed(first)
    assert look(first) == before, "reading it changed it"
    assert verified(entries, content) == figures
    assert unpacked(entries, content, tmp_path / "second") == figures
    assert look(tmp_path / "second") == before
    assert packed(tmp_path / "second") == (entries, content, figures)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_figures_are_those_of_the_files(tmp_path: Path, seed: int) -> None:
    Grower(seed).grow(tmp_path)
    entries, content, figures = packed(tmp_path)
    seen = look(tmp_path)
    assert figures.entries == entries.count(b"\n") == len(seen)
    assert figures.entries_bytes == len(entries)
    assert figures.content_bytes == len(content)
    assert figures.content_digest == f"sha256:{hashlib.sha256(entries).hexdigest()}"
    whole = {tuple(f[5]): len(f[4]) for f in seen.values() if f[5]}
    assert figures.size_bytes == sum(whole.values())
    assert len(content) % headers.BLOCK == 0


def test_an_owner_takes_all_of_it(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    Grower(3).grow(first)
    entries, content, _ = packed(first)
    me = Owner(os.geteuid(), os.getegid())
    unpacked(entries, content, tmp_path / "second", me)
    assert {f[1:3] for f in look(tmp_path / "second").values()} == {me}


def small(folder: Path) -> tuple[bytes, bytes]:
    """An archive with one of each kind."""
    (folder / "d").mkdir()
    (folder / "d" / "f").write_bytes(b"hello")
    (folder / "d" / "g").hardlink_to(folder / "d" / "f")
    (folder / "e").write_bytes(b"")
    (folder / "l").symlink_to("d/f")
    (folder / ("n" * 120)).write_bytes(b"x" * 600)
    entries, content, _ = packed(folder)
    return entries, content


def is_refused_or_equal(entries: bytes, content: bytes, of: tuple[bytes, bytes]) -> bool:
    try:
        verified(entries, content)
    except Refused:
        return True
    return (entries, content) == of


def test_no_changed_byte_of_the_content_passes(tmp_path: Path) -> None:
    entries, content = small(tmp_path)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 + place % 255
        with pytest.raises(Refused):
            verified(entries, bytes(changed))


def test_no_shorter_or_longer_content_passes(tmp_path: Path) -> None:
    entries, content = small(tmp_path)
    for length in range(0, len(content), 5):
        with pytest.raises(Refused) as refused:
            verified(entries, content[:length])
        assert refused.value.reason is Reason.TRUNCATED
    for tail in (b"\0", bytes(512), b"x", content):
        with pytest.raises(Refused) as refused:
            verified(entries, content + tail)
        assert refused.value.reason is Reason.TRAILING_DATA


def test_no_moved_block_of_the_content_passes(tmp_path: Path) -> None:
    entries, content = small(tmp_path)
    blocks = [content[i : i + 512] for i in range(0, len(content), 512)]
    for one in range(len(blocks)):
        for other in range(one):
            changed = blocks.copy()
            changed[one], changed[other] = blocks[other], blocks[one]
            assert is_refused_or_equal(entries, b"".join(changed), (entries, content))
        assert is_refused_or_equal(
            entries, b"".join(blocks[:one] + blocks[one + 1 :]), (entries, content)
        )
        assert is_refused_or_equal(
            entries, b"".join([*blocks[:one], blocks[one], *blocks[one:]]), (entries, content)
        )


def without_nanoseconds(entries: bytes) -> bytes:
    return re.sub(rb'("mtime_ns":-?\d+)\d{9}([,}])', rb"\1\2", entries)


def test_no_changed_byte_of_the_entries_passes(tmp_path: Path) -> None:
    """But fractions of a second, which the content does not have; the digest has them."""
    entries, content = small(tmp_path)
    figures = verified(entries, content)
    passed = 0
    for place in range(len(entries)):
        for flip in (0x01, 0x02, 0x10, 0x80):
            changed = bytearray(entries)
            changed[place] ^= flip
            try:
                found = verified(bytes(changed), content)
            except Refused:
                continue
            passed += 1
            assert found.content_digest != figures.content_digest
            assert without_nanoseconds(bytes(changed)) == without_nanoseconds(entries)
    assert passed <= 4 * 9 * figures.entries


def test_no_moved_line_of_the_entries_passes(tmp_path: Path) -> None:
    entries, content = small(tmp_path)
    lines = entries.splitlines(keepends=True)
    for one in range(len(lines)):
        for changed in (
            lines[:one] + lines[one + 1 :],
            [*lines[:one], lines[one], *lines[one:]],
            [*lines[:one], *lines[one + 1 :], lines[one]],
        ):
            assert is_refused_or_equal(b"".join(changed), content, (entries, content))
        with pytest.raises(Refused):
            verified(b"".join(lines[:one]), content)


@pytest.mark.parametrize("seed", range(200))
def test_a_line_has_one_form(tmp_path: Path, seed: int) -> None:
    """What can be read is what would have been written: no two lines mean the same."""
    chance = random.Random(seed)
    entries, _ = small(tmp_path)
    text = bytearray(chance.choice(entries.splitlines(keepends=True)))
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text))
        text[place : place + chance.randint(0, 2)] = chance.randbytes(1) * chance.randint(0, 2)
    try:
        read = parse(bytes(text), 128)
    except Refused:
        return
    assert line(read) == bytes(text)
