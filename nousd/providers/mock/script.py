"""Parses the directives in a user's text into the steps of the built-in model. Pure.

``mock.provider`` describes the directives. A directive that is malformed, out of range or past the
limits of this file counts as plain text and is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import msgspec

SCRIPT_CHARS_MAX: Final = 64 * 1024
"""Characters of a text that are searched for directives."""

DIRECTIVES_MAX: Final = 256
"""Maximum beginnings of directives that are examined in a text."""

WORDS_MAX: Final = 100_000
SLOW_MS_MAX: Final = 60_000
FAILURES_MAX: Final = 1000
TOKENS_MAX: Final = 1_000_000_000


class Speak(msgspec.Struct, frozen=True):
    """Send the text as an answer, or as reasoning."""

    text: str
    is_reasoning: bool = False


class Slow(msgspec.Struct, frozen=True):
    """Wait before each later piece."""

    seconds: float


class Call(msgspec.Struct, frozen=True):
    """Call a tool; ``arguments`` is JSON text."""

    name: str
    arguments: str


class Fail(msgspec.Struct, frozen=True):
    """Fail with an HTTP status ``times`` times (None: always), then continue."""

    status: int
    times: int | None = None


class Hang(msgspec.Struct, frozen=True):
    """Do nothing more until cancelled."""


class Report(msgspec.Struct, frozen=True):
    """Report a number of input tokens."""

    input_tokens: int


Step = Speak | Slow | Call | Fail | Hang | Report

_Reader = Callable[[str, int], tuple[Step, int] | None]
"""Reads a directive's arguments from a position; returns the step and where the directive ends."""


def parse_script(text: str) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of each model call in turn; at least one call, possibly without steps."""
    text = text[:SCRIPT_CHARS_MAX]
    parts: list[list[Step]] = [[]]
    position = 0
    for _ in range(DIRECTIVES_MAX):
        found = _OPENING.search(text, position)
        if found is None:
            break
        position = found.end()
        if found["name"] is None:
            parts.append([])
        elif read := _READERS[found["name"]](text, position):
            step, position = read
            parts[-1].append(step)
    return tuple(tuple(part) for part in parts)


def make_words(count: int) -> str:
    """Return ``word1 word2 word3`` up to ``count``."""
    return " ".join(f"word{number}" for number in range(1, count + 1))


def _number(make: Callable[[int], Step], number_max: int) -> _Reader:
    def read(text: str, position: int) -> tuple[Step, int] | None:
        found = _NUMBER.match(text, position)
        if found is None or int(found[1]) > number_max:
            return None
        return make(int(found[1])), found.end()

    return read


def _read_text(text: str, position: int) -> tuple[Step, int] | None:
    end = text.find("]]", position)
    if end < 0:
        return None
    return Speak(text[position:end].removeprefix(" ")), end + len("]]")


def _read_error(text: str, position: int) -> tuple[Step, int] | None:
    found = _ERROR.match(text, position)
    if found is None:
        return None
    times = int(found["times"]) if found["times"] else None
    if times is not None and times > FAILURES_MAX:
        return None
    return Fail(int(found["status"]), times), found.end()


def _read_hang(text: str, position: int) -> tuple[Step, int] | None:
    found = _CLOSING.match(text, position)
    return (Hang(), found.end()) if found else None


def _read_tool(text: str, position: int) -> tuple[Step, int] | None:
    name = _TOOL_NAME.match(text, position)
    if name is None:
        return None
    start = end = name.end()
    if text.startswith("{", start):
        try:
            # Decoding finds the end of the value even if the value contains "]]".
            _, end = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError):
            return None
    closing = _CLOSING.match(text, end)
    return (Call(name[1], text[start:end] or "{}"), closing.end()) if closing else None


_OPENING: Final = re.compile(
    r"\[\[(?:then\s*\]\]|(?P<name>say|text|think|slow|tool|error|hang|usage)(?=[\s\]]))"
)
_CLOSING: Final = re.compile(r"\s*\]\]")
_NUMBER: Final = re.compile(r"\s+([0-9]{1,10})\s*\]\]")
_ERROR: Final = re.compile(r"\s+(?P<status>[45][0-9]{2})(?:\s+x(?P<times>[0-9]{1,4}))?\s*\]\]")
_TOOL_NAME: Final = re.compile(r"\s+([^\s\[\]{}]{1,64})\s*")
_JSON: Final = json.JSONDecoder()

_READERS: Final[dict[str, _Reader]] = {
    "say": _number(lambda count: Speak(make_words(count)), WORDS_MAX),
    "text": _read_text,
    "think": _number(lambda count: Speak(make_words(count), is_reasoning=True), WORDS_MAX),
    "slow": _number(lambda ms: Slow(ms / 1000), SLOW_MS_MAX),
    "tool": _read_tool,
    "error": _read_error,
    "hang": _read_hang,
    "usage": _number(Report, TOKENS_MAX),
}
