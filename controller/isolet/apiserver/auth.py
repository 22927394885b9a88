"""Who may: the holder of the token file, or whom Kubernetes knows and allows.

Exactly one credential counts. Two are refused even if both are right: parts in front of this server
might have looked at another one of them.
"""

import contextlib
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from multidict import CIMultiDictProxy

from isolet.base import errors
from isolet.operator.kube import Cluster, Kind

HEADER_TOKEN = "X-Execution-Manager-Token"
HEADER_BEARER = "Authorization"
MIN_TOKEN = 32

TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)

CANNOT_ASK = "ReviewUnavailable"

_MAX_FILE = 64 << 10
_MAX_BEARER = 16 << 10
_CACHE = 1024
_CACHE_SECONDS = 30.0


class Unauthenticated(errors.Refused):
    """Nobody we know."""

    default_reason = "Unauthenticated"


class TokenFile:
    """A secret in a file; another content is taken up when the file changes."""

    def __init__(self, path: Path) -> None:
        """Reads it.

        Raises:
            Invalid: it cannot be read or is too short.
        """
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._digest = b""
        try:
            self._look()
        except OSError as error:
            raise errors.Invalid(f"{path}: {error.strerror}", reason="InvalidConfig") from None

    def matches(self, given: str) -> bool:
        """Whether this is it, in a time that tells nothing about where they differ."""
        # While the file is being replaced, what was read last still holds.
        with contextlib.suppress(OSError, errors.Invalid):
            self._look()
        return hmac.compare_digest(_digest(given.encode("utf-8", "surrogateescape")), self._digest)

    def _look(self) -> None:
        status = self._path.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        with self._path.open("rb") as file:
            token = file.read(_MAX_FILE).strip()
        if len(token) < MIN_TOKEN:
            raise errors.Invalid(
                f"{self._path}: the token must have at least {MIN_TOKEN} characters",
                reason="InvalidConfig",
            )
        self._digest, self._stamp = _digest(token), stamp


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Reviewer(Protocol):
    """Says whether the holder of a Kubernetes token may do something."""

    async def allows(self, token: str, verb: str) -> bool:
        """Whether it may.

        Raises:
            Unauthenticated: Kubernetes does not know the token.
            Unavailable: Kubernetes cannot be asked.
        """
        ...


@dataclass
class KubernetesReviewer:
    """Asks with a TokenReview and a SubjectAccessReview; answers are kept for half a minute."""

    cluster: Cluster
    namespace: str
    now: Callable[[], float] = time.monotonic
    _known: OrderedDict[tuple[bytes, str], tuple[float, bool]] = field(default_factory=OrderedDict)

    async def allows(self, token: str, verb: str) -> bool:
        """See Reviewer."""
        key = (_digest(token.encode("utf-8", "surrogateescape")), verb)
        kept = self._known.get(key)
        if kept is not None and kept[0] > self.now():
            return kept[1]
        user = await self._user(token)
        allowed = await self._may(user, verb)
        self._known[key] = (self.now() + _CACHE_SECONDS, allowed)
        while len(self._known) > _CACHE:
            self._known.popitem(last=False)
        return allowed

    async def _user(self, token: str) -> dict[str, Any]:
        status = await self._reviewed(TOKEN_REVIEWS, {"token": token})
        if not status.get("authenticated") or not (status.get("user") or {}).get("username"):
            raise Unauthenticated("the token is not known")
        user: dict[str, Any] = status["user"]
        return user

    async def _may(self, user: dict[str, Any], verb: str) -> bool:
        spec = {
            "user": user["username"],
            "uid": user.get("uid") or "",
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": {
                "namespace": self.namespace,
                "verb": verb,
                "group": "isolet.dev",
                "resource": "executions",
                "subresource": "dispatch",
            },
        }
        return bool((await self._reviewed(ACCESS_REVIEWS, spec)).get("allowed"))

    async def _reviewed(self, kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
        """The status of a review. That we may not ask for it is nothing about the caller."""
        try:
            answer = await self.cluster.create(kind, "", {"metadata": {}, "spec": spec})
        except errors.IsoletError as error:
            raise errors.Unavailable(f"{kind.kind}: {error.message}", reason=CANNOT_ASK) from error
        return answer.get("status") or {}


@dataclass(frozen=True, slots=True)
class Door:
    """Both ways in; at least one is open."""

    token: TokenFile | None
    reviewer: Reviewer | None

    async def demand(self, headers: CIMultiDictProxy[str], verb: str) -> None:
        """Let nobody in who may not.

        Raises:
            Unauthenticated: no credential, more than one, or a wrong one.
            Refused: Kubernetes knows the caller and forbids it.
            Unavailable: Kubernetes cannot be asked.
        """
        tokens, bearers = headers.getall(HEADER_TOKEN, []), headers.getall(HEADER_BEARER, [])
        if len(tokens) + len(bearers) != 1:
            raise Unauthenticated(
                f"exactly one credential is needed, {HEADER_TOKEN} or {HEADER_BEARER}, and once"
            )
        if tokens:
            if self.token is None or not self.token.matches(tokens[0]):
                raise Unauthenticated(f"the {HEADER_TOKEN} is not taken")
            return
        scheme, _, bearer = bearers[0].partition(" ")
        if self.reviewer is None or scheme.lower() != "bearer" or not 0 < len(bearer) < _MAX_BEARER:
            raise Unauthenticated(f"such an {HEADER_BEARER} is not taken")
        if not await self.reviewer.allows(bearer, verb):
            raise errors.Refused(f"may not {verb} executions/dispatch", reason="NotAllowed")
