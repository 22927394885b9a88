"""What is done about a Checkpoint and nothing else, as `sandbox_model` has the other actions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let the sandbox of a Checkpoint go on, whoever has frozen it, and drop what lies aside."""


@dataclass(frozen=True, slots=True)
class Take:
    """Copy the workspace aside, with its sandbox standing still, and move the copy into place."""


@dataclass(frozen=True, slots=True)
class Save:
    """Write the copy to the object store too."""
