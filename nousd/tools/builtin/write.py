"""The tool ``write``: writes a whole file."""

from __future__ import annotations

from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from nousd.tools.arguments import PATH_ALIASES
from nousd.tools.fs.path_errors import explain_os_errors, format_given
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.text_files import WRITING, replace_file
from nousd.tools.function_tool import access_to_write, builtin
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.tool_footprint import Access


class Write(msgspec.Struct, frozen=True):
    """Arguments of ``write``."""

    path: Annotated[str, Meta(min_length=1, description="File to write.")]
    content: Annotated[str, Meta(description="All that the file will hold.")]


async def _write(args: Write, context: ToolContext) -> ToolResult:
    bytes_written = await trio.to_thread.run_sync(_put, context.path_sandbox, args, limiter=WRITING)
    return ToolResult(text=f"Wrote {bytes_written} bytes to {format_given(args.path)}.")


def _put(path_sandbox: PathSandbox, args: Write) -> int:
    data = args.content.encode()
    with (
        explain_os_errors("write", args.path),
        path_sandbox.locate(args.path, create_parents=True) as resolved,
    ):
        replace_file(resolved, data)
    return len(data)


def _access(args: Write, context: ToolContext) -> Access:
    return access_to_write({args.path: args.content.encode()}, context)


WRITE = builtin(
    "write",
    "Writes a text file, replacing what it held. Missing folders are made.",
    Write,
    _write,
    PATH_ALIASES | dict.fromkeys(("contents", "text"), "content"),
    access_of=_access,
)
