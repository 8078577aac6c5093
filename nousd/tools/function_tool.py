"""A tool made from a function: every built-in tool and every extension's tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from nousd.errors import ToolError
from nousd.tools.arguments import Arguments, struct_arguments
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.outside_paths import Parts
from nousd.tools.fs.path_errors import format_given
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.sandbox.obeyed_writes import why_obeyed
from nousd.wire.limits import OUTSIDE_PLACES_MAX
from nousd.wire.objects.policy import ExecutedBy
from nousd.wire.objects.tool_footprint import TOUCHES_NOTHING, Access, ToolClass

AccessOf = Callable[[Any, ToolContext], Access]
"""Takes validated arguments and returns the footprint of the call; blocks."""


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """Implements ``Tool`` with a function.

    Args:
        function: called with the validated arguments and the context of the call.
        access_of: returns the footprint of a call with these arguments.
    """

    name: str
    description: str
    source: str
    arguments: Arguments
    function: Callable[[Any, ToolContext], Awaitable[ToolResult]]
    access_of: AccessOf
    executed_by: ExecutedBy = "nousd"
    is_read_only: bool = False
    begins_early: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        return self.arguments.schema

    def validate(self, args: Mapping[str, Any]) -> msgspec.Struct | Mapping[str, Any]:
        checked: msgspec.Struct | Mapping[str, Any] = self.arguments.validate(self.name, args)
        return checked

    async def access(self, args: Any, context: ToolContext) -> Access:
        if self.access_of is touches_nothing:
            # Without paths to resolve, no thread is needed.
            return TOUCHES_NOTHING
        return await in_folder_thread(self.access_of, args, context)

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        return await self.function(args, context)


def builtin(
    name: str,
    description: str,
    struct: type[msgspec.Struct],
    function: Callable[[Any, ToolContext], Awaitable[ToolResult]],
    aliases: Mapping[str, str],
    *,
    access_of: AccessOf,
    is_read_only: bool = False,
    begins_early: bool = False,
) -> FunctionTool:
    """Make a built-in tool from a function and the struct of its arguments."""
    return FunctionTool(
        name=name,
        description=description,
        source="builtin",
        arguments=struct_arguments(struct, aliases),
        function=function,
        access_of=access_of,
        is_read_only=is_read_only,
        begins_early=begins_early,
    )


def touches_nothing(_args: Any, _context: ToolContext) -> Access:
    """The ``access_of`` of a tool that only talks to the user or to the daemon."""
    return TOUCHES_NOTHING


def touches(tool_class: ToolClass, path_argument: str = "path") -> AccessOf:
    """Return the ``access_of`` of a tool that accesses the file or directory that one argument names."""

    def access_of(args: Any, context: ToolContext) -> Access:
        return access_to({tool_class}, (getattr(args, path_argument),), context)

    return access_of


def access_to(
    classes: Iterable[ToolClass],
    given: Iterable[str],
    context: ToolContext,
    *,
    is_inside: bool = True,
) -> Access:
    """Return the footprint of a call that names these files and directories."""
    paths: dict[str, None] = {}
    outside: dict[str, None] = {}
    links: dict[str, None] = {}
    for path in given:
        real, followed = _resolve_path(path, context)
        paths[real] = None
        links |= dict.fromkeys(followed)
        target = context.path_sandbox.beyond(path)
        if target is not None:
            outside[target] = None
            paths[context.path_sandbox.make_relative(target)] = None
    requested = tuple(outside) if len(outside) <= OUTSIDE_PLACES_MAX else ()
    return Access(
        classes=frozenset(classes),
        paths=tuple(paths),
        links=tuple(links),
        outside=requested,
        is_inside=is_inside,
    )


def access_to_write(results: Mapping[str, bytes | None], context: ToolContext) -> Access:
    """Return the footprint of a call that changes files.

    Args:
        results: path -> new content of the file, None if it is removed. The content is used only for
            paths for which ``git_layout.is_attributes`` is true; for others it may be anything.
    """
    resolved = {real_parts(path, context): data for path, data in results.items()}
    obeyed = why_obeyed(context.workdir, context.obeyed_links, resolved)
    return msgspec.structs.replace(access_to({"write"}, results, context), obeyed=obeyed)


def real_parts(path: str, context: ToolContext) -> Parts:
    """Return the real path of a file that a call may change. It leads outside the workspace only if
    approval can be requested for it.
    """
    target = context.path_sandbox.beyond(path)
    if target is not None:
        return tuple(context.path_sandbox.make_relative(target).split("/"))
    return tuple(real_path(path, context).split("/"))


def real_path(path: str, context: ToolContext) -> str:
    """Return the real path of a path that need not exist yet, relative to the workspace; the given path
    if nothing can be opened or created there.
    """
    return _resolve_path(path, context)[0]


def _resolve_path(path: str, context: ToolContext) -> tuple[str, list[str]]:
    """Return the ``real_path`` of a path, and the real paths of the links on the way."""
    try:
        return context.path_sandbox.real_and_links(path)
    except (ToolError, OSError):
        return format_given(path), []


def leads_inside(path: str, context: ToolContext) -> bool:
    """Return whether a path leads inside the workspace, so that ``real_path`` can name its target."""
    try:
        context.path_sandbox.real(path)
    except (ToolError, OSError):
        return False
    return True
