"""Convert the text of a setting into its value, or report the fault in one sentence.

A setting's type and bounds are data (``SettingInfo``); reading, checking and wording follow from them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NewType, Union, get_args, get_type_hints

import msgspec
from msgspec import Meta

from nousd.config import durations
from nousd.config.secret import Secret
from nousd.errors import ConfigError

_SHOWN_CHARS_MAX: Final = 100
"""Maximum characters of an invalid value that the error repeats."""


Regex = NewType("Regex", str)
"""A text that is a regular expression."""

Name = NewType("Name", str)
"""A text without a comma, so that one text can hold several."""

PathOrNone = Path | Literal["none"]
"""A file to read instead of the default one, or the word for no file."""


class SettingInfo(NamedTuple):
    """The type and bounds of one setting.

    Args:
        type: ``Path``, ``str``, ``int``, ``float``, ``bool``, ``Secret``, a ``Literal``,
            ``tuple[Path, ...]``, ``tuple[Regex, ...]``, ``tuple[Name, ...]`` or ``tuple[str, ...]``.
        meta: the bounds, and as ``description`` the help text.
    """

    name: str
    type: Any
    meta: Meta

    @property
    def help(self) -> str:
        return self.meta.description or ""

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed values of a ``Literal``; empty for every other type."""
        return get_args(self.type) if self.type not in _KINDS else ()

    @property
    def unit(self) -> str:
        """The unit of a duration, a key of ``durations.UNIT_WORDS``; "" for any other value."""
        return durations.unit_of(self.name) if self.type in (int, float) else ""


class RawValue(NamedTuple):
    """The raw value of a setting, its origin (``flag --model``), and the base of relative paths."""

    value: Any
    origin: str
    folder: Path


class _Kind(NamedTuple):
    name: str
    read: Callable[[RawValue], Any]
    """Raises ValueError, TypeError, OverflowError or RuntimeError for a text of another type."""
    counted: str = ""
    """The unit of a value's length."""
    is_shown: bool = True
    """Whether an error may repeat an invalid value."""


