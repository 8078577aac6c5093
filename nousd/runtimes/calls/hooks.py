"""Hooks on tool calls, in addition to the rules: called before the decision and with the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from nousd.runtimes.calls.host import CallHost
from nousd.tools.interface import Tool, ToolResult
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.policy import PolicySource


class Remark(msgspec.Struct, frozen=True):
    """A failure of a hook, with the code and message of a warning."""

    code: str
    message: str


class Opinion(msgspec.Struct, frozen=True):
    """The opinion of one hook; ``args`` are the arguments as it changed them, None if unchanged."""

    source: PolicySource
    args: Mapping[str, Any] | None = None


class HookOpinions(msgspec.Struct, frozen=True):
    """The opinions of all hooks on a call.

    Args:
        args: the call's final arguments, validated by its tool.
        blocked: why the call must not run; "" if it may.
    """

    args: Any
    opinions: tuple[Opinion, ...] = ()
    blocked: str = ""
    remarks: tuple[Remark, ...] = ()


class ShownResult(msgspec.Struct, frozen=True):
    """The result that the model receives for a call, and the hooks that changed it."""

    result: ToolResult
    changed_by: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()


class CallHooks(Protocol):
    """The hooks of all extensions on tool calls."""

    async def before(self, host: CallHost, tool: Tool, call: ToolCall, args: Any) -> HookOpinions:
        """Return the opinions on a call with valid arguments."""
        ...

    async def after(
        self, host: CallHost, call: ToolCall, args: Any, result: ToolResult
    ) -> ShownResult:
        """Return the result that the model receives for a call that ran with these arguments."""
        ...


class NoCallHooks:
    """No hooks."""

    async def before(
        self, _host: CallHost, _tool: Tool, _call: ToolCall, args: Any
    ) -> HookOpinions:
        """See ``CallHooks.before``."""
        return HookOpinions(args)

    async def after(
        self, _host: CallHost, _call: ToolCall, _args: Any, result: ToolResult
    ) -> ShownResult:
        """See ``CallHooks.after``."""
        return ShownResult(result)


NO_CALL_HOOKS: Final = NoCallHooks()
