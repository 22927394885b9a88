"""`isolet`: the commands, and the only place where implementations are chosen.

Each command imports what it needs when it runs, so that an agent never loads the operator's
libraries. What goes wrong at a start is one line on stderr: exit code 2 if the configuration is
wrong, 1 for anything else.
"""

import click

import isolet
from isolet.cli.agent import agent, watchdog
from isolet.cli.apiserver import apiserver
from isolet.cli.operator import operator
from isolet.cli.pki_commands import pki


@click.group(context_settings={"auto_envvar_prefix": "ISOLET", "max_content_width": 100})
def main() -> None:
    """Untrusted code in gVisor sandboxes, as Kubernetes resources.

    Every option may also be given as an environment variable: ISOLET_AGENT_NODE for
    `isolet agent --node`.
    """


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(isolet.__version__)


@main.command()
def crds() -> None:
    """Print the CustomResourceDefinitions, for `kubectl apply --server-side -f -`."""
    import json

    from isolet.api import crd

    items = crd.documents()
    click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))


for command in (agent, watchdog, apiserver, operator, pki):
    main.add_command(command)
