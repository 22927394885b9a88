"""Reasons: the closed list of words that say why a condition has its status.

A reason is PascalCase and never changes its meaning; what reads it is a program. Each one here has
a sentence for people (the API reference is made from it) and names the error codes, of the three
systems whose work Isolet does, that it stands for (docs/seed-mapping.md).
"""

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """What a reason is about; it decides who has to do something."""

    PROGRESS = "Progress"
    """Nothing is wrong: where things stand."""
    SUCCESS = "Success"
    """The end, as it was asked for."""
    WORK_FAILED = "Work failed"
    """The user's own program or its bounds."""
    INFRASTRUCTURE_FAILED = "Infrastructure failed"
    """Node, engine or agent; an operator's business."""
    REFUSED = "Refused"
    """The request cannot or may not be served as it stands."""
    WAITING = "Waiting"
    """Something outside has to happen first."""
    NODE = "Node"
    """On ExecutionNodes only."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason with its meaning."""

    name: str
    family: Family
    text: str
    seed: tuple[str, ...] = ()
    """Error codes and states of the systems in docs/seed-mapping.md with this meaning."""


REASONS: dict[str, Reason] = {}
"""Every reason by its name."""


def _reason(name: str, family: Family, text: str, *seed: str) -> str:
    REASONS[name] = Reason(name, family, text, seed)
    return name


def _progress(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.PROGRESS, text, *seed)


def _success(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.SUCCESS, text, *seed)


def _work(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.WORK_FAILED, text, *seed)


def _infra(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.INFRASTRUCTURE_FAILED, text, *seed)


def _refused(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.REFUSED, text, *seed)


def _waiting(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.WAITING, text, *seed)


def _node(name: str, text: str, *seed: str) -> str:
    return _reason(name, Family.NODE, text, *seed)


PENDING = _progress("Pending", "It was seen; nothing is decided yet.")
BOUND = _progress("Bound", "A node is bound and has been written down.")
PREPARING = _progress(
    "Preparing", "The node makes the sandbox; nothing of it runs yet.", "provisioned"
)
STARTING = _progress("Starting", "The start was given to the engine; it is not confirmed yet.")
RUNNING = _progress("Running", "It runs.", "running")
TERMINATING = _progress("Terminating", "It is being ended.")
DISPOSING = _progress("Disposing", "It has ended; sandbox and workspace are being removed.")
COLLECTING = _progress("Collecting", "It has ended; output and artifacts are being collected.")
CHECKPOINTING = _progress("Checkpointing", "The workspace is being taken.")
RESTORING = _progress("Restoring", "The workspace is being restored.")
SETTLED = _progress("Settled", "Everything the spec asks for is done.")
NOT_STALLED = _progress("NotStalled", "Nobody's help is needed.")

SUCCEEDED = _success("Succeeded", "The command exited with 0.", "exited")
TERMINATED = _success("Terminated", "The session ended because it was asked to.", "terminated")
IDLE_TIMEOUT = _success("IdleTimeout", "The session had been idle for as long as it may be.")
FINISHED = _success("Finished", "The end is reached; Succeeded says how.")
CHECKPOINT_READY = _success("CheckpointReady", "The Checkpoint is whole and can be restored.")
DISPOSED = _success("Disposed", "Nothing is left on the node; the record stays.", "disposed")

