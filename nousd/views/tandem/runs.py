"""Runs as the contract spells them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from msgspec import UnsetType

from nousd.views.tandem.frames import Frame

TENANT: Final = {"org_id": "local", "workspace_id": "local", "source": "local_implicit"}
"""Whose a session is; here always the one user's of this machine."""

RETRY_AFTER_MS: Final = 500
"""When a client that met a conflict may ask again."""


def attach_path(session_id: str, run_id: str) -> str:
    """Returns the path of the event stream of a run."""
    return f"/event?sessionID={quote(session_id, safe='')}&runID={quote(run_id, safe='')}"


def context_run_id(session_id: str) -> str:
    """Returns the id by which the contract links what belongs to a session's runs."""
    return f"session-{session_id}"


_CHANNELS: Final = {
    "session.error": "system",
    "provider.usage": "system",
    "message.part.updated": "assistant",
    "permission.asked": "tool",
    "permission.replied": "tool",
    "permission.wait.timeout": "tool",
    "question.asked": "tool",
    "question.replied": "tool",
    "todo.updated": "tool",
}
"""type of a frame -> the channel it is told on; any other is ``system``, a part of a tool ``tool``."""


def as_of_run(frame: Frame) -> Frame:
    """Returns a frame as a stream of one run has it: every frame says which session, run and channel."""
    given = frame.properties
    envelope = frame.envelope
    where: dict[str, Any] = {}
    if not isinstance(envelope, UnsetType):
        where = {"sessionID": envelope.session_id, "runID": envelope.run_id}
    told = {"tenantContext": TENANT, "agentID": None, "channel": _channel(frame)}
    return Frame(frame.type, {**where, **told, **given}, envelope)


def _channel(frame: Frame) -> str:
    part = frame.properties.get("part")
    if isinstance(part, dict) and part.get("type") == "tool":
        return "tool"
    return _CHANNELS.get(frame.type, "system")
