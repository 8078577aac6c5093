"""The policy of the requesting runtime: one more policy source, which can only restrict.

An agent program has its own rules and modes. Its opinion is logged like that of every other source, and
never allows a call that nousd's own policy would not.
"""

from __future__ import annotations

from typing import Final

from nousd.machine.context.text_offload import beginning
from nousd.machine.policy.permission import Judgement
from nousd.runtimes.calls.host import CallHost, RuntimeOpinion
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.policy import PolicySource

_SOURCE: Final = "runtime"


NO_POLICY: Final = RuntimeOpinion("abstain", "the runtime has no policy of its own")
"""The opinion of a runtime that leaves every decision to the gate."""

NO_RUNTIME: Final = RuntimeOpinion("abstain", "no runtime asks for it")
"""The opinion on a client's own call."""


async def merge_runtime_decision(host: CallHost, call: ToolCall, judgement: Judgement) -> Judgement:
    """Return the decision on a call, merged with its runtime's opinion, which is requested unless the
    call is already denied.

    ``deny`` denies. ``ask`` requires approval where the mode alone would allow the call, but not if a
    rule of the user allows it, nor in mode yolo. ``allow`` changes nothing.
    """
    if judgement.verdict == "deny":
        return judgement
    opinion = await host.runtime_opinion(call)
    if opinion is None:
        return judgement
    reason = beginning(opinion.reason)
    source = PolicySource(source=_SOURCE, decision=opinion.decision, reason=reason)
    merged = judgement._replace(sources=(*judgement.sources, source))
    if opinion.decision == "deny":
        return merged._replace(verdict="deny", reason=reason)
    asks = opinion.decision == "ask" and judgement.verdict == "allow"
    if asks and not _is_settled(host, judgement):
        return merged._replace(verdict="ask", reason=reason)
    return merged


def _is_settled(host: CallHost, judgement: Judgement) -> bool:
    """Return whether the user has already allowed such calls without being asked."""
    by_rule = any(
        source.source == "rules" and source.decision == "allow" for source in judgement.sources
    )
    return by_rule or host.permission_mode == "yolo"
