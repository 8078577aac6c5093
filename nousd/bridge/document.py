"""The OpenAPI document of the bridge, made from the rows of its table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import UnionType
from typing import Any, Final, get_args

import msgspec

from nousd.bridge.replies import ErrorBody
from nousd.bridge.table import Row

VERSION: Final = "3.1.0"

_COMPONENTS: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")

_TEXT_STREAM: Final = {"text/event-stream": {"schema": {"type": "string"}}}
_PAGE: Final = {"text/html": {"schema": {"type": "string"}}}

Json = dict[str, Any]


def openapi(rows: Iterable[Row], *, version: str) -> Json:
    """Returns the document.

    Args:
        version: of this program.
    """
    rows = tuple(rows)
    shapes = _Shapes(rows)
    paths: dict[str, Json] = {}
    for row in rows:
        for path in (row.path, *row.aliases):
            operation = _operation(row, shapes, is_alias=path != row.path)
            paths.setdefault(path, {})[row.method.lower()] = operation
    return {
        "openapi": VERSION,
        "info": {
            "title": "nousd over HTTP",
            "version": version,
            "description": "Sessions and runs of a nousd daemon in the vocabulary of Tandem.",
        },
        "security": [{name: []} for name in _SECURITY],
        "paths": paths,
        "components": {"schemas": shapes.components, "securitySchemes": _SECURITY},
    }


_SECURITY: Final[Mapping[str, Json]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-tandem-token": {"type": "apiKey", "in": "header", "name": "x-tandem-token"},
    "x-agent-token": {"type": "apiKey", "in": "header", "name": "x-agent-token"},
}


class _Shapes:
    """The schemas of all types that rows name; ``components`` holds those that have a name."""

    def __init__(self, rows: Iterable[Row]) -> None:
        types: list[Any] = [ErrorBody]
        for row in rows:
            given = (row.query, row.body, *row.replies.values())
            named = (shape for shape in given if shape not in (None, str, bytes))
            types += [member for shape in named for member in _members(shape)]
        schemas, self.components = msgspec.json.schema_components(types, ref_template=_COMPONENTS)
        self._schemas = list(zip(types, schemas, strict=True))

    def of(self, shape: Any) -> Json:
        """Returns the schema of a type that a row names."""
        if isinstance(shape, UnionType):
            return {"anyOf": [self.of(member) for member in _members(shape)]}
        return dict(next(schema for known, schema in self._schemas if known == shape))

    def properties_of(self, shape: Any) -> tuple[Mapping[str, Json], frozenset[str]]:
        """Returns the fields of a struct, and which of them are required."""
        schema = self.of(shape)
        while "$ref" in schema:
            schema = self.components[schema["$ref"].rpartition("/")[2]]
        return schema.get("properties", {}), frozenset(schema.get("required", ()))


def _members(shape: Any) -> tuple[Any, ...]:
    """Returns the types of a union, which msgspec does not take where none of them is tagged."""
    return get_args(shape) if isinstance(shape, UnionType) else (shape,)


def _operation(row: Row, shapes: _Shapes, *, is_alias: bool) -> Json:
    operation: Json = {
        "summary": row.summary,
        "description": _sends(row),
        "operationId": _operation_id(row) + ("_alias" if is_alias else ""),
        "parameters": [*_path_parameters(row), *_query_parameters(row, shapes)],
        "responses": _responses(row, shapes),
    }
    if row.body is not None:
        operation["requestBody"] = {
            "required": not row.is_body_optional,
            "content": {"application/json": {"schema": shapes.of(row.body)}},
        }
    if row.is_public:
        operation["security"] = []
    return operation


def _sends(row: Row) -> str:
    return f"Sends: {', '.join(row.sends)}." if row.sends else "Asks the daemon nothing."


def _operation_id(row: Row) -> str:
    words = re.findall(r"\w+", row.path)
    return "_".join([row.method.lower(), *words])


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
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in fields.items()
    ]


def _responses(row: Row, shapes: _Shapes) -> Json:
    told = {status: _reply(status, shape, row, shapes) for status, shape in row.replies.items()}
    refused = {status: _refusal(status, shapes) for status in row.refusals if status not in told}
    return {str(status): reply for status, reply in sorted({**told, **refused}.items())}


def _reply(status: int, shape: Any, row: Row, shapes: _Shapes) -> Json:
    content: Json = {}
    if shape is bytes:
        content |= _PAGE
    elif shape is str:
        content |= _TEXT_STREAM
    elif shape is not None:
        content["application/json"] = {"schema": shapes.of(shape)}
    if row.streams:
        content |= _TEXT_STREAM if status < HTTPStatus.BAD_REQUEST else {}
    return {"description": HTTPStatus(status).phrase, **({"content": content} if content else {})}


def _refusal(status: int, shapes: _Shapes) -> Json:
    return {
        "description": HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": shapes.of(ErrorBody)}},
    }
