"""Sessions."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from nousd.bridge.replies import empty_reply, json_reply
from nousd.bridge.table import Call, Row
from nousd.wire.commands import NewSession, Prompt
from nousd.wire.responses import Accepted, SessionSelected


class CreateSession(msgspec.Struct, frozen=True):
    """All is optional."""

    title: str | None = None


class PromptBody(msgspec.Struct, frozen=True):
    """What to do."""

    parts: list[dict[str, Any]] = []


async def _create(call: Call) -> Response:
    answer = await call.daemon.ask(NewSession(name=call.body.title), SessionSelected)
    return json_reply({"id": answer.session_id})


async def _prompt_async(call: Call) -> Response:
    text = "\n".join(part["text"] for part in call.body.parts)
    answer = await call.daemon.ask(
        Prompt(text=text, wait=False, session_id=call.path["id"]), Accepted
    )
    return empty_reply(204, {"x-tandem-run-id": str(answer.run_id)})


ROWS: Final = (
    Row(
        "POST",
        "/session",
        _create,
        "Makes a session.",
        ("new_session",),
        {200: dict},
        body=CreateSession,
        is_body_optional=True,
    ),
    Row(
        "POST",
        "/session/{id}/prompt_async",
        _prompt_async,
        "Starts a run.",
        ("prompt",),
        {204: None},
        body=PromptBody,
    ),
)
