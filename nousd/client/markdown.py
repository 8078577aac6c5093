"""A session as Markdown: its entries, in the order of the transcript.

Texts of users and models are already Markdown. They are quoted, so that their headings and open fences
do not affect the rest; their HTML is left to the reader's renderer. Arguments and results are code, in
fences that are longer than any fence inside. Characters that control a terminal or the direction of
writing are made visible everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from msgspec import UNSET

from nousd.client.blocking import Connection
from nousd.client.session_records import records
from nousd.wire.codec.plain_text import plain_line, visible
from nousd.wire.objects.entries import Attachment, CompactionEntry, Entry, MessageEntry, ToolCall
from nousd.wire.responses.sessions import SessionRecord

_TICKS: Final = re.compile("`+")
_PUNCTUATION: Final = re.compile(r"([\\`*_\[\]<>#&~])")


def transcript(
    daemon: Connection, session_id: str | None = None, leaf_id: str | None = None
) -> Iterator[str]:
    """Yield a session as Markdown; see ``records``."""
    for each in records(daemon, session_id, leaf_id):
        yield head(each) if isinstance(each, SessionRecord) else entry(each)


def head(session: SessionRecord) -> str:
    """Return the title of a session, with its id, workspace and model."""
    title = "Untitled" if session.title is UNSET else plain_line(session.title)
    branch = "" if session.parent_id is UNSET else f", branch of {_code(session.parent_id)}"
    facts = (
        f"- session {_code(session.session_id)}{branch}, created {_time(session.created_at)}",
        f"- workspace {_code(session.workspace)}",
        f"- model {_code(f'{session.provider}/{session.model}')}",
    )
    return _blocks(f"# {_escape(title)}", "\n".join(facts))


def entry(entry: Entry) -> str:
    """Return one entry: a heading with its role and time, and its content."""
    if isinstance(entry, CompactionEntry):
        heading = f"## Summary of what came before · {_time(entry.created_at)}"
        return _blocks(heading, _quote(entry.summary))
    content = _ENTRIES[entry.role](entry)
    failed = () if entry.error is UNSET else (f"Failed: {_escape(plain_line(entry.error))}",)
    return _blocks(*content, *_whole(entry.text_ref), *failed)


def _of_user(message: MessageEntry) -> Iterator[str]:
    kind = "" if message.turn_kind == "prompt" else f" ({message.turn_kind.replace('_', '-')})"
    yield f"## User{kind} · {_time(message.created_at)}"
    yield _quote(message.text)
    if message.attachments:
        yield "\n".join(map(_attachment, message.attachments))


def _of_assistant(message: MessageEntry) -> Iterator[str]:
    model = "" if message.model is UNSET else f" · {_code(message.model)}"
    ended = message.stop_reason
    ending = "" if ended in (UNSET, "stop", "tool_use") else f" · {ended}"
    yield f"## Assistant · {_time(message.created_at)}{model}{ending}"
    if message.reasoning:
        yield "### Reasoning"
        yield _quote(message.reasoning)
        if message.text:
            yield "### Answer"
    yield _quote(message.text)
    for call in message.tool_calls or ():
        yield from _call(call)


def _of_tool(message: MessageEntry) -> Iterator[str]:
    outcome = (
        " · not executed" if message.executed is False else " · failed" if message.is_error else ""
    )
    yield f"## Result of {_code(message.tool_name or '')} · {_time(message.created_at)}{outcome}"
    yield _fence(message.text)
    yield from _whole(message.artifact_id)


_ENTRIES: Final = {"user": _of_user, "assistant": _of_assistant, "tool": _of_tool}


def _call(call: ToolCall) -> Iterator[str]:
    yield f"### Call of {_code(call.name)}"
    yield _fence(json.dumps(call.args, ensure_ascii=False, indent=2), "json")
    yield from _whole(call.args_ref)


def _attachment(attachment: Attachment) -> str:
    name = "unnamed" if attachment.name is UNSET else _code(attachment.name)
    kind, size = _code(attachment.media_type), f"{attachment.size_bytes:,} bytes"
    return f"- attachment {name}, {kind}, {size}, artifact {_code(attachment.artifact_id)}"


def _whole(artifact_id: Any) -> Iterator[str]:
    """Yield a reference to the artifact with the whole content, if the entry has only its beginning."""
    if artifact_id is not UNSET:
        yield f"The whole is artifact {_code(artifact_id)}."


def _time(timestamp: str) -> str:
    """Return a v1 time in the local time zone, with the UTC offset."""
    return f"{datetime.fromisoformat(timestamp).astimezone():%Y-%m-%d %H:%M:%S %z}"


def _blocks(*blocks: str) -> str:
    return "".join(f"{block}\n\n" for block in blocks if block)


def _quote(text: str) -> str:
    """Return Markdown as a block quote, at whose end all its open constructs end."""
    lines = visible(text).split("\n") if text else ()
    return "\n".join(f"> {line}" if line.strip() else ">" for line in lines)


def _fence(text: str, language: str = "") -> str:
    """Return a text as code, in a fence that is longer than any fence inside."""
    shown = visible(text)
    fence = "`" * max(3, _longest_ticks(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def _code(text: str) -> str:
    """Return a text as inline code."""
    shown = plain_line(text)
    ticks = "`" * (_longest_ticks(shown) + 1)
    edge = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{ticks}{edge}{shown}{edge}{ticks}"


def _escape(text: str) -> str:
    """Escape the characters of a single-line text that have a meaning in Markdown."""
    return _PUNCTUATION.sub(r"\\\1", text)


def _longest_ticks(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)
