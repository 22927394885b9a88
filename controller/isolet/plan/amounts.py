"""Amounts of what a node has to give: do they fit? PURE."""

from isolet.wire.node import Amounts


def fits(asked: Amounts, used: Amounts, capacity: Amounts) -> bool:
    """Whether what is asked still fits beside what is used."""
    return not lacking(asked, used, capacity)


def lacking(asked: Amounts, used: Amounts, capacity: Amounts) -> tuple[str, ...]:
    """Names of the amounts of which there is not enough left."""
    shown = {
        "cpu_millis": "cpu",
        "memory_bytes": "memory",
        "disk_bytes": "workspace disk",
        "executions": "executions",
    }
    return tuple(
        name
        for field, name in shown.items()
        if getattr(asked, field)
        and getattr(used, field) + getattr(asked, field) > getattr(capacity, field)
    )
