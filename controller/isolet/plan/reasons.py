"""Reasons that an agent gives, beside those the API documents: one closed list.

Each value is PascalCase, never changes meaning, and is told apart from the message, which may.
`isolet.api.reasons` documents them for users; a test holds the two lists together.
"""

# The user's work ended.
SUCCEEDED = "Succeeded"
TERMINATED = "Terminated"
IDLE_TIMEOUT = "IdleTimeout"
NON_ZERO_EXIT = "NonZeroExit"
OOM_KILLED = "OOMKilled"
WORKSPACE_FULL = "WorkspaceFull"
DEADLINE_EXCEEDED = "DeadlineExceeded"
OUTPUT_LIMIT_EXCEEDED = "OutputLimitExceeded"
COMMAND_TIMEOUT = "CommandTimeout"
CANCELLED = "Cancelled"
DRAINED = "Drained"
SANDBOX_DESTROYED = "SandboxDestroyed"
EXECUTION_ENDED = "ExecutionEnded"
ARTIFACT_REJECTED = "ArtifactRejected"
ARTIFACT_TOO_LARGE = "ArtifactTooLarge"
ARTIFACT_MISSING = "ArtifactMissing"

# The infrastructure failed.
IMAGE_MISSING = "ImageMissing"
IMAGE_UNSUITABLE = "ImageUnsuitable"
START_FAILED = "StartFailed"
START_UNCONFIRMED = "StartUnconfirmed"
CONTAINER_LOST = "ContainerLost"
CONTAINER_CONFLICT = "ContainerConflict"
ISOLATION_MISMATCH = "IsolationMismatch"
NODE_LOST = "NodeLost"
ENGINE_UNAVAILABLE = "EngineUnavailable"
NODE_STORAGE_FULL = "NodeStorageFull"
CHECKPOINT_FAILED = "CheckpointFailed"
CHECKPOINT_UNAVAILABLE = "CheckpointUnavailable"
CHECKPOINT_INVALID = "CheckpointInvalid"

# The request cannot be served.
STILL_RUNNING = "StillRunning"
NOT_RETAINED = "NotRetained"
CHECKPOINT_NOT_FOUND = "CheckpointNotFound"
CHECKPOINT_TOO_LARGE = "CheckpointTooLarge"
CHECKPOINTS_NOT_ALLOWED = "CheckpointsNotAllowed"
CHECKPOINT_QUOTA = "CheckpointQuota"

# Waiting.
PREPARING = "Preparing"
RUNNING = "Running"
AWAITING_INPUTS = "AwaitingInputs"
NODE_FULL = "NodeFull"
AWAITING_EXECUTION = "AwaitingExecution"
AWAITING_TURN = "AwaitingTurn"
CHECKPOINTING = "Checkpointing"
CHECKPOINT_READY = "CheckpointReady"
CHECKPOINT_IN_USE = "CheckpointInUse"
QUARANTINED = "Quarantined"
CANCEL_REQUESTED = "CancelRequested"
CANCEL_UNVERIFIED = "CancelUnverified"
DISPOSING = "Disposing"
