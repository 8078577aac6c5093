"""Builds a typer command from a table row, as a function with a generated signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import typer

SessionUse = Literal["new", "here", "maybe", "filter", "named", "deleted"]
"""The session that a verb uses if none is named: the one of the current folder, created if missing
(``new``), required (``here``) or optional (``maybe``); or all sessions (``filter``). A session must be
named where a wrong one would do harm (``named``), or where its deletion is scheduled (``deleted``)."""


def _as_it_is(value: Any) -> Any:
    return value


class Argument(NamedTuple):
    """One argument of a verb.

    Args:
        key: the name of the value, and of the key in the payload of a command.
        annotation: read by typer.
        default: None means optional, ``...`` required.
        convert: applied to the value that typer parsed.
        session: the use of an argument that names a session.
    """

    key: str
    annotation: Any
    default: Any = None
    convert: Callable[[Any], Any] = _as_it_is
    session: SessionUse | None = None


Complete = Callable[[str], Any]
"""Returns the words that the shell offers for the beginning of a word."""


def require_argument(
    key: str, metavar: str, help: str, *, complete: Complete | None = None
) -> Argument:
    """Return a required positional argument."""
    argument = typer.Argument(metavar=metavar, help=help, autocompletion=complete)
    return Argument(key, Annotated[str, argument], ...)


def option(key: str, flag: str, help: str, *, complete: Complete | None = None) -> Argument:
    """Return an optional argument with a flag; several names of it are separated by commas."""
    names = flag.split(",")
    return Argument(
        key, Annotated[str | None, typer.Option(*names, help=help, autocompletion=complete)]
    )


def duration_reader(unit: str, bounds: tuple[float, float] | None = None) -> Callable[[str], float]:
    """Return a parser for typer, which refuses invalid durations.

    Args:
        unit: the unit of the result and of plain numbers: a key of ``durations.UNIT_WORDS``.
        bounds: the lowest and highest value. Without bounds the value is a whole number, whose
            bounds the daemon checks.
    """

    def read(text: str) -> float:
        from nousd.config import durations

        word = durations.UNIT_WORDS[unit]
        form = durations.form(unit, is_whole=bounds is None)
        try:
            if bounds is None:
                return durations.read_whole_duration(text, unit)
            value = durations.read_duration(text, unit)
        except ValueError:
            whole = "whole " if bounds is None else ""
            raise typer.BadParameter(
                f"{text!r} is not a duration in {whole}{word}, {form}"
            ) from None
        if not bounds[0] <= value <= bounds[1]:
            raise typer.BadParameter(
                f"{text!r} is not from {bounds[0]:g} to {bounds[1]:,.0f} {word}; write a duration {form}"
            )
        return value

    return read


def function_of(
    arguments: Iterable[Argument], body: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """Return a function with these arguments as its signature, which calls ``body`` with
    their values.
    """

    def function(**values: Any) -> None:
        body(values)

    parameters = [
        inspect.Parameter(
            argument.key,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=argument.annotation,
            default=inspect.Parameter.empty if argument.default is ... else argument.default,
        )
        for argument in arguments
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def collect_values(arguments: Iterable[Argument], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the converted values of those arguments that were given."""
    return {
        argument.key: argument.convert(values[argument.key])
        for argument in arguments
        if values[argument.key] is not None
    }
