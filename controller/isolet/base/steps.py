"""Named points beside every effect, where a fault test can freeze or kill the process.

Each component lists its points in one StrEnum (`isolet.operator.steps`, `isolet.agent.steps`) and
calls `reach(Step.X)` right before and right after an effect. The fault tests enumerate those enums,
so a point without a kill fails the suite. Nothing happens unless the process was started with

    ISOLET_STOP_AT      a step's name, `name#n` for the n-th time it is reached, `*` for any step,
                        or `@/path`: a file that holds one of these, which may appear and change
                        while the process runs and is removed when it has had its effect
    ISOLET_STOP_ACTION  `kill` (the default: SIGKILL to itself), `stop` (SIGSTOP), `note` (go on)
    ISOLET_STOP_FILE    file to which the name and a newline are appended, before the action

`kill` and `stop` act once in a process; `note` goes on noting.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ENV_AT = "ISOLET_STOP_AT"
ENV_ACTION = "ISOLET_STOP_ACTION"
ENV_FILE = "ISOLET_STOP_FILE"

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "note": None}


def _signal_self(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@dataclass
class Trap:
    """What was asked for in the environment, and how often each step was reached."""

    at: str
    action: str = "kill"
    file: Path | None = None
    send: Callable[[signal.Signals], None] = _signal_self
    _reached: Counter[str] = field(default_factory=Counter)
    _spent: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> "Trap | None":
        """The trap that `env` asks for.

        Raises:
            ValueError: an action that does not exist, which would test nothing in silence.
        """
        if not env.get(ENV_AT):
            return None
        action = env.get(ENV_ACTION, "kill")
        if action not in _SIGNALS:
            raise ValueError(f"{ENV_ACTION} must be one of {', '.join(_SIGNALS)}")
        file = env.get(ENV_FILE)
        return cls(env[ENV_AT], action, Path(file) if file else None)

    def reach(self, step: str) -> None:
        """Count the step and act if it is the one."""
        with self._lock:
            self._reached[step] += 1
            if self._spent or not self._is_meant(step):
                return
            self._spent = self.action != "note"
            self._note(step)
        number = _SIGNALS[self.action]
        if number is not None:
            self.send(number)

    def _is_meant(self, step: str) -> bool:
        wish = self.at
        if wish.startswith("@"):
            try:
                wish = Path(wish[1:]).read_text().strip()
            except OSError:
                return False
        if wish == "*":
            return True
        name, _, nth = wish.partition("#")
        return name == step and (not nth or int(nth) == self._reached[step])

    def _note(self, step: str) -> None:
        if self.file is not None:
            # One write below PIPE_BUF: whole even if several processes share the file.
            with self.file.open("a") as out:
                out.write(f"{step}\n")
        if self.at.startswith("@") and self.action != "note":
            Path(self.at[1:]).unlink(missing_ok=True)


_trap = Trap.from_environment(os.environ)


def reach(step: str) -> None:
    """Say that the process has come to `step`, a member of its component's enum."""
    if _trap is not None:
        _trap.reach(step)
