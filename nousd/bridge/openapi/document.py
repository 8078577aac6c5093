"""The OpenAPI document of the bridge, generated from the rows of the route table.

The error statuses of a route follow from its row: those of all routes, those of routes with a token, a
body or a path parameter, and those of the commands that the route sends. Each route with a body has an
example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import UnionType
from typing import Any, Final, get_args

import msgspec

from nousd.bridge.replies import FAILURES, ErrorBody
from nousd.bridge.routing.route import CLIENT_NAME, PrometheusText, Row

VERSION: Final = "3.1.0"
"""The version of OpenAPI."""

_ABOUT: Final = (
    "Sessions and runs of a nousd daemon in the vocabulary of Tandem. For anything that is not here see "
    "protocol/http.md."
)

Json = dict[str, Any]

_COMPONENTS: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")

_TEXT_STREAM: Final = {
    "text/event-stream": {
        "schema": {
            "description": "Each event of the stream; `data` is a Frame as JSON.",
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[0-9]*$"},
                "data": {"type": "string", "contentMediaType": "application/json"},
            },
            "required": ["data"],
        }
    }
}
_PAGE: Final = {"text/html": {"schema": {"type": "string"}}}
_FIGURES: Final = {
    media_type: {"schema": {"type": "string"}}
    for media_type in ("text/plain", "application/openmetrics-text")
}
_TEXTS: Final[Mapping[Any, Json]] = {bytes: _PAGE, str: _TEXT_STREAM, PrometheusText: _FIGURES}
"""marker in a row for a reply that is not JSON -> its content types"""
_RENAMED: Final[Mapping[int, str]] = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
"""status -> its name in RFC 9110, which Python uses only since 3.13"""


def make_document(rows: Iterable[Row], *, version: str) -> Json:
    """Return the OpenAPI document.

    Args:
        version: the version of nousd.
    """
    rows = tuple(rows)
    shapes = _Shapes(rows)
    paths: dict[str, Json] = {}
    for row in rows:
        for path in (row.path, *row.aliases):
            paths.setdefault(path, {})[row.method.lower()] = _operation(row, path, shapes)
    return {
        "openapi": VERSION,
        "info": {
            "title": "nousd over HTTP",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The server of this document."}],
        "security": [{name: []} for name in _SECURITY],
        "tags": [{"name": name} for name in dict.fromkeys(map(_tag, rows))],
        "paths": paths,
        "components": {"schemas": tidy_schema(shapes.components), "securitySchemes": _SECURITY},
    }


_SECURITY: Final[Mapping[str, Json]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-tandem-token": {"type": "apiKey", "in": "header", "name": "x-tandem-token"},
    "x-agent-token": {"type": "apiKey", "in": "header", "name": "x-agent-token"},
}


class _Shapes:
    """The schemas of all types in the rows; ``components`` holds the named ones."""

    def __init__(self, rows: Iterable[Row]) -> None:
        types: list[Any] = [ErrorBody]
        for row in rows:
            shapes = (row.query, row.body, *row.replies.values())
            named = (shape for shape in shapes if not (shape is None or shape in _TEXTS))
            types += [member for shape in named for member in _members(shape)]
        schemas, components = msgspec.json.schema_components(types, ref_template=_COMPONENTS)
        self._schemas = list(zip(types, schemas, strict=True))
        self.components = {name: _spell_once(schema) for name, schema in components.items()}

    def of(self, shape: Any) -> Json:
        """Return the schema of a type."""
        if isinstance(shape, UnionType):
            return {"anyOf": [self.of(member) for member in _members(shape)]}
        return dict(next(schema for known, schema in self._schemas if known == shape))

    def properties_of(self, shape: Any) -> tuple[Mapping[str, Json], frozenset[str]]:
        """Return the fields of a struct, and which of them are required."""
        schema = self.of(shape)
        while "$ref" in schema:
            schema = self.components[schema["$ref"].rpartition("/")[2]]
        return schema.get("properties", {}), frozenset(schema.get("required", ()))


def _spell_once(schema: Json) -> Json:
    """Return the schema of a struct with each field only once, in the struct's first spelling.

    The field's description lists the other spellings. Client generators derive the same name from
    ``sourceKind`` and ``source_kind``, and leave out everything that uses a schema with both.
    """
    spellings: dict[str, list[str]] = {}
    for name in schema.get("properties", ()):
        spellings.setdefault(name.replace("_", "").lower(), []).append(name)
    fields: dict[str, Json] = {}
    for name, *others in spellings.values():
        field = schema["properties"][name]
        if others:
            note = f"Also spelled {', '.join(f'`{other}`' for other in others)}."
            field = {**field, "description": f"{field.get('description', '')} {note}".strip()}
        fields[name] = field
    if not fields:
        return schema
    required = [name for name in schema.get("required", ()) if name in fields]
    return {**schema, "properties": fields, "required": required}


def _members(shape: Any) -> tuple[Any, ...]:
    """Return the members of a union, because msgspec rejects a union of structs without tags."""
    return get_args(shape) if isinstance(shape, UnionType) else (shape,)


_OF_PROMPTS: Final = (
    ("idempotency-key", "The same key with the same body starts no second run."),
    ("x-tandem-idempotency-key", "The same, for clients that cannot send the other."),
    (CLIENT_NAME, "The client, shown with the run."),
    ("x-tandem-agent-id", "The client's agent, shown with the run."),
)

_OF_A_CLIENT: Final = ((CLIENT_NAME, "The client, shown with what it sends."),)

_TAKEN: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "prompt": _OF_PROMPTS,
    **dict.fromkeys(
        ("append_message", "confirm_tool", "answer_question", "reject_question", "abort"),
        _OF_A_CLIENT,
    ),
    "subscribe": (("last-event-id", "The id of the last received frame."),),
}
"""command -> the headers of the routes that send it, with their descriptions."""

_RUN_ID: Final[Json] = {
    "x-tandem-run-id": {"description": "The run's id.", "schema": {"type": "string"}}
}


def _operation(row: Row, path: str, shapes: _Shapes) -> Json:
    """Return the operation of a row at one of its paths."""
    operation: Json = {
        "tags": [_tag(row)],
        "summary": row.summary,
        "description": _description(row),
        "operationId": _operation_id(row.method, path),
        "parameters": [
            *_path_parameters(row),
            *_query_parameters(row, shapes),
            *_header_parameters(row),
        ],
        "responses": _responses(row, shapes),
    }
    if row.body is not None:
        content: Json = {"schema": shapes.of(row.body)}
        if (example := EXAMPLES.get((row.method, row.path))) is not None:
            content["example"] = example
        operation["requestBody"] = {
            "required": any(field.required for field in msgspec.structs.fields(row.body)),
            "content": {"application/json": content},
        }
    if row.is_public:
        operation["security"] = []
    if path != row.path:
        operation[ALIAS_OF] = _operation_id(row.method, row.path)
    return operation


ALIAS_OF: Final = "x-alias-of"
"""The key, in an operation of an alias path, of the ``operationId`` at the route's first path."""


