"""Renders a session for the interactive client that attaches to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nousd.cli.output import snippet
from nousd.cli.render.people import format_folder

Payload = Mapping[str, Any]

ENTRIES_SHOWN: Final = 8
_LINES_MAX: Final = 8
_CHARS_MAX: Final = 800


def session_line(state: Payload, session: Payload) -> str:
    """Return the line that names a session.

    Args:
        state: the payload of ``state``.
        session: the session in the payload of ``session_record``.
    """
    called = session.get("title") or state.get("name")
    name = f' "{snippet(called)}"' if called else ""
    of = f", a branch of {session['parent_id']}" if "parent_id" in session else ""
    return f"session {state['session_id']}{name}{of}; /help lists what else there is"


def facts(state: Payload) -> Iterator[str]:
    """Yield the lines with the settings of a session that a person at a terminal needs."""
    if "workspace" in state:
        yield f"folder  {format_folder(state['workspace'])}"
    thinking = f", thinking {state['thinking']}" if "thinking" in state else ""
    yield f"model   {state['provider']} {state['model']}{thinking}"
    if "permission_mode" in state:
        yield f"mode    {state['permission_mode']}"
    yield queue_modes(state)


def queue_modes(state: Payload) -> str:
    """Return the line that shows both queue modes and the number of waiting inputs."""
    counts = state["pending_counts"]
    return (
        f"queues  steering {state['steering_mode']} ({counts['steer']} waiting),"
        f" follow-ups {state['follow_up_mode']} ({counts['follow_up']} waiting)"
    )


def last_entries(transcript: Payload) -> Iterator[str]:
    """Yield the last entries of a transcript, each shortened."""
    if transcript.get("has_more"):
        yield "(there is more: nousctl session messages)"
    for entry in transcript.get("messages", ())[-ENTRIES_SHOWN:]:
        yield from _entry(entry)


def _entry(entry: Payload) -> Iterator[str]:
    if entry["type"] == "compaction":
        yield f"(summary of what came before: {snippet(entry['summary'])})"
    elif entry["role"] == "tool":
        outcome = "failed" if entry.get("is_error") else "done"
        yield f"[{entry.get('tool_name', '')}] {outcome}: {snippet(entry['text'])}"
    else:
        sign = "> " if entry["role"] == "user" else ""
        if entry["text"]:
            yield f"{sign}{beginning(entry['text'])}"


def beginning(text: str) -> str:
    """Return the beginning of a text and the count of omitted lines or characters."""
    lines = text.rstrip("\n").split("\n")
    head = "\n".join(lines[:_LINES_MAX])
    if len(head) > _CHARS_MAX:
        return f"{head[:_CHARS_MAX]}... ({len(text) - _CHARS_MAX} more characters)"
    more = len(lines) - _LINES_MAX
    return f"{head}\n({more} more lines)" if more > 0 else head
