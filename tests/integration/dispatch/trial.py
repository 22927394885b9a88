"""A runner that does what its document says, for the tests: well or badly.

It runs inside a sandbox, from the class's own files, and needs nothing but Python.
"""

import hashlib
import json
import os
import signal
import sys
import time


def emit(kind: str, **more: object) -> None:
    os.write(1, json.dumps({"event_type": kind, **more}).encode() + b"\n")


def write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def fork(seconds: float) -> None:
    """A child that lets nothing end it and holds every stream open."""
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(seconds)
        os._exit(0)


def flood(megabytes: int) -> None:
    line = json.dumps({"event_type": "progress", "x": "x" * 999_000}).encode() + b"\n"
    for _ in range(megabytes):
        write_all(line)


def pieces(count: int) -> None:
    """Events in pieces that end anywhere, with as much on the other stream in between."""
    for number in range(count):
        line = json.dumps({"event_type": "piece", "n": number, "x": "y" * 40_000}).encode() + b"\n"
        cut = 1 + number * 7919 % (len(line) - 1)
        write_all(line[:cut])
        os.write(2, b"noise\n" * 3000)
        write_all(line[cut:])


STEPS = {
    "say": lambda value: emit("said", value=value),
    "raw": lambda text: write_all(str(text).encode()),
    "endless": lambda size: write_all(b"a" * size),
    "sleep": time.sleep,
    "exit": os._exit,
    "die": lambda number: os.kill(os.getpid(), number),
    "eat": lambda megabytes: b"\1" * (megabytes << 20),
    "noise": lambda megabytes: [os.write(2, b"n" * 65536) for _ in range(megabytes * 16)],
    "complete": lambda payload: emit("completed", payload=payload),
    "env": lambda _: emit("said", value=sorted(os.environ)),
    "fork": fork,
    "flood": flood,
    "pieces": pieces,
}


def main() -> None:
    os.write(1, b"ready\n")
    raw = sys.stdin.buffer.read()
    envelope = json.loads(raw)
    done = False
    for step in envelope["payload"]["payload"]:
        ((name, value),) = step.items()
        STEPS[name](value)
        done = done or name == "complete"
    if not done:
        digest = hashlib.sha256(raw).hexdigest()
        emit("completed", payload={"bytes": len(raw), "digest": digest, "mode": envelope["mode"]})


if __name__ == "__main__":
    main()
