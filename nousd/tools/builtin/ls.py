"""The tool ``ls``: lists the names in a directory."""

from __future__ import annotations

import heapq
import os
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nousd.tools.arguments import FOLDER_ALIASES
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.path_errors import explain_os_errors
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.function_tool import builtin, touches
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import head_of

LIMIT_MAX: Final = 10_000
"""Maximum names of one answer."""

ENTRIES_MAX: Final = 100_000
"""Maximum names that are read from one directory; only these are sorted."""


class Ls(msgspec.Struct, frozen=True):
    """Arguments of ``ls``."""

    path: Annotated[str, Meta(min_length=1, description="Folder to list.")] = "."
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Names at most.")] = 500


async def _ls(args: Ls, context: ToolContext) -> ToolResult:
    text = await in_folder_thread(_listing, context.path_sandbox, args)
    return head_of(text, context.secrets)


def _listing(path_sandbox: PathSandbox, args: Ls) -> str:
    with (
        explain_os_errors("ls", args.path),
        path_sandbox.locate(args.path) as resolved,
        resolved.open_folder() as folder,
        os.scandir(folder) as entries,
    ):
        base = resolved.parts
        names = [
            entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
            for entry in islice(entries, ENTRIES_MAX)
            if path_sandbox.is_seen((*base, entry.name))
        ]
        more = next(entries, None) is not None
    listed = heapq.nsmallest(args.limit, names, key=lambda name: (name.lower(), name))
    lines = [name.encode("utf-8", "replace").decode() for name in listed] or ["(empty folder)"]
    if len(listed) < len(names) or more:
        count = f"more than {ENTRIES_MAX}" if more else str(len(names))
        lines.append(f"\n[{len(listed)} of {count} names are shown; raise limit for more.]")
    return "\n".join(lines)


LS = builtin(
    "ls",
    "Lists a folder, sorted, with names of folders ending in a slash.",
    Ls,
    _ls,
    FOLDER_ALIASES,
    access_of=touches("read"),
    is_read_only=True,
    begins_early=True,
)
