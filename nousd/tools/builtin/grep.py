"""The tool ``grep``: finds lines of files by a regular expression."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nousd.tools.arguments import FOLDER_ALIASES
from nousd.tools.function_tool import builtin, touches
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.search.process import PATH_CHARS_MAX, PATTERN_CHARS_MAX, search

LIMIT_MAX = 10_000
"""Maximum matches of one answer."""

CONTEXT_LINES_MAX = 50
"""Maximum lines around each match."""


class Grep(msgspec.Struct, frozen=True):
    """Arguments of ``grep``."""

    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=PATTERN_CHARS_MAX,
            description="Regular expression (Python's), compared with each line.",
        ),
    ]
    path: Annotated[
        str, Meta(min_length=1, max_length=PATH_CHARS_MAX, description="File or folder to search.")
    ] = "."
    glob: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=PATTERN_CHARS_MAX,
            description="Only files that match this, such as *.py.",
        ),
    ] = "**"
    ignore_case: Annotated[bool, Meta(description="Treat upper and lower case alike.")] = (
        msgspec.field(default=False, name="ignoreCase")
    )
    literal: Annotated[bool, Meta(description="Take pattern as plain text.")] = False
    context: Annotated[
        int, Meta(ge=0, le=CONTEXT_LINES_MAX, description="Lines to show before and after a match.")
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Matches at most.")] = 100


async def _grep(args: Grep, context: ToolContext) -> ToolResult:
    request = {field: getattr(args, field) for field in args.__struct_fields__}
    return await search("grep", request, context, empty_text="No matches found.")


GREP = builtin(
    "grep",
    "Searches the lines of text files for a regular expression. Prints path:line: text.",
    Grep,
    _grep,
    FOLDER_ALIASES
    | dict.fromkeys(
        ("ignore_case", "ignorecase", "case_insensitive", "caseInsensitive"), "ignoreCase"
    )
    | {"regex": "pattern", "query": "pattern", "include": "glob"},
    access_of=touches("read"),
    is_read_only=True,
    begins_early=True,
)
