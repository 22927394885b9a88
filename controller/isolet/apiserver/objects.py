"""The objects that a front door makes of dispatches: their names and what is in them. PURE."""

from typing import Any

from isolet.api import meta
from isolet.apiserver.admission import Dispatch
from isolet.apiserver.served import Served
from isolet.base import names
from isolet.operator.kube import Object
from isolet.plan import dispatch_budget

LABEL_AHEAD = f"{meta.GROUP}/cancelled-ahead"
NAME_PREFIX = "run-"


def object_name(run_id: str) -> str:
    """The one name that a run's object may have in its namespace."""
    return NAME_PREFIX + names.short_digest("run", run_id)


def of_run(served: Served, dispatch: Dispatch, node: str) -> Object:
    """The object of a run, bound already."""
    spec: dict[str, Any] = {
        "className": served.name,
        "workspace": {"medium": served.medium},
        "dispatch": {
            "runID": dispatch.run_id,
            "mode": dispatch.mode.value,
            "payloadDigest": dispatch.digest,
            "payloadBytes": len(dispatch.document),
        },
        "ttlSecondsAfterFinished": dispatch_budget.replay_fence(served.budgets),
        "nodeName": node,
    }
    return {"metadata": {"name": object_name(dispatch.run_id)}, "spec": spec}


def of_cancelled_ahead(served: Served, run_id: str) -> Object:
    """The object that keeps a run from being begun which nobody knows."""
    spec = {
        "className": served.name,
        "workspace": {"medium": served.medium},
        "dispatch": {
            "runID": run_id,
            "mode": "callback",
            "payloadDigest": names.digest(b""),
            "payloadBytes": 1,
        },
        "desiredState": "Terminated",
        "ttlSecondsAfterFinished": dispatch_budget.cancel_fence(served.budgets),
    }
    return {
        "metadata": {"name": object_name(run_id), "labels": {LABEL_AHEAD: "true"}},
        "spec": spec,
    }
