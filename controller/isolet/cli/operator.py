"""`isolet operator`."""

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import click

from isolet.base.tls import TLSFiles
from isolet.cli import ends

_PATH = click.Path(path_type=Path)


@click.command()
@click.option(
    "--identity",
    help="Name of this process in the Lease; a random part is added.  [default: the host name]",
)
@click.option(
    "--namespace",
    default=lambda: os.environ.get("POD_NAMESPACE", "isolet-system"),
    show_default="POD_NAMESPACE or isolet-system",
    help="The operator's own namespace.",
)
@click.option("--installation", default="default", show_default=True, help="Whose agents are used.")
@click.option(
    "--tls-dir", type=_PATH, help="Folder with tls.crt, tls.key, ca.crt; needed for https agents."
)
@click.option("--kubeconfig", type=_PATH, help="[default: the pod's service account]")
@click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
@click.option(
    "--workers", type=click.IntRange(1, 256), help="Passes under way at once.  [default: 32]"
)
@click.option(
    "--agent-calls", type=click.IntRange(1, 256), help="Calls to one agent at once.  [default: 8]"
)
@click.option(
    "--connections",
    type=click.IntRange(2, 1024),
    help="Connections to the API server.  [default: 32]",
)
@click.option(
    "--resync-seconds",
    type=click.FloatRange(1, 86_400),
    help="Look at all again after.  [default: 300]",
)
@click.option(
    "--orphan-policy",
    type=click.Choice(["Remove", "Report"]),
    help="What is done about things on nodes whose object is gone.  [default: Remove]",
)
@click.option(
    "--metrics-host", help="Address of /metrics, /healthz and /readyz.  [default: 127.0.0.1]"
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="0: any, which is logged.  [default: 8080]",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
def operator(
    identity: str | None, tls_dir: Path | None, log_level: str | None, **given: Any
) -> None:
    """Watch the cluster, tell agents what to want, write statuses."""
    from isolet.base import log
    from isolet.operator import run
    from isolet.operator.settings import Settings
    from isolet.plan.model import OrphanPolicy

    log.setup(log_level or "info")
    chosen = {name: value for name, value in given.items() if value is not None}
    if "orphan_policy" in chosen:
        chosen["orphan_policy"] = OrphanPolicy(chosen["orphan_policy"])
    with ends.in_one_line():
        files = None if tls_dir is None else TLSFiles.in_folder(tls_dir)
        if files is not None:
            files.stamp()
        name = f"{identity or socket.gethostname()}-{secrets.token_hex(4)}"
        sys.exit(run.main(Settings(identity=name, agent_tls=files, **chosen)))
