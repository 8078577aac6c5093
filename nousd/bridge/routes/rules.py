"""Rules about tool calls, translated from the contract's to ours.

The engine ignores a rule that it does not understand. The ignored rule may be a denial, so here it is
refused. For the engine a pattern matches the name of the tool; a pattern that only repeats the name adds
nothing, and any other pattern is passed on as one of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from nousd.bridge.replies import UNPROCESSABLE, HttpError
from nousd.bridge.routes.bodies import RequestBody
from nousd.views.tandem.tools import is_same_tool, tools_ruled
from nousd.wire.objects.session_settings import SessionRules

_DECISIONS: Final[dict[str, Literal["allow", "ask", "deny"]]] = {
    "allow": "allow",
    "always": "allow",
    "ask": "ask",
    "once": "ask",
    "deny": "deny",
    "reject": "deny",
}

_ANY: Final = ("", "*", "**")
"""Patterns that match everything."""


class RuleBody(RequestBody, frozen=True, kw_only=True):
    """A rule about tool calls; ``action`` is allow or always, ask or once, deny or reject."""

    permission: str
    action: str
    pattern: str | None = None


def parse_rules(given: Sequence[RuleBody]) -> SessionRules:
    """Return the rules as ours.

    Raises:
        HttpError: an action is unknown.
    """
    rules: dict[str, list[str]] = {"allow": [], "ask": [], "deny": []}
    for index, rule in enumerate(given):
        decision = _DECISIONS.get(rule.action.lower())
        if decision is None:
            words = f"body: permission[{index}].action must be one of {', '.join(_DECISIONS)}"
            raise HttpError(UNPROCESSABLE, words)
        rules[decision] += _rule_texts(rule)
    # Several of the engine's tools may be the same one of ours.
    return SessionRules(
        **{decision: tuple(dict.fromkeys(each)) for decision, each in rules.items()}
    )


def _rule_texts(rule: RuleBody) -> list[str]:
    """Return a rule for each of our tools that it names; the rule itself if it names none."""
    pattern = rule.pattern
    matches_all = pattern is None or pattern in _ANY or is_same_tool(pattern, rule.permission)
    rest = "" if matches_all else f"({pattern})"
    return [f"{tool}{rest}" for tool in tools_ruled(rule.permission) or (rule.permission,)]