def describe(
    struct: type[msgspec.Struct], *, excluded: Collection[str] = ()
) -> Iterator[SettingInfo]:
    """Yield the type, without ``None``, and bounds of each field of a struct."""
    hints = get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        if name not in excluded:
            annotated, meta = get_args(hints[name])
            kinds = [kind for kind in get_args(annotated) if kind is not type(None)]
            optional = type(None) in get_args(annotated)
            yield SettingInfo(name, Union[tuple(kinds)] if optional else annotated, meta)  # noqa: UP007


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to ``name``; ``known`` must not be empty."""
    spelling = name.replace("-", "_").lower()
    spelled = {other.replace("-", "_"): other for other in known}
    import difflib

    return spelled[difflib.get_close_matches(spelling, spelled, n=1, cutoff=0.0)[0]]


def read_value(info: SettingInfo, raw: RawValue) -> Any:
    """Return the value of a setting.

    Raises:
        ConfigError: it has the wrong type or is out of bounds; the message names type and bounds.
    """
    read = _reader_of(info)
    try:
        value = read(raw)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        raise _unfit(info, raw) from None
    if not _within_bounds(value, info.meta) or (info.words and value not in info.words):
        raise _unfit(info, raw)
    return value


def _reader_of(info: SettingInfo) -> Callable[[RawValue], Any]:
    if info.words:
        return _read_word
    return partial(_read_duration, info) if info.unit else _KINDS[info.type].read


def _within_bounds(value: Any, meta: Meta) -> bool:
    # Each comparison is written so that NaN fails it.
    return (
        (meta.gt is None or value > meta.gt)
        and (meta.ge is None or value >= meta.ge)
        and (meta.le is None or value <= meta.le)
        and (meta.min_length is None or len(value) >= meta.min_length)
        and (meta.max_length is None or len(value) <= meta.max_length)
    )


def _unfit(info: SettingInfo, raw: RawValue) -> ConfigError:
    expectation = f"{info.name} must be {_describe_expected(info)}"
    if not info.words and not _KINDS[info.type].is_shown:
        return ConfigError(f"{expectation} ({raw.origin})")
    shown = str(raw.value)
    if len(shown) > _SHOWN_CHARS_MAX:
        shown = shown[:_SHOWN_CHARS_MAX] + "..."
    return ConfigError(f"{expectation}, not {shown!r} ({raw.origin})")


def _describe_expected(info: SettingInfo) -> str:
    if info.words:
        return " or ".join(info.words)
    bounds = (
        ("more than", info.meta.gt),
        ("at least", info.meta.ge),
        ("at most", info.meta.le),
        ("of at least", info.meta.min_length),
        ("of at most", info.meta.max_length),
    )
    limits = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    if info.unit:
        word = durations.UNIT_WORDS[info.unit]
        form = durations.form(info.unit, is_whole=info.type is int)
        return f"a duration {limits} {word}, {form}"
    kind = _KINDS[info.type]
    return " ".join(word for word in (kind.name, limits, kind.counted if limits else "") if word)


# --- kinds -----------------------------------------------------------------------------------

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


def _read_word(raw: RawValue) -> str:
    if not isinstance(raw.value, str) or not raw.value.strip():
        raise ValueError
    return raw.value


def _read_secret(raw: RawValue) -> Secret:
    return Secret(_read_word(raw).strip())


def _read_words(raw: RawValue) -> tuple[str, ...]:
    if not isinstance(raw.value, list):
        raise TypeError
    return tuple(_read_word(raw._replace(value=item)) for item in raw.value)


def _read_names(raw: RawValue) -> tuple[Name, ...]:
    items = raw.value.split(",") if isinstance(raw.value, str) else raw.value
    return tuple(Name(word.strip()) for word in _read_words(raw._replace(value=items)))


def _read_patterns(raw: RawValue) -> tuple[Regex, ...]:
    """Read a list of patterns. One text is one pattern, because any character can be a part of it."""
    items = [raw.value] if isinstance(raw.value, str) else raw.value
    words = _read_words(raw._replace(value=items))
    for word in words:
        _check_pattern(word)
    return tuple(map(Regex, words))


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError from error


def _read_path(raw: RawValue) -> Path:
    if not isinstance(raw.value, str | Path) or not str(raw.value) or "\0" in str(raw.value):
        raise ValueError
    return raw.folder / Path(raw.value).expanduser()


def _read_path_or_none(raw: RawValue) -> Path | Literal["none"]:
    return "none" if raw.value in {"", "none"} else _read_path(raw)


def _read_paths(raw: RawValue) -> tuple[Path, ...]:
    items = raw.value.split(os.pathsep) if isinstance(raw.value, str) else raw.value
    return tuple(_read_path(raw._replace(value=item)) for item in items)


def _read_bool(raw: RawValue) -> bool:
    word = str(raw.value).lower()
    if not isinstance(raw.value, bool | str) or word not in _YES | _NO:
        raise ValueError
    return word in _YES


def _read_int(raw: RawValue) -> int:
    if not isinstance(raw.value, int | str) or isinstance(raw.value, bool):
        raise ValueError
    return int(raw.value)


def _read_float(raw: RawValue) -> float:
    if not isinstance(raw.value, int | float | str) or isinstance(raw.value, bool):
        raise ValueError
    return float(raw.value)


def _read_duration(info: SettingInfo, raw: RawValue) -> Any:
    if not isinstance(raw.value, str):
        return _KINDS[info.type].read(raw)
    if info.type is int:
        return durations.read_whole_duration(raw.value, info.unit)
    return durations.read_duration(raw.value, info.unit)


_KINDS: Final[dict[Any, _Kind]] = {
    Path: _Kind("a path", _read_path),
    PathOrNone: _Kind("a path or none", _read_path_or_none),
    tuple[Path, ...]: _Kind("a list of paths", _read_paths, "items"),
    bool: _Kind("true or false", _read_bool),
    int: _Kind("a whole number", _read_int),
    float: _Kind("a number", _read_float),
    str: _Kind("a text", _read_word, "characters"),
    tuple[str, ...]: _Kind("a list of texts", _read_words, "items"),
    tuple[Name, ...]: _Kind("a list of texts", _read_names, "items"),
    tuple[Regex, ...]: _Kind("a list of regular expressions", _read_patterns, "items"),
    Secret: _Kind("a text", _read_secret, "characters", is_shown=False),
}
"""type of a setting -> its name and its reader, for text and for values of the file. Lists of texts and
secrets are allowed only in the file."""
