"""Which images are on the node and whether they can serve. Nothing is ever pulled."""

import asyncio
from collections.abc import Sequence

from isolet.agent.engine.base import Engine, Image
from isolet.base import envnames, errors
from isolet.plan.sandbox_model import Seen

TOOLS = ("sh", "sleep", "tar")
"""What Isolet needs in an image."""

_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin")


class Images:
    """Looks images up by reference; the verdict on an id stands, for its content never changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._verdicts: dict[str, str | None] = {}
        self._ids: dict[str, str] = {}
        self._judging = asyncio.Lock()

    async def check(self, reference: str) -> tuple[Seen, str | None]:
        """Whether the image is here, and if so why it cannot serve (None: it can)."""
        try:
            image = await self._engine.image(reference)
            self._ids[reference] = image.id
            return Seen.PRESENT, await self._verdict(image)
        except errors.NotFound:
            return Seen.ABSENT, None
        except errors.Unavailable:
            return Seen.UNKNOWN, None

    def id_of(self, reference: str) -> str | None:
        """The id found by the last check."""
        return self._ids.get(reference)

    async def _verdict(self, image: Image) -> str | None:
        async with self._judging:
            if image.id not in self._verdicts:
                self._verdicts[image.id] = await self._judge(image)
            return self._verdicts[image.id]

    async def _judge(self, image: Image) -> str | None:
        secret = [name for name in image.env if envnames.looks_like_credential(name)]
        if secret:
            return (
                f"image {image.id} sets {', '.join(sorted(secret))} in its own ENV, "
                "which looks like a credential: build it without"
            )
        missing = await self._missing(image.id, TOOLS)
        if missing:
            return f"image {image.id} has no {', '.join(missing)}, which Isolet needs in it"
        return None

    async def _missing(self, image_id: str, tools: Sequence[str]) -> list[str]:
        # /bin/sh is run by that very path; the others are looked for as a shell would.
        places = {
            tool: ["/bin/sh"] if tool == "sh" else [f"{folder}/{tool}" for folder in _FOLDERS]
            for tool in tools
        }
        every = [path for paths in places.values() for path in paths]
        has = await self._engine.image_has(image_id, every)
        return [tool for tool, paths in places.items() if not any(has.get(p) for p in paths)]
