"""The tool ``write``: a whole file at once."""

from __future__ import annotations

from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from nousd.tools.arguments import PATH_ALIASES
from nousd.tools.fs.path_errors import explained, shown
from nousd.tools.fs.path_sandbox import Confinement
from nousd.tools.fs.text_files import WRITING, replace_file
from nousd.tools.function_tool import builtin, touches
from nousd.tools.interface import ToolContext, ToolResult


class Write(msgspec.Struct, frozen=True):
    """Arguments of ``write``."""

    path: Annotated[str, Meta(min_length=1, description="File to write.")]
    content: Annotated[str, Meta(description="All that the file will hold.")]


async def _write(args: Write, context: ToolContext) -> ToolResult:
    written = await trio.to_thread.run_sync(_put, context.confinement, args, limiter=WRITING)
    return ToolResult(text=f"Wrote {written} bytes to {shown(args.path)}.")


def _put(confinement: Confinement, args: Write) -> int:
    data = args.content.encode()
    with (
        explained("write", args.path),
        confinement.locate(args.path, create_parents=True) as place,
    ):
        replace_file(place, data)
    return len(data)


WRITE = builtin(
    "write",
    "Writes a text file, replacing what it held. Missing folders are made.",
    Write,
    _write,
    PATH_ALIASES | dict.fromkeys(("contents", "text"), "content"),
    access_of=touches("write"),
)