_OF_THE_SERVER: Final = frozenset({"global", "openapi.json", "docs", "metrics"})


def _tag(row: Row) -> str:
    first = row.path.strip("/").partition("/")[0]
    return "server" if first in _OF_THE_SERVER else first


def _description(row: Row) -> str:
    sends = f"Sends: {', '.join(row.sends)}." if row.sends else "Sends no command."
    query = "" if row.query is None else first_paragraph(row.query.__doc__)
    return " ".join(filter(None, (first_paragraph(row.handler.__doc__), query, sends)))


def _operation_id(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _path_parameters(row: Row) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(row.path)
    ]


def _query_parameters(row: Row, shapes: _Shapes) -> list[Json]:
    if row.query is None:
        return []
    fields, required = shapes.properties_of(row.query)
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _omit_null(schema)}
        for name, schema in tidy_schema(dict(fields)).items()
    ]


def _omit_null(schema: Json) -> Json:
    """Return the schema of a parameter without null: an absent parameter is omitted, never null."""
    kinds: list[Json] = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {key: value for key, value in schema.items() if key != "anyOf"} | kinds[0]


def _header_parameters(row: Row) -> list[Json]:
    headers = dict.fromkeys(header for command in row.sends for header in _TAKEN.get(command, ()))
    return [
        {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}
        for name, description in headers
    ]


def _responses(row: Row, shapes: _Shapes) -> Json:
    replies = {status: _reply(status, shape, row, shapes) for status, shape in row.replies.items()}
    refused = {status: _refusal(status, shapes) for status in refusals(row) - set(replies)}
    return {str(status): reply for status, reply in sorted({**replies, **refused}.items())}


def _reply(status: int, shape: Any, row: Row, shapes: _Shapes) -> Json:
    is_good = status < HTTPStatus.BAD_REQUEST
    content: Json = {}
    if shape in _TEXTS:
        content |= _TEXTS[shape]
    elif shape is not None:
        schema = shapes.of(shape)
        # A refusal outside the route's handler may have the same status.
        schema = schema if is_good else {"anyOf": [schema, shapes.of(ErrorBody)]}
        content["application/json"] = {"schema": schema}
    if row.streams and is_good:
        content |= _TEXT_STREAM
    reply: Json = {"description": _phrase(status)}
    if content:
        reply["content"] = content
    if is_good and "prompt" in row.sends:
        reply["headers"] = _RUN_ID
    return reply


def _refusal(status: int, shapes: _Shapes) -> Json:
    return {
        "description": _phrase(status),
        "content": {"application/json": {"schema": shapes.of(ErrorBody)}},
    }


