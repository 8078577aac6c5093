"""The tool ``read``: reads a page of a text file."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Annotated, BinaryIO, Final, NamedTuple

import msgspec
import trio
from msgspec import Meta

from nousd.errors import ToolError
from nousd.tools.arguments import INTEGER_MAX, PATH_ALIASES
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.path_errors import explain_os_errors, format_given
from nousd.tools.fs.text_files import BINARY_PROBE_BYTES, binary_kind
from nousd.tools.function_tool import builtin, touches
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.secrets_interface import Secrets
from nousd.wire.limits import TOOL_RESULT_BYTES_MAX, TOOL_RESULT_LINES_MAX

_CHUNK_BYTES: Final = 1024 * 1024

KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of a file that are stored as an artifact. The file itself has the rest, and reading it
page by page should not store all of it each time."""


class Read(msgspec.Struct, frozen=True):
    """Arguments of ``read``."""

    path: Annotated[str, Meta(min_length=1, description="File to read.")]
    offset: Annotated[
        int, Meta(ge=1, le=INTEGER_MAX, description="Line to start with, from 1.")
    ] = 1
    limit: Annotated[int, Meta(ge=1, le=INTEGER_MAX, description="Lines at most.")] | None = None


class Page(NamedTuple):
    """Lines of a file, without their LF; ``cut`` if there is only one, which is too long.

    ``data`` has all bytes that were read, starting with the first of these lines.
    """

    lines: list[bytes]
    more: bool
    cut: bool
    data: bytes


async def _read(args: Read, context: ToolContext) -> ToolResult:
    return await in_folder_thread(_result, context, args)


def _result(context: ToolContext, args: Read) -> ToolResult:
    with (
        explain_os_errors("read", args.path),
        context.path_sandbox.locate(args.path) as resolved,
        resolved.open_file() as file,
    ):
        probe = file.read(BINARY_PROBE_BYTES)
        if (kind := binary_kind(probe)) is not None:
            raise ToolError(f"read_failed: {format_given(args.path)} is {kind}, not text")
        if not probe:
            return ToolResult("(empty file)")
        file.seek(len(BOM_UTF8) if probe.startswith(BOM_UTF8) else 0)
        buffered = _skip_lines(file, args)
        page = _page(
            file, buffered, min(args.limit or TOOL_RESULT_LINES_MAX, TOOL_RESULT_LINES_MAX)
        )
        is_cut = _is_cut(page, args)
        full = _whole(file, page.data, args.limit, context.secrets) if is_cut else None
    text = b"\n".join(_redact_cut_line(page, context.secrets)).decode("utf-8", "replace")
    return ToolResult(text + _note(page, args.offset), full=full)


def _skip_lines(file: BinaryIO, args: Read) -> bytes:
    """Move to the line at ``offset``; return the bytes that were read from there on."""
    target = args.offset - 1
    skipped = 0
    buffered = file.read(_CHUNK_BYTES)
    while skipped < target:
        newlines = buffered.count(b"\n")
        if skipped + newlines >= target:
            buffered = buffered.split(b"\n", target - skipped)[-1]
            break
        skipped += newlines
        trio.from_thread.check_cancelled()
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            raise _beyond_end(args, skipped + (not buffered.endswith(b"\n")))
        buffered = chunk
    buffered = buffered or file.read(_CHUNK_BYTES)
    if target and not buffered:
        raise _beyond_end(args, target)
    return buffered


def _beyond_end(args: Read, lines: int) -> ToolError:
    return ToolError(
        f"read_failed: offset {args.offset} is behind the end of {format_given(args.path)}, which has"
        f" {lines} lines"
    )


def _page(file: BinaryIO, buffered: bytes, lines_max: int) -> Page:
    data = buffered
    ended = False
    while not ended and len(data) <= TOOL_RESULT_BYTES_MAX and data.count(b"\n") <= lines_max:
        chunk = file.read(_CHUNK_BYTES)
        data += chunk
        ended = not chunk
    if ended:
        data = data.removesuffix(b"\n")
    lines = data.split(b"\n", lines_max)
    more = len(lines) > lines_max or not ended
    lines = lines[:lines_max]
    fitting = _count_fitting(lines)
    if fitting == 0:
        return Page(lines[:1], more or len(lines) > 1, cut=True, data=data)
    return Page(lines[:fitting], more or fitting < len(lines), cut=False, data=data)


def _redact_cut_line(page: Page, secrets: Secrets) -> list[bytes]:
    if not page.cut:
        return page.lines
    # Redacted before it is cut, because a part of a secret would not be recognised.
    return [secrets.stream().feed(page.lines[0])[:TOOL_RESULT_BYTES_MAX]]


def _is_cut(page: Page, args: Read) -> bool:
    """Return whether the page shows less than was requested."""
    is_complete = args.limit is not None and len(page.lines) == args.limit
    return page.cut or (page.more and not is_complete)


def _whole(file: BinaryIO, buffered: bytes, lines_max: int | None, secrets: Secrets) -> bytes:
    """Return the requested lines, up to ``KEPT_BYTES_MAX``, with no part of a secret at the cut."""
    redactor = secrets.stream()
    data = bytearray(redactor.feed(buffered))
    while len(data) < KEPT_BYTES_MAX:
        trio.from_thread.check_cancelled()
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            data += redactor.finish()
            break
        data += redactor.feed(chunk)
    content = bytes(data[:KEPT_BYTES_MAX])
    return content if lines_max is None else b"\n".join(content.split(b"\n", lines_max)[:lines_max])


def _count_fitting(lines: list[bytes]) -> int:
    """Return the number of lines that fit into a result."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > TOOL_RESULT_BYTES_MAX:
            return count
    return len(lines)


def _note(page: Page, first: int) -> str:
    last = first + len(page.lines) - 1
    notes = []
    if page.cut:
        notes.append(
            f"Line {last} is longer than {TOOL_RESULT_BYTES_MAX} bytes; only its beginning is shown."
        )
    if page.more:
        notes.append(f"Lines {first}-{last} are shown; continue with offset={last + 1}.")
    return f"\n\n[{' '.join(notes)}]" if notes else ""


READ = builtin(
    "read",
    f"Reads a text file, at most {TOOL_RESULT_LINES_MAX} lines or {TOOL_RESULT_BYTES_MAX} bytes at a"
    " time; offset and limit read on from there.",
    Read,
    _read,
    PATH_ALIASES | {"start_line": "offset", "startLine": "offset"},
    access_of=touches("read"),
    is_read_only=True,
    begins_early=True,
)
