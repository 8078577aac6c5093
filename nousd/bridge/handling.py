"""From an HTTP request to a row's handler and back: bodies, queries, and errors to replies.

The one place of the bridge where an exception becomes a reply.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nousd.bridge.callers import caller_of
from nousd.bridge.replies import (
    BAD_REQUEST,
    NOT_JSON,
    STARTING,
    TOO_SLOW,
    UNPROCESSABLE,
    HttpError,
    error_reply,
)
from nousd.bridge.table import Call, Row, Services
from nousd.errors import ClientError
from nousd.wire.limits import HTTP_BODY_SECONDS

_logger: Final = logging.getLogger(__name__)


async def answered(row: Row, services: Services, request: Request) -> Response:
    """Answers one request."""
    caller = caller_of(request.headers.get("user-agent", ""))
    try:
        if not (services.window.has_begun or row.is_public):
            raise HttpError(STARTING, "the daemon cannot be reached yet")
        call = Call(
            services=services,
            path=request.path_params,
            query=_query(row, request),
            body=await _body(row, request),
            caller=caller,
            request=request,
        )
        reply = await row.handler(call)
    except (HttpError, ClientError) as error:
        reply = error_reply(error)
    return reply


def _query(row: Row, request: Request) -> Any:
    if row.query is None:
        return None
    given = dict(request.query_params)
    try:
        return msgspec.convert(given, row.query, strict=False)
    except msgspec.ValidationError as error:
        raise HttpError(BAD_REQUEST, f"query: {error}") from None


async def _body(row: Row, request: Request) -> Any:
    if row.body is None:
        return None
    data = await _read(request)
    if not data and row.is_body_optional:
        data = b"{}"
    elif not _is_json(request.headers.get("content-type", "")):
        raise HttpError(NOT_JSON, "the body is to be application/json")
    try:
        return msgspec.json.decode(data, type=row.body)
    except msgspec.ValidationError as error:
        raise HttpError(UNPROCESSABLE, f"body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpError(BAD_REQUEST, "the body is not JSON") from None


async def _read(request: Request) -> bytes:
    try:
        with anyio.fail_after(HTTP_BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise HttpError(TOO_SLOW, "the body did not come in time") from None
    except ClientDisconnect:
        raise HttpError(BAD_REQUEST, "the body is not whole") from None


def _is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (
        essence.startswith("application/") and essence.endswith("+json")
    )
