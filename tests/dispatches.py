"""What tests of dispatch ask an agent for: a run of a document, and a pool that takes runs."""

from isolet.base import names
from isolet.wire.dispatch import DispatchWanted, Mode, RunnerContract
from isolet.wire.execution import Resources
from isolet.wire.pool import PoolWanted
from isolet.wire.process import StagedFile

CLASS = "runner"
EXAMPLE = RunnerContract(
    command=("/app/runtime", "--once", "warm"),
    files=(StagedFile(path="key.pub", content=b"public"),),
)
"""What is in the image of examples/runner."""

_MIB = 1 << 20


def a_run(document: bytes, uid: str = "run-1", **changes: object) -> DispatchWanted:
    """What is said of a run of this document, changed as said; name and run id are the uid."""
    base = {
        "uid": uid,
        "name": uid,
        "run_id": uid,
        "class_name": CLASS,
        "mode": Mode.STREAM,
        "payload_digest": names.digest(document),
        "payload_bytes": len(document),
    }
    return DispatchWanted.model_validate({**base, **changes})


def a_pool(image: str, **changes: object) -> PoolWanted:
    """One slot of the example runner, whose image this is, changed as said."""
    base = {
        "class_name": CLASS,
        "class_uid": "class-1",
        "generation": 1,
        "image": image,
        "resources": Resources(
            cpu_millis=1000,
            memory_bytes=128 * _MIB,
            workspace_bytes=8 * _MIB,
            tmp_bytes=32 * _MIB,
            shm_bytes=_MIB,
            pids=64,
            output_bytes=64 * _MIB,
        ),
        "minimum": 1,
        "maximum": 1,
        "runner": EXAMPLE,
    }
    return PoolWanted.model_validate({**base, **changes})
