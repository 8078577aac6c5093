"""From rows of a table to a typer command: a function with a generated signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import typer


def _as_it_is(value: Any) -> Any:
    return value


class Argument(NamedTuple):
    """One argument of a verb.

    Args:
        key: the name of the value; for a verb that is one command, of the key in its payload.
        annotation: what typer is to read.
        default: None means that it may be left out, ``...`` that it may not.
        convert: from what typer read to what is meant.
    """

    key: str
    annotation: Any
    default: Any = None
    convert: Callable[[Any], Any] = _as_it_is


def required(key: str, metavar: str, help: str) -> Argument:
    """Return a word that must be given."""
    return Argument(key, Annotated[str, typer.Argument(metavar=metavar, help=help)], ...)


def option(key: str, flag: str, help: str) -> Argument:
    """Return a word that may be given behind ``flag``."""
    return Argument(key, Annotated[str | None, typer.Option(flag, help=help)])


def function_of(
    arguments: Iterable[Argument], body: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """Return a function with these arguments as its signature, which calls ``body`` with the values."""

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


def given_values(arguments: Iterable[Argument], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the converted values of those arguments that were given."""
    return {
        argument.key: argument.convert(values[argument.key])
        for argument in arguments
        if values[argument.key] is not None
    }
