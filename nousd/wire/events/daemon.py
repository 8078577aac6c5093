"""Events that belong to no run: handled inputs, MCP servers, trust."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from nousd.wire.events.base import Event
from nousd.wire.objects.mcp import McpState
from nousd.wire.objects.remarks import InputKind


class InputHandled(Event, frozen=True, kw_only=True):
    """An extension handled a text that a client sent: no run started and nothing was queued."""

    kind: InputKind
    text: str
    extension: str
    reply: str
    changed_by: tuple[str, ...] | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET


class McpServerStatus(Event, frozen=True, kw_only=True):
    """The status or the tools of an MCP server changed."""

    name: str
    transport: Literal["stdio", "http"]
    state: McpState | Literal["removed"]
    restarts: int
    tools: tuple[str, ...]
    error: str | UnsetType = UNSET
    protocol_version: str | UnsetType = UNSET
    left_out: tuple[str, ...] | UnsetType = UNSET


class TrustUpdated(Event, frozen=True, kw_only=True):
    """The user trusts a project file as long as it has this hash; null withdraws the trust."""

    path: str
    hash: str | None
