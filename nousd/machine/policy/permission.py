"""Decides whether a tool call may run: by the rules in force, then by the session's mode.

Pure decisions on facts (``wire.objects.tool_footprint``); asking the user is left to the caller. Source:
protocol/semantics/permissions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from nousd.machine.policy.denied_paths import DeniedPaths, find_denied_paths
from nousd.machine.policy.protected_paths import protection
from nousd.machine.policy.rules import (
    Finding,
    Rule,
    RuleDecision,
    allows_line,
    find_covering_rule,
    find_permission,
    of_decision,
    rule_for,
)
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.policy import PolicyDecision, PolicySource
from nousd.wire.objects.tool_footprint import Access

Verdict = Literal["allow", "deny", "ask"]

_PLACES_NAMED: Final = 3
"""Maximum number of outside paths in a reason; clients show the user all of them separately."""


class Judgement(NamedTuple):
    """The policy decision on a call, with the decision of each source.

    Args:
        reason: the reason for the verdict, for people.
        rule: the rule that would allow such calls from now on; "" if no rule can.
        closed: paths that the call must not access, even if it did not name them.
    """

    verdict: Verdict
    reason: str
    sources: tuple[PolicySource, ...]
    rule: str
    closed: DeniedPaths = DeniedPaths()


class Case(NamedTuple):
    """A call with final arguments."""

    tool: str
    access: Access
    mode: PermissionMode
    rules: Sequence[Rule]

    def of(self, decision: RuleDecision) -> tuple[Rule, ...]:
        """Return the rules in force for one decision, including the built-in ones."""
        rules = of_decision(tuple(self.rules), decision)
        return (*protection(), *rules) if decision == "ask" else rules


def judge(case: Case) -> Judgement:
    """Decide whether a call may run, may not run, or needs approval."""
    ruling = _ruling(case)
    by_rules = ruling.source
    if by_rules.decision == "deny":
        return _build_judgement(case, "deny", by_rules.reason, (by_rules,))
    verdict, reason = _MODES[case.mode](case.access, ruling)
    if case.access.outside and verdict != "deny":
        # No rule and no mode covers paths outside of the workspace, so none can allow them.
        reason = f"it leads out of the workspace, to {_format_paths(case.access.outside)}"
        by_override = PolicySource(source="override", decision="ask", reason=reason)
        return _build_judgement(case, "ask", reason, (by_rules, by_override))
    by_mode = PolicySource(source="mode", decision=verdict, reason=reason)
    # The reason names the rule.
    shown_reason = by_rules.reason if verdict == by_rules.decision == "ask" else reason
    return _build_judgement(case, verdict, shown_reason, (by_rules, by_mode))


def _format_paths(places: Sequence[str]) -> str:
    named = ", ".join(places[:_PLACES_NAMED])
    more = len(places) - _PLACES_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _build_judgement(
    case: Case, verdict: Verdict, reason: str, sources: tuple[PolicySource, ...]
) -> Judgement:
    ask_rules = of_decision(tuple(case.rules), "ask")
    questions = () if case.mode == "yolo" else (protection(), ask_rules)
    closed = find_denied_paths(case.of("deny"), questions, case.tool, case.access)
    # Between the decision and the write, another call may create the rest of a repository.
    closed = closed._replace(repositories=case.mode != "yolo" and not case.access.obeyed)
    return Judgement(verdict, reason, sources, rule_for(case.tool, case.access), closed)


def with_doubt(judgement: Judgement, doubt: str, mode: PermissionMode) -> Judgement:
    """Return the decision on a call that may reach paths closed to it. As with a denial that may or may
    not apply, the call needs approval (in the mode ``yolo`` it is denied), unless the user has granted
    this very call.

    Args:
        doubt: why not all paths that are closed to the call were found.
    """
    if judgement.verdict == "deny":
        return judgement
    closed = judgement.closed._replace(may_miss=True)
    if any(
        evaluated.source == "rules"
        and evaluated.decision == "allow"
        and evaluated.rule == judgement.rule != ""
        for evaluated in judgement.sources
    ):
        return judgement._replace(closed=closed)
    verdict: Verdict = "deny" if mode == "yolo" else "ask"
    reason = f"{doubt}, and the mode yolo asks nobody" if mode == "yolo" else doubt
    source = PolicySource(source="closed_files", decision=verdict, reason=reason)
    return judgement._replace(
        verdict=verdict, reason=reason, sources=(*judgement.sources, source), closed=closed
    )


# --- rules -------------------------------------------------------------------------------------


class _Ruling(NamedTuple):
    """The decision of the rules.

    Args:
        may_be_denied: whether they ask because a denial may apply, which cannot be determined.
    """

    source: PolicySource
    may_be_denied: bool = False


def _ruling(case: Case) -> _Ruling:
    denial = find_covering_rule(case.of("deny"), case.tool, case.access)
    if denial.rule is not None and denial.is_certain:
        return _build_ruling("deny", denial.rule)
    # A grant for this very call overrides every question, but no denial.
    grant = _grant_of_this_call(case)
    if grant is not None:
        return _build_ruling("allow", grant)
    if case.access.obeyed:
        return _Ruling(PolicySource(source="rules", decision="ask", reason=case.access.obeyed))
    permissions = case.of("allow")
    line = allows_line(permissions, case.tool, case.access)
    if denial.rule is not None and line is None:
        return _build_doubtful_ruling(denial, may_be_denied=True)
    question = find_covering_rule(case.of("ask"), case.tool, case.access)
    if question.rule is not None and (question.is_certain or line is None):
        return (
            _build_ruling("ask", question.rule)
            if question.is_certain
            else _build_doubtful_ruling(question)
        )
    permission = find_permission(permissions, case.tool, case.access)
    if permission is not None:
        return _build_ruling("allow", permission)
    return _Ruling(PolicySource(source="rules", decision="abstain", reason="no rule applies"))


def _grant_of_this_call(case: Case) -> Rule | None:
    text = rule_for(case.tool, case.access)
    grants = (rule for rule in case.rules if rule.is_grant and rule.text == text)
    return next(grants, None)


def _build_ruling(decision: PolicyDecision, rule: Rule) -> _Ruling:
    reason = f"the rule {rule.text} of {rule.origin}"
    return _Ruling(PolicySource(source="rules", decision=decision, reason=reason, rule=rule.text))


def _build_doubtful_ruling(finding: Finding, *, may_be_denied: bool = False) -> _Ruling:
    rule = finding.rule
    assert rule is not None
    reason = (
        f"the rule {rule.text} of {rule.origin} may be about this command, which cannot be told"
    )
    source = PolicySource(source="rules", decision="ask", reason=reason, rule=rule.text)
    return _Ruling(source, may_be_denied)


# --- the mode ------------------------------------------------------------------------------------


_ModeDecision = tuple[Verdict, str]


def _in_yolo(_: Access, ruling: _Ruling) -> _ModeDecision:
    if ruling.may_be_denied:
        return "deny", f"{ruling.source.reason}, and the mode yolo asks nobody"
    return "allow", "the mode yolo asks nobody"


def _in_ask(access: Access, ruling: _Ruling) -> _ModeDecision:
    if not access.classes:
        return _after_rules(ruling, ("allow", "it touches nothing"))
    return _after_rules(ruling, ("ask", "the mode ask asks for every call"))


def _in_auto(access: Access, ruling: _Ruling) -> _ModeDecision:
    if "exec" in access.classes and not access.is_confined:
        # Such a program can also reach every network; that it has no sandbox is the stronger reason.
        return _after_rules(ruling, ("ask", "it runs a program without a sandbox"))
    if "network" in access.classes:
        return _after_rules(ruling, ("ask", "it reaches a network"))
    if not access.is_inside:
        return _after_rules(ruling, ("ask", "it leads out of the workdir"))
    allowed_because = "it stays inside of the workdir" if access.classes else "it touches nothing"
    return _after_rules(ruling, ("allow", allowed_because))


def _after_rules(ruling: _Ruling, otherwise: _ModeDecision) -> _ModeDecision:
    match ruling.source.decision:
        case "allow":
            return "allow", "a rule allows it"
        case "ask":
            return "ask", "a rule asks"
        case _:
            return otherwise


_MODES: Final = {"ask": _in_ask, "auto": _in_auto, "yolo": _in_yolo}
