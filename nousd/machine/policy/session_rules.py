"""A session's own rules: those it was created with, and later changes by clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from nousd.machine.policy.rules import Rule, rules_in
from nousd.wire.limits import SESSION_RULES_CHARS_MAX, SESSION_RULES_MAX
from nousd.wire.objects.session_values import SessionRules

_ORIGIN: Final = "the session"


def own_rules(rules: SessionRules | None) -> tuple[Rule, ...]:
    """Return a session's own rules.

    Raises:
        RuleInvalid: a text is not a valid rule; the error names it.
    """
    if rules is None:
        return ()
    return rules_in(_ORIGIN, deny=rules.deny, ask=rules.ask, allow=rules.allow)


def has_room(rules: SessionRules) -> bool:
    """Return whether rules are within the limit of a session."""
    texts = (*rules.allow, *rules.ask, *rules.deny)
    return sum(map(len, texts)) <= SESSION_RULES_CHARS_MAX


def with_denial(rules: SessionRules | None, text: str) -> SessionRules | None:
    """Return a session's rules with another denial; None if that exceeds the limit."""
    so_far = SessionRules() if rules is None else rules
    if text in so_far.deny:
        return so_far
    more = msgspec.structs.replace(so_far, deny=(*so_far.deny, text))
    return more if len(more.deny) <= SESSION_RULES_MAX and has_room(more) else None


def merge_rules(layers: Iterable[SessionRules | None]) -> SessionRules | None:
    """Return the combined rules of several sessions; None if none has any."""
    present = [rules for rules in layers if rules is not None]
    if not present:
        return None
    return SessionRules(
        allow=tuple(text for rules in present for text in rules.allow),
        ask=tuple(text for rules in present for text in rules.ask),
        deny=tuple(text for rules in present for text in rules.deny),
    )
