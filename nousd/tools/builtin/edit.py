"""The tool ``edit``: replaces an exact text in a file.

Models write LF. In a file that uses CRLF, LF in both texts means CRLF, so that the file keeps its line
endings; if the old text then does not match, both texts are tried unchanged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta

from nousd.errors import ToolError
from nousd.tools.arguments import PATH_ALIASES
from nousd.tools.fs.git_layout import is_attributes
from nousd.tools.fs.path_errors import explain_os_errors, format_given
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.text_files import WRITING, read_text, replace_file
from nousd.tools.function_tool import access_to_write, builtin, real_parts
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import head_of
from nousd.wire.objects.tool_footprint import Access

DIFF_LINES_MAX: Final = 400
"""Maximum lines of a diff. Comparing takes quadratic time, so a larger change is only described."""

DIFF_CONTEXT_LINES: Final = 3


class Edit(msgspec.Struct, frozen=True, rename="camel"):
    """Arguments of ``edit``."""

    path: Annotated[str, Meta(min_length=1, description="File to change.")]
    old_text: Annotated[
        str, Meta(min_length=1, description="Text to replace, exactly as it stands in the file.")
    ]
    new_text: Annotated[str, Meta(description="Text to put in its place.")]
    replace_all: Annotated[
        bool, Meta(description="Replace every occurrence rather than the only one.")
    ] = False


class Change(msgspec.Struct, frozen=True):
    """One replacement in a text, with the file's line endings."""

    before: str
    after: str
    old: str
    new: str
    count: int


async def _edit(args: Edit, context: ToolContext) -> ToolResult:
    change = await trio.to_thread.run_sync(_apply, context.path_sandbox, args, limiter=WRITING)
    times = "1 occurrence" if change.count == 1 else f"{change.count} occurrences"
    message = f"Replaced {times} in {format_given(args.path)}.\n\n{diff(change)}"
    return head_of(message, context.secrets)


def _apply(path_sandbox: PathSandbox, args: Edit) -> Change:
    with explain_os_errors("edit", args.path), path_sandbox.locate(args.path) as resolved:
        bom, text = read_text(resolved, args.path)
        change = compute_change(text, args)
        replace_file(resolved, bom + change.after.encode())
    return change


def _access(args: Edit, context: ToolContext) -> Access:
    result = b""
    if is_attributes(real_parts(args.path, context)):
        # A fault is reported by the call itself, which then changes nothing.
        with suppress(ToolError, OSError), context.path_sandbox.locate(args.path) as resolved:
            result = compute_change(read_text(resolved, args.path)[1], args).after.encode()
    return access_to_write({args.path: result}, context)


def compute_change(text: str, args: Edit) -> Change:
    """Apply the replacement in ``args``.

    Raises:
        ToolError: the old text does not occur, occurs more than once, or equals the new one.
    """
    if args.old_text == args.new_text:
        raise ToolError("edit_failed: oldText and newText are the same")
    old, new = args.old_text, args.new_text
    if _uses_crlf(text):
        old, new = _with_crlf(old), _with_crlf(new)
        if old not in text:
            old, new = args.old_text, args.new_text
    count = _occurrences(text, old)
    if count == 0:
        raise ToolError(
            f"edit_failed: oldText was not found in {format_given(args.path)}; it must match exactly,"
            " with all spaces and line breaks"
        )
    if count > 1 and not args.replace_all:
        raise ToolError(
            f"edit_failed: oldText has {count} matches in {format_given(args.path)}; give more of the"
            " text around it, or replaceAll"
        )
    count = text.count(old) if args.replace_all else 1
    return Change(before=text, after=text.replace(old, new), old=old, new=new, count=count)


def _occurrences(text: str, old: str) -> int:
    """Count matches; overlapping ones count twice, because it is not clear which one is meant."""
    count = text.count(old)
    if count == 1 and text.find(old, text.find(old) + 1) >= 0:
        return 2
    return count


def _uses_crlf(text: str) -> bool:
    crlf = text.count("\r\n")
    return crlf > text.count("\n") - crlf


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def diff(change: Change) -> str:
    """Return a unified diff of the change, or a sentence if it would be long."""
    text = change.before
    start = _lines_back(text, text.find(change.old), DIFF_CONTEXT_LINES)
    last = text.rfind(change.old) + len(change.old)
    end = _lines_on(text, last, DIFF_CONTEXT_LINES)
    window = text[start:end]
    old_lines = window.splitlines()
    new_lines = window.replace(change.old, change.new).splitlines()
    if max(len(old_lines), len(new_lines)) > DIFF_LINES_MAX:
        return f"[The change spans {len(old_lines)} lines; the diff is left out.]"
    return "\n".join(_hunks(old_lines, new_lines, text.count("\n", 0, start)))


def _lines_back(text: str, position: int, lines: int) -> int:
    """Return the start of the line that is ``lines`` above the one at ``position``."""
    for _ in range(lines + 1):
        position = text.rfind("\n", 0, max(position, 0))
        if position < 0:
            return 0
    return position + 1


def _lines_on(text: str, position: int, lines: int) -> int:
    """Return the end of the line that is ``lines`` below the one at ``position``."""
    for _ in range(lines + 1):
        position = text.find("\n", position) + 1
        if position == 0:
            return len(text)
    return position


def _hunks(old: list[str], new: list[str], lines_above: int) -> list[str]:
    result = []
    from difflib import SequenceMatcher

    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(
        DIFF_CONTEXT_LINES
    ):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        result.append(
            f"@@ -{lines_above + old_start + 1},{old_end - old_start}"
            f" +{lines_above + new_start + 1},{new_end - new_start} @@"
        )
        for kind, old_from, old_to, new_from, new_to in group:
            if kind == "equal":
                result += [f" {line}" for line in old[old_from:old_to]]
                continue
            result += [f"-{line}" for line in old[old_from:old_to]]
            result += [f"+{line}" for line in new[new_from:new_to]]
    return result


EDIT = builtin(
    "edit",
    "Replaces one exact piece of text in a file. oldText must occur exactly once, unless replaceAll"
    " is true.",
    Edit,
    _edit,
    PATH_ALIASES
    | dict.fromkeys(("old_text", "old_string", "oldString", "old_str"), "oldText")
    | dict.fromkeys(("new_text", "new_string", "newString", "new_str"), "newText")
    | dict.fromkeys(("all", "replace_all"), "replaceAll"),
    access_of=_access,
)
