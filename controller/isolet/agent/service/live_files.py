"""Files into and out of the workspace of a running session.

Everything is done by small shell programs inside the sandbox, as its user: whatever a tenant has
put in their way, they can reach nothing that the tenant could not. A path is refused if any part of
it is a link, so that what is asked for is what is meant; a tenant that changes it meanwhile
deceives only itself.
"""

import asyncio

from isolet.agent.engine.base import ExecStream, Stream
from isolet.agent.service import config
from isolet.agent.service.context import Context
from isolet.agent.service.exits import exit_code
from isolet.agent.workspace import archive
from isolet.base import errors
from isolet.plan import reasons
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.process import MAX_STAGED_BYTES, FileEntry, is_path

CALL_SECONDS = 60.0
MAX_ENTRIES = 1000
_ROOM_FOR_NAMES = 1 << 20

# $1 is the path, $2 what the last part must be. Ends with 3 for a link, 4 for missing, 5 for
# another kind of thing.
_CHECK = """\
cd /workspace || exit 6
p=; r=$1/
while [ -n "$r" ]; do
p=$p${r%%/*}; r=${r#*/}
[ ! -L "$p" ] || exit 3
if [ -n "$r" ]; then [ -d "$p" ] || { [ -e "$p" ] && exit 5; [ "$2" = new ] || exit 4; }; fi
p=$p/
done
p=${p%/}
"""
_PUT = _CHECK + '[ ! -e "$p" ] || [ -f "$p" ] || exit 5\nexec tar -xpf - -C /workspace\n'
_GET = (
    _CHECK
    + '[ -e "$p" ] || exit 4\n[ -f "$p" ] || exit 5\nset -- $(wc -c <"$p") "$3"\n'
    + '[ "$1" -le "$2" ] || exit 7\nexec cat "$p"\n'
)
_LIST = (
    _CHECK
    + '[ -e "$p" ] || exit 4\n[ -d "$p" ] || exit 5\ncd "$p" || exit 5\n'
    + "n=$3; set --; for f in .* *; do case $f in .|..) continue;; esac\n"
    + '{ [ -e "$f" ] || [ -L "$f" ]; } || continue; [ $# -lt "$n" ] || exit 7; set -- "$@" "$f"\n'
    + "done; [ $# -gt 0 ] || exit 0\n"
    + "printf '%s\\0' \"$@\"; echo; exec stat -c '%f %s' -- \"$@\"\n"
)


class LiveFiles:
    """Puts, gets and lists."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def put(self, record: SandboxRecord, path: str, content: bytes, mode: int) -> None:
        """Write a file, whole; folders above it are made."""
        _require_path(path)
        if len(content) > MAX_STAGED_BYTES or not 0 <= mode <= 0o777:
            raise errors.Invalid(f"at most {MAX_STAGED_BYTES} bytes, and a mode from 0 to 0777")
        uid, gid = config.user_ids(record.spec.user)
        packed = archive.pack([(path, mode, content)], uid, gid)
        code, _ = await self._run(record, (_PUT, path, "new"), packed, most=_ROOM_FOR_NAMES)
        if code:
            raise _refusal(code, path)

    async def get(self, record: SandboxRecord, path: str) -> bytes:
        """Read a file, whole."""
        _require_path(path)
        most = record.spec.resources.output_bytes
        code, data = await self._run(record, (_GET, path, "old", str(most)), b"", most=most)
        if code:
            raise _refusal(code, path)
        return data

    async def list(self, record: SandboxRecord, path: str) -> tuple[FileEntry, ...]:
        """Entries of a folder."""
        if path:
            _require_path(path)
        argv = (_LIST, path or ".", "old", str(MAX_ENTRIES))
        code, data = await self._run(record, argv, b"", most=_ROOM_FOR_NAMES)
        if code:
            raise _refusal(code, path or ".")
        if not data:
            return ()
        names, _, rows = data.rpartition(b"\0\n")
        entries = zip(names.split(b"\0"), rows.splitlines(), strict=True)
        found = (_entry(path, name, row) for name, row in entries)
        return tuple(sorted(found, key=lambda entry: entry.path))

    async def _run(
        self, record: SandboxRecord, argv: tuple[str, ...], stdin: bytes, *, most: int
    ) -> tuple[int, bytes]:
        """Exit code and stdout of one of the programs."""
        text, *words = argv
        engine = self._context.engine
        data = bytearray()
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                engine.exec(
                    record.engine_name,
                    ("/bin/sh", "-c", text, "isolet", *words),
                    user=record.spec.user,
                    working_dir="/",
                    stdin=bool(stdin),
                ) as stream,
            ):
                # Both at once: a program that ends early reads no more, and its end is told by
                # its output alone.
                feeder = asyncio.create_task(_feed(stream, stdin)) if stdin else None
                try:
                    async for source, piece in stream.output():
                        if source is Stream.STDOUT:
                            data += piece
                        if len(data) > most:
                            raise _refusal(7, words[0])
                finally:
                    if feeder is not None:
                        feeder.cancel()
                        await asyncio.gather(feeder, return_exceptions=True)
        except TimeoutError:
            raise errors.Unavailable("the session did not answer in time") from None
        return await exit_code(self._context.engine, stream.id), bytes(data)


async def _feed(stream: ExecStream, data: bytes) -> None:
    await stream.write(data)
    await stream.close_stdin()


def _require_path(path: str) -> None:
    if not is_path(path) or len(path.encode()) > 4096:
        raise errors.Invalid("path: must be normalised and relative to the workspace")


def _refusal(code: int, path: str) -> errors.IsoletError:
    match code:
        case 3:
            why, reason = "is a link, or is reached through one", reasons.ARTIFACT_REJECTED
        case 4:
            return errors.NotFound(f"{path} is not there")
        case 5:
            why, reason = "is not of the kind asked for", reasons.ARTIFACT_REJECTED
        case 7:
            why, reason = "is larger than may be read at once", reasons.ARTIFACT_TOO_LARGE
        case _:
            why, reason = "could not be written: is there room?", reasons.WORKSPACE_FULL
    return errors.Refused(f"{path} {why}", reason=reason)


_KINDS = {0x8000: "file", 0x4000: "folder", 0xA000: "link"}


def _entry(folder: str, name: bytes, row: bytes) -> FileEntry:
    mode_text, size = row.split()
    mode = int(mode_text, 16)
    own = name.decode(errors="replace")
    return FileEntry(
        path=f"{folder}/{own}" if folder else own,
        kind=_KINDS.get(mode & 0xF000, "other"),
        size=int(size),
        mode=mode & 0o7777,
    )
