"""Which Checkpoint a workspace starts with, and where its content may come from."""

from datetime import datetime

from pydantic import Field

from isolet.wire.base import Digest, Uid, Wire


class StoreCopy(Wire):
    """A whole copy in an object store."""

    store: str
    """Name of the store, as the node's settings call it."""
    key: str
    """Key below which the three files lie."""


class Restore(Wire):
    """What a workspace starts with: fixed in an Execution's spec, so its digest covers it."""

    checkpoint_uid: Uid
    manifest_digest: Digest
    content_digest: Digest


class Grant(Wire):
    """A short-lived right of one node to read one Checkpoint from the agent that gave it."""

    token: str = Field(max_length=1024)
    """Opaque; never logged, stored or shown."""
    expires_at: datetime


class Peer(Wire):
    """Another agent that has a whole copy, and the right to read it there."""

    node: str
    """Name of the node, which its certificate must carry."""
    endpoint: str
    """`https://<address>:<port>` of its agent."""
    grant: Grant


class RestoreFrom(Wire):
    """Where the content may come from. Beside the spec: it may be sent anew, with a new grant.

    An agent takes what lies on its own node first, then the peer, then the store.
    """

    peer: Peer | None = None
    in_store: StoreCopy | None = None