NON_ZERO_EXIT = _work("NonZeroExit", "The command exited with another code than 0, or by a signal.")
OOM_KILLED = _work("OOMKilled", "Memory ran out and the sandbox was killed.", "oom_killed")
WORKSPACE_FULL = _work("WorkspaceFull", "The workspace was full when the command failed.")
DEADLINE_EXCEEDED = _work(
    "DeadlineExceeded", "Its deadline passed before it had ended.", "EXECUTION_TIMEOUT"
)
COMMAND_TIMEOUT = _work(
    "CommandTimeout",
    "A command in the session ran over its timeout; the whole sandbox was destroyed.",
    "EXECUTION_TIMEOUT",
)
OUTPUT_LIMIT_EXCEEDED = _work(
    "OutputLimitExceeded", "It wrote more output than its bound.", "EXECUTION_OUTPUT_LIMIT"
)
CANCELLED = _work("Cancelled", "It was ended because someone asked for it.", "cancelled")
SANDBOX_DESTROYED = _work(
    "SandboxDestroyed",
    "The session it ran in was destroyed: for another command or for itself, as the message says.",
)
EXECUTION_ENDED = _work("ExecutionEnded", "The Execution it ran in has ended.")
INTERPRETER_MISSING = _work("InterpreterMissing", "The image lacks the interpreter of the code.")
ARTIFACT_REJECTED = _work(
    "ArtifactRejected",
    "A file to keep is no regular file in the workspace, or reached through a link.",
    "artifact_rejected",
)
ARTIFACT_TOO_LARGE = _work("ArtifactTooLarge", "A file to keep is too large.", "artifact_too_large")
ARTIFACT_MISSING = _work("ArtifactMissing", "A file to keep is not there.", "not_found")
PROTOCOL_VIOLATED = _work("ProtocolViolated", "What it wrote is not what its class's runner must.")
EVENT_TOO_LARGE = _work("EventTooLarge", "A runner wrote an event over 1 MiB.")
RESULT_MISSING = _work("ResultMissing", "A runner exited with 0 and without a terminal event.")
FINALIZATION_TIMEOUT = _work(
    "FinalizationTimeout", "A runner gave its result and did not end within its budget."
)

IMAGE_MISSING = _infra(
    "ImageMissing", "No node that may run it has the image; images are never pulled."
)
IMAGE_UNSUITABLE = _infra(
    "ImageUnsuitable",
    "The image lacks a tool its class needs, or its own environment names a credential.",
    "EXECUTION_CREDENTIAL_ERROR",
)
START_FAILED = _infra(
    "StartFailed",
    "The engine refused the start, for instance because the program is not in the image.",
    "start_failed",
)
START_UNCONFIRMED = _infra(
    "StartUnconfirmed",
    "Nobody can say whether it ever started; it is never started again.",
    "start_unconfirmed",
    "needs-reconcile",
)
HANDOVER_TIMEOUT = _infra(
    "HandoverTimeout", "A runner did not take its document within the startup budget."
)
CONTAINER_LOST = _infra(
    "ContainerLost",
    "The sandbox is gone and Isolet did not remove it, or nobody saw how it ended.",
    "lost",
)
CONTAINER_CONFLICT = _infra(
    "ContainerConflict",
    "A container that is not this object's holds its name.",
    "container_conflict",
)
NODE_LOST = _infra("NodeLost", "The node is gone, or was declared out of service.")
NODE_STORAGE_FULL = _infra("NodeStorageFull", "The node has no room on its disk.")
ENGINE_UNAVAILABLE = _infra(
    "EngineUnavailable",
    "The node's engine does not answer; tried again until it does.",
    "docker_unavailable",
    "EXECUTION_HOST_UNAVAILABLE",
)
ENGINE_FAILED = _infra(
    "EngineFailed",
    "The engine answered with an error that nothing more exact is known of.",
    "docker_failed",
    "EXECUTION_RUNTIME_ERROR",
)
ISOLATION_MISMATCH = _infra(
    "IsolationMismatch",
    "The engine did not give a bound that was asked for; the sandbox was destroyed unused.",
)
DRAINED = _infra("Drained", "Its node was drained and the drain's deadline passed.")
AGENT_RESTARTED = _infra("AgentRestarted", "What was in flight when the agent ended is not known.")
GIT_IMPORT_FAILED = _infra(
    "GitImportFailed", "The commit could not be read: objects are missing or damaged, or no time."
)
REPOSITORY_UNAVAILABLE = _infra(
    "RepositoryUnavailable",
    "The Git repository cannot be read on the node, its remote not reached, or no node has it.",
)
CHECKPOINT_FAILED = _infra("CheckpointFailed", "The workspace could not be taken.")
CHECKPOINT_UNAVAILABLE = _infra(
    "CheckpointUnavailable", "No copy of the Checkpoint can be reached.", "EXECUTION_RUNTIME_ERROR"
)
CHECKPOINT_INVALID = _infra(
    "CheckpointInvalid",
    "Manifest or content of the Checkpoint did not pass its checks; nothing was restored.",
    "EXECUTION_CHECKPOINT_INVALID",
)
INTERNAL_ERROR = _infra("InternalError", "A fault in Isolet itself; please report it.")
CORRUPT = _infra("Corrupt", "Stored state cannot be read; nothing was changed.")

