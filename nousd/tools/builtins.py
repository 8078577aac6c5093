"""The tools that come with nousd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nousd.tools.bash import BASH
from nousd.tools.edit import EDIT
from nousd.tools.find import FIND
from nousd.tools.git import GIT
from nousd.tools.grep import GREP
from nousd.tools.interface import Tool
from nousd.tools.ls import LS
from nousd.tools.patch import PATCH
from nousd.tools.question import QUESTION
from nousd.tools.read import READ
from nousd.tools.task import TASK
from nousd.tools.todo import TODO
from nousd.tools.web_addresses import WebAllow
from nousd.tools.web_fetch import web_fetch_tool
from nousd.tools.web_request import Reach
from nousd.tools.write import WRITE

_FILE_TOOLS: Final[tuple[Tool, ...]] = (READ, WRITE, EDIT, PATCH, LS, FIND, GREP)
_DAEMON_TOOLS: Final[tuple[Tool, ...]] = (TODO, TASK, QUESTION)
_EXEC_TOOLS: Final[tuple[Tool, ...]] = (BASH, GIT)


def builtin_tools(*, allow_exec: bool, web_allow: Sequence[str] = ()) -> tuple[Tool, ...]:
    """Returns the built-in tools; those that run programs only if that is allowed.

    Args:
        web_allow: see ``WebAllow``.

    Raises:
        ConfigError: ``web_allow`` cannot be used.
    """
    web_fetch = web_fetch_tool(Reach(WebAllow(web_allow)))
    tools = (*_FILE_TOOLS, web_fetch, *_DAEMON_TOOLS)
    return (*tools, *_EXEC_TOOLS) if allow_exec else tools


BUILTIN_NAMES: Final = frozenset(tool.name for tool in builtin_tools(allow_exec=True))
"""Taken, also while execution is not allowed."""
