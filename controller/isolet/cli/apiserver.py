"""`isolet apiserver`."""

from pathlib import Path
from typing import Any

import click

from isolet.base.tls import TLSFiles
from isolet.cli import ends

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--namespace", required=True, help="Where the Executions of dispatches are made.")
@click.option("--class", "class_name", required=True, help="ExecutionClass whose runner serves.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="0: any, which is logged.  [default: 9000]"
)
@click.option(
    "--serving-tls-dir", type=_PATH, help="Folder with tls.crt and tls.key of this server."
)
@click.option("--token-file", type=_PATH, help="Secret of at least 32 characters for callers.")
@click.option(
    "--kubernetes-tokens/--no-kubernetes-tokens",
    default=None,
    help="Whether callers may come with a token of Kubernetes.  [default: no]",
)
@click.option("--binding-key", type=_PATH, help="Public key (PEM); over that of the class.")
@click.option("--callback-url", help="The only callback_url that a document may name.")
@click.option(
    "--require",
    multiple=True,
    help="A field every document must have; may be repeated.  [default: job_id,"
    " run_id, app_id, board_id, node_id, user_id, executor_jwt, callback_url, credentials,"
    " artifact]",
)
@click.option("--capacity", type=click.IntRange(1, 1024), help="Runs at a time.  [default: 4]")
@click.option(
    "--cancelled-ahead",
    type=click.IntRange(0, 100_000),
    help="Cancellations of unknown runs that are kept at a time.  [default: 1000]",
)
@click.option(
    "--agent-tls-dir",
    type=_PATH,
    help="Folder with tls.crt, tls.key, ca.crt (isolet:dispatch); needed for https agents.",
)
@click.option("--kubeconfig", type=_PATH, help="[default: the pod's service account]")
@click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
def apiserver(
    serving_tls_dir: Path | None,
    agent_tls_dir: Path | None,
    callback_url: str | None,
    require: tuple[str, ...],
    log_level: str | None,
    **given: Any,
) -> None:
    """Take dispatches over HTTP and serve each in a warm sandbox of its own."""
    from isolet.apiserver import run
    from isolet.apiserver.admission import FIELDS, REQUIRED, Contract
    from isolet.apiserver.settings import Bounds, Settings
    from isolet.base import errors, log

    log.setup(log_level or "info")
    chosen = {name: value for name, value in given.items() if value is not None}
    bounds = {name: chosen.pop(name) for name in ("capacity", "cancelled_ahead") if name in chosen}
    with ends.in_one_line():
        unknown = sorted(set(require) - FIELDS)
        if unknown:
            raise errors.Invalid(f"--require: {unknown[0]} is no field of a dispatch")
        contract = Contract(callback_url=callback_url, required=require or REQUIRED)
        if callback_url is None and "callback_url" in contract.required:
            raise errors.Invalid(
                "every document would be refused, for it must have a callback_url and may name"
                " none: give --callback-url, or say with --require what a document must have"
            )
        agent_tls = None if agent_tls_dir is None else TLSFiles.in_folder(agent_tls_dir)
        if agent_tls is not None:
            agent_tls.stamp()
        settings = Settings(
            contract=contract,
            serving_tls=None if serving_tls_dir is None else TLSFiles.in_folder(serving_tls_dir),
            agent_tls=agent_tls,
            bounds=Bounds(**bounds),
            **chosen,
        )
        run.main(settings)
