"""What room there is for slots."""

from isolet.agent.service import pool_records
from isolet.plan.sandbox_model import Kind
from isolet.wire.execution import Step
from isolet.wire.node import Amounts
from tests.contract.store.records import a_record

ONE = Amounts(cpu_millis=500, memory_bytes=64 << 20, disk_bytes=16 << 20, executions=1)
CAPACITY = Amounts(cpu_millis=1500, memory_bytes=192 << 20, disk_bytes=48 << 20, executions=3)


def a_slot(**changes: object):
    record = a_record("slot-1", kind=Kind.SLOT, step=Step.RUNNING, **changes)
    return pool_records.slot(record, made_at=1.0, ready_since=2.0, reserved=False)


def test_work_and_slots_hold_room() -> None:
    assert pool_records.room(CAPACITY, [], []) == CAPACITY
    left = pool_records.room(CAPACITY, [a_record("u1")], [a_slot()])
    assert left == ONE


def test_what_waits_for_a_slot_does_not_stand_in_its_way() -> None:
    waiting = a_record("u1", awaits_slot=True)
    assert pool_records.room(ONE, [waiting], []) == ONE
    assert pool_records.room(ONE, [waiting.with_(awaits_slot=False)], []) == Amounts()


def test_a_slot_that_is_to_go_is_not_ready() -> None:
    assert (a_slot().life, a_slot().ready_since) == ("ready", 2.0)
    assert (a_slot(removing=True).life, a_slot(removing=True).ready_since) == ("retiring", None)
