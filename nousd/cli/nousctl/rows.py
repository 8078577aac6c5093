"""The row types of the tables of verbs, and arguments that many rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.client_options import Options


class Verb(NamedTuple):
    """A verb that is one command and one response.

    Args:
        command: the command's type on the wire.
        fixed: the constant part of the payload.
        computed: key of the payload -> function for its value, if the command line has none.
        timeout_seconds: replaces the default time-out.
    """

    command: str
    help: str
    arguments: tuple[Argument, ...] = ()
    fixed: Mapping[str, Any] = {}
    computed: Mapping[str, Callable[[], Any]] = {}
    timeout_seconds: float | None = None


class Watch(NamedTuple):
    """A verb that is more than one command: its arguments and its function."""

    help: str
    arguments: tuple[Argument, ...]
    run: Callable[[Options, dict[str, Any]], int]


LIMIT: Final = Argument(
    "limit", Annotated[int | None, typer.Option("--limit", help="Maximum number of rows.")]
)
BEFORE: Final = option("before", "--before", "Continue a page before this id.")

MODEL_CALL_SECONDS: Final = 3600.0
"""Time-out of commands that wait for a model."""
