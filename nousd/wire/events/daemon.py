"""Events that belong to no run: handled inputs, MCP servers, trust."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from nousd.wire.events.base import Event
from nousd.wire.objects.mcp import McpState
from nousd.wire.objects.remarks import InputKind


class InputHandled(Event, frozen=True, kw_only=True):
    """An extension dealt with a text that a client sent: no run started, nothing was queued.

    ``session_id`` is "" where there was no session yet. ``text`` is what the client sent, or what other
    extensions made of it (``changed_by``); ``reply`` is what it was told, or its beginning.
    """

    kind: InputKind
    text: str
    extension: str
    reply: str
    changed_by: tuple[str, ...] | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET


class McpServerStatus(Event, frozen=True, kw_only=True):
    """The status of an MCP server has changed to this. ``session_id`` is "".

    ``error`` says why it is not ready, or was not before. ``restarts`` counts the connections after the
    first one. ``tools`` are offered; ``left_out`` are not, with the reasons, the first of them.
    """

    name: str
    transport: Literal["stdio", "http"]
    state: McpState | Literal["removed"]
    restarts: int
    tools: tuple[str, ...]
    error: str | UnsetType = UNSET
    protocol_version: str | UnsetType = UNSET
    left_out: tuple[str, ...] | UnsetType = UNSET


class TrustUpdated(Event, frozen=True, kw_only=True):
    """The user trusts a file of a project while it has that hash; with null, no longer.

    It belongs to no session: ``session_id`` is "".
    """

    path: str
    hash: str | None
