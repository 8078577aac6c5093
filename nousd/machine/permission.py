"""Whether a tool call may run: the user's and the project's rules, then the session's mode.

Pure decisions on facts (``wire.access``). Nobody is asked here, and nothing is known of how an answer
comes about. Source: protocol/v1.md, "Permissions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import UNSET

from nousd.machine.rules import Rule, decisive
from nousd.wire.access import Access
from nousd.wire.entries import PermissionMode
from nousd.wire.tool_events import PolicyDecision, PolicySource

Verdict = Literal["allow", "deny", "ask"]


class Judgement(NamedTuple):
    """What the sources said of a call, and what follows.

    Args:
        reason: of the verdict, for people.
        rule: what would have to be allowed so that such a call is not asked about again.
    """

    verdict: Verdict
    reason: str
    sources: tuple[PolicySource, ...]
    rule: str


class Case(NamedTuple):
    """A call with final arguments."""

    tool: str
    access: Access
    mode: PermissionMode
    rules: Sequence[Rule]


def judge(case: Case) -> Judgement:
    """Returns whether a call may run, may not, or somebody has to be asked."""
    by_rules = _by_rules(case)
    if by_rules.decision == "deny":
        return _judged(case, "deny", (by_rules,))
    by_mode = _by_mode(case, by_rules.decision)
    verdict: Verdict = "ask" if by_mode.decision == "ask" else "allow"
    return _judged(case, verdict, (by_rules, by_mode))


def _judged(case: Case, verdict: Verdict, sources: tuple[PolicySource, ...]) -> Judgement:
    return Judgement(verdict, sources[-1].reason, sources, rule_for(case.tool, case.access))


def _by_rules(case: Case) -> PolicySource:
    rule = decisive(case.rules, case.tool, case.access)
    if rule is None:
        return PolicySource(source="rules", decision="abstain", reason="no rule applies")
    reason = f"the rule {rule.text} of {rule.origin}"
    return PolicySource(source="rules", decision=rule.decision, reason=reason, rule=rule.text)


def _by_mode(case: Case, by_rules: PolicyDecision) -> PolicySource:
    if case.mode == "yolo":
        decision: PolicyDecision = "allow"
        reason = "the mode yolo asks nobody"
    elif by_rules == "allow":
        decision, reason = "allow", "a rule allows it"
    elif by_rules == "ask":
        decision, reason = "ask", "a rule asks"
    else:
        decision, reason = _MODES[case.mode](case.access)
    return PolicySource(source="mode", decision=decision, reason=reason, rule=UNSET)


def _in_ask(access: Access) -> tuple[PolicyDecision, str]:
    if not access.classes:
        return "allow", "it touches nothing"
    return "ask", "the mode ask asks for every call"


def _in_auto(access: Access) -> tuple[PolicyDecision, str]:
    if "network" in access.classes:
        return "ask", "it reaches a network"
    if "exec" in access.classes and not access.is_confined:
        return "ask", "it runs a program without a sandbox"
    return "allow", "it stays inside of the workdir"


_MODES: Final = {"ask": _in_ask, "auto": _in_auto}


def rule_for(tool: str, access: Access) -> str:
    """Returns the narrowest rule that allows such a call."""
    if access.command is not None:
        return f"{tool}(={access.command})"
    if access.paths:
        return f"{tool}({access.paths[0]})"
    if access.hosts:
        return f"{tool}({access.hosts[0]})"
    if access.definition is not None:
        return f"{tool}(#{access.definition})"
    return tool
