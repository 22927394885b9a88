"""An object store with the S3 API.

    <prefix><uid>/content, entries, manifest

The manifest is written last and removed first, so where it is there is a whole copy. The library
blocks, so it is called in a few threads of its own. Credentials are in a file that is read for
each piece of work; neither they nor a request's address are in any message.
"""

import asyncio
import configparser
import hashlib
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import certifi
import urllib3
from minio import Minio
from minio.error import MinioException, S3Error

from isolet.agent.transfer.receive import Source
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire import http
from isolet.wire.checkpoint import Part
from isolet.wire.restore import StoreCopy

THREADS = 3
_PIECE = 1 << 20
_PART_BYTES = 16 << 20
_MOST_PARTS = 9_000
_ABSENT = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchObject"})
_WORD = re.compile(r"[A-Za-z0-9.]{1,64}")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Where a store is and how it is entered."""

    name: str
    endpoint: str
    """`https://host[:port]`, or `http://…` within a machine."""
    bucket: str
    prefix: str
    region: str
    credentials: Path
    """INI as the tools of S3 have it; section `default`."""
    authority: Path | None
    """Who signed its certificate; None: whom this system trusts."""


class _Stopped(Exception):
    """The agent ends."""


class S3Store:
    """Implements `ObjectStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="isolet-store")

    @property
    def name(self) -> str:
        """See `ObjectStore`."""
        return self._access.name

    async def save(self, uid: str, folder: Path) -> StoreCopy:
        """See `ObjectStore`."""
        key = self._key(uid)
        await self._run(lambda: self._save(key, folder))
        return StoreCopy(store=self.name, key=key)

    def source(self, copy: StoreCopy) -> Source:
        """See `ObjectStore`."""
        prefix = self._access.prefix
        uid = copy.key.removeprefix(prefix)
        if copy.store != self.name or self._key(uid) != copy.key:
            raise errors.NotFound(f"this node's object store is {self.name}, with other keys")
        return _Stored(self, copy.key)

    async def remove(self, uid: str) -> None:
        """See `ObjectStore`."""
        key = self._key(uid)
        await self._run(lambda: self._remove(key))

    async def close(self) -> None:
        """See `ObjectStore`."""
        self._stop.set()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _key(self, uid: str) -> str:
        if not http.is_uid(uid):
            raise errors.NotFound("no such key in the object store")
        return f"{self._access.prefix}{uid}"

    async def read(self, key: str, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
        """The bytes of one object from `offset` on."""
        bucket, name = self._access.bucket, f"{key}/{part.value}"
        answer = await self._run(lambda: self._client().get_object(bucket, name, offset))
        try:
            while piece := await self._run(lambda: answer.read(_PIECE)):
                yield piece
        finally:
            answer.close()
            answer.release_conn()

    async def _run(self, work: Callable[[], _R]) -> _R:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except S3Error as error:
            if error.code in _ABSENT:
                raise errors.NotFound(f"object store {self.name} has no such copy") from None
            # A code is a word; what a server calls one is not believed to be.
            code = str(error.code)
            raise self._unavailable(code if _WORD.fullmatch(code) else "an error") from None
        except (MinioException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._unavailable(type(error).__name__) from None
        except (_Stopped, RuntimeError):
            raise self._unavailable("the agent is ending") from None

    def _unavailable(self, why: str) -> errors.Unavailable:
        return errors.Unavailable(
            f"object store {self.name}: {why}", reason=reasons.OBJECT_STORE_UNAVAILABLE
        )

    def _client(self) -> Minio:
        """A client with the credentials of this moment."""
        access, address = self._access, urlsplit(self._access.endpoint)
        key, secret, token = read_credentials(access.credentials)
        pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=5.0, read=30.0),
            retries=urllib3.Retry(2, backoff_factor=0.2, status_forcelist=(500, 502, 503, 504)),
            cert_reqs="CERT_REQUIRED",
            ca_certs=str(access.authority or certifi.where()),
        )
        return Minio(
            address.netloc,
            key,
            secret,
            token,
            secure=address.scheme == "https",
            region=access.region,
            http_client=pool,
        )

    def _save(self, key: str, folder: Path) -> None:
        client = self._client()
        for part in reversed(Part):
            path, name = folder / part.value, f"{key}/{part.value}"
            size = path.stat().st_size
            with path.open("rb") as file:
                reading = _Reading(file, self._stop)
                part_size = max(_PART_BYTES, -(-size // _MOST_PARTS // 1024) * 1024)
                client.put_object(
                    self._access.bucket,
                    name,
                    reading,
                    size,
                    part_size=part_size,
                    num_parallel_uploads=1,
                )
            if self._digest(client, name) != reading.hash.hexdigest():
                raise MinioException("what was written came back otherwise")

    def _digest(self, client: Minio, name: str) -> str:
        answer = client.get_object(self._access.bucket, name)
        try:
            digest = hashlib.sha256()
            while piece := answer.read(_PIECE):
                _go_on(self._stop)
                digest.update(piece)
            return digest.hexdigest()
        finally:
            answer.close()
            answer.release_conn()

    def _remove(self, key: str) -> None:
        client, bucket = self._client(), self._access.bucket
        for part in Part:
            name = f"{key}/{part.value}"
            # The library has no public call for halves of uploads.
            found = client._list_multipart_uploads(bucket, prefix=name)
            for upload in found.uploads:
                if upload.object_name == name:
                    client._abort_multipart_upload(bucket, name, upload.upload_id)
            client.remove_object(bucket, name)
        left = [item.object_name for item in client.list_objects(bucket, prefix=f"{key}/")]
        if left:
            raise MinioException("what was removed is there")


class _Stored:
    """One copy as a source."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key

    @property
    def name(self) -> str:
        """See `Source`."""
        return f"object store {self._store.name}"

    def read(self, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
        """See `Source`."""
        return self._store.read(self._key, part, offset)


class _Reading:
    """A file on its way out, hashed as it goes; stops when the agent does."""

    def __init__(self, file: IO[bytes], stop: threading.Event) -> None:
        self._file = file
        self._stop = stop
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        _go_on(self._stop)
        data = self._file.read(size)
        self.hash.update(data)
        return data


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise _Stopped


def read_credentials(path: Path) -> tuple[str, str, str | None]:
    """Key, secret and session token.

    Raises:
        OSError: the file cannot be read, or others may read it.
        ValueError: it does not hold them. No message has a value.
    """
    with path.open() as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise PermissionError(f"{path} may be read by others: chmod 600")
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_file(file)
            section: Any = parser["default"]
            return (
                section["aws_access_key_id"],
                section["aws_secret_access_key"],
                section.get("aws_session_token"),
            )
        except (configparser.Error, KeyError):
            raise ValueError(
                f"{path} has no [default] with aws_access_key_id and aws_secret_access_key"
            ) from None
