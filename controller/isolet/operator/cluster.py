"""The real API server: the only module that knows the `kubernetes` package.

Configuration and credentials are the package's (kubeconfig with all its ways to log in, or the
service account, whose token file is read again as it is rotated); the calls are made with its REST
client on plain dicts, since the generated models cost several times the CPU and know no CRD.
One `KubeCluster` belongs to one event loop.
"""

import asyncio
import json
import socket
import ssl
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib import request
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client import rest

from isolet.base import errors
from isolet.operator.kube import Kind, ListOptions, Object, Page, Precondition

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
FAREWELL_SECONDS = 3.0
"""A server that is busy for longer is not waited for."""
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LEFT_OPEN = frozenset({500, 502, 504})
"""Of a write they say nothing. An API server whose etcd dies under it answers 500, and some of what
it says so of is stored (docs/measured.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach an API server."""

    kubeconfig: Path | None = None
    """None: the pod's service account."""
    context: str | None = None
    connections: int = 32
    user_agent: str = "isolet-operator"

    async def configuration(self) -> Any:
        """Read the credentials; called once for each client.

        Raises:
            Invalid: there are none, or they cannot be read.
        """
        settings = client.Configuration()
        settings.connection_pool_maxsize = self.connections
        try:
            if self.kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                await config.load_kube_config(
                    config_file=str(self.kubeconfig),
                    context=self.context,
                    client_configuration=settings,
                    persist_config=False,
                )
        except (config.ConfigException, OSError) as error:
            raise errors.Invalid(f"no access to the API server: {self._why(error)}") from error
        settings.proxy = settings.proxy or _environment_proxy(settings.host)
        # aiohttp would look into the environment for every request, in a thread.
        settings.client_session_kwargs = {"trust_env": False}
        return settings

    def _why(self, error: Exception) -> str:
        """The package's words, with what they leave out: which file, or that one is needed."""
        if self.kubeconfig is None:
            return f"this is no pod with a service account ({error}); give --kubeconfig"
        if not self.kubeconfig.exists():
            return f"there is no kubeconfig {self.kubeconfig}"
        return f"kubeconfig {self.kubeconfig}: {error}"


class Sockets:
    """The sockets of one HTTP session.

    Over TLS a connection whose answer was still coming ends once the server has said farewell too,
    which may be long after its session was closed. A loop that is closed before leaves it open.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: tuple[Any, ...]) -> socket.socket:
        """One for this entry of `getaddrinfo`, as aiohttp asks for it."""
        made = socket.socket(*address[:3])
        self._made.add(made)
        return made

    async def closed(self, *, within: float) -> bool:
        """Wait until none is open, for so many seconds at most; returns whether none is."""
        end = asyncio.get_running_loop().time() + within
        while any(each.fileno() != -1 for each in list(self._made)):
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(0.01)
        return True


@dataclass(frozen=True, slots=True)
class Session:
    """A bare HTTP session to the API server for kopf, and where it leads."""

    server: str
    http: aiohttp.ClientSession
    sockets: Sockets
    namespace: str = "default"


class _Rest(rest.RESTClientObject):  # type: ignore[misc,unused-ignore]
    """The package's own REST client, whose sockets are known."""

    def __init__(self, settings: Any, sockets: Sockets) -> None:
        super().__init__(settings)
        self._sockets = sockets

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            limit=self.maxsize, ssl=self.ssl_context, socket_factory=self._sockets.make
        )