INVALID_REQUEST = _refused(
    "InvalidRequest", "The request is malformed.", "EXECUTION_INVALID_REQUEST"
)
INVALID_SPEC = _refused("InvalidSpec", "The spec breaks a rule; the message names field and rule.")
INCOMPLETE_RESOURCES = _refused(
    "IncompleteResources",
    "A bound is given neither by the object nor by its class.",
    "EXECUTION_RESOURCE_LIMIT",
)
CLASS_NOT_ALLOWED = _refused(
    "ClassNotAllowed", "The class is not granted to this namespace (namespaceSelector)."
)
CLASS_AMBIGUOUS = _refused("ClassAmbiguous", "More than one class says that it is the default.")
IMAGE_NOT_ALLOWED = _refused("ImageNotAllowed", "The class does not allow the image.")
RESOURCES_NOT_ALLOWED = _refused(
    "ResourcesNotAllowed",
    "A bound is over the maximum of the class or of the node's policy.",
    "EXECUTION_RESOURCE_LIMIT",
)
DEADLINE_NOT_ALLOWED = _refused(
    "DeadlineNotAllowed", "A deadline or timeout is over the maximum of the class."
)
RETENTION_NOT_ALLOWED = _refused(
    "RetentionNotAllowed", "retainSeconds is over the maximum of the class."
)
MEDIUM_NOT_ALLOWED = _refused(
    "MediumNotAllowed", "The class does not allow the workspace's medium."
)
REPOSITORY_NOT_ALLOWED = _refused(
    "RepositoryNotAllowed", "Class or node do not allow the Git repository."
)
SECRET_NOT_ALLOWED = _refused(
    "SecretNotAllowed", "The class does not allow values from Secrets (env.allowSecretRefs)."
)
NETWORK_NOT_ALLOWED = _refused(
    "NetworkNotAllowed", "The class does not allow the network mode.", "EXECUTION_NETWORK_POLICY"
)
RUNTIME_NOT_ALLOWED = _refused(
    "RuntimeNotAllowed", "No node's own policy names the runtime of the class."
)
NOT_ALLOWED = _refused("NotAllowed", "A policy of the node forbids it; the message names it.")
CONFLICT = _refused(
    "Conflict",
    "The same identity stands for another request, which was first.",
    "OperationConflictError",
    "EXECUTION_ALREADY_EXISTS",
)
FENCED = _refused("Fenced", "The caller has been replaced by a newer leader.")
NOT_FOUND = _refused("NotFound", "There is no such thing.", "EXECUTION_NOT_FOUND", "not_found")
NOT_RUNNING = _refused("NotRunning", "The session does not run (yet, or any more).")
STILL_RUNNING = _refused("StillRunning", "It still runs.", "process_running")
NOT_RETAINED = _refused("NotRetained", "Sandbox and workspace are gone already.")
UNSUPPORTED = _refused("Unsupported", "This version or node cannot do what was asked for.")
CHECKPOINT_NOT_FOUND = _refused(
    "CheckpointNotFound", "The Checkpoint is not there.", "EXECUTION_CHECKPOINT_NOT_FOUND"
)
CHECKPOINT_TOO_LARGE = _refused(
    "CheckpointTooLarge",
    "The content is larger than the workspace it should go into, or than what may be stored.",
    "EXECUTION_RESOURCE_LIMIT",
)
CHECKPOINTS_NOT_ALLOWED = _refused(
    "CheckpointsNotAllowed", "The node's policy file forbids Checkpoints."
)
CHECKPOINT_QUOTA = _refused(
    "CheckpointQuota",
    "What the node keeps for Checkpoints is used up.",
    "EXECUTION_RESOURCE_LIMIT",
)
REVISION_NOT_FOUND = _refused("RevisionNotFound", "The repository has no such commit.")
REVISION_AMBIGUOUS = _refused(
    "RevisionAmbiguous", "The revision names several commits; the message says how to name one."
)
TREE_TOO_LARGE = _refused(
    "TreeTooLarge",
    "The Git tree needs more room than the workspace has, or more entries than the node allows.",
)
TREE_UNSUPPORTED = _refused(
    "TreeUnsupported", "The Git tree has an entry that no workspace may hold, such as .git."
)
NO_WARM_SLOT = _refused(
    "NoWarmSlot", "No warm slot of the class was ready, and the class wants nothing else."
)
UNSCHEDULABLE_IN_TIME = _refused(
    "SchedulingDeadlineExceeded", "No node had room within schedulingDeadlineSeconds."
)

