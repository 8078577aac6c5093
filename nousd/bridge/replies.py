"""Replies of routes, and the HTTP status of each refusal.

The body of an error is ``{"error", "code", "retryable"}``; one table maps refusals to statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from nousd.errors import (
    AnswerTimedOut,
    ClientError,
    ConnectionLost,
    DaemonUnreachable,
    NousdError,
    Refused,
)


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error in the form of Tandem's engine. ``details`` are facts that a client can act on."""

    error: str
    code: str
    retryable: bool
    details: dict[str, Any] | None = None


class Failure(NamedTuple):
    """The status and code of a refused request."""

    status: int
    code: str
    retryable: bool = False


class HttpError(NousdError):
    """A refusal by the bridge itself, or one that a route reports in place of the daemon's refusal."""

    def __init__(
        self,
        failure: Failure,
        message: str,
        *,
        body: msgspec.Struct | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.body = body
        self.headers = headers or {}


BAD_REQUEST: Final = Failure(400, "BAD_REQUEST")
UNAUTHORIZED: Final = Failure(401, "AUTH_REQUIRED")
FORBIDDEN: Final = Failure(403, "FORBIDDEN")
NOT_FOUND: Final = Failure(404, "NOT_FOUND")
SESSION_NOT_FOUND: Final = Failure(404, "SESSION_NOT_FOUND")
RUN_NOT_FOUND: Final = Failure(404, "RUN_NOT_FOUND")
REQUEST_NOT_FOUND: Final = Failure(404, "APPROVAL_REQUEST_NOT_FOUND")
QUESTION_NOT_FOUND: Final = Failure(404, "QUESTION_NOT_FOUND")
METHOD_NOT_ALLOWED: Final = Failure(405, "METHOD_NOT_ALLOWED")
CONFLICT: Final = Failure(409, "CONFLICT")
RUN_CONFLICT: Final = Failure(409, "SESSION_RUN_CONFLICT", retryable=True)
BODY_TOO_LARGE: Final = Failure(413, "BODY_TOO_LARGE")
NOT_JSON: Final = Failure(415, "UNSUPPORTED_MEDIA_TYPE")
UNPROCESSABLE: Final = Failure(422, "INVALID_REQUEST")
RATE_LIMITED: Final = Failure(429, "RATE_LIMITED", retryable=True)
HEADERS_TOO_LARGE: Final = Failure(431, "HEADERS_TOO_LARGE")
NOT_IMPLEMENTED: Final = Failure(501, "NOT_IMPLEMENTED")
VERSION_NOT_SUPPORTED: Final = Failure(505, "HTTP_VERSION_NOT_SUPPORTED")
TOO_MANY_CONNECTIONS: Final = Failure(503, "TOO_MANY_CONNECTIONS", retryable=True)
TOO_SLOW: Final = Failure(408, "REQUEST_TIMEOUT", retryable=True)
INTERNAL: Final = Failure(500, "INTERNAL_ERROR")
UPSTREAM: Final = Failure(502, "PROVIDER_ERROR", retryable=True)
UNAVAILABLE: Final = Failure(503, "ENGINE_UNAVAILABLE", retryable=True)
BUSY: Final = Failure(503, "ENGINE_BUSY", retryable=True)
STARTING: Final = Failure(503, "ENGINE_STARTING", retryable=True)
TIMED_OUT: Final = Failure(504, "PROMPT_TIMEOUT", retryable=True)

_BY_CODE: Final[dict[str, Failure]] = {
    "invalid_command": INTERNAL,
    "invalid_payload": UNPROCESSABLE,
    "command_rejected": CONFLICT,
    "session_not_found": SESSION_NOT_FOUND,
    "session_error": Failure(500, "SESSION_ERROR", retryable=True),
    "provider_error": UPSTREAM,
    "timeout": TIMED_OUT,
    "shutting_down": UNAVAILABLE,
    "internal_error": INTERNAL,
}
"""code of a refusal -> the failure."""

_BY_MESSAGE: Final[dict[str, Failure]] = {
    "run_in_progress": RUN_CONFLICT,
    "workspace_not_allowed": Failure(403, "WORKSPACE_NOT_ALLOWED"),
    "workspace_not_found": Failure(404, "WORKSPACE_NOT_FOUND"),
    "queue_full": Failure(429, "QUEUE_FULL", retryable=True),
    "too_many_connections": TOO_MANY_CONNECTIONS,
    "unknown_run": RUN_NOT_FOUND,
    "model_unknown": Failure(422, "MODEL_NOT_FOUND"),
    "provider_not_configured": Failure(422, "PROVIDER_NOT_FOUND"),
    "provider_not_usable": Failure(422, "PROVIDER_NOT_USABLE"),
    "tool_not_registered": Failure(422, "TOOL_NOT_FOUND"),
    "attachment_not_supported": Failure(422, "ATTACHMENT_NOT_SUPPORTED"),
    "line_too_long": BODY_TOO_LARGE,
    "invalid_json": UNPROCESSABLE,
    "no_room_for_line": BUSY,
    "folders_do_not_answer": BUSY,
}
"""machine word of a refusal -> the failure, for codes that cover several failures."""

_WITH_WORDS: Final = frozenset({"command_rejected", "invalid_command"})
"""Codes of refusals whose message begins with a machine word."""

_BY_ERROR: Final[dict[type[ClientError], Failure]] = {
    DaemonUnreachable: UNAVAILABLE,
    ConnectionLost: UNAVAILABLE,
    AnswerTimedOut: Failure(504, "ENGINE_TIMEOUT", retryable=True),
}
"""error of the client package -> the failure; any other error is a bug."""

FAILURES: Final = tuple(
    dict.fromkeys(
        (
            *(BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED, NOT_JSON),
            *(
                RATE_LIMITED,
                HEADERS_TOO_LARGE,
                NOT_IMPLEMENTED,
                VERSION_NOT_SUPPORTED,
                TOO_SLOW,
                STARTING,
            ),
            *(*_BY_CODE.values(), *_BY_MESSAGE.values(), *_BY_ERROR.values()),
        )
    )
)
"""All failures, except those that single routes define."""


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a reply whose body is ``value``, a struct or plain JSON data."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def empty_reply(status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a reply without a body."""
    return Response(None, status, headers)


def failure_of(error: ClientError) -> Failure:
    """Return the failure for an error of the client package."""
    if isinstance(error, Refused):
        word = error.message.partition(":")[0]
        if error.code in _WITH_WORDS and word in _BY_MESSAGE:
            return _BY_MESSAGE[word]
        return _BY_CODE.get(error.code, INTERNAL)
    return _BY_ERROR.get(type(error), INTERNAL)


def error_reply(error: HttpError | ClientError) -> Response:
    """Return the reply for an error."""
    if isinstance(error, HttpError):
        failure = error.failure
        body = error.body or envelope(failure, error.message)
        return json_reply(body, failure.status, error.headers)
    failure = failure_of(error)
    if isinstance(error, Refused):
        message = f"{error.message}: {error.cause}" if error.cause else error.message
        return json_reply(envelope(failure, message, error.details or None), failure.status)
    return json_reply(envelope(failure, str(error)), failure.status)


def envelope(failure: Failure, message: str, details: dict[str, Any] | None = None) -> ErrorBody:
    """Return the error body for a failure."""
    return ErrorBody(error=message, code=failure.code, retryable=failure.retryable, details=details)
