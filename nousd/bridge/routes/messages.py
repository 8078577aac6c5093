"""Messages: appended without a run, and read."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from nousd.bridge.replies import json_reply
from nousd.bridge.routes.attachments import handed_in
from nousd.bridge.routes.bodies import Given, ModelGiven, PartGiven
from nousd.bridge.routes.transcripts import transcript
from nousd.bridge.table import Call, Row
from nousd.views.tandem.messages import Message
from nousd.wire.commands import AppendMessage, GetSession, UpdateSession

_TITLE_CHARS: Final = 60


class SendMessage(Given, frozen=True, kw_only=True):
    """A message, and for a prompt what holds for its run alone.

    ``contextMode``, ``writeRequired``, ``prewriteRequirements`` and ``strictKbGrounding`` are of the
    engine's own planner; they are taken and mean nothing here.
    """

    parts: list[PartGiven] = []  # noqa: RUF012  msgspec copies it
    model: ModelGiven | None = None
    agent: str | None = None
    toolMode: str | None = None  # noqa: N815
    tool_mode: str | None = None
    toolAllowlist: list[str] | None = None  # noqa: N815
    tool_allowlist: list[str] | None = None
    contextMode: Any = None  # noqa: N815
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None


async def _append(call: Call) -> Response:
    session_id = call.path["id"]
    body: SendMessage = call.body
    handed = await handed_in(call.daemon, body.parts)
    accepted = await call.daemon.ask(
        AppendMessage(session_id=session_id, text=handed.text, attachments=handed.attachments)
    )
    await _name_session(call, handed.text)
    told = await transcript(call.daemon, session_id)
    return json_reply(next(message for message in told if message.info.id == accepted.entry_id))


async def _name_session(call: Call, text: str) -> None:
    """Calls a session that has no name after what is first said in it."""
    record = (await call.daemon.ask(GetSession(session_id=call.path["id"]))).session
    title = " ".join(text.split())[:_TITLE_CHARS]
    if not record.name and title:
        await call.daemon.ask(UpdateSession(session_id=record.session_id, name=title))


async def _messages(call: Call) -> Response:
    return json_reply(await transcript(call.daemon, call.path["id"]))


ROWS: Final = (
    Row(
        method="POST",
        path="/session/{id}/message",
        handler=_append,
        summary="Stores a message of the user; no run is started, and one that goes on does not mind.",
        sends=("append_message", "get_session", "update_session", "get_messages"),
        replies={200: Message},
        body=SendMessage,
        aliases=("/api/session/{id}/message",),
    ),
    Row(
        method="GET",
        path="/session/{id}/message",
        handler=_messages,
        summary="Reads the messages of a session.",
        sends=("get_messages",),
        replies={200: list[Message]},
        aliases=("/api/session/{id}/message",),
    ),
)
