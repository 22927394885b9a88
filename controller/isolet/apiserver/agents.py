"""The agents that a front door speaks to: one client for each node and endpoint that is named.

Nodes come and go, and get other endpoints, for as long as a front door lives. The client of one
that is not named any more is closed once no call is in progress over it; a run that is followed
over it is so to its end.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from isolet.apiserver.nodes import Node
from isolet.base import log
from isolet.base.tls import TLSFiles
from isolet.client.dispatch import HTTPDispatch
from isolet.wire.dispatch import DispatchAPI

LINGER_SECONDS = 600.0
"""How long calls may hold a client that is not named any more. Whatever has an effect is over much
sooner (a cancellation takes five minutes at most); a reader whose stream breaks comes back."""

_log = log.get("apiserver")


class Agents(Protocol):
    """The agents of the nodes."""

    def of(self, node: str, endpoint: str) -> DispatchAPI:
        """The agent of a node. To be called at once and not to be kept: ask for it again."""
        ...

    async def keep_only(self, nodes: Iterable[Node]) -> None:
        """Let go of the clients of all others, as soon as they are not in use."""
        ...


@dataclass(slots=True)
class _Client:
    agent: HTTPDispatch
    unnamed_since: float | None = None


@dataclass
class AgentPool:
    """Implements `Agents` over HTTP. Use it within one event loop, and close it."""

    files: TLSFiles | None
    linger_seconds: float = LINGER_SECONDS
    _known: dict[tuple[str, str], _Client] = field(default_factory=dict)

    def of(self, node: str, endpoint: str) -> HTTPDispatch:
        """See Agents."""
        key = (node, endpoint)
        if key not in self._known:
            agent = HTTPDispatch(endpoint, node=node, files=self.files, pool=128)
            self._known[key] = _Client(agent)
        return self._known[key].agent

    async def keep_only(self, nodes: Iterable[Node]) -> None:
        """See Agents. Asked every few seconds: what is in use now is looked at again then."""
        named, now = {(node.name, node.endpoint) for node in nodes}, _seconds()
        for key, client in list(self._known.items()):
            if key in named:
                client.unnamed_since = None
                continue
            if client.unnamed_since is None:
                client.unnamed_since = now
            late = now - client.unnamed_since >= self.linger_seconds
            if late or not client.agent.is_busy:
                del self._known[key]  # First: nobody is to be given what is being closed.
                await client.agent.close()
                _log.info("an agent is let go of", extra={"node": key[0], "cut_off": late})

    async def close(self) -> None:
        """Close all connections."""
        while self._known:
            _, client = self._known.popitem()
            await client.agent.close()


def _seconds() -> float:
    return asyncio.get_running_loop().time()
