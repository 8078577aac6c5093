"""Run ``find`` and ``grep`` in a separate process, which can be killed at any moment.

Why a process and not a thread or ``rg``: matching is computation, so a thread would slow down the event
loop, and a catastrophic expression could never be stopped; other programs may not be installed, and do
not confine themselves as ``nousd.tools.fs.path_sandbox`` does.
"""

from __future__ import annotations

import json
from typing import Any, Final

from nousd.errors import ToolError
from nousd.tools.environment import filter_environment
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import OutputCollector
from nousd.tools.own_program import own_program
from nousd.tools.process.supervisor import ProcessEnd, run_supervised

SEARCH_SECONDS_MAX: Final = 30.0
"""Time limit of one search."""

PATTERN_CHARS_MAX: Final = 2048
"""Maximum characters of a pattern or glob: the request is passed in the arguments of a process, whose
length is bounded."""

PATH_CHARS_MAX: Final = 4096
"""Maximum characters of the path to search."""

_PIECE_CHARS: Final = 100_000

_PROGRAM: Final = own_program("nousd.tools.search._search_main")
_INVALID_REQUEST_CODE: Final = 2


async def search(
    command: str,
    request: dict[str, Any],
    context: ToolContext,
    *,
    empty_text: str,
    seconds_max: float = SEARCH_SECONDS_MAX,
) -> ToolResult:
    """Run one request of ``_search_main``.

    Args:
        command: ``find`` or ``grep``.
        request: the command's arguments.
        empty_text: the text of the result if nothing matches.

    Raises:
        ToolError: the search is impossible, takes too long or fails.
    """
    context.extend_idle_deadline(seconds_max)
    collector = OutputCollector(context.spool_folder)
    secrets, lines = context.secrets.stream(), _LongLines()
    ended = await run_supervised(
        [*_PROGRAM, *_encode_request(command, request, context.path_sandbox)],
        cwd=context.workdir,
        env=filter_environment(),
        on_output=lambda chunk: collector.feed(lines.feed(secrets.feed(chunk))),
        wait_room=collector.wait_room,
        timeout_seconds=seconds_max,
    )
    collector.feed(lines.feed(secrets.finish()) + lines.finish())
    await collector.finish()
    result = collector.head()
    failure = _failure(ended, seconds_max)
    if failure is not None:
        raise ToolError(f"{command}_failed: {failure}")
    if ended.code == _INVALID_REQUEST_CODE:
        raise ToolError(result.text)
    return result if result.text else ToolResult(text=empty_text)


class _LongLines:
    """Cuts the lines that are too long to show, to the length that ``_search_main`` printed. Secrets are
    removed before, because a part of one would not be recognised.
    """

    def __init__(self) -> None:
        self._incomplete = b""

    def feed(self, chunk: bytes) -> bytes:
        *lines, self._incomplete = (self._incomplete + chunk).split(b"\n")
        return b"".join([_shorten_line(line) + b"\n" for line in lines])

    def finish(self) -> bytes:
        rest, self._incomplete = self._incomplete, b""
        return _shorten_line(rest)


def _shorten_line(line: bytes) -> bytes:
    text, is_long, shown = line.partition(b"\0")
    if not is_long:
        return line
    bytes_shown = (
        int(shown) if shown.isdigit() else 0
    )  # a search that was killed may lack the number
    return text[:bytes_shown].decode("utf-8", "ignore").encode() + b"... [line cut]"


def _failure(ended: ProcessEnd, seconds_max: float) -> str | None:
    """Return why a search failed; None if it succeeded, or its output contains the reason."""
    if ended.timed_out:
        return f"took longer than {seconds_max:g} seconds; narrow the search"
    if ended.failure is not None:
        return ended.failure
    if ended.code not in (0, _INVALID_REQUEST_CODE):
        return f"the search process ended with code {ended.code}"
    return None


def _encode_request(command: str, request: dict[str, Any], path_sandbox: PathSandbox) -> list[str]:
    """Return the request in pieces, because the kernel bounds the length of one argument."""
    surroundings = {
        "command": command,
        "workdir": str(path_sandbox.spelled),
        "real_workdir": str(path_sandbox.workdir),
        "hidden": [str(path) for path in path_sandbox.hidden],
        "hard_links": path_sandbox.restrictions.hard_links,
        "may_miss": path_sandbox.restrictions.may_miss,
        "opened": path_sandbox.allowed_outside,
        # The process compiles the patterns again, with the same flags.
        "closed": [
            (pattern.pattern, pattern.flags) for pattern in path_sandbox.restrictions.reading
        ],
    }
    # The standard library's encoder keeps names that are not UTF-8.
    text = json.dumps(request | surroundings)
    return [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]
