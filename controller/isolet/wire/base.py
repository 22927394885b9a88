"""The base of every message: frozen, camelCase on the wire, bytes as base64.

The error about a message that is found wrong quotes nothing of it: it may hold values of a tenant.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

WIRE_VERSION = 1
"""The version this build speaks. An agent answers every version in `WIRE_VERSIONS`."""

WIRE_VERSIONS = (1,)
"""Versions this build understands, oldest first. Operator N+1 keeps speaking N to an agent of N."""

HEADER_WIRE = "Isolet-Wire"
HEADER_FENCE = "Isolet-Fence"


UID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""Ids: first alphanumeric, then [A-Za-z0-9_.-], at most 64."""

Uid = Annotated[str, Field(pattern=UID_PATTERN)]

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]


class Wire(BaseModel):
    """A value that crosses between operator and agent."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        hide_input_in_errors=True,
    )

    def to_json(self) -> bytes:
        """The message as compact JSON; absent optional fields are left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class Fence(Wire):
    """Which leader speaks: (shard, Lease UID, transitions).

    An agent refuses a fence of the same Lease with fewer transitions than it has obeyed, and any
    fence of a Lease it has seen replaced (docs/design.md §3).
    """

    shard: str = "0"
    lease_uid: str
    transitions: int

    def header(self) -> str:
        """The value of the `Isolet-Fence` header."""
        return f"{self.shard}/{self.lease_uid}/{self.transitions}"

    @classmethod
    def parse(cls, text: str) -> "Fence":
        """Read a header value.

        Raises:
            ValueError: the text is not `<shard>/<lease uid>/<transitions>`.
        """
        parts = text.split("/")
        if len(parts) != 3 or not all(parts) or not parts[2].isdecimal():
            raise ValueError("fence must be <shard>/<lease uid>/<transitions>")
        return cls(shard=parts[0], lease_uid=parts[1], transitions=int(parts[2]))
