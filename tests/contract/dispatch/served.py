"""An agent's dispatch as a process of its own, for tests that kill it.

    python -m tests.contract.dispatch.served <folder> run|cancel|resume [<startup seconds>]

`run` begins a run and follows it to its end, `cancel` ends it once it has said something, `resume`
takes up what an earlier one left. What it was told is written to stdout, a line each, at once.
"""

import asyncio
import sys
from pathlib import Path

from isolet.agent.dispatch.service import DispatchService
from isolet.agent.dispatch.spool import Spools
from isolet.base.clock import SystemClock
from isolet.wire.dispatch import Budgets, ReserveRequest
from tests.contract.dispatch.process_slots import ProcessSlots
from tests.dispatches import CLASS, a_run

UID = "run-1"


async def main(folder: Path, what: str, startup: int = 60) -> None:
    slots = ProcessSlots(folder)
    service = DispatchService(slots, Spools(folder / "spool"), SystemClock(), boot_id="boot")
    await service.recover()
    document = (folder / "document").read_bytes()
    if what != "resume":
        kept = await service.reserve(ReserveRequest(class_name=CLASS))
        budgets = Budgets(startup_seconds=startup, execution_seconds=60)
        wanted = a_run(document, UID, run_id="run", budgets=budgets)
        await service.begin(kept, wanted, document)
    if what == "resume" and UID not in service._runs:
        for task in list(service._tasks.values()):
            await task
        return
    async for line in service.follow(UID, 0):
        print(line.to_json().decode(), flush=True)
        if what == "cancel" and line.event is not None:
            await service.cancel(UID)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])))
