"""`isolet agent` and `isolet watchdog`."""

from pathlib import Path
from typing import Any

import click

from isolet.cli import ends

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--config", type=_PATH, help="TOML file; the options below win over it.")
@click.option("--node", help="Name of this node.  [default: the host name]")
@click.option("--installation", help="Whose containers are ours.  [default: default]")
@click.option("--state-dir", type=_PATH, help="Records, output, disks.  [default: /var/lib/isolet]")
@click.option("--run-dir", type=_PATH, help="Socket, deadlines, launches.  [default: /run/isolet]")
@click.option("--engine-socket", type=_PATH, help="dockerd.  [default: /var/run/docker.sock]")
@click.option(
    "--socket",
    "unix_socket",
    type=_PATH,
    help="Socket for local callers.  [default: agent.sock in the run dir]",
)
@click.option("--listen", metavar="ADDRESS:PORT", help="Mutual TLS for others.  [default: none]")
@click.option("--tls-dir", type=_PATH, help="Folder with tls.crt, tls.key, ca.crt.")
@click.option(
    "--probe-listen", metavar="ADDRESS:PORT", help="Plain probes and metrics.  [default: none]"
)
@click.option("--policy-file", type=_PATH, help="What this node allows (TOML).")
@click.option(
    "--watchdog/--no-watchdog", default=None, help="Start the watchdog too.  [default: yes]"
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
def agent(config: Path | None, **given: Any) -> None:
    """Run sandboxes on this node.

    Root is needed: the engine's socket, mounts and loop devices are.
    """
    from isolet.agent import run, settings
    from isolet.base import log

    with ends.in_one_line():
        chosen = settings.load(config, given)
        log.setup(chosen.log_level)
        run.main(chosen)


@click.command()
@click.option("--config", type=_PATH, help="The agent's TOML file.")
@click.option("--run-dir", type=_PATH, help="The agent's run dir.  [default: /run/isolet]")
@click.option("--engine-socket", type=_PATH, help="dockerd.  [default: /var/run/docker.sock]")
@click.option("--grace", type=float, default=1.0, show_default=True, help="Seconds for the agent.")
def watchdog(config: Path | None, grace: float, **given: Any) -> None:
    """End what is past its deadline when the agent does not.

    An agent starts one by itself; this is for a unit or container of its own, beside an agent with
    --no-watchdog.
    """
    from isolet.agent import settings
    from isolet.agent import watchdog as process

    with ends.in_one_line():
        chosen = settings.load(config, given)
        places = {"--deadlines": chosen.deadlines, "--engine": chosen.engine_socket}
        places["--journal"] = chosen.journal
        process.main([str(part) for pair in places.items() for part in pair] + [f"--grace={grace}"])
