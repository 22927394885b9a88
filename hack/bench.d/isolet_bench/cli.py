"""The command line of hack/bench."""

from __future__ import annotations

import argparse
import json
import os
import sys

from isolet_cluster.errors import ClusterError, say

from . import checkpoint, cold, process, scale, warm
from .place import Place
from .report import Report

DESCRIPTION = """hack/bench: Isolet beside its floor, measured in one run and in turns.

It has a cluster of its own (ISOLET_CLUSTER, else `bench`): brought up if it is not up, and what was
started is ended at the end. Compare the ratios of a run, not the absolute numbers of two.

  cold     a sandbox from nothing: latency, sustained throughput, API writes, CPU
  process  a Process from start to exit; hundreds of them through one node
  warm     what waits in warm slots, beside stdin itself and a cold start
  scale    agent restart with live sandboxes; operator start with many objects
  checkpoint   a workspace taken and restored, beside a plain copy
"""


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        "hack/bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON instead of tables")
    common.add_argument("--keep", action="store_true", help="leave the cluster up")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("cold", parents=[common], help="a sandbox from nothing")
    one.add_argument("--n", type=int, default=20, help="runs of each kind for latency")
    one.add_argument("--in-flight", type=int, default=8, help="runs at once for throughput")
    one.add_argument("--runs", type=int, default=16, help="runs in a block of throughput")
    one.add_argument("--blocks", type=int, default=6, help="blocks of each kind")
    one.add_argument("--only", choices=["latency", "throughput"], help="one part alone")
    each = commands.add_parser("process", parents=[common], help="commands with a record")
    each.add_argument("--n", type=int, default=20, help="runs of each kind for latency")
    each.add_argument("--processes", type=int, default=500, help="Processes through one node")
    each.add_argument("--only", choices=["latency", "many"], help="one part alone")
    many = commands.add_parser("scale", parents=[common], help="many sandboxes, many objects")
    many.add_argument("--sandboxes", type=int, default=60, help="live ones at the restart")
    many.add_argument("--objects", type=int, default=10_000, help="objects at the operator's start")
    many.add_argument("--only", choices=["restart", "objects"], help="one part alone")
    copy = commands.add_parser("checkpoint", parents=[common], help="a workspace and a plain copy")
    copy.add_argument("--n", type=int, default=3, help="rounds of each kind")
    copy.add_argument("--mib", type=int, default=1024, help="size of the few files together")
    copy.add_argument("--files", type=int, default=50_000, help="how many small files")
    copy.add_argument("--only", choices=["few", "many"], help="one kind alone")
    slots = commands.add_parser("warm", parents=[common], help="what waits in warm slots")
    slots.add_argument("--n", type=int, default=15, help="runs of each kind, one at a time")
    slots.add_argument(
        "--load", type=float, default=0.5, help="arrivals, as a share of the sustained rate"
    )
    slots.add_argument("--arrivals", type=int, default=50, help="arrivals of each kind")
    return whole


def _measure(options: argparse.Namespace) -> Report:
    kinds = {
        "cold": cold.run,
        "process": process.run,
        "scale": scale.run,
        "checkpoint": checkpoint.run,
        "warm": warm.run,
    }
    run = kinds[options.command]
    with Place.up(os.environ["ISOLET_CLUSTER"], keep=options.keep) as place:
        return run(place, options)


def main() -> int:
    """Parse and run."""
    options = parser().parse_args()
    try:
        report = _measure(options)
    except (ClusterError, OSError) as error:
        say(f"error: {error}")
        return 1
    if options.json:
        json.dump(report.document(), sys.stdout, indent=1)
        print()
    else:
        print(report.text())
    return 0
