"""Arguments and env values between the owner's request and the start: memory and host tmpfs only.

They never reach the store. An agent that restarts before the start finds them in the launch folder
(host memory, gone with a reboot) or waits until the owner sends the spec again.
"""

from isolet.agent.service import config
from isolet.agent.service.context import Context
from isolet.agent.workspace import script
from isolet.wire.execution import EnvVar, ExecutionSpec

GUARD_MARGIN_SECONDS = 5
"""How long after the longest possible life the guard inside ends the sandbox."""


class Inputs:
    """The launch script of each sandbox that has not started yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._scripts: dict[str, bytes] = {}

    def keep(self, uid: str, spec: ExecutionSpec) -> None:
        """Have the launch of `uid` at hand.

        Raises:
            Invalid: an argument or value that cannot be passed on (see `script`).
        """
        self._scripts[uid] = launch_script(spec, self._context.nonce(uid, config.MAIN_SCRIPT))

    def at_hand(self, uid: str) -> bool:
        """Whether the sandbox could be started with what is here."""
        return (
            uid in self._scripts
            or (self._context.launches.folder(uid) / config.MAIN_SCRIPT).exists()
        )

    def lay_down(self, uid: str) -> None:
        """Put the script where the sandbox will find it."""
        content = self._scripts.get(uid)
        if content is not None:
            self._context.launches.write(uid, config.MAIN_SCRIPT, content)

    def forget(self, uid: str) -> None:
        """Drop the script: it has been read, or never will be."""
        self._scripts.pop(uid, None)
        self._context.launches.remove_file(uid, config.MAIN_SCRIPT)


def launch_script(spec: ExecutionSpec, nonce: str) -> bytes:
    """The main program's launch script; a session's main program only keeps the sandbox alive."""
    lifetime = spec.maximum_deadline_seconds + GUARD_MARGIN_SECONDS
    argv = spec.command or script.session(lifetime)
    return script.build(
        script.Launch(argv=argv, env=env_pairs(spec.env), nonce=nonce, guard_seconds=lifetime)
    )


def env_pairs(env: tuple[EnvVar, ...]) -> tuple[tuple[str, bytes], ...]:
    """(name, value) in order."""
    return tuple((variable.name, variable.value) for variable in env)
