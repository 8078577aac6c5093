"""The schemas of v1. A file describes whole lines: ``$defs["line.<type>"]`` is one kind of line, the top
level is any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from nousd.bridge.openapi.document import tidy_schema
from nousd.errors import WIRE_ERROR_CODES
from nousd.views.normalized.frames import RuntimeName, Trace
from nousd.views.normalized.payloads import PAYLOADS, SCHEMA_VERSION
from nousd.wire.commands import COMMANDS
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.events import EVENTS
from nousd.wire.responses import RESPONSES

BASE_URI = "urn:nousd:protocol:v1:"
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

VERSION_SENT: Schema = {"const": "1"}
VERSION_TAKEN: Schema = {
    "description": "Missing, null and empty count as 1.",
    "enum": ["1", "", None],
}
TIMESTAMP: Schema = {
    "description": "RFC 3339, UTC.",
    "type": "string",
    "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$",
}


def build_commands_schema() -> Schema:
    return build_any_line("commands", "A line that a client sends.", COMMANDS, build_request_line)


def build_subscribe_schema() -> Schema:
    return build_any_line(
        "subscribe",
        "The line that a client may send on the event socket.",
        {"subscribe": Subscribe},
        build_request_line,
    )


def build_responses_schema() -> Schema:
    schema = build_any_line("responses", "A line that answers a request.", RESPONSES, build_ok_line)
    for name, line in (
        ("extension_result", build_ok_line("extension_result", {"type": "object"}, [])),
        ("error", error_line()),
    ):
        add_line(schema, name, line)
    return schema


def build_events_schema() -> Schema:
    return build_any_line("events", "A line of the event socket.", EVENTS, build_event_line)


def build_any_line(
    name: str,
    description: str,
    structs: dict[str, type[Any]],
    line: Callable[[str, Schema, list[str]], Schema],
) -> Schema:
    """Return the schema of a file: one kind of line per struct."""
    references, components = msgspec.json.schema_components(
        structs.values(), ref_template="#/$defs/{name}"
    )
    schema: Schema = {
        "$schema": SCHEMA_DIALECT,
        "$id": f"{BASE_URI}{name}",
        "description": description,
        "oneOf": [],
        "$defs": {key: tidy_schema(components[key]) for key in sorted(components)},
    }
    for (type_, struct), reference in zip(structs.items(), references, strict=True):
        required = [field.name for field in msgspec.structs.fields(struct) if field.required]
        add_line(schema, type_, line(type_, reference, required))
    return schema


def add_line(schema: Schema, type_: str, line: Schema) -> None:
    schema["$defs"][f"line.{type_}"] = line
    schema["oneOf"].append({"$ref": f"#/$defs/line.{type_}"})


def build_request_line(type_: str, payload: Schema, required: list[str]) -> Schema:
    """A request whose payload has no required key may leave it out or send null."""
    if required:
        return request({"const": type_}, payload, ["id", "type", "payload"])
    return request({"const": type_}, {"anyOf": [payload, {"type": "null"}]}, ["id", "type"])


def request(type_: Schema, payload: Schema, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": {
            "v": VERSION_TAKEN,
            "id": {"type": "string", "minLength": 1},
            "type": type_,
            "payload": payload,
        },
        "required": required,
    }


def build_ok_line(type_: str, payload: Schema, _required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": {
            "v": VERSION_SENT,
            "id": {"type": "string", "minLength": 1},
            "type": {"const": type_},
            "payload": payload,
            "ok": {"const": True},
        },
        "required": ["v", "id", "type", "payload", "ok"],
    }


def error_line() -> Schema:
    return {
        "type": "object",
        "properties": {
            "v": VERSION_SENT,
            "id": {"description": '"" where it could not be read.', "type": "string"},
            "type": {"const": "error"},
            "payload": {"type": "object"},
            "ok": {"const": False},
            "error": {
                "type": "object",
                "properties": {
                    "code": {"enum": list(WIRE_ERROR_CODES)},
                    "message": {"type": "string", "minLength": 1},
                    "cause": {"type": "string"},
                    "details": {"type": "object"},
                },
                "required": ["code", "message"],
            },
        },
        "required": ["v", "id", "type", "payload", "ok", "error"],
    }


def build_event_line(type_: str, payload: Schema, _required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": {
            "v": VERSION_SENT,
            "id": {"type": "string", "pattern": r"^evt-\d{1,18}$"},
            "type": {"const": type_},
            "payload": payload,
            "ts": TIMESTAMP,
        },
        "required": ["v", "id", "type", "payload", "ts"],
    }


def build_normalized_schema() -> Schema:
    return build_any_line(
        "normalized", "An event of the normalized view.", PAYLOADS, build_normalized_line
    )


def build_normalized_line(type_: str, payload: Schema, _required: list[str]) -> Schema:
    _, components = msgspec.json.schema_components((Trace, RuntimeName))
    return {
        "type": "object",
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "seq": {"type": "integer", "minimum": 1},
            "time": TIMESTAMP,
            "type": {"const": type_},
            "trace": tidy_schema(components["Trace"]),
            "runtime": tidy_schema(components["RuntimeName"]),
            "payload": payload,
        },
        "required": ["schema_version", "seq", "time", "type", "trace", "runtime", "payload"],
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "commands": build_commands_schema,
    "responses": build_responses_schema,
    "events": build_events_schema,
    "subscribe": build_subscribe_schema,
    "normalized": build_normalized_schema,
}
