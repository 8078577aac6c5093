"""Converts a ModelInput into the body of a Chat Completions request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from nousd.machine.context.model_input import (
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
from nousd.providers.encoding.sampling import chat_limit, openai_fields
from nousd.providers.encoding.tool_names import CallIds, ToolNames
from nousd.providers.interface import NO_BLOBS, Blobs
from nousd.providers.models.effort import effort_for, reasons
from nousd.wire.objects.entries import Attachment


def chat_body(
    request: ModelInput, blobs: Blobs = NO_BLOBS, conversations: Conversations | None = None
) -> dict[str, Any]:
    """Return the body of the streaming request; equal inputs give equal bodies."""
    names = ToolNames(request.tools)
    write = partial(_write_messages, names, blobs)
    system = [{"role": "system", "content": request.system}] if request.system else []
    messages = (conversations or Conversations()).items(request.messages, names.key, write)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [*system, *messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **openai_fields(request, chat_limit(request.model)),
    }
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.thinking is not None and reasons(request.model):
        body["reasoning_effort"] = effort_for(request.model, request.thinking)
    return body


def _tool(tool: ToolSpec, names: ToolNames) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": names.to_alias(tool.name),
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def _write_messages(
    names: ToolNames, blobs: Blobs, messages: Sequence[ModelMessage], before: Before
) -> Iterator[tuple[int, dict[str, Any]]]:
    ids = CallIds(before.calls)
    for index, message in enumerate(messages):
        yield index, _message(message, ids, names, blobs)


def _message(message: ModelMessage, ids: CallIds, names: ToolNames, blobs: Blobs) -> dict[str, Any]:
    # Compares the exact type: a failing ``isinstance`` takes ten times as long for a struct.
    if type(message) is UserMessage:
        return {"role": "user", "content": _content(message, blobs)}
    if type(message) is ToolResultMessage:
        id = ids.of_result(message.tool_call_id)
        return {"role": "tool", "tool_call_id": id, "content": message.text}
    if not message.tool_calls:
        return {"role": "assistant", "content": message.text}
    return {
        "role": "assistant",
        "content": message.text or None,
        "tool_calls": [_tool_call(call, ids, names) for call in message.tool_calls],
    }


def _content(message: UserMessage, blobs: Blobs) -> str | list[dict[str, Any]]:
    text = message.text
    if not message.attachments:
        return text
    files = [_file(attachment, blobs) for attachment in message.attachments]
    return [*files, *([_text(text)] if text else [])]


def _tool_call(call: ModelToolCall, ids: CallIds, names: ToolNames) -> dict[str, Any]:
    return {
        "id": ids.of_call(call.id),
        "type": "function",
        "function": {"name": names.to_alias(call.name), "arguments": json_text(call.args)},
    }


def _file(attachment: Attachment, blobs: Blobs) -> dict[str, Any]:
    match kind_of(attachment.media_type):
        case "text":
            return _text(inline_text(attachment, blobs))
        case "pdf":
            file = {"filename": name_of(attachment), "file_data": data_url(attachment, blobs)}
            return {"type": "file", "file": file}
        case _:
            return {"type": "image_url", "image_url": {"url": data_url(attachment, blobs)}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
