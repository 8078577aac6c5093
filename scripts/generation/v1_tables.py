"""The tables of v1.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from nousd.errors import WIRE_ERROR_CODES
from nousd.wire.codec.schema_descriptions import first_paragraph
from nousd.wire.commands import COMMANDS
from nousd.wire.events import EVENTS, FROZEN_EVENTS
from nousd.wire.limit_table import LIMITS

from .markdown import table


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
