"""How an image is named: pinned by digest, by local id, or by a tag where a class allows it.

`name:tag@sha256:…` is refused on purpose: an engine ignores the tag, so it can only mislead.
Whether a well-formed digest is that of a manifest or of an image's configuration only an engine can
say.
"""

import re

MAX_LENGTH = 512

_LABEL = "[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?"
_HOST = f"(?:{_LABEL}(?:\\.{_LABEL})*(?::[0-9]{{1,5}})?/)?"
_PART = "[a-z0-9]+(?:(?:\\.|_|__|-+)[a-z0-9]+)*"
_NAME = f"{_HOST}{_PART}(?:/{_PART})*"
_DIGEST = "sha256:[0-9a-f]{64}"

ID_PATTERN = f"^{_DIGEST}$"
"""A local image id."""

DIGEST_PATTERN = f"^{_NAME}@{_DIGEST}$"
"""A name pinned by the digest of its manifest."""

TAG_PATTERN = f"^{_NAME}:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}$"
"""A name and a tag. `sha256:…` has this form too, so it is looked at first."""

PINNED_PATTERN = f"^(?:{_NAME}@)?{_DIGEST}$"
"""Either pinned form."""

_PINNED = re.compile(PINNED_PATTERN.removesuffix("$") + r"\Z")
_TAGGED = re.compile(TAG_PATTERN.removesuffix("$") + r"\Z")


def is_pinned(image: str) -> bool:
    """Whether this names the same bytes for ever."""
    return len(image) <= MAX_LENGTH and _PINNED.match(image) is not None


def is_tagged(image: str) -> bool:
    """Whether this is a name and a tag."""
    return (
        len(image) <= MAX_LENGTH
        and "@" not in image
        and not image.startswith("sha256:")
        and _TAGGED.match(image) is not None
    )
