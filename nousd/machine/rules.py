"""Rules by which a user or a project allows, asks about or denies tool calls.

A rule is ``TOOL`` or ``TOOL(PATTERN)``. Source: protocol/v1.md, "Permissions".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from nousd.wire.access import Access

RuleDecision = Literal["allow", "ask", "deny"]

_STRICTEST_FIRST: Final[tuple[RuleDecision, ...]] = ("deny", "ask", "allow")


class Rule(NamedTuple):
    """A rule, and who said it, for people."""

    decision: RuleDecision
    text: str
    origin: str

    @property
    def tool(self) -> str:
        """The tools that it is about, with ``*`` for any characters."""
        return self.text.partition("(")[0]

    @property
    def pattern(self) -> str | None:
        """What the call must be like; None if any is meant."""
        _, bracket, rest = self.text.partition("(")
        return rest.removesuffix(")") if bracket else None


def rules_of(decision: RuleDecision, texts: Iterable[str], origin: str) -> tuple[Rule, ...]:
    """Returns the rules of one list."""
    return tuple(Rule(decision, text, origin) for text in texts)


def decisive(rules: Sequence[Rule], tool: str, access: Access) -> Rule | None:
    """Returns the rule that decides on a call: a denial before a question before a permission."""
    for decision in _STRICTEST_FIRST:
        for rule in rules:
            if rule.decision == decision and _applies(rule, tool, access):
                return rule
    return None


def _applies(rule: Rule, tool: str, access: Access) -> bool:
    if not fnmatchcase(tool, rule.tool):
        return False
    pattern = rule.pattern
    if pattern is None:
        return True
    if pattern.startswith("#"):
        return access.definition is not None and pattern == f"#{access.definition}"
    return any(fnmatchcase(path, pattern) for path in (*access.paths, *access.hosts)) or (
        access.command is not None and pattern == f"={access.command}"
    )
