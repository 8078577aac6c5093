"""Writes what follows from the code: schemas, the OpenAPI document, and the tables of protocol/*.md.

``--check`` writes nothing and exits with 1, naming what is stale. A schema file describes whole lines:
``$defs["line.<type>"]`` is one kind of line, the top level is any of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

import nousd
from nousd.bridge.callers import CALLERS, Caller
from nousd.bridge.document import openapi
from nousd.bridge.refusals import ANY, WITH_COMMAND, WITH_TOKEN, refusals
from nousd.bridge.replies import FAILURES
from nousd.bridge.routes import ROWS
from nousd.bridge.table import Exposed, Row
from nousd.errors import WIRE_ERROR_CODES
from nousd.views.tandem.events import TELLING, frames, seen
from nousd.views.tandem.telling import Seen
from nousd.wire.commands import COMMANDS
from nousd.wire.descriptions import first_paragraph, tidied
from nousd.wire.events import (
    EVENT_TYPES,
    EVENTS,
    FROZEN_EVENTS,
    ToolCallApproved,
    ToolCallDenied,
)
from nousd.wire.limit_table import LIMITS
from nousd.wire.responses import RESPONSES
from nousd.wire.subscribe import Subscribe

PROTOCOL = Path(__file__).resolve().parent.parent / "protocol"
BASE_URI = "urn:nousd:protocol:v1:"
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


# --- schemas ---------------------------------------------------------------------------------

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


def commands_schema() -> Schema:
    return any_line("commands", "A line that a client sends.", COMMANDS, request_line)


def subscribe_schema() -> Schema:
    return any_line(
        "subscribe",
        "The line that a client may send on the event socket.",
        {"subscribe": Subscribe},
        request_line,
    )


def responses_schema() -> Schema:
    schema = any_line("responses", "A line that answers a request.", RESPONSES, ok_line)
    for name, line in (
        ("extension_result", ok_line("extension_result", {"type": "object"}, [])),
        ("error", error_line()),
    ):
        add_line(schema, name, line)
    return schema


def events_schema() -> Schema:
    return any_line("events", "A line of the event socket.", EVENTS, event_line)


def any_line(
    name: str,
    description: str,
    structs: dict[str, type[Any]],
    line: Callable[[str, Schema, list[str]], Schema],
) -> Schema:
    """Returns the schema of a file: one kind of line per struct."""
    references, components = msgspec.json.schema_components(
        structs.values(), ref_template="#/$defs/{name}"
    )
    schema: Schema = {
        "$schema": SCHEMA_DIALECT,
        "$id": f"{BASE_URI}{name}",
        "description": description,
        "oneOf": [],
        "$defs": {key: tidied(components[key]) for key in sorted(components)},
    }
    for (type_, struct), reference in zip(structs.items(), references, strict=True):
        required = [field.name for field in msgspec.structs.fields(struct) if field.required]
        add_line(schema, type_, line(type_, reference, required))
    return schema


def add_line(schema: Schema, type_: str, line: Schema) -> None:
    schema["$defs"][f"line.{type_}"] = line
    schema["oneOf"].append({"$ref": f"#/$defs/line.{type_}"})


def request_line(type_: str, payload: Schema, required: list[str]) -> Schema:
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


def ok_line(type_: str, payload: Schema, _required: list[str]) -> Schema:
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


def event_line(type_: str, payload: Schema, _required: list[str]) -> Schema:
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


# --- tables of v1.md -------------------------------------------------------------------------


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def limits_table(beginning: str = "") -> str:
    return table(
        ("limit", "value", "past it"),
        (
            (f"`{name}`", f"{value:,}", answer(past))
            for name, (value, past) in LIMITS.items()
            if name.startswith(beginning)
        ),
    )


def answer(past: str) -> str:
    return f"`{past}`" if past.partition(":")[0] in WIRE_ERROR_CODES else past


def error_codes_table() -> str:
    return table(
        ("code", "meaning"), ((f"`{code}`", text) for code, text in WIRE_ERROR_CODES.items())
    )


def commands_table() -> str:
    return table(
        ("command", "what it does"),
        ((f"[`{name}`](#{name})", summary(struct)) for name, struct in COMMANDS.items()),
    )


def events_table() -> str:
    def row(name: str, struct: type[Any]) -> tuple[str, ...]:
        keys = [field.name for field in msgspec.structs.fields(struct) if field.required]
        who = "everyone" if name in FROZEN_EVENTS else "who asks"
        return f"[`{name}`](#{name})", who, ", ".join(f"`{key}`" for key in keys)

    return table(
        ("event", "sent to", "keys always present"),
        (row(name, struct) for name, struct in EVENTS.items()),
    )


def summary(struct: type[Any]) -> str:
    return first_paragraph(struct.__doc__)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands_table,
    "events": events_table,
    "error-codes": error_codes_table,
    "limits": limits_table,
}


# --- tables of http.md -----------------------------------------------------------------------


def routes_table() -> str:
    def row(route: Row) -> tuple[str, ...]:
        names = "<br>".join(f"`{route.method} {path}`" for path in (route.path, *route.aliases))
        takes = [f"`{shape.__name__}`" for shape in (route.query, route.body) if shape is not None]
        answers = [f"{status} {shape_name(shape)}" for status, shape in route.replies.items()]
        refused = sorted(refusals(route) - ANY - WITH_TOKEN - WITH_COMMAND - set(route.replies))
        return (
            names,
            route.summary,
            code_list(route.sends) or "nothing",
            ", ".join(takes),
            "<br>".join(answers) + (", or a stream" if route.streams else ""),
            ", ".join(map(str, refused)),
        )

    header = ("route", "what it does", "sends", "takes", "answers", "may refuse with")
    return table(header, map(row, ROWS))


def shape_name(shape: Any) -> str:
    """Returns what a reply is called: the name of its object in the OpenAPI document."""
    if shape is None:
        return "nothing"
    if shape is str or shape is bytes or shape is Exposed:
        return "a stream" if shape is str else "text"
    if isinstance(shape, UnionType):
        return " or ".join(map(shape_name, get_args(shape)))
    if get_origin(shape) is list:
        return f"list of {shape_name(get_args(shape)[0])}"
    return f"`{shape.__name__}`" if isinstance(shape, type) and not get_args(shape) else "an object"


def code_list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def http_errors_table() -> str:
    ordered = sorted(FAILURES, key=lambda failure: (failure.status, failure.code))
    return table(
        ("status", "code", "worth another try"),
        (
            (str(failure.status), f"`{failure.code}`", "yes" if failure.retryable else "no")
            for failure in ordered
        ),
    )


def frames_table() -> str:
    """What each kind of event becomes, found by showing the examples of v1.md to the views.

    Raises:
        SystemExit: an event that is told has no example.
    """
    told: dict[str, dict[str, None]] = {}
    examples = (PROTOCOL / "v1.md").read_text(encoding="utf-8").split("\n")
    for line in examples:
        for event in told_in(line):
            becomes = told.setdefault(EVENT_TYPES[type(event.event)], {})
            for frame in frames(event):
                becomes[f"`{frame.type}`: {code_list(frame.properties)}"] = None
    if missing := {EVENT_TYPES[struct] for struct in TELLING} - {k for k, v in told.items() if v}:
        raise SystemExit(f"protocol/v1.md: no example of {missing} that becomes a frame")
    return table(
        ("event of ours", "what it becomes, and its properties"),
        ((f"[`{name}`](v1.md#{name})", "<br>".join(becomes)) for name, becomes in told.items()),
    )


def told_in(line: str) -> Iterator[Seen]:
    """Yields an event of v1.md that can be told; a decision about a call as made by anybody."""
    event = seen(line.encode()) if '"id":"evt-' in line[:30] else None
    if event is None:
        return
    yield event
    if isinstance(event.event, ToolCallApproved | ToolCallDenied):
        for by in ("user", "timeout"):
            yield event._replace(event=msgspec.structs.replace(event.event, by=by))


def callers_table() -> str:
    def row(beginning: str, caller: Caller) -> tuple[str, ...]:
        needs = [name for name, wanted in caller._asdict().items() if wanted]
        return f"`{beginning}`", ", ".join(name.replace("_", " ") for name in needs)

    return table(("User-Agent begins with", "that caller"), itertools.starmap(row, CALLERS))


HTTP_TABLES: dict[str, Callable[[], str]] = {
    "routes": routes_table,
    "errors": http_errors_table,
    "frames": frames_table,
    "callers": callers_table,
    "bounds": partial(limits_table, "http_"),
}


def with_tables(path: Path, tables: dict[str, Callable[[], str]]) -> str:
    """Returns a document with the text between its markers written anew.

    Raises:
        SystemExit: if a marker is missing.
    """
    document = path.read_text(encoding="utf-8")
    for name, make in tables.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        replacement = f"{begin}\n{make()}\n{end}"
        document, count = pattern.subn(replacement.replace("\\", r"\\"), document)
        if count != 1:
            raise SystemExit(f"{path.name}: the markers of {name} stand there {count} times")
    return document


# --- files -----------------------------------------------------------------------------------

SCHEMAS: dict[str, Callable[[], Schema]] = {
    "commands": commands_schema,
    "responses": responses_schema,
    "events": events_schema,
    "subscribe": subscribe_schema,
}


def generated() -> dict[Path, str]:
    """Returns what each generated file has to hold."""
    files = {
        PROTOCOL / "schemas" / f"{name}.json": json.dumps(make(), indent=2, ensure_ascii=False)
        + "\n"
        for name, make in SCHEMAS.items()
    }
    http = openapi(ROWS, version=nousd.__version__)
    files[PROTOCOL / "http.openapi.json"] = json.dumps(http, indent=2, ensure_ascii=False) + "\n"
    for name, tables in (("v1.md", TABLES), ("http.md", HTTP_TABLES)):
        files[PROTOCOL / name] = with_tables(PROTOCOL / name, tables)
    return files


def is_stale(path: Path, wanted: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    arguments = parser.parse_args()
    stale = [(path, text) for path, text in generated().items() if is_stale(path, text)]
    for path, text in stale:
        print(f"{'stale' if arguments.check else 'written'}: {path.relative_to(PROTOCOL.parent)}")
        if not arguments.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
