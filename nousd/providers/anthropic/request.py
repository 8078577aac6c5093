"""Converts a ModelInput into the body of a Messages request. Pure.

Roles alternate, so consecutive messages of one role become one message of several blocks; each text
stays a block. Tool results come first in their message, because they must directly follow their calls.
Blank texts are never sent, because servers refuse them.

Thinking returns unchanged to its place among the texts and calls, because its blocks are signed. Up to
four cache breakpoints are set: the tools, the system text, and the last two user messages, so that the
next request finds the prefix that this one wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.anthropic.models import Plan, plan_for, takes_sampling
from nousd.providers.encoding.attachments import base64_of, kind_of, name_of, text_of
from nousd.providers.encoding.conversations import Before, Conversations
from nousd.providers.encoding.sampling import RANDOMNESS, rename_parameters
from nousd.providers.encoding.tool_names import CallIds, ToolNames
from nousd.providers.interface import Blobs
from nousd.wire.objects.entries import Attachment, ReasoningBlock
from nousd.wire.objects.media_types import bare
from nousd.wire.objects.run_options import ToolChoice

DIALECT: Final = "anthropic"
"""The dialect of reasoning blocks that this module encodes."""

_CACHE_CONTROL: Final = {"type": "ephemeral"}
_USER_MARKS: Final = 2
_MARK_WINDOW: Final = 2 * _USER_MARKS
"""Number of newest messages that include ``_USER_MARKS`` user messages, because roles alternate."""

Block = dict[str, Any]


def build_reasoning_block(block: Block, *, text_before: int, calls_before: int) -> ReasoningBlock:
    """Return a signed block in its stored form, with its offset in text and calls."""
    data = {"block": block, "text_before": text_before, "calls_before": calls_before}
    return ReasoningBlock(dialect=DIALECT, data=data)


def plan_of(request: ModelInput) -> Plan:
    """Return how to send the request."""
    first_answer = _find_turn_start(request.messages)
    return plan_for(
        request.model,
        request.thinking,
        calls_without_thought=first_answer is not None and not first_answer.reasoning,
        must_call=request.tool_choice == "required",
        max_tokens=rename_parameters(request.sampling, {"max_tokens": "max_tokens"}).get(
            "max_tokens"
        ),
    )


def _find_turn_start(messages: Sequence[ModelMessage]) -> AssistantMessage | None:
    """Return the first answer of the current tool loop; None at the beginning of the model's turn.

    To the server a whole loop is one turn, in which only the first answer has thinking. A text after
    results, such as a steer, does not end the turn.
    """
    first: AssistantMessage | None = None
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage):
            first = message
        elif isinstance(message, UserMessage) and not (
            index and isinstance(messages[index - 1], ToolResultMessage)
        ):
            break
    return first


def messages_body(
    request: ModelInput, blobs: Blobs, plan: Plan, conversations: Conversations | None = None
) -> dict[str, Any]:
    """Return the body of the streaming request; equal inputs give equal bodies."""
    names = ToolNames(request.tools)
    write = partial(_write_messages, names, blobs, plan)
    messages = (conversations or Conversations()).items(
        request.messages, (names.key, plan.sends_thoughts), write
    )
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": plan.max_tokens,
        "stream": True,
        **plan.fields,
        **(
            rename_parameters(request.sampling, RANDOMNESS) if takes_sampling(request.model) else {}
        ),
        "messages": messages,
    }
    if request.system.strip():
        body["system"] = [_text(request.system)]
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
    if request.tool_choice is not None and plan.allows_tool_choice:
        body["tool_choice"] = {"type": _CHOICES[request.tool_choice]}
    _mark_for_cache(body)
    return body


_CHOICES: Final[dict[ToolChoice, str]] = {"auto": "auto", "none": "none", "required": "any"}


def _mark_for_cache(body: dict[str, Any]) -> None:
    # The marked messages are among the newest, which are never cached as encoded bytes.
    turns = [
        message["content"]
        for message in body["messages"][-_MARK_WINDOW:]
        if isinstance(message, dict) and message["role"] == "user"
    ]
    for blocks in (body.get("tools"), body.get("system"), *turns[-_USER_MARKS:]):
        if blocks:
            blocks[-1]["cache_control"] = _CACHE_CONTROL


def _tool(tool: ToolSpec, names: ToolNames) -> dict[str, Any]:
    return {
        "name": names.to_alias(tool.name),
        "description": tool.description,
        "input_schema": tool.parameters,
    }


def _write_messages(
    names: ToolNames, blobs: Blobs, plan: Plan, messages: Sequence[ModelMessage], before: Before
) -> list[tuple[int, dict[str, Any]]]:
    written: list[tuple[int, dict[str, Any]]] = []
    turns = _turns(names, blobs, plan, messages, CallIds(before.calls))
    for index, (role, blocks) in enumerate(turns):
        if written and written[-1][1]["role"] == role:
            written[-1][1]["content"] += blocks
        elif blocks:
            written.append((index, {"role": role, "content": blocks}))
    if not before.messages and written and written[0][1]["role"] == "assistant":
        opening = [_text("(the conversation goes on)")]
        written.insert(0, (0, {"role": "user", "content": opening}))
    return written


def _turns(
    names: ToolNames, blobs: Blobs, plan: Plan, messages: Iterable[ModelMessage], ids: CallIds
) -> Iterator[tuple[str, list[Block]]]:
    for message in messages:
        match message:
            case UserMessage():
                yield "user", _user(message, blobs)
            case ToolResultMessage():
                yield "user", [_result(message, ids)]
            case AssistantMessage():
                yield "assistant", _assistant(message, ids, names, plan)


def _user(message: UserMessage, blobs: Blobs) -> list[Block]:
    files = [_file(attachment, blobs) for attachment in message.attachments]
    return files + _texts(message.text) or [_text("(an empty message)")]


def _result(message: ToolResultMessage, ids: CallIds) -> Block:
    return {
        "type": "tool_result",
        "tool_use_id": ids.of_result(message.tool_call_id),
        "content": message.text if message.text.strip() else "(no output)",
        "is_error": message.is_error,
    }


def _assistant(
    message: AssistantMessage, ids: CallIds, names: ToolNames, plan: Plan
) -> list[Block]:
    calls = [
        {
            "type": "tool_use",
            "id": ids.of_call(call.id),
            "name": names.to_alias(call.name),
            "input": call.args,
        }
        for call in message.tool_calls
    ]
    if not calls and not message.text.strip():
        return []
    blocks: list[Block] = []
    text_at = calls_at = 0
    for reasoning in message.reasoning if plan.sends_thoughts else ():
        if reasoning.dialect == DIALECT:
            text_to = max(text_at, reasoning.data["text_before"])
            calls_to = max(calls_at, reasoning.data["calls_before"])
            blocks += _texts(message.text[text_at:text_to]) + calls[calls_at:calls_to]
            blocks.append(reasoning.data["block"])
            text_at, calls_at = text_to, calls_to
    return blocks + _texts(message.text[text_at:]) + calls[calls_at:]


def _texts(text: str) -> list[Block]:
    return [_text(text)] if text.strip() else []


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _file(attachment: Attachment, blobs: Blobs) -> Block:
    kind = kind_of(attachment.media_type)
    if kind == "text":
        return _text_file(attachment, blobs)
    source = {
        "type": "base64",
        "media_type": bare(attachment.media_type),
        "data": base64_of(attachment, blobs),
    }
    if kind == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, "title": name_of(attachment)}


def _text_file(attachment: Attachment, blobs: Blobs) -> Block:
    name, text = name_of(attachment), text_of(attachment, blobs)
    if not text.strip():
        return _text(f"The attached file {name} is empty.")
    source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, "title": name}
