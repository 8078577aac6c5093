"""Parses the usual command line of ``nousd serve``: complete flags with their values.

Importing typer, which parses all other command lines, takes longer than starting the daemon. So a plain
command line is parsed here, from the same settings and to the same values; anything else (``--help``, a
short flag, a mistake) is left to typer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_origin

COMPLETION_VARIABLE: Final = "_NOUSD_COMPLETE"
"""Set by the shell's completion script when it asks for words."""


class _Flag(NamedTuple):
    """A flag's setting. ``word`` is the value of a boolean flag; None for flags that take a value."""

    name: str
    word: bool | None = None
    is_repeatable: bool = False


def plain_values(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the values for ``serve``; None if the command line is not a plain ``nousd serve``.

    Args:
        argv: the arguments without the program.
    """
    if argv[:1] != ["serve"] or COMPLETION_VARIABLE in environ:
        return None
    flags = dict(_flags())
    values: dict[str, Any] = {"config": None, "print_config": False}
    words = iter(argv[1:])
    for word in words:
        spelled, has_value, value = word.partition("=")
        flag = flags.get(spelled)
        if flag is None or (flag.word is not None and has_value):
            return None
        if flag.word is not None:
            values[flag.name] = flag.word
            continue
        if not has_value:
            value = next(words, "-")
            if value.startswith("-"):
                return None
        values[flag.name] = [*values.get(flag.name, ()), value] if flag.is_repeatable else value
    if values["config"] is not None:
        values["config"] = Path(values["config"])
    return values


def _flags() -> Iterator[tuple[str, _Flag]]:
    from nousd.config.settings import SETTINGS, flag_of, refusal_of

    yield "--config", _Flag("config")
    yield "--print-config", _Flag("print_config", word=True)
    for info in SETTINGS.values():
        if info.type is bool:
            yield flag_of(info.name), _Flag(info.name, word=True)
            yield refusal_of(info.name), _Flag(info.name, word=False)
        else:
            is_repeatable = get_origin(info.type) is tuple
            yield flag_of(info.name), _Flag(info.name, is_repeatable=is_repeatable)
