"""Which calls may run: each source in turn, up to the first that says no.

The sources are rows of a table, and what they say stands in the log in their order
(``tool_call_policy_evaluated``). Nobody is asked here and nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from nousd.errors import ToolArgumentsInvalid
from nousd.runtimes.interface import TurnHost
from nousd.runtimes.native.answer import RAW_ARGUMENTS
from nousd.tools.interface import Tool
from nousd.wire.entries import ToolCall


class Refused(msgspec.Struct, frozen=True):
    """Why a call does not run, or failed; ``code`` is that of the warning, ``by`` who decided."""

    code: str
    message: str
    by: str = "policy"


class Admitted(msgspec.Struct, frozen=True):
    """A call that may run, with its arguments ready to run with."""

    tool: Tool
    args: Any


class Evaluation(msgspec.Struct, frozen=True):
    """What one source said."""

    source: str
    allows: bool
    reason: str


class Admission(msgspec.Struct, frozen=True):
    """What every source that was asked said, and what follows from it."""

    evaluations: tuple[Evaluation, ...]
    verdict: Admitted | Refused


def admit(tools: Mapping[str, Tool], host: TurnHost, call: ToolCall) -> Admission:
    """Returns whether a call may run, as the daemon and its session are now."""
    case = _Case(tools, host, call)
    evaluations: list[Evaluation] = []
    for source, reason, look in _SOURCES:
        refused = look(case)
        if refused is not None:
            evaluations.append(Evaluation(source, allows=False, reason=refused.message))
            return Admission(tuple(evaluations), refused)
        evaluations.append(Evaluation(source, allows=True, reason=reason))
    return Admission(tuple(evaluations), Admitted(tools[call.name], case.args))


class _Case(msgspec.Struct):
    """A call under examination; ``args`` are its arguments once they are known to fit."""

    tools: Mapping[str, Tool]
    host: TurnHost
    call: ToolCall
    args: Any = None


def _is_registered(case: _Case) -> Refused | None:
    if case.call.name in case.tools:
        return None
    return Refused("tool_not_found", f"tool_not_found: {case.call.name}")


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
        case.args = case.tools[case.call.name].validated(case.call.args)
    except ToolArgumentsInvalid as error:
        return Refused(error.code, str(error))
    return None


_SOURCES: Final[tuple[tuple[str, str, Callable[[_Case], Refused | None]], ...]] = (
    ("registry", "the tool exists", _is_registered),
    ("session", "the tool is active", _is_active),
    ("arguments", "the arguments fit", _fits),
)
"""source, what it says if it allows, what it looks at; in the order in which they are asked."""
