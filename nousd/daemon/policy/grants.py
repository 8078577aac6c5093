"""Rules that the user grants while the daemon runs, and denials in one session.

They are stored in ``session_updated`` events: a session's own under its id, those of every session
under the ``session_id`` "". A denial is one of the session's own rules and changes like those.
``machine.rules`` defines what a rule means.
"""

from __future__ import annotations

from collections.abc import Sequence

from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.errors import CommandRejected
from nousd.machine.policy.session_rules import with_denial
from nousd.wire.limits import GRANTED_RULES_MAX, SESSION_RULES_MAX


def grant(sessions: Sessions, live: LiveSession | None, rule: str) -> CommitHandle | None:
    """Grant a rule to a session, or to all; None if it is granted there already.

    Raises:
        CommandRejected: ``too_many_rules``.
    """
    so_far = granted(sessions, live)
    if rule in so_far:
        return None
    if len(so_far) >= GRANTED_RULES_MAX:
        raise CommandRejected("too_many_rules", details={"limit": GRANTED_RULES_MAX})
    return sessions.update(live, granted=(*so_far, rule))


def forbid(sessions: Sessions, live: LiveSession, rule: str) -> CommitHandle | None:
    """Add a denial to a session; None if it has it already.

    Raises:
        CommandRejected: ``too_many_rules``.
    """
    rules = with_denial(live.state.rules, rule)
    if rules is None:
        raise CommandRejected("too_many_rules", details={"limit": SESSION_RULES_MAX})
    return None if rules == live.state.rules else sessions.update(live, rules=rules)


def revoke(sessions: Sessions, live: LiveSession | None, rule: str) -> CommitHandle:
    """Revoke a granted rule.

    Raises:
        CommandRejected: ``rule_not_granted``.
    """
    so_far = granted(sessions, live)
    if rule not in so_far:
        raise CommandRejected("rule_not_granted")
    return sessions.update(live, granted=tuple(other for other in so_far if other != rule))


def granted(sessions: Sessions, live: LiveSession | None) -> Sequence[str]:
    """Return the rules that were granted to a session, or to every one."""
    return sessions.defaults.granted if live is None else live.state.granted
