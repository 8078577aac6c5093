"""Dispatching a request to the handler of its row: parsing query and body, and turning errors into
replies.

The expected errors of all handlers become replies here; ``nousd.bridge.app`` replies to any other error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from nousd.bridge.access.callers import caller_of
from nousd.bridge.http.bodies import Bodies
from nousd.bridge.replies import (
    BAD_REQUEST,
    NOT_FOUND,
    NOT_JSON,
    QUESTION_NOT_FOUND,
    REQUEST_NOT_FOUND,
    RUN_NOT_FOUND,
    SESSION_NOT_FOUND,
    STARTING,
    UNPROCESSABLE,
    HttpError,
    error_reply,
)
from nousd.bridge.routing.request_fields import convert_query, decode_body
from nousd.bridge.routing.route import Call, Row, Services
from nousd.errors import ClientError, Refused
from nousd.wire.commands import GetSession
from nousd.wire.limits import NAME_CHARS_MAX

_NOT_FOUND: Final = {
    "id": SESSION_NOT_FOUND,
    "run_id": RUN_NOT_FOUND,
    "request_id": REQUEST_NOT_FOUND,
    "question_id": QUESTION_NOT_FOUND,
}
"""parameter of a path -> the failure for an unknown value."""

_OF_FIELDS: Final = frozenset({BAD_REQUEST, UNPROCESSABLE, NOT_FOUND, NOT_JSON})
"""Failures that a field of the request may have caused."""

_FIELD: Final = re.compile(r"[a-z_]+")


async def answer_request(row: Row, services: Services, request: Request) -> Response:
    """Return the reply to a request."""
    caller = caller_of(request.headers.get("user-agent", ""))
    try:
        if not (services.hub.has_begun or row.is_public):
            raise HttpError(STARTING, "the daemon cannot be reached yet")
        call = Call(
            services=services,
            path=_path(request),
            query=_query(row, request),
            body=await _body(row, services.bodies, request),
            caller=caller,
            request=request,
            view=row.view,
        )
        if row.starts_work:
            services.work_rate.take(request.scope)
        reply = await row.handler(call)
    except Refused as refused:
        reply = error_reply(await _session_first(_rename_field(row, refused), services, request))
    except (HttpError, ClientError) as error:
        reply = error_reply(await _session_first(error, services, request))
    return reply


async def _session_first(
    error: HttpError | ClientError, services: Services, request: Request
) -> HttpError | ClientError:
    """Return the refusal of the session in the path, if there is one, in place of a field's error.

    Fields are checked before the daemon is asked. But a client with a wrong session must receive that
    error first, not an error in its body.
    """
    session_id = request.path_params.get("id")
    if session_id is None or not isinstance(error, HttpError) or error.failure not in _OF_FIELDS:
        return error
    try:
        await services.daemon.ask(GetSession(session_id=session_id))
    except ClientError as unknown:
        return unknown
    return error


def _path(request: Request) -> Mapping[str, str]:
    """Return the parameters of the path. Raise HttpError if one is longer than any name can be."""
    for name, value in request.path_params.items():
        if len(value) > NAME_CHARS_MAX:
            raise HttpError(_NOT_FOUND[name], f"there is no {value[:20]}...")
    return request.path_params


def _rename_field(row: Row, refused: Refused) -> Refused | HttpError:
    """Return a refusal of a field's value, with the field's name changed to its name in the request."""
    if refused.code != "invalid_payload":
        return refused
    field = _FIELD.match(refused.message)
    name = field[0] if field else ""
    message = (row.spells.get(name, name) + refused.message[len(name) :]).removeprefix(".")
    if row.body is None:
        return HttpError(BAD_REQUEST, f"query: {message}")
    return HttpError(UNPROCESSABLE, f"body: {message}")


def _query(row: Row, request: Request) -> Any:
    if row.query is None:
        return None
    return convert_query(request.query_params, row.query)


async def _body(row: Row, bodies: Bodies, request: Request) -> Any:
    if row.body is None:
        return None
    async with bodies.read(request) as data:
        if not data:
            return decode_body(b"{}", row.body)
        content_type = request.headers.get("content-type", "")
        if not _is_json(content_type):
            message = f"content-type must be application/json, not {content_type[:100]}"
            raise HttpError(NOT_JSON, message)
        return decode_body(data, row.body)


def _is_json(content_type: str) -> bool:
    """Return whether a body of that type is read as JSON. No type counts as JSON, since scripts omit it.

    The types that a page of another site can send without a CORS preflight do not count.
    """
    essence = content_type.partition(";")[0].strip().lower()
    return essence in ("application/json", "") or (
        essence.startswith("application/") and essence.endswith("+json")
    )
