"""Version 8: tools and modes are settings of the daemon, and of a session only where a command set them.

Earlier versions copied them into each new session, and used the last value set in any session for the
next one. After this upgrade, a session has the values set by its own ``session_updated`` events, and the
daemon has those set by events without a session. So the rows equal a fold over the events.
"""

from __future__ import annotations

from typing import Final

SHARED: Final = ("steering_mode", "follow_up_mode", "active_tools")


def _forget_copies(name: str) -> str:
    return f"""
        UPDATE sessions SET settings = json_remove(settings, '$.{name}')
        WHERE NOT deleted AND settings ->> '$.{name}' IS NOT NULL AND session_id NOT IN (
            SELECT session_id FROM events WHERE type = 'session_updated'
            AND json_extract(CAST(line AS TEXT), '$.payload.{name}') IS NOT NULL
        )
    """  # noqa: S608  the names are constants


def _keep_common_value(name: str) -> str:
    return f"""
        UPDATE log_state SET defaults = json_patch(json_remove(defaults, '$.{name}'), coalesce((
            SELECT json_object('{name}', json_extract(CAST(line AS TEXT), '$.payload.{name}'))
            FROM events
            WHERE type = 'session_updated' AND session_id = ''
            AND json_extract(CAST(line AS TEXT), '$.payload.{name}') IS NOT NULL
            ORDER BY seq DESC LIMIT 1
        ), '{{}}'))
    """  # noqa: S608


STATEMENTS: Final = (
    *(_forget_copies(name) for name in SHARED),
    *(_keep_common_value(name) for name in SHARED),
)
