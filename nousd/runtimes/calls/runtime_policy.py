"""The policy of the requesting runtime: a source like others, which can only narrow.

A runtime that is another agent program has rules and modes of its own. What they say is on the log like
what every other source says, and never lets a call through that ours would not. How a runtime comes to
its opinion is not known here.
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
"""Of a runtime that leaves every decision to the gate."""

NO_RUNTIME: Final = RuntimeOpinion("abstain", "no runtime asks for it")
"""Of a call that a client makes itself."""


async def merge_runtime_decision(host: CallHost, call: ToolCall, judgement: Judgement) -> Judgement:
    """Return the decision on a call after its runtime was asked, which it is unless the call is
    denied.

    A ``deny`` denies. An ``ask`` asks where the mode alone would let the call run: not if the user
    allows it by a rule, nor in the mode yolo. An ``allow`` changes nothing.
    """
    if judgement.verdict == "deny":
        return judgement
    opinion = await host.runtime_opinion(call)
    if opinion is None:
        return judgement
    reason = beginning(opinion.reason)
    source = PolicySource(source=_SOURCE, decision=opinion.decision, reason=reason)
    said = judgement._replace(sources=(*judgement.sources, source))
    if opinion.decision == "deny":
        return said._replace(verdict="deny", reason=reason)
    asks = opinion.decision == "ask" and judgement.verdict == "allow"
    if asks and not _is_settled(host, judgement):
        return said._replace(verdict="ask", reason=reason)
    return said


def _is_settled(host: CallHost, judgement: Judgement) -> bool:
    """Whether the user has said already that such a call is not to be asked about."""
    by_rule = any(
        source.source == "rules" and source.decision == "allow" for source in judgement.sources
    )
    return by_rule or host.permission_mode == "yolo"
