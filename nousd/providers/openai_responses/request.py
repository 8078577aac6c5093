"""Converts a ModelInput into the body of a Responses request. Pure.

The server stores nothing: every request carries the whole conversation, with each encrypted reasoning
item in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.encoding.attachments import data_url, inline_text, kind_of, name_of
from nousd.providers.encoding.conversations import Before, Conversations
from nousd.providers.encoding.request_body import json_text
from nousd.providers.encoding.sampling import openai_fields
from nousd.providers.encoding.tool_names import CallIds, ToolNames
from nousd.providers.interface import Blobs
from nousd.providers.models.effort import effort_for, reasons
from nousd.wire.objects.entries import Attachment, Thinking

DIALECT: Final = "openai-responses"

_LIMIT: Final = "max_output_tokens"
_OUTPUT_TOKENS_MIN: Final = 16
"""Minimum of the answer's token limit; OpenAI refuses less."""

_NO_PLACE: Final[Mapping[str, Any]] = MappingProxyType({})


def responses_body(
    request: ModelInput, blobs: Blobs, conversations: Conversations | None = None
) -> dict[str, Any]:
    """Return the body of the streaming request; equal inputs give equal bodies."""
    names = ToolNames(request.tools)
    write = partial(_write_messages, names, blobs)
    body: dict[str, Any] = {
        "model": request.model,
        "input": (conversations or Conversations()).items(request.messages, names.key, write),
        "stream": True,
        "store": False,
    }
    if request.system:
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    body |= openai_fields(request, _LIMIT)
    if _LIMIT in body:
        body[_LIMIT] = max(body[_LIMIT], _OUTPUT_TOKENS_MIN)
    if reasons(request.model):
        body["include"] = ["reasoning.encrypted_content"]
        if request.thinking is not None:
            body["reasoning"] = _reasoning(request.model, request.thinking)
    return body


def _reasoning(model: str, thinking: Thinking) -> dict[str, Any]:
    effort = {"effort": effort_for(model, thinking)}
    return effort if thinking == "off" else {**effort, "summary": "auto"}


def _tool(tool: ToolSpec, names: ToolNames) -> dict[str, Any]:
    return {
        "type": "function",
        "name": names.to_alias(tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _write_messages(
    names: ToolNames, blobs: Blobs, messages: Sequence[ModelMessage], before: Before
) -> Iterator[tuple[int, dict[str, Any]]]:
    ids = CallIds(before.calls)
    for index, message in enumerate(messages):
        match message:
            case UserMessage():
                content = _content(message, blobs)
                yield index, {"type": "message", "role": "user", "content": content}
            case AssistantMessage():
                for item in _answer(message, ids, names):
                    yield index, item
            case ToolResultMessage(tool_call_id=id, text=text):
                output = {"call_id": ids.of_result(id), "output": text}
                yield index, {"type": "function_call_output", **output}


def _content(message: UserMessage, blobs: Blobs) -> list[dict[str, Any]]:
    parts = [_attachment(attachment, blobs) for attachment in message.attachments]
    if message.text or not parts:
        parts.append({"type": "input_text", "text": message.text})
    return parts


def _attachment(attachment: Attachment, blobs: Blobs) -> dict[str, Any]:
    match kind_of(attachment.media_type):
        case "image":
            url = data_url(attachment, blobs)
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case "pdf":
            return {
                "type": "input_file",
                "filename": name_of(attachment),
                "file_data": data_url(attachment, blobs),
            }
        case _:
            return {"type": "input_text", "text": inline_text(attachment, blobs)}


def _answer(message: AssistantMessage, ids: CallIds, names: ToolNames) -> Iterator[dict[str, Any]]:
    """Yield the items of an answer in their original order, as far as it was stored.

    Reasoning with no item after it is left out, because servers refuse it.
    """
    text = message.text
    calls = iter(message.tool_calls)
    reasoning: list[dict[str, Any]] = []
    for place in (block.data for block in message.reasoning if block.dialect == DIALECT):
        item = None
        match place:
            case {"type": "reasoning"}:
                reasoning.append(place)
            case {"type": "message", "text_chars": int(chars)} if text[:chars]:
                item = _message(text[:chars], place)
                text = text[chars:]
            case {"type": "function_call"} if call := next(calls, None):
                item = _call(call, ids, names)
        if item is not None:
            yield from reasoning
            yield item
            reasoning = []
    rest = [_message(text)] if text else []
    rest += [_call(call, ids, names) for call in calls]
    if rest:
        yield from reasoning
        yield from rest


def _message(text: str, place: Mapping[str, Any] = _NO_PLACE) -> dict[str, Any]:
    message: dict[str, Any] = {"type": "message", "role": "assistant", "content": text}
    if place.get("id"):
        part = {"type": "output_text", "text": text, "annotations": []}
        message |= {"id": place["id"], "status": "completed", "content": [part]}
    return message | ({"phase": place["phase"]} if place.get("phase") else {})


def _call(call: ModelToolCall, ids: CallIds, names: ToolNames) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": ids.of_call(call.id),
        "name": names.to_alias(call.name),
        "arguments": json_text(call.args),
    }
