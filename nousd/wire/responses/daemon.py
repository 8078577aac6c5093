"""Responses about the daemon itself: liveness, capabilities, MCP servers and metrics."""

from __future__ import annotations

from typing import Literal

from nousd.wire.objects.mcp import McpServerSummary
from nousd.wire.objects.metrics import LogMetrics, PendingInputs, WindowMetrics
from nousd.wire.objects.runtimes import RuntimeCapabilities
from nousd.wire.responses.base import Response


class McpServers(Response, frozen=True, kw_only=True):
    """The MCP servers and their status."""

    servers: tuple[McpServerSummary, ...]
    cursor: str


class Metrics(Response, frozen=True, kw_only=True):
    """The metrics of the daemon's process since ``started_at``."""

    version: str
    started_at: str
    uptime_seconds: float
    cursor: str
    sessions: int
    runs: int
    pending_inputs: PendingInputs
    waiting_permissions: int
    waiting_questions: int
    command_connections: int
    subscribers: int
    confirmers: int
    mcp_servers: dict[str, int]
    log: LogMetrics
    window: WindowMetrics


class Pong(Response, frozen=True, kw_only=True):
    """The daemon responds."""

    message: Literal["pong"]


class Capabilities(Response, frozen=True, kw_only=True):
    """The commands and events of this daemon, and the limits in force."""

    protocol: str
    version: str
    commands: tuple[str, ...]
    events: tuple[str, ...]
    frozen_events: tuple[str, ...]
    provider: str
    model: str
    workdir: str
    extension_commands: tuple[str, ...]
    limits: dict[str, int]
    runtime: RuntimeCapabilities
