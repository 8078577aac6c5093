"""Converts a ModelInput into the body of a ``generateContent`` request. Pure.

A conversation is a list of contents with the roles ``user`` and ``model``, each a list of parts.
Neighbouring messages of one role are parts of one content, except that the results of calls have a
separate content directly after the calls: the server counts them there, and older models match results
and calls only by their order.

The model signs parts of its answers, and each signature must return on the same part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, Literal

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.encoding.attachments import base64_of, inline_text, kind_of
from nousd.providers.encoding.conversations import Before, Conversations
from nousd.providers.encoding.sampling import rename_parameters
from nousd.providers.encoding.tool_names import ToolNames
from nousd.providers.interface import Blobs
from nousd.providers.models.names import row_of
from nousd.wire.objects.entries import Attachment, Thinking
from nousd.wire.objects.run_options import ToolChoice

DIALECT: Final = "gemini"

Part = dict[str, Any]

THINKING_BUDGETS: Final[dict[Thinking, int]] = {
    "off": 0,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
}
"""Tokens per effort, as Google maps the same words in its OpenAI-compatible API."""

_PRO_BUDGET_MIN: Final = 128

ThinkingForm = Literal["none", "budget", "level"]

THINKING_FORMS: Final[dict[str, ThinkingForm]] = {
    "gemini-1": "none",
    "gemini-2.0": "none",
    "gemini-2.5": "budget",
    "gemma": "none",
    "learnlm": "none",
}
"""Prefix of a model's name -> the form of its thinking setting. All later models take a level and
require signed calls."""

_NOT_SIGNED: Final = "skip_thought_signature_validator"
"""Google's placeholder signature for a call that another model wrote."""

_ROLES: Final[dict[type, str]] = {
    UserMessage: "user",
    AssistantMessage: "model",
    ToolResultMessage: "user",
}


def contents_body(
    request: ModelInput, blobs: Blobs, conversations: Conversations | None = None
) -> dict[str, Any]:
    """Return the body of the request; equal inputs give equal bodies."""
    names = ToolNames(request.tools)
    needs_signatures = _thinking_form(request.model) == "level"
    write = partial(_write_messages, _PartWriter(names, blobs, needs_signatures=needs_signatures))
    contents = (conversations or Conversations()).items(
        request.messages, (names.key, needs_signatures), write
    )
    body: dict[str, Any] = {"contents": contents}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_tool(tool, names) for tool in request.tools]}]
    if request.tool_choice is not None:
        mode = _CALLING_MODES[request.tool_choice]
        body["toolConfig"] = {"functionCallingConfig": {"mode": mode}}
    config = rename_parameters(request.sampling, _SAMPLING)
    if request.thinking is not None and (thinking := _thinking(request.model, request.thinking)):
        config["thinkingConfig"] = thinking
    if config:
        body["generationConfig"] = config
    return body


_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
}


_CALLING_MODES: Final[dict[ToolChoice, str]] = {
    "auto": "AUTO",
    "none": "NONE",
    "required": "ANY",
}


def _thinking_form(model: str) -> ThinkingForm:
    return row_of(THINKING_FORMS, model, otherwise="level")


def _thinking(model: str, thinking: Thinking) -> dict[str, Any] | None:
    """Return the thinking setting in the form that the model accepts; None if it accepts none."""
    is_off, is_pro = thinking == "off", "pro" in model
    match _thinking_form(model):
        case "none":
            return None
        case "budget":
            budget_min = _PRO_BUDGET_MIN if is_pro else 0
            amount: dict[str, Any] = {"thinkingBudget": max(THINKING_BUDGETS[thinking], budget_min)}
        case "level":
            amount = {"thinkingLevel": ("low" if is_pro else "minimal") if is_off else thinking}
    return {"includeThoughts": not is_off, **amount}


def _tool(tool: ToolSpec, names: ToolNames) -> dict[str, Any]:
    return {
        "name": names.to_alias(tool.name),
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    }


def _write_messages(
    writer: _PartWriter, messages: Sequence[ModelMessage], _before: Before
) -> Iterator[tuple[int, dict[str, Any]]]:
    index = 0
    for kind, neighbours in groupby(messages, type):
        group = list(neighbours)
        parts = [part for message in group for part in writer.parts_of(message)]
        if parts:
            yield index, {"role": _ROLES[kind], "parts": parts}
        index += len(group)


class _PartWriter:
    """Writes the parts of one conversation.

    Args:
        needs_signatures: whether the model refuses calls without a signature.
    """

    def __init__(self, names: ToolNames, blobs: Blobs, *, needs_signatures: bool) -> None:
        self._names = names
        self._blobs = blobs
        self._needs_signatures = needs_signatures
        self._server_ids: dict[str, str] = {}

    def parts_of(self, message: ModelMessage) -> list[Part]:
        """Return the parts of a message; empty for an answer without content."""
        match message:
            case UserMessage():
                return self._user_parts(message)
            case AssistantMessage():
                parts = list(self._model_parts(message))
                return _with_first_call_signed(parts) if self._needs_signatures else parts
            case ToolResultMessage():
                return [self._result(message)]

    def _user_parts(self, message: UserMessage) -> list[Part]:
        parts = [self._attachment(attachment) for attachment in message.attachments]
        # Neither an empty part nor a content without parts is allowed.
        if message.text or not parts:
            parts.append({"text": message.text or " "})
        return parts

    def _attachment(self, attachment: Attachment) -> Part:
        if kind_of(attachment.media_type) == "text":
            return {"text": inline_text(attachment, self._blobs)}
        data = base64_of(attachment, self._blobs)
        return {"inlineData": {"mimeType": attachment.media_type, "data": data}}

    def _model_parts(self, message: AssistantMessage) -> Iterator[Part]:
        """Yield the parts in their original order and with their signatures, as far as these were
        stored.
        """
        text = message.text
        calls = iter(message.tool_calls)
        for place in (block.data for block in message.reasoning if block.dialect == DIALECT):
            signature = {key: place[key] for key in ("thoughtSignature",) if key in place}
            match place:
                case {"thought": True}:
                    yield place
                case {"text_chars": int(chars)} if text[:chars] or signature:
                    yield {"text": text[:chars], **signature}
                    text = text[chars:]
                case {"call_id": str(server_id)} if call := next(calls, None):
                    yield {**self._call(call, server_id), **signature}
        if text:
            yield {"text": text}
        for call in calls:
            yield self._call(call, "")

    def _call(self, call: ModelToolCall, server_id: str) -> Part:
        self._server_ids[call.id] = server_id
        payload = {"name": self._names.to_alias(call.name), "args": call.args}
        return {"functionCall": _add_id(server_id, payload)}

    def _result(self, result: ToolResultMessage) -> Part:
        response = {"error" if result.is_error else "output": result.text}
        payload = {"name": self._names.to_alias(result.tool_name), "response": response}
        server_id = self._server_ids.get(result.tool_call_id, "")
        return {"functionResponse": _add_id(server_id, payload)}


def _add_id(server_id: str, part: Part) -> Part:
    return {"id": server_id, **part} if server_id else part


def _with_first_call_signed(parts: list[Part]) -> list[Part]:
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None:
        first.setdefault("thoughtSignature", _NOT_SIGNED)
    return parts
