"""Converts the transcript of a session to updates, as if it happened again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from nousd.acp_server.tool_calls import describe_call
from nousd.acp_server.updates import Update, build_call_end, chunk
from nousd.client.client import Client

Payload = Mapping[str, Any]


async def entries_of(daemon: Client, session_id: str) -> AsyncIterator[Payload]:
    """Yield the entries of a session's current path, oldest first, one page at a time.

    Raises:
        ClientError: as ``Client.request``.
    """
    query: dict[str, Any] = {"session_id": session_id}
    page = (await daemon.request("get_messages", query)).payload
    if page.get("leaf_id"):
        query["leaf_id"] = page["leaf_id"]
    # Pages come newest first: remember where each begins, and read them again in reverse order.
    starts: list[str] = []
    while page["has_more"]:
        starts.append(page["before"])
        page = (await daemon.request("get_messages", {**query, "before": starts[-1]})).payload
    for entry in page["messages"]:
        yield entry
    for before in (*reversed(starts[:-1]), None) if starts else ():
        named = {} if before is None else {"before": before}
        page = (await daemon.request("get_messages", {**query, **named})).payload
        for entry in page["messages"]:
            yield entry


def updates_of(entry: Payload, folder: str) -> list[Update]:
    """Return the updates that show an entry."""
    match entry:
        case {"type": "message", "role": "user"}:
            return [chunk("user_message_chunk", entry["text"], entry["id"])]
        case {"type": "message", "role": "assistant"}:
            return [
                *_build_message_updates(entry),
                *(_call(call, folder) for call in entry.get("tool_calls", ())),
            ]
        case {"type": "message", "role": "tool"}:
            is_error = entry.get("is_error", False)
            return [
                build_call_end(
                    entry["tool_call_id"], entry["tool_name"], entry["text"], is_error=is_error
                )
            ]
    return []


def _build_message_updates(entry: Payload) -> list[Update]:
    reasoning = entry.get("reasoning", "")
    return [
        *([chunk("agent_thought_chunk", reasoning, entry["id"])] if reasoning else []),
        *([chunk("agent_message_chunk", entry["text"], entry["id"])] if entry["text"] else []),
    ]


def _call(call: Payload, folder: str) -> Update:
    id, name = call["tool_call_id"], call["name"]
    shown = describe_call(name, call["args"], folder, has_run=True)
    return {"sessionUpdate": "tool_call", "toolCallId": id, "status": "pending", **shown}
