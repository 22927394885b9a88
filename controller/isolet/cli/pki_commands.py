"""`isolet pki`: certificates for those who have no authority of their own."""

import datetime
from pathlib import Path

import click

from isolet.base.clock import SystemClock
from isolet.cli import ends
from isolet.wire import http

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def pki() -> None:
    """Make the certificates of operator and agents.

    DIR holds the authority; keep ca.key off the nodes. To renew a certificate run the same command
    again: agents and operator take the new files up within seconds.
    """


@pki.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
def init(folder: Path) -> None:
    """Make an authority in DIR (valid for ten years)."""
    from isolet.cli import pki as making

    with ends.in_one_line():
        making.init(folder, _now())
    click.echo(f"{folder}/ca.crt {folder}/ca.key")


@pki.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("name", metavar="NODE")
@click.option(
    "--address", "addresses", multiple=True, help="IP address or DNS name of the node; repeatable."
)
@click.option("--out", type=_FOLDER, help="[default: DIR/nodes/NODE]")
@click.option("--days", type=click.IntRange(1, 3650), default=397, show_default=True)
def node(folder: Path, name: str, addresses: tuple[str, ...], out: Path | None, days: int) -> None:
    """Make the certificate of the agent on NODE."""
    from isolet.cli import pki as making

    with ends.in_one_line():
        issuer = making.read_authority(folder)
        made = making.node(issuer, name, addresses, _now(), days=days)
        place = out or folder / "nodes" / name
        making.write(place, made, issuer)
    _tell(place)


@pki.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("identity", metavar="IDENTITY", type=click.Choice(http.IDENTITIES))
@click.option("--out", type=_FOLDER, help="[default: DIR/clients/IDENTITY without isolet:]")
@click.option("--days", type=click.IntRange(1, 3650), default=397, show_default=True)
def client(folder: Path, identity: str, out: Path | None, days: int) -> None:
    """Make the certificate of a caller: isolet:operator, isolet:stream or isolet:dispatch."""
    from isolet.cli import pki as making

    with ends.in_one_line():
        issuer = making.read_authority(folder)
        made = making.client(issuer, identity, _now(), days=days)
        place = out or folder / "clients" / identity.rpartition(":")[2]
        making.write(place, made, issuer)
    _tell(place)


def _tell(place: Path) -> None:
    click.echo(f"{place}/tls.crt {place}/tls.key {place}/ca.crt")


def _now() -> datetime.datetime:
    return SystemClock().now()
