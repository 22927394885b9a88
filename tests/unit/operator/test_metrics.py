"""What waits is counted by kind and by what for."""

from types import SimpleNamespace

from isolet.operator.kube import Key
from isolet.operator.metrics import StateCollector
from isolet.plan.actions import Flag


def test_what_waits_is_counted_by_kind() -> None:
    flags = {
        Key("Execution", "a", "one"): frozenset({Flag.UNSCHEDULABLE}),
        Key("Process", "a", "one"): frozenset({Flag.UNSCHEDULABLE, Flag.AWAITING_INPUTS}),
        Key("Process", "b", "two"): frozenset({Flag.UNSCHEDULABLE}),
        Key("Process", "b", "three"): frozenset(),
    }
    memory = SimpleNamespace(flags=flags)
    collector = StateCollector(SimpleNamespace(reconciler=SimpleNamespace(memory=memory)))
    family = collector._flags()
    counted = {(s.labels["kind"], s.labels["for"]): s.value for s in family.samples}
    assert family.name == "isolet_operator_objects_waiting"
    assert len(counted) == 2 * len(Flag)
    assert {at: count for at, count in counted.items() if count} == {
        ("Execution", "unschedulable"): 1,
        ("Process", "unschedulable"): 2,
        ("Process", "awaiting_inputs"): 1,
    }
