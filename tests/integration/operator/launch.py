"""Runs one operator as a process of its own, as the command line does.

The one argument is JSON: `settings` for `Settings`, and `constants`, which shortens waits that are
minutes in earnest.
"""

import importlib
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from isolet.base import log
from isolet.base.tls import TLSFiles
from isolet.operator import run
from isolet.operator.leader import LeaseTimes
from isolet.operator.links import LinkTimes
from isolet.operator.settings import Settings


def main(text: str) -> int:
    given: dict[str, Any] = json.loads(text)
    for path, value in given["constants"].items():
        module, _, name = path.rpartition(".")
        holder = importlib.import_module(module)
        seconds = isinstance(getattr(holder, name), timedelta)
        setattr(holder, name, timedelta(seconds=value) if seconds else value)
    settings = given["settings"]
    settings["kubeconfig"] = Path(settings["kubeconfig"])
    settings["lease"] = LeaseTimes(**settings["lease"])
    if settings["agent_tls"] is not None:
        settings["agent_tls"] = TLSFiles.in_folder(Path(settings["agent_tls"]))
    settings["links"] = LinkTimes(**settings["links"])
    log.setup("debug")
    return run.main(Settings(**settings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
