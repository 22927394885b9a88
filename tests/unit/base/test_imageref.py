import pytest

from isolet.base import imageref

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("image", "pinned", "tagged"),
    [
        (f"sha256:{HEX}", True, False),
        (f"alpine@sha256:{HEX}", True, False),
        (f"registry.example:5000/a/b@sha256:{HEX}", True, False),
        (f"localhost/a@sha256:{HEX}", True, False),
        ("alpine:3.20", False, True),
        ("registry.example:5000/a/b:latest", False, True),
        ("alpine", False, False),
        ("registry.example:5000/a", False, False),
        (f"alpine@sha256:{HEX.upper()}", False, False),
        (f"alpine@sha256:{HEX[1:]}", False, False),
        (f"alpine:3.20@sha256:{HEX}", False, False),
        (f"sha256:{HEX[1:]}", False, False),
        (f"sha256:{HEX.upper()}", False, False),
        (f"alpine@sha256:{HEX}\n", False, False),
        ("", False, False),
        ("--help:1", False, False),
        (f"{'a' * 600}:1", False, False),
    ],
)
def test_forms(image: str, pinned: bool, tagged: bool) -> None:
    assert imageref.is_pinned(image) is pinned
    assert imageref.is_tagged(image) is tagged
