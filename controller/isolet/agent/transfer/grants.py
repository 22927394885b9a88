"""The right of one node to read one Checkpoint from this one, for a short while. Pure.

A token is the moment when it ends and a keyed digest over that, the Checkpoint, its manifest and
the reader. So it says nothing to whoever finds it, is of use only to the node that its certificate
names, and ends with this node's boot or a change of its key.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

from isolet.base import errors

REFUSED = "GrantRefused"
MAX_SECONDS = 3600
_TOKEN = re.compile(r"([0-9]{1,15})\.([A-Za-z0-9_-]{43})")
_PURPOSE = "isolet checkpoint grant 1"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a grant is about."""

    uid: str
    manifest_digest: str
    reader: str
    """Name of the node that may read it."""


@dataclass(frozen=True, slots=True)
class Now:
    """The present, on the clock of this boot: no step of the wall clock lengthens a grant."""

    boot_id: str
    boottime: float


def give(key: bytes, subject: Subject, seconds: int, now: Now) -> str:
    """A token that is good for so many seconds.

    Raises:
        Invalid: the time is too long, or a name cannot be told from what stands beside it.
    """
    if not 1 <= seconds <= MAX_SECONDS:
        raise errors.Invalid(f"seconds: must be 1 to {MAX_SECONDS}")
    ends = int((now.boottime + seconds) * 1000)
    return f"{ends}.{_proof(key, subject, ends, now.boot_id)}"


def check(key: bytes, token: str, subject: Subject, now: Now) -> None:
    """Refuses a token that was not given for this, or has ended."""
    found = _TOKEN.fullmatch(token)
    ends = int(found[1]) if found else 0
    given = found[2] if found else ""
    proof = _proof(key, subject, ends, now.boot_id)
    # One answer for all of it: who has no right learns nothing of how far it came.
    good = hmac.compare_digest(given.encode(), proof.encode())
    if not good or ends <= now.boottime * 1000:
        raise errors.Refused("there is no such grant, or it has ended", reason=REFUSED)


def _proof(key: bytes, subject: Subject, ends: int, boot_id: str) -> str:
    fields = (_PURPOSE, boot_id, subject.uid, subject.manifest_digest, subject.reader, str(ends))
    if any("\0" in field for field in fields):
        raise errors.Invalid("a grant is about names without NUL")
    made = hmac.new(key, "\0".join(fields).encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")