def _phrase(status: int) -> str:
    """Return the name of a status, followed by its error codes."""
    codes = dict.fromkeys(failure.code for failure in FAILURES if failure.status == status)
    name = _RENAMED.get(status) or HTTPStatus(status).phrase
    return name + (f": {', '.join(codes)}" if codes else "")


ANY: Final = frozenset({400, 403, 413, 431, 500, 503})
"""Statuses of every route: wrong Host or Origin, too many bytes, an internal error, too many
connections."""

WITH_TOKEN: Final = frozenset({401})
WITH_BODY: Final = frozenset({408, 415, 422})
WITH_RATE: Final = frozenset({429})
WITH_COMMAND: Final = frozenset({504})
WITH_NAME: Final = frozenset({404})

BY_COMMAND: Final[Mapping[str, frozenset[int]]] = {
    "abort": frozenset({404, 409}),
    "answer_question": frozenset({409, 422}),
    "append_message": frozenset({404, 409}),
    "attach_session": frozenset({403, 404, 409}),
    "branch_session": frozenset({404, 409}),
    "compact_session": frozenset({404, 409, 502}),
    "confirm_tool": frozenset({404, 409}),
    "delete_session": frozenset({404, 409}),
    "get_capabilities": frozenset(),
    "get_events": frozenset(),
    "get_messages": frozenset({404}),
    "get_metrics": frozenset(),
    "get_session": frozenset({404}),
    "get_state": frozenset({404}),
    "get_todos": frozenset({404}),
    "get_tool_call": frozenset({404}),
    "list_models": frozenset(),
    "list_permissions": frozenset({404}),
    "list_questions": frozenset({404}),
    "list_sessions": frozenset(),
    "list_tools": frozenset({404}),
    "mark_seen": frozenset({404, 409}),
    "new_session": frozenset({403, 404, 409}),
    "override_workspace": frozenset({404, 409}),
    "prompt": frozenset({404, 409, 429}),
    "put_artifact": frozenset({409}),
    "reject_question": frozenset({409}),
    "restore_session": frozenset({404}),
    "search_sessions": frozenset({404}),
    "subscribe": frozenset(),
    "update_session": frozenset({404, 409}),
}
"""command -> the statuses of its refusals."""


def refusals(row: Row) -> frozenset[int]:
    """Return the error statuses of a route."""
    statuses = [ANY, *(BY_COMMAND[command] for command in row.sends)]
    if not row.is_public:
        statuses.append(WITH_TOKEN)
    if row.sends:
        statuses.append(WITH_COMMAND)
    if row.body is not None:
        statuses.append(WITH_BODY)
    if row.starts_work:
        statuses.append(WITH_RATE)
    if "{" in row.path:
        statuses.append(WITH_NAME)
    return frozenset().union(*statuses)


_SAYS: Final = {"parts": [{"type": "text", "text": "What is in this folder?"}]}

_SHOWS: Final = {
    "parts": [
        {"type": "text", "text": "What does this say?"},
        {"type": "file", "mime": "text/plain", "filename": "a.txt", "url": "data:text/plain,note"},
    ],
    "toolMode": "auto",
    "max_tokens": 4096,
}

EXAMPLES: Final[Mapping[tuple[str, str], Any]] = {
    ("POST", "/auth/login"): {"link": "what-follows-the-number-sign-of-the-link"},
    ("POST", "/session"): {"title": "A first look", "directory": "."},
    ("PATCH", "/session/{id}"): {"title": "A second look", "archived": False},
    ("POST", "/session/{id}/message"): _SAYS,
    ("POST", "/session/{id}/prompt_async"): _SHOWS,
    ("POST", "/session/{id}/prompt_sync"): _SAYS,
    ("POST", "/session/{id}/attach"): {"target_workspace": "/home/me/project"},
    ("POST", "/session/{id}/workspace/override"): {"ttl_seconds": 900},
    ("POST", "/session/{id}/seen"): {"message_id": "msg-1"},
    ("POST", "/permission/{request_id}/reply"): {"reply": "once"},
    ("POST", "/sessions/{id}/tools/{request_id}/approve"): {},
    ("POST", "/sessions/{id}/tools/{request_id}/deny"): {"reason": "Not this file."},
    ("POST", "/question/{question_id}/reply"): {"answer": "blue"},
    ("POST", "/question/{question_id}/reject"): {"reason": "Decide for yourself."},
    ("POST", "/sessions/{id}/questions/{question_id}/answer"): {"answer": "blue"},
}
"""method and path -> an example body."""


def tidy_schema(schema: Any) -> Any:
    """Return a schema without null defaults, and with each description cut to its first paragraph."""
    if isinstance(schema, list):
        return [tidy_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {
        key: tidy_schema(item)
        for key, item in schema.items()
        if not (key == "default" and item is None)
    }
    if isinstance(description := tidy.get("description"), str):
        tidy["description"] = first_paragraph(description)
    return tidy


def first_paragraph(docstring: str | None) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    paragraph = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())
