"""The list of the built-in tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nousd.tools.builtin.bash import BASH
from nousd.tools.builtin.edit import EDIT
from nousd.tools.builtin.find import FIND
from nousd.tools.builtin.git import GIT
from nousd.tools.builtin.grep import GREP
from nousd.tools.builtin.ls import LS
from nousd.tools.builtin.patch import PATCH
from nousd.tools.builtin.question import QUESTION
from nousd.tools.builtin.read import READ
from nousd.tools.builtin.task import TASK
from nousd.tools.builtin.todo import TODO
from nousd.tools.builtin.web_fetch import web_fetch_tool
from nousd.tools.builtin.write import WRITE
from nousd.tools.interface import Tool
from nousd.tools.web.addresses import WebAllow
from nousd.tools.web.request import Reach

_FILE_TOOLS: Final[tuple[Tool, ...]] = (READ, WRITE, EDIT, PATCH, LS, FIND, GREP)
_DAEMON_TOOLS: Final[tuple[Tool, ...]] = (TODO, TASK, QUESTION)
_EXEC_TOOLS: Final[tuple[Tool, ...]] = (BASH, GIT)


def builtin_tools(*, allow_exec: bool, web_allow: Sequence[str] = ()) -> tuple[Tool, ...]:
    """Return the built-in tools.

    Args:
        allow_exec: whether to include the tools that run programs.
        web_allow: see ``WebAllow``.

    Raises:
        ConfigError: ``web_allow`` is invalid.
    """
    web_fetch = web_fetch_tool(Reach(WebAllow(web_allow)))
    tools = (*_FILE_TOOLS, web_fetch, *_DAEMON_TOOLS)
    return (*tools, *_EXEC_TOOLS) if allow_exec else tools


BUILTIN_NAMES: Final = frozenset(tool.name for tool in builtin_tools(allow_exec=True))
"""Reserved tool names, including those of tools that need ``allow_exec``."""
