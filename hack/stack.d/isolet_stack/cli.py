"""The command line of hack/stack."""

from __future__ import annotations

import argparse
import os
import sys

from isolet_cluster.errors import ClusterError, say

from .stack import Stack

DESCRIPTION = """hack/stack: operator and agents on a cluster of hack/cluster, from this tree.

  up               install CRDs and policies, start what is not running, wait for Ready nodes
  down             end operators, agents and watchdogs
  status           one row for each process
  start|kill|end PART    one process: operator-0, agent-node-0, ...
"""


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        "hack/stack", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default=os.environ.get("ISOLET_CLUSTER", "dev"))
    parser.add_argument("command", choices=["up", "down", "status", "start", "kill", "end"])
    parser.add_argument("part", nargs="?")
    options = parser.parse_args()
    try:
        return run(Stack.of(options.name), options.command, options.part)
    except ClusterError as error:
        say(f"error: {error}")
        return 1


def run(stack: Stack, command: str, part: str | None) -> int:
    """One command."""
    match command:
        case "up":
            stack.up()
        case "down":
            stack.down()
        case "status":
            for name in sorted(stack.parts):
                print(f"{name:24} {'running' if stack.alive(name) else 'ended'}")
        case "start" if part and part.startswith("agent-"):
            stack.start_agent(part.removeprefix("agent-"))
        case "start" if part and part.startswith("operator-"):
            stack.start_operator(part.removeprefix("operator-"))
        case "kill" if part:
            stack.kill(part)
        case "end" if part:
            stack.end(part)
        case _:
            print("a part is needed: see hack/stack status", file=sys.stderr)
            return 2
    return 0
