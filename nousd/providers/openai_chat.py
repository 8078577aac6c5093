"""ModelInput -> the body of a Chat Completions request. Pure.

Two things are renamed on the way, because servers refuse what their patterns do not match. Ids of
calls become ``call00001``, ``call00002``... by position: nine letters and digits, which the strictest
server asks for, and the same on every later request, so that prompt caches keep working. Names of
tools keep letters, digits, ``_`` and ``-``; ``openai_stream`` is given the way back.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from nousd.machine.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.wire.codec import scrub

_TOOL_NAME_CHARS_MAX: Final = 64
_NOT_IN_TOOL_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def encode_chat(request: ModelInput) -> bytes:
    """Returns the JSON body of the streaming request; lone surrogates become U+FFFD."""
    body = chat_body(request)
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return scrub(json.dumps(body, ensure_ascii=False)).encode()


def chat_body(request: ModelInput) -> dict[str, Any]:
    """Returns the body as a dict; equal inputs give equal bodies."""
    aliases = tool_aliases(request.tools)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": list(_messages(request, aliases)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool, aliases[tool.name]) for tool in request.tools]
    return body


def tool_aliases(tools: Iterable[ToolSpec]) -> dict[str, str]:
    """Returns name -> the name the server is told; no two are equal, fitting names stay as they are."""
    names = [tool.name for tool in tools]
    aliases = {name: name for name in names if _plain_name(name) == name}
    taken = set(aliases)
    for name in names:
        if name not in aliases:
            aliases[name] = _free_name(_plain_name(name), taken)
            taken.add(aliases[name])
    return aliases


def _free_name(plain: str, taken: set[str]) -> str:
    name = plain
    for count in itertools.count(2):
        if name not in taken:
            break
        suffix = f"_{count}"
        name = plain[: _TOOL_NAME_CHARS_MAX - len(suffix)] + suffix
    return name


def _plain_name(name: str) -> str:
    return _NOT_IN_TOOL_NAMES.sub("_", name)[:_TOOL_NAME_CHARS_MAX] or "_"


def _tool(tool: ToolSpec, alias: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": alias,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def _messages(request: ModelInput, aliases: dict[str, str]) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": request.system}
    ids = _CallIds()
    for message in request.messages:
        yield _message(message, ids, aliases)


def _message(message: ModelMessage, ids: _CallIds, aliases: dict[str, str]) -> dict[str, Any]:
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
                "tool_calls": [_tool_call(call, ids, aliases) for call in calls],
            }


def _tool_call(call: ModelToolCall, ids: _CallIds, aliases: dict[str, str]) -> dict[str, Any]:
    return {
        "id": ids.of_call(call.id),
        "type": "function",
        "function": {
            "name": aliases.get(call.name) or _plain_name(call.name),
            "arguments": _json_text(call.args),
        },
    }


def _json_text(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False)


class _CallIds:
    """Numbers calls by position; a result gets the number of the last call with its id."""

    def __init__(self) -> None:
        self._numbered: dict[str, str] = {}
        self._count = 0

    def of_call(self, id: str) -> str:
        self._count += 1
        numbered = self._numbered[id] = f"call{self._count:05d}"
        return numbered

    def of_result(self, id: str) -> str:
        return self._numbered.get(id, id)
