"""The transcript in the form of the contract: messages that consist of parts.

In the transcript of v1, the result of a tool is an entry of its own; here it is in the part of its call.
In v1 the failure of a run is not an entry; here it is the last text of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from nousd.views.tandem.failures import Failure, engine_code, error_text
from nousd.views.tandem.values import Body, or_none, seconds
from nousd.wire.objects.entries import Attachment, Entry, MessageEntry, ToolCall


class MessageTime(msgspec.Struct, frozen=True):
    """Times in seconds since the epoch."""

    created: int


class MessageInfo(Body, frozen=True, kw_only=True):
    """The author and time of a message."""

    id: str
    session_id: str
    role: Literal["user", "assistant"]
    time: MessageTime


class Part(Body, frozen=True, kw_only=True):
    """A part of a message. Types ``text`` and ``reasoning`` have ``text``; type ``tool`` has ``tool``,
    ``args`` and the outcome.
    """

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


def render_messages(
    session_id: str, entries: Iterable[Entry], failures: Mapping[str, Failure] | None = None
) -> list[Message]:
    """Return the messages of a transcript, oldest first, compacted ones included.

    Args:
        failures: run id -> its failure.
    """
    shown = [entry for entry in entries if isinstance(entry, MessageEntry)]
    results = {or_none(entry.tool_call_id): entry for entry in shown if entry.role == "tool"}
    last_of_run = {entry.run_id: entry.id for entry in shown if entry.run_id}
    messages: list[Message] = []
    for entry in shown:
        if entry.role != "tool":
            messages.append(_render_message(session_id, entry, results))
        failure = (failures or {}).get(entry.run_id)
        if failure is not None and last_of_run.get(entry.run_id) == entry.id:
            _add_failure(messages, session_id, entry, failure)
    return messages


def last_answer_text(messages: Sequence[Message]) -> str:
    """Return the text of the last answer; "" if there is none."""
    for message in reversed(messages):
        if message.info.role == "assistant":
            return "\n".join(part.text or "" for part in message.parts if part.type == "text")
    return ""


def _add_failure(
    messages: list[Message], session_id: str, last: MessageEntry, failure: Failure
) -> None:
    """Add a failure as the last text of its run: in the interrupted answer, or else as a new message."""
    part = Part(type="text", text=failure.text)
    if last.role == "assistant" and last.error is not UNSET:
        messages[-1].parts[-1] = part
    elif last.role == "assistant" and last.stop_reason != "tool_use":
        messages[-1].parts.append(part)
    else:
        info = _info(session_id, last.run_id, "assistant", failure.ended_at)
        messages.append(Message(info=info, parts=[part]))


def _render_message(
    session_id: str, entry: MessageEntry, results: dict[str | None, MessageEntry]
) -> Message:
    role: Literal["user", "assistant"] = "user" if entry.role == "user" else "assistant"
    info = _info(session_id, entry.id, role, entry.created_at)
    return Message(info=info, parts=list(_parts(entry, results)))


def _info(
    session_id: str, id: str, role: Literal["user", "assistant"], created_at: str
) -> MessageInfo:
    time = MessageTime(seconds(created_at))
    return MessageInfo(id=id, session_id=session_id, role=role, time=time)


def _parts(entry: MessageEntry, results: dict[str | None, MessageEntry]) -> Iterator[Part]:
    """Yield the parts of an entry. An error comes last; ``_add_failure`` relies on that."""
    if entry.reasoning is not UNSET:
        yield Part(type="reasoning", text=entry.reasoning)
    if text := "\n".join(_texts(entry)):
        yield Part(type="text", text=text)
    for call in () if entry.tool_calls is UNSET else entry.tool_calls:
        yield _tool_part(call, results.get(call.tool_call_id))
    if entry.error is not UNSET:
        yield Part(type="text", text=error_text(engine_code(None), entry.error))


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
