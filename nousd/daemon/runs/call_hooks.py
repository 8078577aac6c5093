"""Runs the hooks of extensions before and after every tool call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from nousd.extensions.hook_chain import CallOutcome, Failure, Hooks, Verdict
from nousd.extensions.hooks import ToolCalled, ToolReturned
from nousd.runtimes.calls.hooks import HookOpinions, Opinion, Remark, ShownResult
from nousd.runtimes.calls.host import CallHost
from nousd.tools.interface import Tool, ToolResult
from nousd.tools.output.tool_output import head_of
from nousd.tools.secrets_interface import NO_SECRETS
from nousd.wire.codec.envelope import scrub
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.policy import PolicySource

_log: Final = logging.getLogger(__name__)


class ExtensionCallHooks:
    """See ``CallHooks``.

    Args:
        hooks: the hooks of all extensions.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def before(self, host: CallHost, tool: Tool, call: ToolCall, args: Any) -> HookOpinions:
        """See ``CallHooks.before``."""
        if not self._hooks.has("tool_call"):
            return HookOpinions(args)
        # An extension may act on the request, so a crash must not lose the request afterwards.
        await host.wait_durable()
        fitted = _FittedArguments(tool, args)
        host.extend_idle_deadline(self._hooks.seconds_max("tool_call"))
        outcome = await self._hooks.tool_call(
            ToolCalled(**_facts(host, call), args=msgspec.to_builtins(args)), fitted.fit
        )
        host.extend_idle_deadline(0.0)
        return HookOpinions(
            fitted.args,
            tuple(map(_opinion, outcome.verdicts)),
            _describe_block(outcome),
            _remarks(host, outcome.failures),
        )

    async def after(
        self, host: CallHost, call: ToolCall, args: Any, result: ToolResult
    ) -> ShownResult:
        """See ``CallHooks.after``."""
        if not self._hooks.has("tool_result"):
            return ShownResult(result)
        host.extend_idle_deadline(self._hooks.seconds_max("tool_result"))
        outcome = await self._hooks.tool_result(
            ToolReturned(
                **_facts(host, call),
                args=msgspec.to_builtins(args),
                text=result.text,
                is_error=result.is_error,
            )
        )
        host.extend_idle_deadline(0.0)
        remarks = _remarks(host, outcome.failures)
        if not outcome.changed_by:
            return ShownResult(result, remarks=remarks)
        # Secrets are already redacted in the texts that hooks return.
        shown = head_of(scrub(outcome.text), NO_SECRETS).text
        changed = msgspec.structs.replace(result, text=shown, is_error=outcome.is_error)
        return ShownResult(changed, outcome.changed_by, remarks)


class _FittedArguments:
    """The arguments of a call as its tool will receive them, while hooks change them."""

    def __init__(self, tool: Tool, args: Any) -> None:
        self._tool = tool
        self.args = args

    def fit(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        self.args = self._tool.validate(dict(args))
        fitted: Mapping[str, Any] = msgspec.to_builtins(self.args)
        return fitted


def _facts(host: CallHost, call: ToolCall) -> dict[str, str]:
    where = host.where
    return {
        "session_id": where["session_id"],
        "run_id": where.get("run_id", ""),
        "turn_id": where.get("turn_id", ""),
        "tool_call_id": call.tool_call_id,
        "tool": call.name,
    }


def _opinion(verdict: Verdict) -> Opinion:
    source = PolicySource(
        source="extension",
        decision="deny" if verdict.blocks else "abstain",
        reason=_describe_verdict(verdict),
    )
    return Opinion(source, verdict.args)


def _describe_verdict(verdict: Verdict) -> str:
    # The text of a failure begins with the extension's name.
    is_named = verdict.reason.startswith(f"{verdict.extension}: ")
    return verdict.reason if is_named else f"{verdict.extension}: {verdict.reason}"


def _describe_block(outcome: CallOutcome) -> str:
    return next((_describe_verdict(verdict) for verdict in outcome.verdicts if verdict.blocks), "")


def _remarks(host: CallHost, failures: Iterable[Failure]) -> tuple[Remark, ...]:
    """Return the warnings for the call's run; without a run, log them."""
    if host.turn is None:
        for failure in failures:
            _log.warning("%s: %s", failure.code, failure.message)
    return tuple(Remark(failure.code, failure.message) for failure in failures)
