"""Errors on their way out: the one place where an exception becomes an answer.

What we raise on purpose goes out as it is. Anything else is a bug or a broken part: the log gets
all of it under the request's id, the caller gets the id and nothing more.
"""

from collections.abc import Mapping

import pydantic
from aiohttp import web

from isolet.base import errors
from isolet.wire import faults, http
from isolet.wire.base import WIRE_VERSIONS


class HTTPFault(Exception):
    """A fault that only HTTP knows: an unknown path, a body too large, a foreign wire version."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.fault = faults.Fault(reason=reason, message=message)
        self.headers = dict(headers or {})
        self.close = close
        """Whether the connection can serve no further request."""


def bad_request(reason: str, message: str) -> HTTPFault:
    """The request is not even well formed."""
    return HTTPFault(400, reason, message)


def too_large(bound: int) -> HTTPFault:
    """The body passes its bound; the connection is not used again."""
    return HTTPFault(413, "BodyTooLarge", f"the body may have at most {bound} bytes", close=True)


def unsupported_wire(version: str) -> HTTPFault:
    """The caller speaks a version that this build does not."""
    spoken = ", ".join(map(str, WIRE_VERSIONS))
    return HTTPFault(
        415,
        http.UNSUPPORTED_WIRE_VERSION,
        f"wire version {version} is not spoken here; spoken are {spoken}",
        headers={http.HEADER_WIRE_VERSIONS: spoken},
    )


def invalid(error: pydantic.ValidationError) -> errors.Invalid:
    """The first wrong fields with the rules they break; never the values."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    parts = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in found[:5]]
    more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
    return errors.Invalid("; ".join(parts) + more)


def response(error: Exception) -> web.Response | None:
    """The answer for an error that was raised on purpose; None for any other."""
    match error:
        case errors.IsoletError():
            status, fault = faults.to_http(error)
            return _answer(status, fault, {})
        case HTTPFault():
            answer = _answer(error.status, error.fault, error.headers)
            if error.close:
                answer.force_close()
            return answer
        case web.HTTPException():
            return _answer(error.status, *_of_aiohttp(error))
    return None


def internal(request_id: str) -> web.Response:
    """The answer for all that was not raised on purpose."""
    fault = faults.Fault(
        reason=http.INTERNAL_ERROR,
        message=f"internal error; the agent's log has it as request {request_id}",
    )
    return _answer(500, fault, {})


def _of_aiohttp(error: web.HTTPException) -> tuple[faults.Fault, dict[str, str]]:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        fault = faults.Fault(reason="MethodNotAllowed", message=f"this path answers to {allowed}")
        return fault, {"Allow": allowed}
    if error.status == 404:
        return faults.Fault(reason=http.NO_SUCH_PATH, message="there is no such path"), {}
    return faults.Fault(reason="BadRequest", message=error.reason), {}


def _answer(status: int, fault: faults.Fault, headers: dict[str, str]) -> web.Response:
    if fault.retry_after_seconds is not None:
        headers["Retry-After"] = str(max(1, round(fault.retry_after_seconds)))
    return web.Response(
        status=status,
        body=fault.to_json(),
        headers=headers,
        content_type=http.JSON,
        charset="utf-8",
    )
