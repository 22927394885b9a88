"""What is told of a record that is gone. Pure."""

from isolet.agent.service import checkpoint_records, process_records, records
from isolet.agent.service.watchers import Observed
from isolet.agent.store.base import Tombstone
from isolet.plan.sandbox_model import Kind


def buried(tombstone: Tombstone, sequence: int) -> Observed:
    """In the words of its kind."""
    if tombstone.kind is Kind.CHECKPOINT:
        return checkpoint_records.buried(tombstone, sequence)
    if tombstone.kind is Kind.PROCESS:
        return process_records.buried(tombstone, sequence)
    return records.buried(tombstone, sequence)
