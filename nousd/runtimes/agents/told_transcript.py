"""Renders a transcript as text, for agents that accept earlier messages in no other form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.entries import Entry, MessageEntry

_HEAD: Final = (
    "This conversation was begun with another agent. What follows is its record, which is only for you"
    " to know; the user's next message comes after it.\n\n<record>\n"
)
_END: Final = "\n</record>"


def render_transcript(transcript: Sequence[Entry]) -> str:
    """Return a transcript as one text."""
    record = "\n\n".join(f"[{role}]\n{text}" for role, text in render_messages(transcript))
    return f"{_HEAD}{record}{_END}"


def render_messages(transcript: Sequence[Entry]) -> tuple[tuple[str, str], ...]:
    """Return the role and text of each message of a transcript, tool results included."""
    return tuple(_render_entry(entry) for entry in transcript)


def _render_entry(entry: Entry) -> tuple[str, str]:
    if not isinstance(entry, MessageEntry):
        return "user", entry.summary
    if entry.role == "tool":
        return "tool", f"Result of {entry.tool_name}: {entry.text}"
    calls = entry.tool_calls or ()
    call_lines = [f"[called {call.name} {encode_json(call.args).decode()}]" for call in calls]
    return entry.role, "\n".join([entry.text, *call_lines] if entry.text else call_lines)
