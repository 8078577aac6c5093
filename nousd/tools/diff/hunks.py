"""Apply the hunks of a diff to a text, exactly.

A hunk is applied at its line number if its old lines are there, otherwise at the only matching position
after the previous hunk. Only equal lines match; if several positions match, the hunk is refused. In a
text with CRLF line ends, a hunk that does not match unchanged is applied with CRLF in place of LF. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from nousd.errors import ToolError
from nousd.tools.diff.unified_diff import Hunk

_SHOWN_CHARS: Final = 80
_BOM: Final = "\ufeff"


class PatchedText(NamedTuple):
    """A patched text; ``moved`` is the number of hunks that were not at their line numbers."""

    text: str
    moved: int


def apply_hunks(
    text: str, hunks: Sequence[Hunk], checkpoint: Callable[[], object] = lambda: None
) -> PatchedText:
    """Return the text with all hunks applied, in order.

    Args:
        checkpoint: called before each hunk, because searching its position reads the whole text.

    Raises:
        ToolError: ``the hunk of line <n> ...``: a hunk does not match, or matches at several positions.
    """
    failure: ToolError | None = None
    for bom, rest, readable in _readings(text, hunks):
        try:
            patched = _apply_reading(rest, readable, checkpoint)
        except ToolError as error:
            failure = failure or error
        else:
            return patched._replace(text=bom + patched.text)
    assert failure is not None
    raise failure


def _readings(text: str, hunks: Sequence[Hunk]) -> Iterator[tuple[str, str, Sequence[Hunk]]]:
    """Yield the interpretations of text and hunks, unchanged first, as (prefix, rest of the text,
    hunks). The prefix is empty or a byte order mark, which models do not see.
    """
    for bom in ("", _BOM) if text.startswith(_BOM) else ("",):
        rest = text.removeprefix(bom)
        yield bom, rest, hunks
        if rest.count("\r\n") * 2 > rest.count("\n"):
            yield bom, rest, [_with_crlf(hunk) for hunk in hunks]


def _with_crlf(hunk: Hunk) -> Hunk:
    old, new = (
        tuple(line.replace("\r\n", "\n").replace("\n", "\r\n") for line in lines)
        for lines in (hunk.old, hunk.new)
    )
    return hunk._replace(old=old, new=new)


def _apply_reading(
    text: str, hunks: Sequence[Hunk], checkpoint: Callable[[], object]
) -> PatchedText:
    pieces: list[str] = []
    cursor, line, drift, moved = 0, 1, 0, 0
    for hunk in hunks:
        checkpoint()
        old = "".join(hunk.old)
        expected = _offset(text, cursor, hunk.start + drift - line)
        position = _place(text, cursor, hunk, old, expected)
        line += text.count("\n", cursor, position)
        moved += line != hunk.start + drift and bool(old)
        drift = line - hunk.start if old else drift
        pieces += [text[cursor:position], *hunk.new]
        cursor = position + len(old)
        line += old.count("\n")
    return PatchedText("".join([*pieces, text[cursor:]]), moved)


def _offset(text: str, cursor: int, lines: int) -> int | None:
    """Return the start of the line ``lines`` below the one at ``cursor``; None if there is none."""
    if lines < 0:
        return None
    for _ in range(lines):
        cursor = text.find("\n", cursor) + 1
        if cursor == 0:
            return None
    return cursor


def _place(text: str, cursor: int, hunk: Hunk, old: str, expected: int | None) -> int:
    """Return the position of a hunk."""
    if not old:
        if text:
            raise _fault(hunk, "has neither lines around it nor lines to remove; give some of both")
        return 0
    if expected is not None and _fits(text, old, expected):
        return expected
    places = list(islice(_places(text, cursor, old), 2))
    if not places:
        raise _fault(hunk, f"does not fit: {_difference(text, hunk, expected)}")
    if len(places) > 1:
        first, second = (text.count("\n", 0, position) + 1 for position in places)
        raise _fault(
            hunk,
            f"fits at lines {first} and {second}, but not at line {hunk.start}, which it names;"
            " give the right number or more lines around it",
        )
    return places[0]


def _places(text: str, cursor: int, old: str) -> Iterator[int]:
    """Yield the positions of the old lines, from ``cursor`` on."""
    if cursor == 0 and _fits(text, old, 0):
        yield 0
    position = text.find("\n" + old, max(cursor - 1, 0))
    while position >= 0:
        if _fits(text, old, position + 1):
            yield position + 1
        position = text.find("\n" + old, position + 1)


def _fits(text: str, old: str, position: int) -> bool:
    """Return whether the old lines are at ``position``, as whole lines."""
    is_start = position == 0 or text[position - 1] == "\n"
    is_end = old.endswith("\n") or position + len(old) == len(text)
    return is_start and is_end and text.startswith(old, position)


def _difference(text: str, hunk: Hunk, expected: int | None) -> str:
    """Describe the first line that differs from the hunk at its line number."""
    if expected is None:
        return f"line {hunk.start} is behind the end, or in the hunk before"
    lines = text[expected : expected + sum(map(len, hunk.old)) + 1024].splitlines(keepends=True)
    for number, line in enumerate(hunk.old):
        found = lines[number] if number < len(lines) else ""
        if found != line:
            return (
                f"expected {_quote_line(line)}, found {_quote_line(found) if found else 'the end'}"
            )
    return "the lines stand there, but not as the last ones"


def _quote_line(line: str) -> str:
    return repr(line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "...")


def _fault(hunk: Hunk, reason: str) -> ToolError:
    return ToolError(f"the hunk of line {hunk.line} {reason}")
