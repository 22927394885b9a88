"""A pool, and the spec that its slots serve."""

from isolet.wire.execution import Resources
from isolet.wire.pool import PoolWanted

RESOURCES = Resources(
    cpu_millis=500,
    memory_bytes=64 << 20,
    workspace_bytes=8 << 20,
    tmp_bytes=8 << 20,
    shm_bytes=1 << 20,
    pids=32,
    output_bytes=1 << 20,
)
POOL = PoolWanted(
    class_name="warm", image="sha256:" + "0" * 64, resources=RESOURCES, minimum=1, maximum=4
)
SPEC = POOL.spec()
