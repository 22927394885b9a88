"""What the launch script refuses, and that it keeps values to itself."""

from dataclasses import replace

import pytest

from isolet.agent.workspace import disk, launch, script
from isolet.base import errors
from isolet.plan import reasons

GOOD = script.Launch(argv=("a", "b"), env=(("A", b"1"),), nonce="0123456789abcdef")
SECRET = b"canary-77"

REFUSED = {
    "no program": ({"argv": ()}, "program is empty"),
    "an empty program": ({"argv": ("", "x")}, "program is empty"),
    "NUL in an argument": ({"argv": ("a", "b\0c")}, r"command\[1\]: holds a NUL"),
    "NUL in a value": ({"env": (("A", SECRET + b"\0"),)}, "env A: holds a NUL"),
    "a name with =": ({"env": (("A=B", SECRET),)}, "name is not an identifier"),
    "a name that ends in newline": ({"env": (("A\n", SECRET),)}, "name is not an identifier"),
    "an empty name": ({"env": (("", SECRET),)}, "name is not an identifier"),
    "a name twice": ({"env": (("A", SECRET), ("A", b"2"))}, "env A: given twice"),
    "M03, 140000 bytes": ({"argv": ("a", "x" * 140_000)}, "140000 bytes; argument too long"),
    "M03, 300000 bytes": ({"argv": ("a", "x" * 300_000)}, "300000 bytes; argument too long"),
    "one byte too long": ({"argv": ("a", "x" * 131_072)}, "argument too long"),
    "long in bytes, not in letters": ({"argv": ("a", "ü" * 70_000)}, "argument too long"),
    "a long value": ({"env": (("A", b"x" * 131_070),)}, "env A: 131072 bytes"),
    "long in all": ({"argv": ("x" * 100_000,) * 21}, "argument list too long"),
    "many": ({"argv": ("",) * 0 + ("a",) + ("",) * 240_000}, "argument list too long"),
    "a relative cwd": ({"cwd": "data"}, "absolute"),
    "an empty cwd": ({"cwd": ""}, "absolute"),
    "NUL in cwd": ({"cwd": "/a\0"}, "cwd"),
    "a short nonce": ({"nonce": "abc"}, "nonce"),
    "a nonce that is shell": ({"nonce": "'; rm -rf / #12345"}, "nonce"),
    "a nonce with a newline": ({"nonce": "0123456789abcdef\n"}, "nonce"),
    "a guard of no time": ({"guard_seconds": 0}, "guard"),
    "a lone surrogate": ({"argv": ("a", "\ud800")}, "surrogate"),
    "env(1) would take it for a variable": (
        {"argv": ("a=b",), "env": (("UID", SECRET),)},
        "`=` in its name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(errors.Invalid, match=message) as caught:
        script.build(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert "canary" not in caught.value.message


def test_what_just_fits() -> None:
    longest = "x" * script.MAX_STRING_BYTES
    script.validate(replace(GOOD, argv=("a", longest)))
    script.validate(replace(GOOD, env=(("A", b"x" * (script.MAX_STRING_BYTES - 2)),)))
    script.validate(replace(GOOD, argv=("a", *(str(i) for i in range(20_000)))))


def test_values_do_not_show_in_a_process_list() -> None:
    """K03: a plain variable is exported, never given as an argument of a helper."""
    text = script.build(replace(GOOD, env=(("GREETING", SECRET),)))
    lines = [line for line in text.split(b"\n") if SECRET in line]
    assert lines == [b"export GREETING='canary-77'"]


def test_the_same_launch_gives_the_same_bytes() -> None:
    assert script.build(GOOD) == script.build(replace(GOOD))


def test_words_that_two_packages_share() -> None:
    assert disk.NODE_STORAGE_FULL == launch.NODE_STORAGE_FULL == reasons.NODE_STORAGE_FULL
