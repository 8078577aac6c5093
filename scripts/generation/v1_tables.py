"""The tables of v1.md and of the pages on semantics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nousd.errors import FAILURE_CATEGORIES, WIRE_ERROR_CODES
from nousd.wire.commands import COMMANDS
from nousd.wire.limit_table import LIMITS

from .markdown import table
from .reference import commands_table, events_table, theme_of


def limits_table(beginning: str = "") -> str:
    return table(
        ("limit", "value", "above it"),
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


def failure_categories_table() -> str:
    return table(
        ("category", "meaning"), ((f"`{word}`", text) for word, text in FAILURE_CATEGORIES.items())
    )


V1_TABLES: dict[str, Callable[[], str]] = {
    "events frozen": partial(events_table, frozen=True),
    "events more": partial(events_table, frozen=False),
    **{
        f"commands {theme}": partial(commands_table, theme)
        for theme in dict.fromkeys(theme_of(struct) for struct in COMMANDS.values())
    },
}
ERRORS_TABLES: dict[str, Callable[[], str]] = {
    "error-codes": error_codes_table,
    "failure-categories": failure_categories_table,
}
LIMITS_TABLES: dict[str, Callable[[], str]] = {"limits": limits_table}
