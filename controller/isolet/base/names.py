"""Names and digests that are the same on every machine and after every restart.

A container is named `<prefix>-` + 40 hex digits of SHA-256 over scope and id, so that a create that
a crash cut short is found by its name and adopted, never repeated. Labels say whose it is.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

CONTAINER_PREFIX = "isolet"

LABEL_INSTALLATION = "dev.isolet.installation"
LABEL_KIND = "dev.isolet.kind"
LABEL_UID = "dev.isolet.uid"
LABEL_NAMESPACE = "dev.isolet.namespace"
LABEL_NAME = "dev.isolet.name"
LABEL_CLASS = "dev.isolet.class"
LABEL_SPEC_DIGEST = "dev.isolet.spec-digest"


def container_name(scope: str, uid: str) -> str:
    """The one name that the sandbox of `uid` may have in installation `scope`."""
    return f"{CONTAINER_PREFIX}-{short_digest(scope, uid)}"


def short_digest(*parts: str) -> str:
    """40 hex digits over the parts; a length prefix keeps ("a", "bc") and ("ab", "c") apart."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(f"{len(raw)}:".encode())
        digest.update(raw)
    return digest.hexdigest()[:40]


def canonical_json(value: Any) -> bytes:
    """One spelling for equal values: sorted keys, no blanks, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    """`sha256:<hex>` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def keyed_digest(key: bytes, data: bytes) -> str:
    """`hmac-sha256:<hex>`: for values that could be guessed from a plain digest."""
    return "hmac-sha256:" + hmac.new(key, data, hashlib.sha256).hexdigest()


def labels_match(labels: Mapping[str, str], installation: str, uid: str) -> bool:
    """Whether a container or volume with these labels is ours and belongs to `uid`."""
    return labels.get(LABEL_INSTALLATION) == installation and labels.get(LABEL_UID) == uid
