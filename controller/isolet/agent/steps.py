"""Every point beside an effect of the agent, for the fault tests (see `isolet.base.steps`)."""

from enum import StrEnum


class AgentStep(StrEnum):
    """Named `<effect>.before` and `<effect>.after`, in the order of a sandbox's life."""

    RECORD_BEFORE = "agent.record.before"
    RECORD_AFTER = "agent.record.after"
    LAUNCH_BEFORE = "agent.launch.before"
    LAUNCH_AFTER = "agent.launch.after"
    DISK_BEFORE = "agent.disk.before"
    DISK_AFTER = "agent.disk.after"
    VOLUME_AFTER = "agent.volume.after"
    CREATE_BEFORE = "agent.create.before"
    CREATE_AFTER = "agent.create.after"
    DISPATCH_BEFORE = "agent.dispatch.before"
    DISPATCH_AFTER = "agent.dispatch.after"
    START_AFTER = "agent.start.after"
    RUNNING_AFTER = "agent.running.after"
    STOP_RECORDED = "agent.stop.recorded"
    END_BEFORE = "agent.end.before"
    END_AFTER = "agent.end.after"
    OUTCOME_BEFORE = "agent.outcome.before"
    OUTCOME_AFTER = "agent.outcome.after"
    DISPOSE_BEFORE = "agent.dispose.before"
    DISPOSE_CONTAINER_AFTER = "agent.dispose-container.after"
    DISPOSE_VOLUME_AFTER = "agent.dispose-volume.after"
    DISPOSE_DISK_AFTER = "agent.dispose-disk.after"
    DISPOSED_AFTER = "agent.disposed.after"
    BURY_AFTER = "agent.bury.after"
