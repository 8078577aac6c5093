"""The statuses with which a route can refuse a request.

They follow from its row: those of every route, of routes with a token, a body or a name in the path, and
those of the commands that the route sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nousd.bridge.routing.route import Row

ANY: Final = frozenset({400, 403, 413, 431, 500, 503})
"""Wrong Host or Origin, too many bytes, a bug of ours, too many connections."""

WITH_TOKEN: Final = frozenset({401})
WITH_BODY: Final = frozenset({408, 415, 422})
WITH_COMMAND: Final = frozenset({504})
WITH_NAME: Final = frozenset({404})

BY_COMMAND: Final[Mapping[str, frozenset[int]]] = {
    "abort": frozenset({404, 409}),
    "answer_question": frozenset({409, 422}),
    "append_message": frozenset({404, 409}),
    "attach_session": frozenset({403, 404, 409}),
    "branch_session": frozenset({404, 409}),
    "compact_session": frozenset({404, 409, 502}),
    "confirm_tool": frozenset({404, 409}),
    "delete_session": frozenset({404, 409}),
    "get_capabilities": frozenset(),
    "get_events": frozenset(),
    "get_messages": frozenset({404}),
    "get_metrics": frozenset(),
    "get_session": frozenset({404}),
    "get_state": frozenset({404}),
    "get_todos": frozenset({404}),
    "get_tool_call": frozenset({404}),
    "list_models": frozenset(),
    "list_permissions": frozenset({404}),
    "list_questions": frozenset({404}),
    "list_sessions": frozenset(),
    "list_tools": frozenset({404}),
    "new_session": frozenset({403, 404, 409}),
    "override_workspace": frozenset({404, 409}),
    "prompt": frozenset({404, 409, 429}),
    "put_artifact": frozenset({409}),
    "reject_question": frozenset({409}),
    "subscribe": frozenset(),
    "update_session": frozenset({404, 409}),
}
"""command -> the statuses of its refusals."""


def refusals(row: Row) -> frozenset[int]:
    """Return the statuses with which a route can refuse a request."""
    ways = [ANY, *(BY_COMMAND[command] for command in row.sends)]
    if not row.is_public:
        ways.append(WITH_TOKEN)
    if row.sends:
        ways.append(WITH_COMMAND)
    if row.body is not None:
        ways.append(WITH_BODY)
    if "{" in row.path:
        ways.append(WITH_NAME)
    return frozenset().union(*ways)
