"""The tool ``patch``: applies a unified diff to any number of files, completely or not at all.

The new content of each file is computed first (``hunks``), then all files are changed together
(``file_changes``). A diff may change a file several times; each change applies to the result of the
previous one.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta

from nousd.errors import ToolError
from nousd.tools.diff.hunks import apply_hunks
from nousd.tools.diff.unified_diff import FileDiff, parse
from nousd.tools.fs.file_changes import Change, Content, Parts, change_files
from nousd.tools.fs.git_layout import is_attributes
from nousd.tools.fs.path_errors import explain_os_errors, format_given
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.resolved_path import ResolvedPath
from nousd.tools.fs.staged_file import runnable
from nousd.tools.fs.text_files import TEXT_BYTES_MAX, WRITING, binary_kind
from nousd.tools.function_tool import access_to_write, builtin, real_parts
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import head_of
from nousd.wire.limits import PATCH_CHARS_MAX, PATCH_FILES_MAX, PATCHED_BYTES_MAX
from nousd.wire.objects.tool_footprint import Access

_STRIP_MAX: Final = 16


class Patch(msgspec.Struct, frozen=True, rename="camel"):
    """Arguments of ``patch``."""

    patch: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=PATCH_CHARS_MAX,
            description="Unified diff, with --- and +++ lines and hunks with right counts. New files"
            " come from /dev/null, removed ones go there; 'rename from' and 'rename to' as in git.",
        ),
    ]
    dry_run: Annotated[bool, Meta(description="Only say whether it fits; change nothing.")] = False
    strip: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=_STRIP_MAX,
                description="Folders to take off the front of each path. Without it a/ and b/ go.",
            ),
        ]
        | None
    ) = None


class _File(msgspec.Struct):
    """The content of a file before and after the patch; None if the file does not exist."""

    before: Content | None
    after: Content | None


async def _patch(args: Patch, context: ToolContext) -> ToolResult:
    text = await trio.to_thread.run_sync(_apply, context.path_sandbox, args, limiter=WRITING)
    return head_of(text, context.secrets)


def _apply(path_sandbox: PathSandbox, args: Patch) -> str:
    diffs = parse(args.patch, args.strip)
    if len(diffs) > PATCH_FILES_MAX:
        raise ToolError(f"patch_failed: more than {PATCH_FILES_MAX} files")
    plan = _Plan(path_sandbox)
    lines = [plan.take(diff) for diff in diffs]
    count = "1 file" if len(lines) == 1 else f"{len(lines)} files"
    if args.dry_run:
        return "\n".join([f"The patch fits {count}; nothing was changed.", *lines])
    with explain_os_errors("patch", "the files"):
        change_files(path_sandbox, plan.changes())
    return "\n".join([f"Patched {count}.", *lines])


class _Plan:
    """The planned content of each file, by resolved path."""

    def __init__(self, path_sandbox: PathSandbox) -> None:
        self._confinement = path_sandbox
        self._files: dict[Parts, _File] = {}
        self._bytes = 0

    def changes(self) -> list[Change]:
        """Return the planned changes; removals last, so that no directory is removed before it is
        needed.
        """
        changes = [
            Change(parts, file.before, file.after)
            for parts, file in self._files.items()
            if file.before != file.after
        ]
        return sorted(changes, key=lambda change: change.after is None)

    def result(self, path: str) -> bytes | None:
        """Return the planned content of a file; None if it will not exist."""
        after = self._file(path).after
        return None if after is None else after.data

    def take(self, diff: FileDiff) -> str:
        """Plan the change of one file; return a line that describes it."""
        removes_source = diff.old is not None and diff.old != diff.new and not diff.is_copy
        source = None if diff.old is None else self._file(diff.old, itself=removes_source)
        target = source if diff.new in (None, diff.old) else self._file(diff.new)
        assert target is not None
        if source is None or source.after is None:
            before = self._create_content(diff)
        else:
            before = source.after
        if target is not source and target.after is not None:
            raise _fault(diff.new, "is there already")
        after, moved = self._apply_hunks(diff, before)
        if removes_source and source is not None:
            source.after = None
        target.after = None if diff.new is None else after
        if diff.new is None and after.data:
            raise _fault(diff.old, "is not empty without the lines that the patch removes")
        return _describe_diff(diff, moved)

    def _create_content(self, diff: FileDiff) -> Content:
        """Return the initial content of a file that the diff creates."""
        is_new = diff.old is None
        # ``diff -N`` writes both names, and a hunk that begins before the first line.
        inserts_at_start = (
            len(diff.hunks) == 1 and diff.hunks[0].start == 0 and not diff.hunks[0].old
        )
        if is_new or (inserts_at_start and diff.old == diff.new):
            return Content(b"")
        raise _fault(diff.old, "is not there")

    def _apply_hunks(self, diff: FileDiff, before: Content) -> tuple[Content, int]:
        before = _with_mode(before, is_executable=diff.is_executable)
        if not diff.hunks:
            return before, 0
        name = diff.new or diff.old
        if (kind := binary_kind(before.data)) is not None:
            raise _fault(name, f"is {kind}")
        # Bytes that are not UTF-8 stay unchanged if no hunk touches them.
        text = before.data.decode("utf-8", "surrogateescape")
        try:
            patched = apply_hunks(text, diff.hunks, trio.from_thread.check_cancelled)
        except ToolError as error:
            raise _fault(name, str(error)) from None
        data = patched.text.encode("utf-8", "surrogateescape")
        self._count(name, len(data))
        return before._replace(data=data), patched.moved

    def _file(self, path: str | None, *, itself: bool = False) -> _File:
        """Return the file at a path; with ``itself``, the path must not be a link."""
        assert path is not None
        with explain_os_errors("patch", path):
            parts = self._parts(path)
            named = PurePosixPath(path)
            if itself and (*self._parts(str(named.parent)), named.name) != parts:
                raise _fault(path, "is a link; only a file itself can be removed or renamed")
            file = self._files.get(parts)
            if file is None:
                content = self._read(path, parts)
                file = self._files[parts] = _File(content, content)
        return file

    def _parts(self, path: str) -> Parts:
        real = self._confinement.real(path)
        return () if real == "." else tuple(real.split("/"))

    def _read(self, path: str, parts: Parts) -> Content | None:
        try:
            with self._confinement.locate_real(parts) as resolved:
                resolved.require_writable()
                status = resolved.status()
                if status is None:
                    return None
                data = self._bytes_of(path, resolved)
                return Content(data, stat.S_IMODE(status.st_mode))
        except FileNotFoundError:  # a parent folder does not exist
            return None

    def _bytes_of(self, path: str, resolved: ResolvedPath) -> bytes:
        with resolved.open_file() as file:
            data = file.read(TEXT_BYTES_MAX + 1)
        self._count(path, len(data))
        return data

    def _count(self, path: str | None, size: int) -> None:
        if size > TEXT_BYTES_MAX:
            raise _fault(path, f"is larger than {TEXT_BYTES_MAX} bytes")
        self._bytes += size
        if self._bytes > PATCHED_BYTES_MAX:
            raise ToolError(
                f"patch_failed: the files are larger than {PATCHED_BYTES_MAX} bytes together"
            )


def _with_mode(content: Content, *, is_executable: bool | None) -> Content:
    if is_executable is None:
        return content
    if content.mode is None:
        return content._replace(executable=is_executable)
    return content._replace(mode=runnable(content.mode) if is_executable else content.mode & ~0o111)


def _describe_diff(diff: FileDiff, moved: int) -> str:
    added = sum(hunk.added for hunk in diff.hunks)
    removed = sum(hunk.removed for hunk in diff.hunks)
    name = format_given(diff.new or diff.old or "")
    if diff.old is None:
        action = f"made {name}"
    elif diff.new is None:
        action = f"removed {name}"
    elif diff.old != diff.new:
        action = f"{'copied' if diff.is_copy else 'renamed'} {format_given(diff.old)} to {name}"
    else:
        action = f"changed {name}"
    note = f" ({moved} of {len(diff.hunks)} hunks on other lines than they say)" if moved else ""
    return f"{action}: +{added} -{removed}{note}"


def _fault(path: str | None, reason: str) -> ToolError:
    return ToolError(f"patch_failed: {format_given(path or '')}: {reason}")


def _compute_access(args: Patch, context: ToolContext) -> Access:
    """Return the footprint of a patch: all its files. An invalid patch has none; running it reports the
    fault.
    """
    try:
        diffs = parse(args.patch, args.strip)
    except ToolError:
        diffs = []
    results: dict[str, bytes | None] = {}
    for diff in diffs:
        if diff.old is not None and not diff.is_copy:
            results[diff.old] = None
        if diff.new is not None:
            results[diff.new] = b""
    if any(is_attributes(real_parts(name, context)) for name in results):
        results |= _compute_results(context.path_sandbox, diffs, results)
    return access_to_write(results, context)


def _compute_results(
    path_sandbox: PathSandbox, diffs: Sequence[FileDiff], names: Iterable[str]
) -> dict[str, bytes | None]:
    """Return the contents of the files after the patch; empty if it does not fit."""
    plan = _Plan(path_sandbox)
    try:
        for diff in diffs:
            plan.take(diff)
        return {name: plan.result(name) for name in names}
    except ToolError:
        return {}


PATCH = builtin(
    "patch",
    "Applies a unified diff to any number of files: all of it, or nothing. The lines around each change"
    " must match exactly.",
    Patch,
    _patch,
    dict.fromkeys(("diff", "patch_text", "patchText", "input"), "patch")
    | dict.fromkeys(("dry_run", "check"), "dryRun"),
    access_of=_compute_access,
)
