"""Prompts: a run is started, and waited for or watched."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import anyio
import msgspec
from starlette.responses import Response

from nousd.bridge.replies import RUN_CONFLICT, TIMED_OUT, HttpError, empty_reply, json_reply
from nousd.bridge.routes.attachments import handed_in
from nousd.bridge.routes.bodies import ModelGiven
from nousd.bridge.routes.messages import SendMessage
from nousd.bridge.routes.transcripts import transcript
from nousd.bridge.streams import event_stream, pages, told
from nousd.bridge.table import Call, Row
from nousd.bridge.window import Wanted
from nousd.errors import Refused
from nousd.views.tandem.frames import FRAMES_MAX, Place
from nousd.views.tandem.messages import Message, reply
from nousd.views.tandem.runs import Conflict, Started, conflict, started
from nousd.views.tandem.values import or_none
from nousd.wire.commands import Prompt
from nousd.wire.entries import Sampling
from nousd.wire.limits import HTTP_PROMPT_SECONDS
from nousd.wire.optional import or_unset
from nousd.wire.responses import Accepted
from nousd.wire.run_options import ToolChoice

_TOOL_CHOICES: Final[dict[str | None, ToolChoice | None]] = {
    None: None,
    "auto": "auto",
    "none": "none",
    "required": "required",
}

_RUN_ID: Final = "x-tandem-run-id"


class PromptQuery(msgspec.Struct, frozen=True, rename={"wanted": "return"}):
    """``return=run`` asks for the run in the body of the answer."""

    wanted: Literal["run"] | None = None


class Reply(msgspec.Struct, frozen=True):
    """The text of the last answer, for clients that look for nothing else."""

    reply: str


class _Begun(NamedTuple):
    """A run that was asked for; ``place`` lies before all that is told of it."""

    session_id: str
    run_id: str
    place: Place
    is_repeated: bool


async def _begin(call: Call) -> _Begun:
    """Starts a run.

    Raises:
        HttpError: another one goes on, or the idempotency key was used for another body.
        Refused: it cannot be started.
    """
    session_id = call.path["id"]
    place = Place(call.window.head, FRAMES_MAX)
    try:
        accepted = await call.daemon.ask(await _prompt(call), Accepted)
    except Refused as refused:
        if refused.message == "run_in_progress":
            body = conflict(refused.details)
            raise HttpError(RUN_CONFLICT, body.error, body=body) from None
        if refused.message == "client_message_id_reused":
            words = "the idempotency key was used for another request"
            raise HttpError(RUN_CONFLICT._replace(retryable=False), words) from None
        raise
    run_id = or_none(accepted.run_id) or ""
    return _Begun(session_id, run_id, place, accepted.repeated is True)


async def _prompt(call: Call) -> Prompt:
    body: SendMessage = call.body
    handed = await handed_in(call.daemon, body.parts)
    key = call.header("idempotency-key") or call.header("x-tandem-idempotency-key")
    model = body.model or ModelGiven()
    tools = body.toolAllowlist if body.tool_allowlist is None else body.tool_allowlist
    return Prompt(
        text=handed.text,
        wait=False,
        session_id=call.path["id"],
        client_message_id=None if key is None else f"idempotency-key:{key}",
        attachments=handed.attachments,
        reuse_appended=True,
        strict_resend=True,
        client_id=call.header("x-tandem-client-id"),
        agent_id=call.header("x-tandem-agent-id"),
        agent_profile=body.agent or None,
        tools=None if tools is None else tuple(tools),
        model=_model(model),
        sampling=_sampling(body),
        tool_choice=_TOOL_CHOICES.get(body.tool_mode or body.toolMode),
    )


def _model(given: ModelGiven) -> str | None:
    if given.model is None or given.provider is None:
        return given.model
    return f"{given.provider}/{given.model}"


def _sampling(body: SendMessage) -> Sampling | None:
    if body.temperature is None and body.top_p is None and body.max_tokens is None:
        return None
    return Sampling(
        temperature=or_unset(body.temperature),
        top_p=or_unset(body.top_p),
        max_tokens=or_unset(body.max_tokens),
    )


async def _prompt_async(call: Call) -> Response:
    await call.services.presence.starts_run(call.path["id"])
    begun = await _begin(call)
    headers = {_RUN_ID: begun.run_id}
    if call.query.wanted is None and not begun.is_repeated:
        return empty_reply(204, headers)
    body = started(begun.session_id, begun.run_id, is_repeated=begun.is_repeated)
    return json_reply(body, 202, headers)


async def _prompt_sync(call: Call) -> Response:
    streams = "text/event-stream" in call.request.headers.get("accept", "")
    if streams:
        await call.services.presence.starts_run(call.path["id"])
    begun = await _begin(call)
    headers = {_RUN_ID: begun.run_id}
    wanted = Wanted(begun.session_id, begun.run_id)
    if streams:
        frames = told(call.services, wanted, begun.place, ends_with_run=True)
        return event_stream(frames, headers)
    with anyio.move_on_after(HTTP_PROMPT_SECONDS) as waiting:
        async for _ in pages(call.window, wanted, begun.place, ends_with_run=True):
            pass
    if waiting.cancelled_caught:
        raise HttpError(TIMED_OUT, "the run goes on, but is not waited for any longer")
    messages = await transcript(call.daemon, begun.session_id)
    answer = Reply(reply(messages)) if call.caller.takes_reply_object else messages
    return json_reply(answer, headers=headers)


_REFUSALS: Final = {409: Conflict}

ROWS: Final = (
    Row(
        method="POST",
        path="/session/{id}/prompt_async",
        handler=_prompt_async,
        summary="Starts a run; its id is in the header, or in the body with return=run.",
        sends=("prompt",),
        replies={204: None, 202: Started, **_REFUSALS},
        query=PromptQuery,
        body=SendMessage,
        aliases=("/api/session/{id}/prompt_async",),
    ),
    Row(
        method="POST",
        path="/session/{id}/prompt_sync",
        handler=_prompt_sync,
        summary="Starts a run; answers with all messages at its end, or with events as they come.",
        sends=("prompt", "get_messages"),
        replies={200: list[Message] | Reply, **_REFUSALS},
        body=SendMessage,
        streams=True,
        aliases=("/api/session/{id}/prompt_sync",),
    ),
)
