"""The tools that come with nousd."""

from __future__ import annotations

from typing import Final

from nousd.tools.bash import BASH
from nousd.tools.edit import EDIT
from nousd.tools.find import FIND
from nousd.tools.grep import GREP
from nousd.tools.interface import Tool
from nousd.tools.ls import LS
from nousd.tools.patch import PATCH
from nousd.tools.question import QUESTION
from nousd.tools.read import READ
from nousd.tools.task import TASK
from nousd.tools.todo import TODO
from nousd.tools.write import WRITE

_FILE_TOOLS: Final[tuple[Tool, ...]] = (READ, WRITE, EDIT, PATCH, LS, FIND, GREP)
_DAEMON_TOOLS: Final[tuple[Tool, ...]] = (TODO, TASK, QUESTION)
_EXEC_TOOLS: Final[tuple[Tool, ...]] = (BASH,)

BUILTIN_NAMES: Final = frozenset(tool.name for tool in (*_FILE_TOOLS, *_DAEMON_TOOLS, *_EXEC_TOOLS))
"""Taken, also while execution is not allowed."""


def builtin_tools(*, allow_exec: bool) -> tuple[Tool, ...]:
    """Returns the built-in tools; those that run programs only if that is allowed."""
    tools = (*_FILE_TOOLS, *_DAEMON_TOOLS)
    return (*tools, *_EXEC_TOOLS) if allow_exec else tools
