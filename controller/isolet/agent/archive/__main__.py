"""The program: one request as JSON in its arguments, one line of JSON as its answer.

    pack      {"root": P, "entries": P, "content": P}
    normalise {"stream": P, "entries": P, "content": P, "aside": P, "owner": [1000, 1000]}
    unpack    {"entries": P, "content": P, "root": P, "owner": [1000, 1000]}
    verify    {"entries": P, "content": P, "folders": P}

P is a path or the number of an open descriptor; `limits` is an object with fields of `Limits`.
Without `owner` each entry keeps the owner that it or the stream names; `folders` may be left out.
The answer is a line
`{"done": {…}}` with the fields of `Figures`, or `{"refused": …, "member": …, "message": …}` and an
exit code that is not 0.
"""

import errno
import json
import os
import sys
from typing import IO, Any

from isolet.agent.archive import copying, names
from isolet.agent.archive.entries import Figures, Owner
from isolet.agent.archive.folders import Folders
from isolet.agent.archive.normalise import normalise
from isolet.agent.archive.pack import pack
from isolet.agent.archive.refusal import Limits, Reason, Refused
from isolet.agent.archive.unpack import Folder, Nowhere, unpack

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def _opened(place: str | int, flags: int) -> int:
    return place if isinstance(place, int) else os.open(place, flags, 0o600)


def _input(request: dict[str, Any], key: str) -> IO[bytes]:
    return copying.reader(_opened(request[key], _READ))


def _output(request: dict[str, Any], key: str) -> IO[bytes]:
    return copying.writer(_opened(request[key], _WRITE | os.O_WRONLY))


def _owner(request: dict[str, Any]) -> Owner | None:
    return Owner(*request["owner"]) if "owner" in request else None


def _pack(request: dict[str, Any], limits: Limits) -> Figures:
    root = _opened(request["root"], _READ | os.O_DIRECTORY)
    with _output(request, "entries") as entries, _output(request, "content") as content:
        return pack(root, entries, content, limits)


def _normalise(request: dict[str, Any], limits: Limits) -> Figures:
    aside = os.open(request["aside"], _WRITE | os.O_RDWR, 0o600)
    with (
        _input(request, "stream") as stream,
        _output(request, "entries") as entries,
        _output(request, "content") as content,
        open(aside, "w+b", buffering=copying.BUFFER) as spool,
    ):
        return normalise(stream, entries, content, spool, limits, _owner(request))


def _unpack(request: dict[str, Any], limits: Limits) -> Figures:
    root = _opened(request["root"], _READ | os.O_DIRECTORY)
    target = Folder(root, _owner(request))
    with _input(request, "entries") as entries, _input(request, "content") as content:
        return unpack(entries, content, target, limits)


def _verify(request: dict[str, Any], limits: Limits) -> Figures:
    target = Folders(_output(request, "folders")) if "folders" in request else Nowhere()
    with _input(request, "entries") as entries, _input(request, "content") as content:
        return unpack(entries, content, target, limits, again=True)


_DOES = {"pack": _pack, "normalise": _normalise, "unpack": _unpack, "verify": _verify}


def answer(what: str, request: dict[str, Any]) -> dict[str, Any]:
    """Do it; the answer is what is printed."""
    try:
        limits = Limits(**request.get("limits", {}))
        return {"done": _DOES[what](request, limits)._asdict()}
    except Refused as refused:
        return _refused(refused.reason, refused.message, refused.member)
    except MemoryError:
        return _refused(Reason.FAILED, "there is no memory for it")
    except OSError as error:
        reason = Reason.NO_SPACE if error.errno in _FULL else Reason.FAILED
        return _refused(reason, error.strerror or "input or output failed")


def _refused(reason: Reason, message: str, member: bytes = b"") -> dict[str, Any]:
    return {"refused": reason, "member": names.escape(member).decode(), "message": message}


if __name__ == "__main__":
    said = answer(sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps(said), flush=True)
    os._exit(0 if "done" in said else 1)
