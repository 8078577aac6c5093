"""Decides whether a call that was requested before runs again or reuses its stored result.

Two requests are the same call if they have the same index in the same entry; equal arguments do not make
them the same. A call that may have had an effect never runs again without new approval, in any mode.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.policy.permission import Judgement
from nousd.tools.interface import Tool
from nousd.wire.objects.policy import PolicyDecision, PolicySource

_SOURCE: Final = "replay"

GIVEN_AGAIN: Final = "it only reads, and its result is stored"
"""The logged reason for using a stored result."""


class StoredResult(msgspec.Struct, frozen=True):
    """The stored result of a completed attempt."""

    text: str
    is_error: bool
    artifact_id: str | UnsetType = UNSET


class EarlierAttempts(msgspec.Struct, frozen=True):
    """The facts about earlier attempts at a call.

    Args:
        attempts: their number.
        may_have_run: whether one of them may have had an effect.
        input_hash: hash of the attempt that ``result`` belongs to.
        result: result of the last attempt that completed.
    """

    attempts: int = 0
    may_have_run: bool = False
    input_hash: str | None = None
    result: StoredResult | None = None


NEVER_SEEN: Final = EarlierAttempts()
"""The facts about a call that is requested for the first time."""


class RetryDecision(NamedTuple):
    """The consequence of earlier attempts for a call.

    Args:
        judgement: the decision of rules and mode, with the source ``replay`` added.
        result: used instead of a run, if present.
    """

    judgement: Judgement
    result: StoredResult | None = None


def judge_repeat(
    earlier: EarlierAttempts, tool: Tool, input_hash: str, judgement: Judgement
) -> RetryDecision:
    """Decide whether the call runs, needs approval, or uses its stored result."""
    if earlier == NEVER_SEEN or judgement.verdict == "deny":
        return RetryDecision(judgement)
    if not earlier.may_have_run:
        return RetryDecision(_add_source(judgement, "allow", "nothing of it has run before"))
    if tool.is_read_only and earlier.result is not None and earlier.input_hash == input_hash:
        return RetryDecision(
            _add_source(judgement, "allow", GIVEN_AGAIN)._replace(verdict="allow"), earlier.result
        )
    reason = "it may have run before, and is not run again without a new word"
    asks = _add_source(judgement, "ask", reason)
    return RetryDecision(asks._replace(verdict="ask", reason=reason))


def _add_source(judgement: Judgement, decision: PolicyDecision, reason: str) -> Judgement:
    source = PolicySource(source=_SOURCE, decision=decision, reason=reason)
    return judgement._replace(sources=(*judgement.sources, source))
