"""Prompts: start a run, and wait for its end or stream its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import anyio
import msgspec
from starlette.responses import Response

from nousd.bridge.replies import (
    BAD_REQUEST,
    RUN_CONFLICT,
    TIMED_OUT,
    UNPROCESSABLE,
    ErrorBody,
    HttpError,
    empty_reply,
    json_reply,
)
from nousd.bridge.routes.attachments import read_parts
from nousd.bridge.routes.bodies import ModelBody, PartBody
from nousd.bridge.routes.messages import SPELLS, SendMessage, require_not_handled
from nousd.bridge.routes.runs import reporting_conflict
from nousd.bridge.routes.transcripts import read_prompt_text, read_session
from nousd.bridge.routing.route import Call, Routes
from nousd.bridge.stream.rendered_event import StreamQuery
from nousd.bridge.stream.sse import answering_stream, stream_pages, stream_response
from nousd.errors import Refused
from nousd.views.stream_position import StreamPosition, position_after_event
from nousd.views.tandem.messages import Message, last_answer_text
from nousd.views.tandem.runs import Conflict, Started, render_started
from nousd.views.tandem.tools import ANY, list_allowed_tools
from nousd.views.tandem.values import or_none
from nousd.wire.commands import ListTools, Prompt
from nousd.wire.limits import HTTP_PROMPT_SECONDS, NAME_CHARS_MAX
from nousd.wire.responses import Accepted

routes: Final = Routes()

_REFUSALS: Final = {409: Conflict | ErrorBody}

_KEYS: Final = ("idempotency-key", "x-tandem-idempotency-key")
_KEY_PREFIX: Final = "idempotency-key:"
"""Separates the keys of HTTP clients from the ids that other clients choose."""

_KEY_CHARS_MAX: Final = NAME_CHARS_MAX - len(_KEY_PREFIX)

_RUN_ID: Final = "x-tandem-run-id"


class PromptQuery(msgspec.Struct, frozen=True, rename={"wanted": "return"}):
    """``return=run`` asks for the run in the body of the reply."""

    wanted: Literal["run"] | None = None


class PromptSyncQuery(msgspec.Struct, frozen=True):
    """``reply`` chooses an object with the last answer, or the array of all messages; without it, the
    client's User-Agent decides.
    """

    reply: Literal["object", "array"] | None = None


class Reply(msgspec.Struct, frozen=True):
    """The text of the last answer, for clients that need nothing else."""

    reply: str


class _StartedRun(NamedTuple):
    """A run that was requested; ``position`` precedes all of its frames."""

    session_id: str
    run_id: str
    position: StreamPosition
    is_repeated: bool


async def _start_run(call: Call) -> _StartedRun:
    """Start a run, unless one was started with the same idempotency key.

    Raises:
        HttpError: another run is active, or the key was used with another body.
        Refused: the run cannot be started.
    """
    position = position_after_event(call.hub.head)
    body: SendMessage = call.body
    runs_appended = all(part.is_blank for part in body.parts)
    parts = [await _read_appended_part(call)] if runs_appended else body.parts
    prompt = await _prompt(call, parts, require_appended=runs_appended)
    try:
        async with reporting_conflict(call):
            accepted = await call.daemon.ask(prompt, Accepted)
    except Refused as refused:
        if refused.message == "client_message_id_reused":
            message = "the idempotency key was used for another request"
            raise HttpError(RUN_CONFLICT._replace(retryable=False), message) from None
        if refused.message == "nothing_appended":
            raise _nothing_to_run() from None
        raise
    require_not_handled(accepted)
    run_id = or_none(accepted.run_id) or ""
    return _StartedRun(call.path["id"], run_id, position, accepted.repeated is True)


async def _read_appended_part(call: Call) -> PartBody:
    """Return the newest text of the user, for a prompt without a text.

    The text may already have an answer: a repeated prompt must have the same text as the first one. The
    daemon does not start another run for an answered text.
    """
    text = await read_prompt_text(call.daemon, call.path["id"])
    if text is None:
        raise _nothing_to_run()
    return PartBody(type="text", text=text)


def _nothing_to_run() -> HttpError:
    message = "body: parts has nothing new to run: send a text, or append a message first"
    return HttpError(UNPROCESSABLE, message)


async def _prompt(call: Call, parts: Iterable[PartBody], *, require_appended: bool) -> Prompt:
    body: SendMessage = call.body
    content = await read_parts(call.daemon, parts)
    model = body.model or ModelBody()
    return Prompt(
        **content._asdict(),
        wait=False,
        session_id=call.path["id"],
        client_message_id=_message_id(call),
        reuse_appended=True,
        require_appended=require_appended,
        strict_resend=True,
        client_id=call.client_name,
        agent_id=call.header("x-tandem-agent-id"),
        agent_profile=body.agent or None,
        correlation_id=call.header("x-tandem-correlation-id"),
        tools=await _tools(call),
        model=model.model,
        provider=model.provider,
        sampling=body.sampling,
        tool_choice=body.toolMode,
    )


async def _tools(call: Call) -> tuple[str, ...] | None:
    """Return the names of the tools that the run may use; None for all tools of its session."""
    body: SendMessage = call.body
    names = body.toolAllowlist
    if names is None or ANY not in "".join(names):
        return None if names is None else list_allowed_tools(names)
    page = await call.daemon.ask(ListTools(session_id=call.path["id"]))
    known = [tool.name for tool in page.tools]
    while page.has_more is True and page.tools:
        page = await call.daemon.ask(ListTools(session_id=call.path["id"], after=known[-1]))
        known += [tool.name for tool in page.tools]
    return list_allowed_tools(names, known)


def _message_id(call: Call) -> str | None:
    """Return the id by which the daemon recognises a repeated request; None without a key."""
    key = next((key for name in _KEYS if (key := call.header(name))), None)
    if key is None:
        return None
    if len(key) > _KEY_CHARS_MAX:
        message = f"Idempotency-Key is too long: at most {_KEY_CHARS_MAX} characters"
        raise HttpError(BAD_REQUEST, message)
    return f"{_KEY_PREFIX}{key}"


def _reply_with_run(started: _StartedRun) -> Response:
    """Return the reply that names the run, which is also the reply to a repeated request."""
    body = render_started(started.session_id, started.run_id, is_repeated=started.is_repeated)
    return json_reply(body, 202, {_RUN_ID: started.run_id})


@routes.post(
    "/session/{id}/prompt_async",
    sends=("get_messages", "put_artifact", "list_tools", "prompt"),
    replies={204: None, 202: Started, **_REFUSALS},
    query=PromptQuery,
    body=SendMessage,
    spells=SPELLS,
)
async def _prompt_async(call: Call) -> Response:
    """Start a run; its id is in a header, or in the body with return=run."""
    await call.services.responders.expect_reader(call.path["id"])
    started = await _start_run(call)
    if call.query.wanted is None and not started.is_repeated:
        return empty_reply(204, {_RUN_ID: started.run_id})
    return _reply_with_run(started)


@routes.post(
    "/session/{id}/prompt_sync",
    sends=("put_artifact", "list_tools", "prompt", "get_session", "get_messages", "get_events"),
    replies={200: list[Message] | Reply, 202: Started, **_REFUSALS},
    query=PromptSyncQuery,
    body=SendMessage,
    spells=SPELLS,
    streams=True,
)
async def _prompt_sync(call: Call) -> Response:
    """Start a run; reply with all messages or the last answer at its end, or with a stream of events."""
    streams = "text/event-stream" in call.request.headers.get("accept", "").lower()
    if streams:
        await call.services.responders.expect_reader(call.path["id"])
    started = await _start_run(call)
    if started.is_repeated:
        # The run may have ended long ago: the client attaches to its events instead.
        return _reply_with_run(started)
    headers = {_RUN_ID: started.run_id}
    query = StreamQuery(call.view, started.session_id, started.run_id)
    if streams:
        responders = call.services.responders
        # Skip events that the prompt caused before the run, such as a new title of the session.
        first = await call.hub.first_event(started.run_id)
        start = started.position if first is None else StreamPosition(first.seq, 0)
        frames = answering_stream(call.hub, responders, query, start, ends_with_run=True)
        return stream_response(frames, headers)
    with anyio.move_on_after(HTTP_PROMPT_SECONDS) as waiting:
        async for _ in stream_pages(call.hub, query, started.position, ends_with_run=True):
            pass
    if waiting.cancelled_caught:
        message = "the run goes on, but is not waited for any longer"
        raise HttpError(TIMED_OUT, message, headers=headers)
    _, messages = await read_session(call.daemon, started.session_id)
    shape = call.query.reply or ("object" if call.caller.takes_reply_object else "array")
    answer = Reply(last_answer_text(messages)) if shape == "object" else messages
    return json_reply(answer, headers=headers)
