"""From an HTTP request to a row's handler and back: bodies, queries, and errors to replies.

The one place of the bridge where an exception becomes a reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nousd.bridge.callers import caller_of
from nousd.bridge.replies import (
    BAD_REQUEST,
    NOT_FOUND,
    NOT_JSON,
    SESSION_NOT_FOUND,
    STARTING,
    TOO_SLOW,
    UNPROCESSABLE,
    HttpError,
    error_reply,
)
from nousd.bridge.table import Call, Row, Services
from nousd.errors import ClientError, Refused
from nousd.wire.limits import HTTP_BODY_SECONDS, NAME_CHARS_MAX

_FIELD: Final = re.compile(r"[a-z_]+")


async def answered(row: Row, services: Services, request: Request) -> Response:
    """Answers one request."""
    caller = caller_of(request.headers.get("user-agent", ""))
    try:
        if not (services.window.has_begun or row.is_public):
            raise HttpError(STARTING, "the daemon cannot be reached yet")
        call = Call(
            services=services,
            path=_path(request),
            query=_query(row, request),
            body=await _body(row, request),
            caller=caller,
            request=request,
        )
        reply = await row.handler(call)
    except Refused as refused:
        reply = error_reply(_in_words_of(row, refused))
    except (HttpError, ClientError) as error:
        reply = error_reply(error)
    return reply


def _path(request: Request) -> Mapping[str, str]:
    """Returns the parameters of the path: names, of which none that is too long for one is there."""
    for name, value in request.path_params.items():
        if len(value) > NAME_CHARS_MAX:
            failure = SESSION_NOT_FOUND if name == "id" else NOT_FOUND
            raise HttpError(failure, f"there is no {value[:20]}...")
    return request.path_params


def _in_words_of(row: Row, refused: Refused) -> Refused | HttpError:
    """Returns a refusal of what a field says under the name that the field has in the request."""
    if refused.code != "invalid_payload":
        return refused
    ours = _FIELD.match(refused.message)
    name = ours[0] if ours else ""
    words = (row.spells.get(name, name) + refused.message[len(name) :]).removeprefix(".")
    if row.body is None:
        return HttpError(BAD_REQUEST, f"query: {words}")
    return HttpError(UNPROCESSABLE, f"body: {words}")


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
    data = await read_body(request)
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


async def read_body(request: Request) -> bytes:
    """Returns the body of a request.

    Raises:
        HttpError: it is too long, too slow, or not whole.
    """
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
