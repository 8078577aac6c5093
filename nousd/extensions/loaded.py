"""The result of loading extensions, separate from the loader: most daemons have no extensions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.tools.interface import Tool

ExtensionFunction = Callable[[Any], Awaitable[Any]]
"""Takes a command's payload (anything but an object counts as {}) and returns an object of
plain JSON."""


class Extensions(msgspec.Struct, frozen=True):
    """The registrations of all extensions.

    Args:
        places: the files and directories of their code.
    """

    tools: tuple[Tool, ...] = ()
    commands: Mapping[str, ExtensionFunction] = {}
    hooks: Hooks = NO_HOOKS
    places: tuple[Path, ...] = ()
