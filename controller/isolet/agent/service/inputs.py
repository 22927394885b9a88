"""Arguments and env values between the owner's request and the start: memory and host tmpfs only.

They never reach the store. An agent that restarts before the start finds them in the launch folder
(host memory, gone with a reboot) or waits until the owner sends the spec again.
"""

from isolet.agent.service import config
from isolet.agent.service.context import Context
from isolet.agent.workspace import archive, script
from isolet.wire.dispatch import RunnerContract
from isolet.wire.execution import EnvVar, ExecutionSpec, Medium
from isolet.wire.pool import PoolWanted
from isolet.wire.process import ProcessSpec

GUARD_MARGIN_SECONDS = 5
"""How long after the longest possible life the guard inside ends the sandbox."""


class Inputs:
    """The launch script of each sandbox that has not started yet, and what goes with it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: dict[str, dict[str, bytes]] = {}
        self._specs: dict[str, ExecutionSpec] = {}

    def keep(self, uid: str, spec: ExecutionSpec) -> None:
        """Have the launch of `uid` at hand.

        Raises:
            Invalid: an argument or value that cannot be passed on (see `script`).
        """
        nonce = self._context.nonce(uid, config.MAIN_SCRIPT)
        self._held[uid] = {config.MAIN_SCRIPT: launch_script(spec, nonce)}
        self._specs[uid] = spec

    def keep_slot(self, uid: str, seconds: int, wanted: PoolWanted) -> None:
        """Have at hand what a warm slot runs, at most so long. Nothing of a tenant is in it."""
        nonce, guard = self._context.nonce(uid, config.MAIN_SCRIPT), seconds + GUARD_MARGIN_SECONDS
        if wanted.runner is not None:
            self._held[uid] = runner_launch(wanted.runner, wanted.user, nonce, guard)
            return
        waiting = script.wait(nonce, guard, config.MAIN_SCRIPT)
        self._held[uid] = {config.SLOT_SCRIPT: waiting}

    def keep_process(self, uid: str, spec: ProcessSpec, user: str) -> None:
        """Have the launch of a Process with a sandbox of its own at hand. Raises Invalid."""
        nonce = self._context.nonce(uid, config.MAIN_SCRIPT)
        guard = spec.lifetime_seconds() + GUARD_MARGIN_SECONDS
        names = (config.MAIN_SCRIPT, config.MAIN_FILES, config.MAIN_STDIN)
        self._held[uid] = process_launch(spec, user, nonce, names, guard_seconds=guard)

    def at_hand(self, uid: str) -> bool:
        """Whether the sandbox could be started with what is here.

        The script is laid down last: where it lies, all lies.
        """
        return (
            uid in self._held or (self._context.launches.folder(uid) / config.MAIN_SCRIPT).exists()
        )

    def spec(self, uid: str) -> ExecutionSpec | None:
        """The spec of an Execution that has not started, if it is at hand."""
        return self._specs.get(uid)

    def warm(self, uid: str) -> bytes:
        """The launch script for a slot: without a guard, which the slot has. Raises LookupError."""
        nonce = self._context.nonce(uid, config.MAIN_SCRIPT)
        return launch_script(self._specs[uid], nonce, guard=False)

    def lay_down(self, uid: str) -> None:
        """Put everything where the sandbox will find it."""
        held = self._held.get(uid, {})
        for name in sorted(held, key=lambda name: name == config.MAIN_SCRIPT):
            self._context.launches.write(uid, name, held[name])

    def forget(self, uid: str) -> None:
        """Drop everything: it has been read, or never will be."""
        self._held.pop(uid, None)
        self._specs.pop(uid, None)
        for name in (config.MAIN_SCRIPT, config.MAIN_FILES, config.MAIN_STDIN):
            self._context.launches.remove_file(uid, name)


def runner_launch(
    runner: RunnerContract, user: str, nonce: str, guard_seconds: int
) -> dict[str, bytes]:
    """What a slot of a class with a runner is given: its launch script, and the class's files."""
    launch = script.Launch(
        argv=runner.command,
        env=env_pairs(runner.env),
        nonce=nonce,
        guard_seconds=guard_seconds,
        files=config.MAIN_FILES if runner.files else None,
        document=True,
    )
    held = {config.SLOT_SCRIPT: script.build(launch)}
    if runner.files:
        uid, gid = config.user_ids(user)
        files = [(f.path, f.mode, f.content) for f in runner.files]
        held[config.MAIN_FILES] = archive.pack(files, uid, gid)
    return held


def launch_script(spec: ExecutionSpec, nonce: str, *, guard: bool = True) -> bytes:
    """The main program's launch script; a session's main program only keeps the sandbox alive."""
    lifetime = spec.maximum_deadline_seconds + GUARD_MARGIN_SECONDS
    argv = spec.command or script.session(lifetime)
    in_memory = spec.workspace.medium is Medium.MEMORY
    return script.build(
        script.Launch(
            argv=argv,
            env=env_pairs(spec.env),
            nonce=nonce,
            wait=config.MAIN_GO if spec.restore is not None and in_memory else None,
            tree=spec.workspace.git is not None,
            guard_seconds=lifetime if guard else None,
        )
    )


def process_launch(
    spec: ProcessSpec,
    user: str,
    nonce: str,
    names: tuple[str, str, str],
    *,
    guard_seconds: int | None,
) -> dict[str, bytes]:
    """Script, files and input of a Process, under these three names of its launch folder."""
    script_name, files_name, stdin_name = names
    launch = script.Launch(
        argv=spec.argv(),
        env=env_pairs(spec.env),
        cwd=f"/workspace/{spec.cwd}".rstrip("/"),
        nonce=nonce,
        guard_seconds=guard_seconds,
        tree=spec.sandbox is not None and spec.sandbox.workspace.git is not None,
        files=files_name if spec.files else None,
        stdin=stdin_name if spec.stdin else None,
        confined=bool(spec.cwd),
    )
    held = {script_name: script.build(launch)}
    if spec.files:
        uid, gid = config.user_ids(user)
        files = [(file.path, file.mode, file.content) for file in spec.files]
        held[files_name] = archive.pack(files, uid, gid)
    if spec.stdin:
        held[stdin_name] = spec.stdin
    return held


def env_pairs(env: tuple[EnvVar, ...]) -> tuple[tuple[str, bytes], ...]:
    """(name, value) in order."""
    return tuple((variable.name, variable.value) for variable in env)
