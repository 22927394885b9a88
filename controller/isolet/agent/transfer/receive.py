"""Brings the files of one Checkpoint here from a source that is believed nothing.

The digest of the manifest is known beforehand. The manifest tells the sizes of the other two and
the digest of the entries; these have one for each file in the content, which whoever loads it
compares. So a source can be wrong, slow, cut off or endless, and costs a bounded time and room.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from pydantic import ValidationError

from isolet.base import errors, log
from isolet.plan import reasons
from isolet.wire.checkpoint import MAX_MANIFEST_BYTES, Manifest, Part
from isolet.wire.restore import Restore

_WRITE_BYTES = 1 << 20
_log = log.get("agent.transfer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How patient a receiver is."""

    grace_seconds: float = 60.0
    bytes_per_second: int = 1 << 20
    """Below this, on average, a source is too slow to be of use."""
    tries: int = 4
    """How often it is asked again without having brought a byte since."""
    pause_seconds: float = 0.5
    """Before the second try; doubled each time."""


class Source(Protocol):
    """Somebody who may have a copy."""

    @property
    def name(self) -> str:
        """For messages: `node node-1`, `store main`."""
        ...

    def read(self, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
        """The bytes of a file from `offset` on, in pieces.

        Raises:
            NotFound, Refused: it has none, or none for us; asking again would not help.
            Unavailable: it could not be read, or broke off.
        """
        ...


class Unusable(errors.Refused):
    """What the source gave is not the Checkpoint that is meant, or does not fit."""

    default_reason = reasons.CHECKPOINT_INVALID


async def receive(
    source: Source, restore: Restore, folder: Path, *, room_bytes: int, pace: Pace | None = None
) -> Manifest:
    """Write `manifest`, `entries` and `content` into an empty folder.

    Args:
        source: who is asked.
        restore: which Checkpoint, by digest.
        folder: where the files go; after a failure it holds a part.
        room_bytes: most bytes that may be written.
        pace: how patient to be.

    Raises:
        NotFound, Refused: the source has none, or none for us.
        Unusable: what it gave is something else, or too large.
        Unavailable: it could not be read in reasonable time.
    """
    pace = pace or Pace()
    raw = await _manifest(source, folder, pace)
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != restore.manifest_digest:
        raise Unusable(f"{source.name} gave a manifest that is not the one named")
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError:
        raise Unusable(f"{source.name} gave a manifest of a form not known here") from None
    needed = manifest.entries_bytes + manifest.content_bytes
    if needed > room_bytes:
        raise Unusable(
            f"the copy has {needed} bytes and this node has room for {max(0, room_bytes)}",
            reason=reasons.CHECKPOINT_TOO_LARGE,
        )
    digest = await _file(source, Part.ENTRIES, folder, manifest.entries_bytes, pace)
    if digest != manifest.content_digest:
        raise Unusable(f"{source.name} gave entries that are not those of the manifest")
    await _file(source, Part.CONTENT, folder, manifest.content_bytes, pace)
    return manifest


async def _manifest(source: Source, folder: Path, pace: Pace) -> bytes:
    """Its size is not known, only that it is small."""
    taking = _Taking(source, Part.MANIFEST, MAX_MANIFEST_BYTES, pace)
    path = folder / Part.MANIFEST.value
    with path.open("xb") as file:
        await taking.into(file)
    return path.read_bytes()


async def _file(source: Source, part: Part, folder: Path, size: int, pace: Pace) -> str:
    taking = _Taking(source, part, size, pace, exact=True)
    with (folder / part.value).open("xb") as file:
        return await taking.into(file)


class _Taking:
    """One file on its way, over as many tries as it takes."""

    def __init__(
        self, source: Source, part: Part, most: int, pace: Pace, *, exact: bool = False
    ) -> None:
        self._source = source
        self._part = part
        self._most = most
        self._exact = exact
        self._pace = pace
        self._hash = hashlib.sha256()
        self._size = 0

    async def into(self, file: IO[bytes]) -> str:
        """All of it; its digest."""
        pace = self._pace
        try:
            async with asyncio.timeout(pace.grace_seconds + self._most / pace.bytes_per_second):
                await self._tries(file)
        except TimeoutError:
            raise errors.Unavailable(f"{self._what} came too slowly") from None
        return f"sha256:{self._hash.hexdigest()}"

    @property
    def _what(self) -> str:
        return f"the {self._part.value} from {self._source.name}"

    async def _tries(self, file: IO[bytes]) -> None:
        failures, pause = 0, self._pace.pause_seconds
        while True:
            before = self._size
            try:
                await self._once(file)
                return
            except errors.Unavailable as error:
                if self._size > before:
                    failures, pause = 0, self._pace.pause_seconds
                failures += 1
                if failures >= self._pace.tries:
                    raise
                _log.info("broke off", extra={"source": self._source.name, "why": error.reason})
            await asyncio.sleep(pause)
            pause *= 2

    async def _once(self, file: IO[bytes]) -> None:
        pieces = bytearray()
        async with aclosing(self._source.read(self._part, self._size)) as stream:
            try:
                async for piece in stream:
                    if self._size + len(pieces) + len(piece) > self._most:
                        raise Unusable(f"{self._what} is longer than it should be")
                    pieces += piece
                    if len(pieces) >= _WRITE_BYTES:
                        await self._write(file, pieces)
            finally:
                # What came before it broke off need not come again.
                self._take(file, pieces)
        if self._exact and self._size != self._most:
            raise errors.Unavailable(f"{self._what} ended after {self._size} of {self._most} bytes")

    async def _write(self, file: IO[bytes], pieces: bytearray) -> None:
        await asyncio.to_thread(self._take, file, pieces)

    def _take(self, file: IO[bytes], pieces: bytearray) -> None:
        self._hash.update(pieces)
        file.write(pieces)
        self._size += len(pieces)
        pieces.clear()
