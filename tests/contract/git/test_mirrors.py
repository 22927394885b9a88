"""Mirrors of repositories that lie elsewhere, fetched by real helpers from real remotes."""

import asyncio
import base64
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isolet.agent.helper import spawn
from isolet.agent.workspace.mirrors import Mirrors, Remote
from isolet.base import errors
from isolet.plan import reasons
from tests.contract.git.conftest import Reader
from tests.git_repo import Repo
from tests.untar import Entry

SECONDS = 60.0


@pytest.fixture
def mirrors(tmp_path: Path) -> Mirrors:
    found = Mirrors(tmp_path / "mirrors")
    found.prepare()
    return found


def near(repo: Repo, refresh_seconds: int = 3600) -> Remote:
    return Remote(name="near", url=f"file://{repo.folder}", refresh_seconds=refresh_seconds)


async def test_it_is_fetched_once_and_read_like_any_repository(
    mirrors: Mirrors, reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    commit = repo.commit({"f": "text\n"})
    repo.git("tag", "v1")
    path = Path(await mirrors.path(near(repo), fresh=True, seconds=SECONDS))
    assert await reader.resolve(path, "v1") == commit
    assert await reader.files(path, "main") == {b"f": Entry("file", 0o644, b"text\n", 1767323045)}
    owners = {p.stat().st_uid for p in (path, *path.rglob("*"))}
    assert owners == {spawn.USER}
    assert path.stat().st_mode & 0o077 == 0


async def test_it_is_as_old_as_it_may_be_and_no_older(
    mirrors: Mirrors, reader: Reader, repo: Repo
) -> None:
    first = repo.commit({"f": "1"})
    repo.git("branch", "gone")
    path = Path(await mirrors.path(near(repo), fresh=True, seconds=SECONDS))
    second = repo.commit({"f": "2"})
    repo.git("branch", "-D", "gone")
    await mirrors.path(near(repo), fresh=True, seconds=SECONDS)
    assert await reader.resolve(path, "main") == first, "young enough"
    await mirrors.path(near(repo, 0), fresh=False, seconds=SECONDS)
    assert await reader.resolve(path, "main") == first, "any will do"
    await mirrors.path(near(repo, 0), fresh=True, seconds=SECONDS)
    assert await reader.resolve(path, "main") == second
    assert (await reader.refusal(path, "gone"))[0] == reasons.REVISION_NOT_FOUND


async def test_many_who_ask_at_once_make_one_fetch(
    mirrors: Mirrors, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit({"f": "1"})
    fetched = []
    fetch = mirrors._fetch

    async def counted(*arguments: object) -> None:
        fetched.append(arguments)
        await fetch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(mirrors, "_fetch", counted)
    asked = (mirrors.path(near(repo), fresh=True, seconds=SECONDS) for _ in range(8))
    assert len(set(await asyncio.gather(*asked))) == 1
    assert len(fetched) == 1


async def test_a_fetch_that_was_cut_off_is_completed(
    mirrors: Mirrors, reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    repo.commit({"f": "1"})
    with pytest.raises(errors.Refused, match="took longer"):
        await mirrors.path(near(repo), fresh=True, seconds=0.05)
    path = Path(await mirrors.path(near(repo), fresh=True, seconds=SECONDS))
    assert await reader.resolve(path, "main") == repo.git("rev-parse", "main")


@pytest.mark.parametrize(
    "kept", ["", "HEAD", "config", "HEAD config", "HEAD refs", "HEAD config objects", "config.lock"]
)
async def test_one_that_was_half_made_is_completed(
    mirrors: Mirrors, reader: Reader, repo: Repo, kept: str
) -> None:
    """Git makes these one after the other; killed in between, some are there."""
    repo.commit({"f": "1"})
    path = Path(await mirrors.path(near(repo), fresh=True, seconds=SECONDS))
    path.with_suffix(".fresh").unlink()
    for found in path.iterdir():
        if found.is_dir():
            shutil.rmtree(found)
            if found.name in kept.split():
                found.mkdir(mode=0o700)
                os.chown(found, spawn.USER, spawn.USER)
        elif found.name not in kept.split():
            found.unlink()
    if "config.lock" in kept:
        (path / "config.lock").touch()
    path = Path(await mirrors.path(near(repo), fresh=True, seconds=SECONDS))
    assert await reader.resolve(path, "main") == repo.git("rev-parse", "main")


HOOK = "#!/bin/sh\ntouch %s\n"


async def test_what_the_remote_configures_runs_nothing(
    mirrors: Mirrors, repo: Repo, tmp_path: Path
) -> None:
    """Hooks and settings of a repository on the same node, which git itself would honour."""
    mark = tmp_path / "open" / "ran"
    mark.parent.mkdir()
    mark.parent.chmod(0o777)
    program = tmp_path / "program"
    program.write_text(HOOK % mark)
    program.chmod(0o755)
    repo.commit({"f": "1"})
    for key in ("core.fsmonitor", "uploadpack.packObjectsHook", "core.sshCommand", "core.gitProxy"):
        repo.git("config", key, str(program))
    repo.git("config", "core.fsmonitor", str(program))
    repo.git("status")
    assert mark.exists(), "the control: it does run"
    mark.unlink()
    await mirrors.path(near(repo), fresh=True, seconds=SECONDS)
    assert not mark.exists()


UNREACHABLE = {
    "nobody listens": "https://127.0.0.1:1/x.git",
    "no such host": "https://git.invalid/x.git",
    "no such folder": "file:///nowhere/x.git",
}


@pytest.mark.parametrize("url", UNREACHABLE.values(), ids=UNREACHABLE.keys())
async def test_a_remote_that_cannot_be_reached_is_said_so(mirrors: Mirrors, url: str) -> None:
    remote = Remote(name="vendor/lib", url=url, refresh_seconds=0)
    with pytest.raises(
        errors.Refused, match="remote of repository vendor/lib could not be"
    ) as caught:
        await mirrors.path(remote, fresh=True, seconds=SECONDS)
    assert caught.value.reason == reasons.REPOSITORY_UNAVAILABLE


async def test_a_mirror_that_is_there_outlives_its_remote(
    mirrors: Mirrors, reader: Reader, repo: Repo, tmp_path: Path
) -> None:
    commit = repo.commit({"f": "1"})
    path = Path(await mirrors.path(near(repo, 0), fresh=True, seconds=SECONDS))
    repo.folder.rename(tmp_path / "away")
    remote = Remote(name="near", url=f"file://{repo.folder}", refresh_seconds=0)
    with pytest.raises(errors.Refused):
        await mirrors.path(remote, fresh=True, seconds=SECONDS)
    assert await mirrors.path(remote, fresh=False, seconds=SECONDS) == str(path)
    assert await reader.resolve(path, commit) == commit


# Over https: the real git-http-backend behind a small server with a certificate of its own.


class Web:
    """Serves one folder of repositories to who has the token."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.token = token
        self.port = 0
        self.refused = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.split("\r\n")
        headers = {k.lower(): v for k, _, v in (each.partition(": ") for each in lines) if k}
        method, target, _ = line.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.token not in headers.get("authorization", ""):
            self.refused += 1
            writer.write(b"HTTP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic\r\n\r\n")
        else:
            out = await asyncio.to_thread(self._backend, method, target, headers, body)
            writer.write(b"HTTP/1.0 200 OK\r\n" + out)
        await writer.drain()
        writer.close()

    def _backend(self, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        path, _, query = target.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": headers.get("git-protocol", ""),
        }
        argv = ["git", "http-backend"]
        return subprocess.run(argv, env=env, input=body, capture_output=True, check=True).stdout


@pytest.fixture
async def web(repo: Repo, tmp_path: Path) -> AsyncIterator[Web]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    made += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    found = Web(tmp_path, base64.b64encode(b"x-access-token:s3cret-canary").decode())
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0, ssl=context)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


async def test_over_https_with_a_token_and_an_authority_of_its_own(
    mirrors: Mirrors, reader: Reader, repo: Repo, web: Web, tmp_path: Path
) -> None:
    commit = repo.commit({"f": "1"})
    token = tmp_path / "token"
    token.write_text("s3cret-canary\n")
    remote = Remote(
        name="far",
        url=f"https://127.0.0.1:{web.port}/repo",
        refresh_seconds=0,
        token_file=str(token),
        ca_file=str(tmp_path / "cert.pem"),
    )
    path = Path(await mirrors.path(remote, fresh=True, seconds=SECONDS))
    assert await reader.resolve(path, "main") == commit
    assert web.refused == 0
    held = [p for p in path.rglob("*") if p.is_file() and b"s3cret-canary" in p.read_bytes()]
    assert held == []


@pytest.mark.parametrize("lacks", ["token", "authority"])
async def test_over_https_without_one_of_them(
    mirrors: Mirrors, repo: Repo, web: Web, tmp_path: Path, lacks: str
) -> None:
    repo.commit({"f": "1"})
    (tmp_path / "token").write_text("another" if lacks == "token" else "s3cret-canary")
    remote = Remote(
        name="far",
        url=f"https://127.0.0.1:{web.port}/repo",
        refresh_seconds=0,
        token_file=str(tmp_path / "token"),
        ca_file=None if lacks == "authority" else str(tmp_path / "cert.pem"),
    )
    with pytest.raises(errors.Refused, match="could not be fetched") as caught:
        await mirrors.path(remote, fresh=True, seconds=SECONDS)
    assert "another" not in caught.value.message
    assert bool(web.refused) is (lacks == "token")