CLASS_NOT_FOUND = _waiting("ClassNotFound", "The class does not exist (yet).")
UNSCHEDULABLE = _waiting("Unschedulable", "No node can take it now; the message says why of each.")
AWAITING_INPUTS = _waiting(
    "AwaitingInputs", "A Secret, ConfigMap or key that it refers to is not there."
)
AWAITING_EXECUTION = _waiting("AwaitingExecution", "The Execution it runs in is not ready.")
AWAITING_CHECKPOINT = _waiting("AwaitingCheckpoint", "The Checkpoint it starts from is not ready.")
AWAITING_TURN = _waiting("AwaitingTurn", "Something that excludes it is still going on.")
NODE_FULL = _waiting("NodeFull", "The bound node has no room at the moment.")
POOL_EMPTY = _waiting(
    "PoolEmpty",
    "No warm slot of the class is ready on the bound node, and the class waits for one.",
)
NODE_UNREACHABLE = _waiting(
    "NodeUnreachable", "The bound node's agent does not answer; what runs there may still run."
)
CANCEL_REQUESTED = _waiting(
    "CancelRequested", "The end was asked for and is not confirmed yet.", "cancel-requested"
)
CANCEL_UNVERIFIED = _waiting(
    "CancelUnverified", "It was killed and may still run; tried again.", "cancel_unverified"
)
AWAITING_NODE = _waiting(
    "AwaitingNode",
    "Deletion waits for the node's word that nothing is left; the message says who can release it.",
)
QUARANTINED = _waiting("Quarantined", "Its removal could not be confirmed; tried again.")
OBJECT_STORE_UNAVAILABLE = _waiting(
    "ObjectStoreUnavailable", "The object store did not do what was asked; tried again."
)
CHECKPOINT_IN_USE = _waiting("CheckpointInUse", "A restore is reading it.")
UNAVAILABLE = _waiting("Unavailable", "Not now; tried again.")
UNCONFIRMED = _waiting("Unconfirmed", "It was tried and nobody can say yet what came of it.")
CONTENT_ELSEWHERE = _progress(
    "ContentElsewhere", "The Git tree refers to submodules or LFS content, which is not imported."
)
RETAINED = _waiting("Retained", "It has ended; sandbox and workspace are kept for a while.")

NODE_READY = _node("NodeReady", "The node takes work.")
OK = _node("OK", "As it should be.")
HEARTBEAT_STALE = _node("HeartbeatStale", "Nothing has been heard of the agent for too long.")
CERTIFICATE_REFUSED = _node("CertificateRefused", "Agent and operator do not trust each other.")
WIRE_INCOMPATIBLE = _node("WireIncompatible", "Agent and operator share no protocol version.")
RUNTIME_UNQUALIFIED = _node("RuntimeUnqualified", "No sandbox could be proved to be gVisor.")
LOOP_DEVICES_MISSING = _node("LoopDevicesMissing", "The node has no usable loop devices.")
GIT_UNUSABLE = _node("GitUnusable", "The node has no Git that can be run, and serves none.")
LIVE_RESTORE_OFF = _node(
    "LiveRestoreOff", "A restart of the engine would kill every sandbox on the node."
)
STATE_UNUSABLE = _node("StateUnusable", "The agent's state folder cannot be used.")
NO_CAPACITY = _node("NoCapacity", "Everything the node has is promised.")
CORDONED = _node("Cordoned", "spec.unschedulable is set.")
DRAINING = _node("Draining", "A drain goes on.")
OUT_OF_SERVICE = _node("OutOfService", "The node was declared off.")
NOT_PROBED = _node("NotProbed", "Nothing is known yet.")


def seed_codes() -> dict[str, tuple[str, ...]]:
    """Each code of the systems in docs/seed-mapping.md with the reasons that stand for it."""
    found: dict[str, tuple[str, ...]] = {}
    for reason in REASONS.values():
        for code in reason.seed:
            found[code] = (*found.get(code, ()), reason.name)
    return found


def family(name: str) -> Family | None:
    """What kind of reason this is; None for one that is not in the list."""
    known = REASONS.get(name)
    return None if known is None else known.family
