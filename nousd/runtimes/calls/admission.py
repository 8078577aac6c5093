"""Decides which calls may run: asks each policy source in turn, up to the first that denies.

The opinions are logged in that order (``tool_call_policy_evaluated``). No approval is requested here and
nothing runs.

Hooks are called before the rules, because they may change the arguments: the rules judge, and the hash
covers, the changed arguments. The opinions of hooks are logged last, even after a rule that denies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from nousd.errors import ToolArgumentsInvalid
from nousd.machine.policy.permission import Judgement
from nousd.runtimes.calls.attempts import NEVER_SEEN, EarlierAttempts, StoredResult, judge_repeat
from nousd.runtimes.calls.closed_files import merge_search_for_closed
from nousd.runtimes.calls.hooks import CallHooks, Opinion, Remark
from nousd.runtimes.calls.host import CallHost
from nousd.runtimes.calls.runtime_policy import merge_runtime_decision
from nousd.tools.interface import Tool, ToolContext
from nousd.wire.codec.canonical_json import expressible, hash_of
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.policy import PolicySource
from nousd.wire.objects.tool_footprint import Access

RAW_ARGUMENTS: Final = "_raw"
"""The only argument of a call whose arguments were not a JSON object: the model's text."""


class Refused(msgspec.Struct, frozen=True):
    """The reason why a call does not run, or why it failed.

    Args:
        code: the code of the warning.
        by: the source that decided.
        hint: a remedy for the user; "" if there is none.
    """

    code: str
    message: str
    by: str = "policy"
    hint: str = ""


class AdmittedCall(msgspec.Struct, frozen=True):
    """A call with validated arguments that may run, at once or after approval.

    If it already has a ``result``, that is used and nothing runs.
    """

    tool: Tool
    args: Any
    access: Access
    judgement: Judgement
    result: StoredResult | None = None


class Admission(msgspec.Struct, frozen=True):
    """The decision on a call, with the opinion of each source.

    Args:
        input_hash: hash of the tool's name and the arguments that would run.
        attempt: number of requests for this same call, including this one.
        opinions: the opinions of hooks.
        remarks: failures of hooks.
    """

    sources: tuple[PolicySource, ...]
    verdict: AdmittedCall | Refused
    input_hash: str
    opinions: tuple[Opinion, ...] = ()
    remarks: tuple[Remark, ...] = ()
    attempt: int = 1


async def admit(
    tools: Mapping[str, Tool],
    host: CallHost,
    call: ToolCall,
    context: ToolContext,
    hooks: CallHooks,
    *,
    earlier: EarlierAttempts = NEVER_SEEN,
) -> Admission:
    """Return the decision on a call, in the current state of the daemon and the session."""
    attempt = earlier.attempts + 1
    case = _Case(tools, host, call)
    sources: list[PolicySource] = []
    for source, reason, check in _SOURCES:
        refused = check(case)
        if refused is not None:
            sources.append(PolicySource(source=source, decision="deny", reason=refused.message))
            call_hash = input_hash(call.name, call.args)
            return Admission(tuple(sources), refused, call_hash, attempt=attempt)
        sources.append(PolicySource(source=source, decision="allow", reason=reason))
    tool = tools[call.name]
    hook_opinions = await hooks.before(host, tool, call, case.args)
    access = await tool.access(hook_opinions.args, context)
    call_hash = input_hash(call.name, msgspec.to_builtins(hook_opinions.args))
    judgement = await host.judge(tool, access)
    judgement = await merge_search_for_closed(host, access, context, judgement)
    judgement = await merge_runtime_decision(host, call, judgement)
    judgement, stored = judge_repeat(earlier, tool, call_hash, judgement)
    verdict: AdmittedCall | Refused = AdmittedCall(
        tool, hook_opinions.args, access, judgement, stored
    )
    if judgement.verdict == "deny":
        verdict = Refused("tool_blocked", f"tool_blocked: {judgement.reason}")
    elif hook_opinions.blocked:
        verdict = Refused("tool_blocked", f"tool_blocked: {hook_opinions.blocked}", by="extension")
    return Admission(
        (*sources, *judgement.sources),
        verdict,
        call_hash,
        hook_opinions.opinions,
        hook_opinions.remarks,
        attempt,
    )


def input_hash(tool: str, args: Mapping[str, Any]) -> str:
    """Return the hash of a tool's name and arguments."""
    return hash_of(expressible({"args": args, "tool": tool}))


def hash_of_request(tools: Mapping[str, Tool], call: ToolCall) -> str:
    """Return the hash of a call before admission, with validated arguments if they are valid."""
    tool = tools.get(call.name)
    if tool is None:
        return input_hash(call.name, call.args)
    try:
        return input_hash(call.name, msgspec.to_builtins(tool.validate(call.args)))
    except ToolArgumentsInvalid:
        return input_hash(call.name, call.args)


_EXEC_TOOLS: Final = frozenset({"bash", "git"})
"""The built-in tools that exist only where commands are allowed."""

_EXEC_IS_OFF: Final = (
    "commands are off: allow them with nousd serve --allow-exec, or with allow_exec = true in the"
    " settings file"
)


class _Case(msgspec.Struct):
    """A call that is being judged; ``args`` are its arguments once they are valid."""

    tools: Mapping[str, Tool]
    host: CallHost
    call: ToolCall
    args: Any = None


def _is_registered(case: _Case) -> Refused | None:
    if case.call.name in case.tools:
        return None
    hint = _EXEC_IS_OFF if case.call.name in _EXEC_TOOLS else ""
    return Refused("tool_not_found", f"tool_not_found: {case.call.name}", hint=hint)


def _is_active(case: _Case) -> Refused | None:
    if case.host.tool_is_active(case.call.name):
        return None
    return Refused("tool_not_active", f"tool_not_active: {case.call.name}")


def _fits(case: _Case) -> Refused | None:
    if set(case.call.args) == {RAW_ARGUMENTS}:
        return Refused(
            ToolArgumentsInvalid.code, "validation_failed: arguments are not a JSON object"
        )
    try:
        case.args = case.tools[case.call.name].validate(case.call.args)
    except ToolArgumentsInvalid as error:
        return Refused(error.code, str(error))
    return None


_SOURCES: Final[tuple[tuple[str, str, Callable[[_Case], Refused | None]], ...]] = (
    ("registry", "the tool exists", _is_registered),
    ("session", "the tool is active", _is_active),
    ("arguments", "the arguments fit", _fits),
)
"""source, reason if it allows, check; in the order in which they are asked."""
