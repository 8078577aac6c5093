"""The transcript as the contract has it: messages made of parts.

A tool's result is an entry of its own with us; here it stands in the part of its call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from nousd.views.tandem.spelling import Body
from nousd.views.tandem.values import or_none, seconds
from nousd.wire.entries import Attachment, Entry, MessageEntry, ToolCall


class MessageTime(msgspec.Struct, frozen=True):
    """Seconds of the epoch."""

    created: int


class MessageInfo(Body, frozen=True, kw_only=True):
    """Whose a message is, and since when."""

    id: str
    session_id: str
    role: Literal["user", "assistant"]
    time: MessageTime


class Part(Body, frozen=True, kw_only=True):
    """``text`` and ``reasoning`` have ``text``; ``tool`` has ``tool``, ``args`` and what came of it."""

    type: Literal["text", "reasoning", "tool"]
    text: str | None = None
    id: str | None = None
    tool: str | None = None
    args: dict[str, Any] | None = None
    state: Literal["running", "completed", "failed"] | None = None
    result: str | None = None
    error: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    info: MessageInfo
    parts: list[Part]


def messages(session_id: str, entries: Iterable[Entry]) -> list[Message]:
    """Returns the messages of a transcript, oldest first. What was compacted is still among them."""
    told = [entry for entry in entries if isinstance(entry, MessageEntry)]
    results = {or_none(entry.tool_call_id): entry for entry in told if entry.role == "tool"}
    return [_message(session_id, entry, results) for entry in told if entry.role != "tool"]


def reply(told: Iterable[Message]) -> str:
    """Returns the text of the last answer, "" if there is none."""
    for message in reversed(list(told)):
        if message.info.role == "assistant":
            return "".join(part.text or "" for part in message.parts if part.type == "text")
    return ""


def _message(
    session_id: str, entry: MessageEntry, results: dict[str | None, MessageEntry]
) -> Message:
    role: Literal["user", "assistant"] = "user" if entry.role == "user" else "assistant"
    info = MessageInfo(
        id=entry.id,
        session_id=session_id,
        role=role,
        time=MessageTime(seconds(entry.created_at)),
    )
    return Message(info=info, parts=list(_parts(entry, results)))


def _parts(entry: MessageEntry, results: dict[str | None, MessageEntry]) -> Iterator[Part]:
    if entry.reasoning is not UNSET:
        yield Part(type="reasoning", text=entry.reasoning)
    if text := "\n".join(_texts(entry)):
        yield Part(type="text", text=text)
    if entry.error is not UNSET:
        yield Part(type="text", text=f"ENGINE_ERROR: ENGINE_DISPATCH_FAILED: {entry.error}")
    for call in () if entry.tool_calls is UNSET else entry.tool_calls:
        yield _tool_part(call, results.get(call.tool_call_id))


def _texts(entry: MessageEntry) -> Iterator[str]:
    if entry.text:
        yield entry.text
    for attachment in () if entry.attachments is UNSET else entry.attachments:
        yield _file_line(attachment)


def _file_line(attachment: Attachment) -> str:
    name = "" if attachment.name is UNSET else f" name={attachment.name}"
    return f"[file mime={attachment.media_type}{name} url=artifact:{attachment.artifact_id}]"


def _tool_part(call: ToolCall, result: MessageEntry | None) -> Part:
    failed = result is not None and result.is_error is True
    return Part(
        type="tool",
        id=call.tool_call_id,
        tool=call.name,
        args=call.args,
        state="running" if result is None else "failed" if failed else "completed",
        result=None if result is None or failed else result.text,
        error=result.text if result is not None and failed else None,
    )
