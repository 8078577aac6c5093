"""Checks of the permission settings."""

from __future__ import annotations

from collections.abc import Iterator

from nousd.admin.doctor.examination import Check, World
from nousd.errors import RuleInvalid
from nousd.machine.policy.rules import rules_in


def rules(world: World) -> Iterator[Check]:
    """Check that every rule is valid, and show the mode for calls that no rule decides."""
    settings = world.settings
    table = settings.permissions
    try:
        found = rules_in(
            f"file {settings.config_file}", deny=table.deny, ask=table.ask, allow=table.allow
        )
    except RuleInvalid as error:
        yield Check("rules", "failed", str(error), "a daemon does not start with this")
        return
    counts = ", ".join(
        f"{sum(rule.decision == decision for rule in found)} {decision}"
        for decision in ("deny", "ask", "allow")
    )
    yield Check("rules", "ok", f"{counts}; where none decides the mode {settings.permission_mode}")