class KubeCluster:
    """`kube.Cluster` over HTTP."""

    def __init__(self, settings: Any, user_agent: str, timeout: float) -> None:
        self._sockets = Sockets()
        self._api = client.ApiClient(configuration=settings)
        self._api.rest_client = _Rest(settings, self._sockets)
        self._agent = user_agent
        self._timeout = timeout

    @classmethod
    async def connect(cls, access: Access, timeout: float = 30.0) -> "KubeCluster":
        """A client on the running loop. Nothing is sent yet."""
        return cls(await access.configuration(), access.user_agent, timeout)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        await self._sockets.closed(within=FAREWELL_SECONDS)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object."""
        return await self._call("GET", _path(kind, namespace, name))

    async def list(self, kind: Kind, options: ListOptions) -> Page:
        """One page."""
        query = {"limit": str(options.limit)}
        if options.token:
            query["continue"] = options.token
        if options.labels:
            query["labelSelector"] = options.labels
        answer = await self._call("GET", _path(kind, options.namespace), query=query)
        metadata = answer["metadata"]
        return Page(
            items=answer.get("items") or [],
            version=int(metadata.get("resourceVersion") or 0),
            token=metadata.get("continue") or None,
        )

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """A new object."""
        named = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return await self._call("POST", _path(kind, namespace), body=named)

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Object, subresource: str = ""
    ) -> Object:
        """Merge-patch."""
        path = _path(kind, namespace, name, subresource)
        return await self._call("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """The whole object."""
        named = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return await self._call("PUT", _path(kind, namespace, name), body=named)

    async def delete(self, kind: Kind, namespace: str, name: str, only_if: Precondition) -> None:
        """Delete in the background."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": only_if.document(),
        }
        await self._call("DELETE", _path(kind, namespace, name), body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = JSON,
    ) -> Object:
        url = self._api.configuration.host + path
        if query:
            url += "?" + urlencode(query)
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": self._agent}
        try:
            async with asyncio.timeout(self._timeout):
                await self._api.update_params_for_auth(
                    headers, [], ["BearerToken"], path, method, body
                )
                response = await self._api.rest_client.request(
                    method, url, headers=headers, body=body, _request_timeout=self._timeout
                )
                data = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise errors.Unavailable(f"API server: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            kind = errors.Unconfirmed if method in _WRITES else errors.Unavailable
            raise kind(f"API server: {method} {path}: {type(error).__name__} {error}") from error
        except config.ConfigException as error:
            # The token's file, which is read again every minute, is just being replaced.
            raise errors.Unavailable(f"no access to the API server: {error}") from error
        return _answer(response.status, response.headers, data, write=method in _WRITES)


async def kopf_session(access: Access) -> Session:
    """A session with a bounded number of connections; kopf's own has no limit.

    The token is put on each request, so that a rotated one is used without a 401, which kopf would
    answer by closing every stream.
    """
    settings = await access.configuration()

    async def authorize(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        token = await settings.get_api_key_with_prefix("BearerToken")
        if token:
            request.headers["Authorization"] = token
        return await handler(request)

    sockets = Sockets()
    connector = aiohttp.TCPConnector(
        limit=access.connections, ssl=_ssl_context(settings), socket_factory=sockets.make
    )
    http = aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": access.user_agent},
        middlewares=(authorize,),
        # A watched object may be longer than aiohttp's line buffer.
        read_bufsize=2**21,
        proxy=settings.proxy,
    )
    return Session(server=settings.host, http=http, sockets=sockets)


def _environment_proxy(server: str) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY ask for, read once."""
    url = urlsplit(server)
    if not url.hostname or request.proxy_bypass(url.hostname):
        return None
    return request.getproxies().get(url.scheme)


def _ssl_context(settings: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=settings.ssl_ca_cert, cadata=getattr(settings, "ca_cert_data", None)
    )
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _path(kind: Kind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = ["namespaces", namespace] if kind.namespaced and namespace else []
    parts = [*scope, kind.plural, name, subresource]
    return "/".join([root, *(quote(part, safe="") for part in parts if part)])


def _answer(status: int, headers: Mapping[str, str], data: bytes, *, write: bool = False) -> Object:
    try:
        body: Object = json.loads(data) if data else {}
    except ValueError:
        body = {"message": data[:200].decode(errors="replace")}
    if status < 300:
        return body
    raise _error(status, headers, body, write=write)


def _error(
    status: int, headers: Mapping[str, str], body: Object, *, write: bool
) -> errors.IsoletError:
    """The API server's Status as one of our errors, told apart by code alone."""
    message = str(body.get("message") or f"HTTP {status}")
    reason = str(body.get("reason") or "") or None
    if write and status in _LEFT_OPEN:
        return errors.Unconfirmed(message, reason=reason)
    match status:
        case 404:
            return errors.NotFound(message, reason=reason)
        case 409:
            return errors.Conflict(message, reason=reason)
        case 410:
            return errors.Conflict(message, reason="Expired")
        case 400 | 422:
            return errors.Invalid(message, reason=reason)
        case 401 | 403:
            return errors.Refused(message, reason=reason)
        case _:
            return errors.Unavailable(message, reason=reason, retry_after=_seconds(headers))


def _seconds(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 1.0
