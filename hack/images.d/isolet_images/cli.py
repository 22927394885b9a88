"""hack/images: makes the sandbox images and loads them into node daemons.

Prints one line `name id` for each image. Without a socket: into every node of the cluster, whose
`hack/cluster env` then has them as ISOLET_IMAGE_SHELL, ISOLET_IMAGE_PYTHON and so on. Archives are
kept in $ISOLET_CACHE/images; what a daemon has already is not loaded again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from isolet_cluster import probe
from isolet_cluster.cli import tools_folder
from isolet_cluster.errors import ClusterError, say
from isolet_cluster.layout import Layout, State, write_file

from .archive import write_archive
from .recipes import Recipe, recipes

LOAD_SECONDS = 300


class Workshop:
    """The cache of finished archives, one folder each: image.tar, layer.tar and id."""

    def __init__(self) -> None:
        cache = os.environ.get("ISOLET_CACHE") or str(
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isolet"
        )
        self.folder = Path(cache) / "images"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tools = tools_folder(["busybox", "debootstrap", "docker"])
        self.recipes = recipes(self.tools, self.layer_of, self.folder / ".scratch")

    def finished(self, recipe: Recipe) -> Path:
        return self.folder / f"{recipe.name}-{recipe.key}"

    def archive_of(self, recipe: Recipe) -> Path:
        return self.finished(recipe) / "image.tar"

    def layer_of(self, recipe: Recipe) -> Path:
        self.make(recipe)
        return self.finished(recipe) / "layer.tar"

    def id_of(self, recipe: Recipe) -> str:
        return (self.finished(recipe) / "id").read_text()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another hack/images is at work, waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def make_all(self) -> None:
        if all(self.finished(recipe).is_dir() for recipe in self.recipes):
            return
        with self.locked():
            (self.folder / ".scratch").mkdir(exist_ok=True)
            for recipe in self.recipes:
                self.make(recipe)

    def make(self, recipe: Recipe) -> None:
        """Aside, then renamed: a folder with the right name is whole."""
        if self.finished(recipe).is_dir():
            return
        if os.geteuid() != 0:
            raise ClusterError("root is needed to make images")
        say(f"making image {recipe.tag}" + (f" ({recipe.note})" if recipe.note else ""))
        started = time.monotonic()
        aside = self.folder / f".{recipe.name}.new"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        recipe.write_layer(aside / "layer.tar")
        image_id = write_archive(
            aside / "image.tar", recipe.tag, aside / "layer.tar", recipe.settings
        )
        (aside / "id").write_text(image_id)
        aside.rename(self.finished(recipe))
        if recipe.note:
            say(f"  {recipe.tag} is made, {time.monotonic() - started:.0f} s")

    # --- loading

    def load_missing(self, socket: Path) -> None:
        missing = [
            recipe for recipe in self.recipes if self.id_in(socket, recipe) != self.id_of(recipe)
        ]
        for recipe in missing:
            self.load(socket, recipe)
        if missing:
            say(f"{socket}: loaded {', '.join(recipe.tag for recipe in missing)}")

    def id_in(self, socket: Path, recipe: Recipe) -> str | None:
        body = probe.unix_get(socket, f"/images/{recipe.tag}/json", timeout=30)
        return json.loads(body)["Id"] if body else None

    def load(self, socket: Path, recipe: Recipe) -> None:
        done = subprocess.run(
            [
                str(self.tools / "docker"),
                "-H",
                f"unix://{socket}",
                "load",
                "-q",
                "-i",
                str(self.archive_of(recipe)),
            ],
            capture_output=True,
            text=True,
            timeout=LOAD_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ClusterError(
                f"{socket}: loading {recipe.tag} failed: {done.stderr.strip()[-400:]}"
            )
        found = self.id_in(socket, recipe)
        if found != self.id_of(recipe):
            raise ClusterError(
                f"{socket}: {recipe.tag} has the id {found}, not {self.id_of(recipe)}"
            )


def cluster_sockets(layout: Layout) -> list[Path]:
    state = State.load(layout)
    if state is None or not state.nodes:
        raise ClusterError(f"there is no cluster {layout.name}: hack/cluster up, or name sockets")
    return [node.socket for node in layout.nodes(state.nodes)]


def run(arguments: argparse.Namespace) -> None:
    layout = Layout.of(arguments.name)
    sockets = [Path(s.removeprefix("unix://")) for s in arguments.socket] or cluster_sockets(layout)
    for socket in sockets:
        if probe.unix_get(socket, "/_ping", timeout=30) is None:
            raise ClusterError(f"no engine answers on {socket}")
    workshop = Workshop()
    workshop.make_all()
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(workshop.load_missing, sockets))
    ids = {recipe.name: workshop.id_of(recipe) for recipe in workshop.recipes}
    if not arguments.socket:
        write_file(layout.images_file, json.dumps(ids, indent=1) + "\n")
    for recipe in workshop.recipes:
        print(recipe.tag, ids[recipe.name])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/images",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--name", default=os.environ.get("ISOLET_CLUSTER") or "dev", help="the cluster"
    )
    parser.add_argument(
        "socket", nargs="*", help="sockets of engines, instead of a cluster's nodes"
    )
    try:
        run(parser.parse_args())
    except (ClusterError, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return 1
    return 0
