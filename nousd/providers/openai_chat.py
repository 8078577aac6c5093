"""ModelInput -> the body of a Chat Completions request. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nousd.machine.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.request_body import json_text
from nousd.providers.tool_names import CallIds, ToolNames


def chat_body(request: ModelInput) -> dict[str, Any]:
    """Returns the body of the streaming request; equal inputs give equal bodies."""
    names = ToolNames(request.tools)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": list(_messages(request, names)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
    return body


def _tool(tool: ToolSpec, names: ToolNames) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": names.told(tool.name),
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def _messages(request: ModelInput, names: ToolNames) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": request.system}
    ids = CallIds()
    for message in request.messages:
        yield _message(message, ids, names)


def _message(message: ModelMessage, ids: CallIds, names: ToolNames) -> dict[str, Any]:
    match message:
        case UserMessage(text=text):
            return {"role": "user", "content": text}
        case ToolResultMessage(tool_call_id=id, text=text):
            return {"role": "tool", "tool_call_id": ids.of_result(id), "content": text}
        case AssistantMessage(text=text, tool_calls=()):
            return {"role": "assistant", "content": text}
        case AssistantMessage(text=text, tool_calls=calls):
            return {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [_tool_call(call, ids, names) for call in calls],
            }


def _tool_call(call: ModelToolCall, ids: CallIds, names: ToolNames) -> dict[str, Any]:
    return {
        "id": ids.of_call(call.id),
        "type": "function",
        "function": {"name": names.told(call.name), "arguments": json_text(call.args)},
    }
