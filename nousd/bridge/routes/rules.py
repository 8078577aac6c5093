"""Rules about tool calls, from the contract's to ours.

The engine passes over a rule that it does not understand. One that is passed over may be a denial, so
here it is refused, whatever it was meant to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from nousd.bridge.replies import UNPROCESSABLE, HttpError
from nousd.bridge.routes.bodies import Given
from nousd.wire.session_settings import SessionRules

_DECISIONS: Final[dict[str, Literal["allow", "ask", "deny"]]] = {
    "allow": "allow",
    "always": "allow",
    "ask": "ask",
    "once": "ask",
    "deny": "deny",
    "reject": "deny",
}

_ANY: Final = (None, "", "*", "**")
"""Patterns that say nothing."""


class RuleGiven(Given, frozen=True, kw_only=True):
    """A rule about tool calls; ``action`` is allow or always, ask or once, deny or reject."""

    permission: str
    action: str
    pattern: str | None = None


def session_rules(given: Sequence[RuleGiven]) -> SessionRules:
    """Returns rules of ours.

    Raises:
        HttpError: an action is none.
    """
    told: dict[str, list[str]] = {"allow": [], "ask": [], "deny": []}
    for index, rule in enumerate(given):
        decision = _DECISIONS.get(rule.action.lower())
        if decision is None:
            words = f"body: permission[{index}].action must be one of {', '.join(_DECISIONS)}"
            raise HttpError(UNPROCESSABLE, words)
        told[decision].append(_text(rule))
    return SessionRules(**{decision: tuple(texts) for decision, texts in told.items()})


def _text(rule: RuleGiven) -> str:
    return rule.permission if rule.pattern in _ANY else f"{rule.permission}({rule.pattern})"
