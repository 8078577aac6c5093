"""The rows of the tables of verbs, and what many rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.client_options import Options


class Verb(NamedTuple):
    """One row of the table.

    Args:
        command: the type on the wire.
        fixed: constant part of the payload.
        computed: key of the payload -> its value, where the command line has none.
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
"""For commands that call a model, which take as long as the model does."""
