"""Hooks on a call besides the rules: asked before the decision, and notified of the result.

Who that is, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from nousd.runtimes.calls.host import CallHost
from nousd.tools.interface import Tool, ToolResult
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.policy import PolicySource


class Remark(msgspec.Struct, frozen=True):
    """Something went wrong on the way, as a warning tells it."""

    code: str
    message: str


class Opinion(msgspec.Struct, frozen=True):
    """The opinion of one hook; ``args`` are the arguments as it changed them, None if unchanged."""

    source: PolicySource
    args: Mapping[str, Any] | None = None


class Looked(msgspec.Struct, frozen=True):
    """The opinions of all hooks on a call.

    Args:
        args: the call's arguments as they will run, checked by its tool.
        blocked: why the call must not run; "" if it may.
    """

    args: Any
    opinions: tuple[Opinion, ...] = ()
    blocked: str = ""
    remarks: tuple[Remark, ...] = ()


class Shown(msgspec.Struct, frozen=True):
    """The result that the model receives for a call, and the hooks that changed it."""

    result: ToolResult
    changed_by: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()


class CallHooks(Protocol):
    """Those who look."""

    async def before(self, host: CallHost, tool: Tool, call: ToolCall, args: Any) -> Looked:
        """Ask about a call whose arguments fit."""
        ...

    async def after(self, host: CallHost, call: ToolCall, args: Any, result: ToolResult) -> Shown:
        """Ask what the model is to be told of a call that ran with these arguments."""
        ...


class NoCallHooks:
    """Nobody looks."""

    async def before(self, _host: CallHost, _tool: Tool, _call: ToolCall, args: Any) -> Looked:
        """See ``CallHooks.before``."""
        return Looked(args)

    async def after(
        self, _host: CallHost, _call: ToolCall, _args: Any, result: ToolResult
    ) -> Shown:
        """See ``CallHooks.after``."""
        return Shown(result)


NO_CALL_HOOKS: Final = NoCallHooks()
