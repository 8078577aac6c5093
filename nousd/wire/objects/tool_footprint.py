"""The facts about a tool call that decide whether it may run.

A tool derives them from its final arguments. Rules match these facts and never the arguments, so two
spellings of one effect are judged alike.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ToolClass = Literal["read", "write", "exec", "network"]
"""What a call may do: read files, change files, run programs, reach a network."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The footprint of one call. A call without classes touches nothing.

    Args:
        classes: everything that the call may do.
        paths: the files and folders it names, relative to the workspace, with every link resolved; a
            path that leads outside is kept as given, because no rule can allow it.
        links: the real paths of the links by which it names them. Only ask and deny rules match these:
            a permission applies to the resolved paths.
        outside: the real absolute paths outside the workspace for which approval can be requested;
            ``paths`` has each of them as given and as the real path, with ``..``.
        command: the command line that it would run.
        hosts: the hosts that it would reach.
        is_confined: whether its programs run in a sandbox, which has a network if ``classes`` has
            ``network``.
        is_inside: whether every path leads inside the workspace, or its tool cannot follow one that
            does not.
        obeyed: why another program would act on the written files even if its user only reads, for
            people; "" if none would. Such a call needs approval like a write to a protected path.
        definition: short hash of the tool's definition if another program defines it; a permission for
            one definition does not apply to another.
    """

    classes: frozenset[ToolClass] = frozenset()
    paths: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    command: str | None = None
    hosts: tuple[str, ...] = ()
    is_confined: bool = False
    is_inside: bool = True
    obeyed: str = ""
    definition: str | None = None


TOUCHES_NOTHING = Access()
"""The footprint of a tool that only talks to the user or to the daemon."""
