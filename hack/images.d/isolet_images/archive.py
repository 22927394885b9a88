"""Image archives as `docker load` takes them, the same bytes from the same content.

An archive is written by hand, not with `docker import`, so that its id is the same on every node
and known before any daemon is asked.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# All that is made here bears this time; files that a Debian package brought keep theirs.
FIXED_TIME = 1767225600  # 2026-01-01
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Layer:
    """A file system as a tar file, member by member."""

    def __init__(self, file: Path) -> None:
        self._tar = tarfile.TarFile(file, "w", format=tarfile.PAX_FORMAT)

    def __enter__(self) -> Layer:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def _info(self, name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = kind, mode, FIXED_TIME
        return info

    def folder(self, name: str, mode: int = 0o755) -> None:
        self._tar.addfile(self._info(name, tarfile.DIRTYPE, mode))

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        info = self._info(name, tarfile.REGTYPE, mode)
        info.size = len(content)
        self._tar.addfile(info, io.BytesIO(content))

    def link(self, name: str, target: str) -> None:
        info = self._info(name, tarfile.SYMTYPE, 0o777)
        info.linkname = target
        self._tar.addfile(info)

    def tree(self, root: Path, wanted: Callable[[str], bool], newest: float) -> None:
        """A whole folder, sorted; times after `newest` are of the making, not the content."""
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if not wanted(name):
                continue
            info = self._tar.gettarinfo(path, name)
            if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
                continue  # devices and sockets: the engine makes its own
            info.uname = info.gname = ""
            info.mtime = FIXED_TIME if info.mtime >= newest else int(info.mtime)
            if info.isreg():
                with path.open("rb") as content:
                    self._tar.addfile(info, content)
            else:
                self._tar.addfile(info)

    def part_of(self, other: Path, wanted: Callable[[str], bool]) -> None:
        """Some members of another layer."""
        with tarfile.open(other) as source:
            for info in source:
                if wanted(info.name):
                    self._tar.addfile(info, source.extractfile(info) if info.isreg() else None)


@dataclass(frozen=True)
class Settings:
    """What an image says about its start."""

    command: list[str] = field(default_factory=lambda: ["/bin/sh"])
    entrypoint: list[str] | None = None
    environment: list[str] = field(
        default_factory=lambda: [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ]
    )
    stop_signal: str = ""


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_archive(target: Path, name: str, layer: Path, settings: Settings) -> str:
    """Writes the archive and gives the image's id."""
    digest = sha256(layer)
    config: dict[str, object] = {
        "Cmd": settings.command,
        "Env": settings.environment,
        "WorkingDir": "/",
    }
    if settings.entrypoint:
        config["Entrypoint"] = settings.entrypoint
    if settings.stop_signal:
        config["StopSignal"] = settings.stop_signal
    image = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "2026-01-01T00:00:00Z", "comment": "hack/images"}],
    }
    body = json.dumps(image, sort_keys=True).encode()
    image_id = hashlib.sha256(body).hexdigest()
    manifest = [
        {"Config": f"{image_id}.json", "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}
    ]
    with Layer(target) as archive:
        archive.file("manifest.json", json.dumps(manifest).encode())
        archive.file(f"{image_id}.json", body)
        archive.folder(digest)
        info = archive._info(f"{digest}/layer.tar", tarfile.REGTYPE, 0o644)
        info.size = layer.stat().st_size
        with layer.open("rb") as content:
            archive._tar.addfile(info, content)
    return f"sha256:{image_id}"
