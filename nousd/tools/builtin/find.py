"""The tool ``find``: finds paths by a glob pattern."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nousd.tools.arguments import FOLDER_ALIASES
from nousd.tools.function_tool import builtin, touches
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.search.process import PATH_CHARS_MAX, PATTERN_CHARS_MAX, search

LIMIT_MAX = 10_000
"""Maximum paths of one answer."""


class Find(msgspec.Struct, frozen=True):
    """Arguments of ``find``."""

    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=PATTERN_CHARS_MAX,
            description="Glob: *.py, src/**/*.ts, *.{c,h}. Without a slash it is compared with names.",
        ),
    ]
    path: Annotated[
        str, Meta(min_length=1, max_length=PATH_CHARS_MAX, description="Folder to search.")
    ] = "."
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Paths at most.")] = 1000


async def _find(args: Find, context: ToolContext) -> ToolResult:
    return await search("find", msgspec.to_builtins(args), context, empty_text="No files found.")


FIND = builtin(
    "find",
    "Finds files and folders by a glob pattern, sorted by path. Does not look into .git.",
    Find,
    _find,
    FOLDER_ALIASES | {"glob": "pattern"},
    access_of=touches("read"),
    is_read_only=True,
    begins_early=True,
)
