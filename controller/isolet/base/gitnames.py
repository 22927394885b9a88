"""What may name a Git repository and a revision: the same for the API, the wire and the policy."""

import re

REPOSITORY_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.-]*(?:/[A-Za-z0-9][A-Za-z0-9_.-]*)*$"
"""Names of repositories, never paths or URLs: no part can be empty, `.` or `..`."""

REVISION_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._/@{}^~+-]*$"
MAX_REVISION = 256
MAX_REPOSITORY = 253

_MOVING = ("@{", "^{/", "..")
"""The reflog, a search, a range: what they mean changes, or is no commit."""


def is_revision(text: str) -> bool:
    """Whether it can be a commit, branch or tag, and never an option or a path."""
    plain = re.fullmatch(REVISION_PATTERN.removesuffix("$"), text) is not None
    return plain and len(text) <= MAX_REVISION and not any(part in text for part in _MOVING)
