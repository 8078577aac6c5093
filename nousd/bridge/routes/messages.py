"""Messages: append one without a run, and read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET
from starlette.responses import Response

from nousd.bridge.replies import UNPROCESSABLE, Failure, HttpError, json_reply
from nousd.bridge.routes.attachments import read_parts
from nousd.bridge.routes.bodies import ModelBody, PartBody, SamplingBody
from nousd.bridge.routes.transcripts import read_message, read_session
from nousd.bridge.routing.route import Call, Routes
from nousd.views.tandem.messages import Message
from nousd.wire.commands import AppendMessage, GetSession
from nousd.wire.objects.run_options import ToolChoice
from nousd.wire.responses import Accepted

routes: Final = Routes()

SPELLS: Final[Mapping[str, str]] = {
    "text": "parts",
    "text_ref": "parts",
    "attachments": "files",
    "tools": "toolAllowlist",
    "tool_choice": "toolMode",
    "sampling": "",
    "agent_profile": "agent",
    "client_id": "x-tandem-client-id",
    "agent_id": "x-tandem-agent-id",
    "correlation_id": "x-tandem-correlation-id",
}
"""field of a command -> its name in the HTTP contract; ``files`` means the parts of type ``file``."""

_HANDLED: Final = Failure(409, "HANDLED_BY_EXTENSION")


class SendMessage(SamplingBody, frozen=True, kw_only=True):
    """A message, and for a prompt the settings of its run. ``toolAllowlist`` names the only tools of the
    run; each must exist.

    ``contextMode``, ``writeRequired``, ``prewriteRequirements`` and ``strictKbGrounding`` are for the
    engine's own planner; they are accepted and ignored.
    """

    parts: list[PartBody] = []  # noqa: RUF012  msgspec copies it
    model: ModelBody | None = None
    agent: str | None = None
    toolMode: ToolChoice | None = None  # noqa: N815
    toolAllowlist: list[str] | None = None  # noqa: N815
    contextMode: Literal["auto", "compact", "full"] | None = None  # noqa: N815
    writeRequired: bool | None = None  # noqa: N815
    prewriteRequirements: Any = None  # noqa: N815
    strictKbGrounding: bool | None = None  # noqa: N815


def require_not_handled(accepted: Accepted) -> None:
    """Raise HttpError if an extension handled the text, so that there is neither message nor run."""
    if accepted.handled_by is UNSET:
        return
    reply = f": {accepted.reply}" if accepted.reply else ""
    raise HttpError(_HANDLED, f"the extension {accepted.handled_by} dealt with the text{reply}")


@routes.post(
    "/session/{id}/message",
    sends=("put_artifact", "append_message", "get_session", "get_messages"),
    replies={200: Message},
    body=SendMessage,
    spells=SPELLS,
)
async def _append(call: Call) -> Response:
    """Append a message of the user without starting a run; an active run is not affected."""
    session_id = call.path["id"]
    body: SendMessage = call.body
    if all(part.is_blank for part in body.parts):
        await call.daemon.ask(GetSession(session_id=session_id))
        raise HttpError(UNPROCESSABLE, "body: parts is required")
    content = await read_parts(call.daemon, body.parts)
    accepted = await call.daemon.ask(
        AppendMessage(
            session_id=session_id,
            client_id=call.client_name,
            **content._asdict(),
        )
    )
    require_not_handled(accepted)
    return json_reply(await read_message(call.daemon, session_id, accepted.entry_id or ""))


@routes.get(
    "/session/{id}/message",
    sends=("get_session", "get_messages", "get_events"),
    replies={200: list[Message]},
)
async def _messages(call: Call) -> Response:
    """Read the messages of a session."""
    _, messages = await read_session(call.daemon, call.path["id"])
    return json_reply(messages)
