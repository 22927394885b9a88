"""Run as a process that is killed: writes without end and prints what was acknowledged."""

import asyncio
import sys
from pathlib import Path

from isolet.agent.store.sqlite import SQLiteStore
from isolet.wire.base import Fence
from tests.contract.store.records import a_record, moment


async def main(folder: Path, run: str) -> None:
    store = await SQLiteStore.open(folder)

    async def writer(name: str) -> None:
        record = await store.add(a_record(f"{run}-{name}"))
        print("record", record.uid, record.revision, record.sequence, flush=True)
        for turn in range(10_000):
            if turn % 10 == 9:
                sequence = await store.bury(record.uid, at=moment())
                print("buried", record.uid, 0, sequence, flush=True)
                await store.check_fence(Fence(lease_uid=run, transitions=turn, shard=name))
                print("fence", name, turn, 0, flush=True)
                record = await store.add(a_record(f"{run}-{name}-{turn}"))
            else:
                record = await store.update(record.with_(generation=turn))
            print("record", record.uid, record.revision, record.sequence, flush=True)

    await asyncio.gather(*(writer(name) for name in "abcdefgh"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
