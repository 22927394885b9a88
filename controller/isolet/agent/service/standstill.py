"""A workspace in memory, out of a sandbox that runs: its processes are stopped while tar reads it.

Nothing of it can be seen from the node, so the image's own shell and tar read it, as the sandbox's
user. All other processes of that user are stopped first, which is looked at, and go on afterwards.
What comes out is not trusted: a helper reads it as a stranger's. A tenant that deceives the look at
its processes spoils its own copy alone.
"""

from collections.abc import AsyncIterator

from isolet.agent.engine.base import Engine, Stream
from isolet.agent.service.exits import exit_code
from isolet.base import errors
from isolet.plan.sandbox_model import SandboxRecord

# A path that nobody else would write so: it tells our tar from others.
_MARK = "/workspace/././."

NO_TAR, RESTLESS, NO_FOLDER = 93, 94, 95
_WHY = {
    NO_TAR: "the image has no tar",
    RESTLESS: "its processes would not stand still",
    NO_FOLDER: "/workspace cannot be entered",
}

# In a stat line the state follows the name, which may hold anything but is closed by the last `)`.
_TAKE = f"""\
cd /workspace || exit {NO_FOLDER}
command -v tar >/dev/null 2>&1 || exit {NO_TAR}
n=0
while :; do
kill -STOP -1 2>/dev/null
still=yes
for s in /proc/[0-9]*/task/[0-9]*/stat; do
p=${{s#/proc/}}; p=${{p%%/*}}
[ "$p" != 1 ] && [ "$p" != $$ ] || continue
IFS= read -r l 2>/dev/null <"$s" || continue
case "${{l##*) }}" in [TtZXx]*) ;; *) still=no; break ;; esac
done
[ $still = no ] || break
n=$((n + 1))
[ $n -lt 100 ] || {{ kill -CONT -1 2>/dev/null; exit {RESTLESS}; }}
done
tar -cf - -C {_MARK} . 2>/dev/null
c=$?
kill -CONT -1 2>/dev/null
exit $c
"""

# The shell that waits for tar lets the others go on too; so does this, where that is gone.
_LET_GO = f"""\
for p in /proc/[0-9]*; do
case "$(tr '\\0' ' ' <"$p/cmdline" 2>/dev/null)" in *" {_MARK} "*) ;; *) continue ;; esac
[ "${{p#/proc/}}" = $$ ] || kill -KILL "${{p#/proc/}}" 2>/dev/null
done
kill -CONT -1 2>/dev/null
exit 0
"""


class Failed(Exception):
    """The copy is worth nothing; the message says why, in our words."""


async def stream(engine: Engine, host: SandboxRecord) -> AsyncIterator[bytes]:
    """The tar stream of the workspace; it is whole only if this ends without an error.

    Raises:
        Failed: it could not be read, or not all of it.
        Unavailable, Unconfirmed: the engine went away.
    """
    async with engine.exec(
        host.engine_name,
        ("/bin/sh", "-c", _TAKE),
        user=host.spec.user,
        working_dir="/",
        stdin=False,
    ) as running:
        async for source, data in running.output():
            if source is Stream.STDOUT:
                yield data
        code = await exit_code(engine, running.id)
    if code:
        raise Failed(_WHY.get(code, f"the image's shell or tar failed with code {code}"))


async def let_go(engine: Engine, record: SandboxRecord) -> None:
    """End our tar if it still runs, and let all processes go on. May be repeated.

    Raises:
        Unavailable, Unconfirmed: the engine does not say that it was done.
    """
    try:
        async with engine.exec(
            record.container_name,
            ("/bin/sh", "-c", _LET_GO),
            user=record.spec.user,
            working_dir="/",
            stdin=False,
        ) as running:
            async for _ in running.output():
                pass
            await exit_code(engine, running.id)
    except (errors.NotFound, errors.Conflict):
        return  # It does not run any more.
