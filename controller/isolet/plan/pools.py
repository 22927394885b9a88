"""Which warm pools a node is to have: one for each class that wants one and that it can run. PURE.

A node that takes no new work has none, so that a drain empties it. Room is the agent's business: it
makes as many slots as fit beside the work, and says when that is fewer than wanted.
"""

from collections.abc import Iterable
from typing import Any

import pydantic

from isolet.api import bounds, executionclass
from isolet.api.runner import Runner
from isolet.plan import admission, dispatch_budget, messages, node, placement
from isolet.plan.actions import PutPools
from isolet.plan.binding import Pinned
from isolet.plan.model import NodeFacts
from isolet.wire.dispatch import MAX_EVENTS_BYTES, Budgets, RunnerContract
from isolet.wire.execution import EnvVar, Medium, Resources
from isolet.wire.node import NodeObserved
from isolet.wire.pool import MAX_POOLS, PoolsWanted, PoolWanted, WhenEmpty
from isolet.wire.process import StagedFile


def wanted(
    classes: Iterable[executionclass.ExecutionClass], facts: NodeFacts, installation: str = ""
) -> PoolsWanted | None:
    """Every pool that the node is to have now, in the order of their classes' names.

    None: it cannot be said now, and what the agent has been told stands. An engine that is away for
    a moment must not cost the slots that wait behind it.
    """
    report, spec = facts.report, facts.object.spec
    if spec.unschedulable or spec.drain is not None or spec.out_of_service is not None:
        return PoolsWanted()
    if report is None or node.unfit(report) is not None:
        return None
    if node.stranger(facts.object, report, installation) is not None:
        return None
    labels, found = placement.labels_of(facts), []
    for one in sorted(classes, key=lambda c: c.metadata.name):
        selector = one.spec.node_selector or {}
        if all(labels.get(key) == value for key, value in selector.items()):
            pool = _pool(one, report)
            if pool is not None:
                found.append(pool)
    return PoolsWanted(pools=tuple(found[:MAX_POOLS]))


def actions(
    classes: Iterable[executionclass.ExecutionClass], facts: NodeFacts, installation: str = ""
) -> tuple[PutPools, ...]:
    """Tell the agent, if it is there, knows of pools, and obeys another wish."""
    report = facts.report
    if report is None or report.pools_digest is None or not facts.reachable:
        return ()
    wish = wanted(classes, facts, installation)
    if wish is None or wish.digest() == report.pools_digest:
        return ()
    return (PutPools(node=facts.name, wanted=wish),)


def ready(one: executionclass.ExecutionClass, pinned: Pinned, facts: NodeFacts) -> bool:
    """Whether a slot waits on the node that could be given to an Execution with these bounds.

    As the agent said last: another may be given it meanwhile.
    """
    report = facts.report
    pool = None if report is None else _pool(one, report)
    if report is None or pool is None:
        return False
    run = placement.run_reference(report, pinned.run)
    asked = messages.bare(pinned.model_copy(update={"run": run or pinned.run}))
    if not pool.serves(pinned.class_name, asked):
        return False
    this = (pool.class_name, pool.class_uid, pool.generation)
    return any(
        found.ready > 0 and (found.class_name, found.class_uid, found.generation) == this
        for found in report.pools
    )


def _pool(one: executionclass.ExecutionClass, report: NodeObserved) -> PoolWanted | None:
    """The class's pool on this node; None if it wants none, or the node cannot run it."""
    spec, warm = one.spec, one.spec.warm_pool
    default, image = spec.resources.default, spec.images.default
    if warm is None or one.metadata.deletion_timestamp is not None:
        return None
    if default is None or bounds.missing(default) or image is None:
        return None
    run = placement.run_reference(report, image)
    able = spec.runtime_handler in report.runtimes and warm.medium.value in report.media
    if run is None or not able:
        return None
    try:
        return PoolWanted(
            class_name=one.metadata.name,
            class_uid=one.metadata.uid,
            generation=one.metadata.generation,
            image=run,
            runtime=spec.runtime_handler,
            user=str(spec.user),
            medium=Medium(warm.medium.value),
            workspace_executable=spec.workspace.exec,
            tmp_executable=spec.tmp.exec,
            minimum=warm.least,
            maximum=warm.most,
            create_concurrency=warm.create_concurrency,
            idle_timeout_seconds=warm.idle_timeout_seconds,
            when_empty=WhenEmpty(warm.when_empty.value),
            **_served(spec.runner, spec.deadlines.maximum_seconds, admission.to_wire(default)),
        )
    except (pydantic.ValidationError, ValueError):
        return None  # The API's rules are at least as strict.


def _served(runner: Runner | None, deadline: int, resources: Resources) -> dict[str, Any]:
    """What a pool's slots are for: any command, or the documents of the class's runner."""
    if runner is None:
        return {"resources": resources, "maximum_deadline_seconds": deadline}
    contract = RunnerContract(
        command=runner.command,
        env=tuple(EnvVar(name=e.name, value=e.value.encode()) for e in runner.env or ()),
        files=tuple(
            StagedFile(path=f.path, content=f.content.encode()) for f in runner.files or ()
        ),
        ready_line=runner.ready_line,
        budgets=Budgets.model_validate(runner.budgets.model_dump()),
    )
    # Events are bounded by the protocol; the engine's log has to hold all of them.
    return {
        "resources": resources.model_copy(update={"output_bytes": MAX_EVENTS_BYTES}),
        "maximum_deadline_seconds": min(dispatch_budget.total(contract.budgets), 86_400),
        "runner": contract,
    }
