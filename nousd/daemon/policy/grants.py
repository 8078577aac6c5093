"""Rules that the user grants while the daemon runs, and denials in one session.

They are stored in ``session_updated`` events: a session's own grants under its id, permanent grants by
workspace under the ``session_id`` "". A denial is added to the session's own rules.
``machine.policy.rules`` defines the meaning of rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.errors import CommandRejected
from nousd.machine.policy.session_rules import with_denial
from nousd.machine.session.settings import DefaultSettings
from nousd.wire.limits import GRANTED_RULES_MAX, SESSION_RULES_MAX


def grant(sessions: Sessions, live: LiveSession, rule: str) -> CommitHandle | None:
    """Grant a rule to a session; return None if it is already granted there.

    Raises:
        CommandRejected: ``too_many_rules``.
    """
    granted = live.state.granted
    if rule in granted:
        return None
    _require_room(len(granted))
    return sessions.update(live, granted=(*granted, rule))


def grant_in(sessions: Sessions, workspace: str, rule: str) -> CommitHandle | None:
    """Grant a rule in a workspace permanently; return None if it is already granted there.

    Raises:
        CommandRejected: ``too_many_rules``; the rules of all workspaces count.
    """
    defaults = sessions.defaults
    if rule in list_permanent_grants(defaults, workspace):
        return None
    _require_room(len(defaults.granted) + sum(map(len, defaults.granted_in.values())))
    granted = defaults.granted_in.get(workspace, ())
    return sessions.update(None, granted_in={**defaults.granted_in, workspace: (*granted, rule)})


def list_permanent_grants(defaults: DefaultSettings, workspace: str) -> tuple[str, ...]:
    """Return the rules that were granted with ``always`` and apply in a workspace."""
    return (*defaults.granted, *defaults.granted_in.get(workspace, ()))


def _require_room(count: int) -> None:
    if count >= GRANTED_RULES_MAX:
        raise CommandRejected("too_many_rules", details={"limit": GRANTED_RULES_MAX})


def forbid(sessions: Sessions, live: LiveSession, rule: str) -> CommitHandle | None:
    """Add a denial to a session; return None if the session already has it.

    Raises:
        CommandRejected: ``too_many_rules``.
    """
    rules = with_denial(live.state.rules, rule)
    if rules is None:
        raise CommandRejected("too_many_rules", details={"limit": SESSION_RULES_MAX})
    return None if rules == live.state.rules else sessions.update(live, rules=rules)


def revoke(sessions: Sessions, live: LiveSession | None, rule: str) -> CommitHandle:
    """Revoke a rule that was granted to a session; without a session, a permanent grant in every
    workspace.

    Raises:
        CommandRejected: ``rule_not_granted``.
    """
    if live is not None:
        if rule not in live.state.granted:
            raise CommandRejected("rule_not_granted")
        return sessions.update(live, granted=_without(rule, live.state.granted))
    defaults = sessions.defaults
    if not any(rule in rules for rules in (defaults.granted, *defaults.granted_in.values())):
        raise CommandRejected("rule_not_granted")
    remaining = {place: _without(rule, rules) for place, rules in defaults.granted_in.items()}
    return sessions.update(
        None,
        granted=_without(rule, defaults.granted),
        granted_in={place: rules for place, rules in remaining.items() if rules},
    )


def _without(rule: str, rules: Sequence[str]) -> tuple[str, ...]:
    return tuple(other for other in rules if other != rule)
