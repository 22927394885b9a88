"""What runs cost: CPU of the processes that matter, API writes, calls to the agent."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from isolet_cluster.layout import State
from isolet_cluster.processes import stat_fields
from isolet_stack.stack import Stack

TICKS = os.sysconf("SC_CLK_TCK")
OPERATOR = "system:serviceaccount:isolet-system:isolet-operator"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
OF_EXECUTIONS = frozenset({"executions", "events", "configmaps"})


def pids(stack: Stack) -> dict[str, int]:
    """Pids of Isolet's processes and those it keeps busy."""
    found = {part: int(record["pid"]) for part, record in stack.parts.items()}
    state = State.load(stack.layout)
    if state is not None:
        found |= {part: int(record["pid"]) for part, record in state.parts.items()}
    pid_file = stack.layout.node(0).containerd_pid_file
    if pid_file.exists():
        found["containerd-0"] = int(pid_file.read_text())
    return found


def cpu(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for."""
    fields = stat_fields(pid)
    return sum(map(int, fields[11:15])) / TICKS if fields else 0.0


def rss_mib(pid: int) -> tuple[float, float]:
    """Resident memory now and at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = {k: v for k, _, v in (line.partition(":") for line in lines)}
    now, peak = (int(values[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, peak


@dataclass
class Cost:
    """Sums over the runs of one kind."""

    runs: int = 0
    cpu: collections.Counter[str] = field(default_factory=collections.Counter)

    def per_run(self, part: str) -> float:
        """CPU milliseconds."""
        return 1000 * self.cpu[part] / max(1, self.runs)


class Meter:
    """Takes readings; `cost` has what was used in between."""

    def __init__(self, stack: Stack) -> None:
        self._pids = pids(stack)

    def read(self) -> dict[str, float]:
        own = sum(os.times()[:4])
        return {**{part: cpu(pid) for part, pid in self._pids.items()}, "client": own}

    def add(self, cost: Cost, before: dict[str, float], runs: int) -> None:
        after = self.read()
        cost.runs += runs
        for part, value in after.items():
            cost.cpu[part] += value - before.get(part, 0.0)


class Audit:
    """The operator's writes in the API server's own log, from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size

    def writes(self, prefix: str) -> collections.Counter[str]:
        """By verb and resource, of Executions whose name begins with `prefix`; refused ones too."""
        found: collections.Counter[str] = collections.Counter()
        for entry in self._entries():
            ref = entry.get("objectRef", {})
            of_ours = ref.get("name", "").startswith(prefix) or ref.get("resource") == "events"
            if ref.get("resource") in OF_EXECUTIONS and of_ours:
                resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
                code = int(entry.get("responseStatus", {}).get("code", 0))
                refused = f" -> {code}" if code >= 400 else ""
                found[f"{entry['verb']} {resource}{refused}"] += 1
        return found

    def _entries(self) -> Iterator[dict[str, dict[str, str]]]:
        with self._path.open("rb") as lines:
            lines.seek(self._from)
            for line in lines:
                if OPERATOR.encode() not in line:
                    continue
                entry = json.loads(line)
                if entry["user"]["username"] == OPERATOR and entry["verb"] in WRITES:
                    yield entry


def agent_requests(metrics: str) -> collections.Counter[str]:
    """Requests the agent has answered, by method and route."""
    found: collections.Counter[str] = collections.Counter()
    for line in metrics.splitlines():
        if not line.startswith("isolet_agent_requests_total{"):
            continue
        inside, _, value = line.partition("{")[2].partition("} ")
        labels = dict(item.split("=", 1) for item in inside.split(","))
        method, route = labels["method"].strip('"'), labels["route"].strip('"')
        found[f"{method} {route}"] += round(float(value))
    return found
