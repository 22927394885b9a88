"""Every point beside an effect of a dispatch, for the fault tests (see `isolet.base.steps`)."""

from enum import StrEnum


class DispatchStep(StrEnum):
    """Named `<effect>.before` and `<effect>.after`, in the order of a run's life."""

    ASSIGN_BEFORE = "dispatch.assign.before"
    ASSIGN_AFTER = "dispatch.assign.after"
    BEGIN_AFTER = "dispatch.begin.after"
    DELIVER_BEFORE = "dispatch.deliver.before"
    DELIVER_AFTER = "dispatch.deliver.after"
    DELIVERED_AFTER = "dispatch.delivered.after"
    SPOOL_AFTER = "dispatch.spool.after"
    STOP_BEFORE = "dispatch.stop.before"
    DESTROY_BEFORE = "dispatch.destroy.before"
    DESTROY_AFTER = "dispatch.destroy.after"
    END_AFTER = "dispatch.end.after"
    CONCLUDE_AFTER = "dispatch.conclude.after"
