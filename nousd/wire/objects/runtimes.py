"""The capabilities of a runtime. Clients decide by these, and never by its name."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.objects.entries import Thinking

AuthModel = Literal["oauth_local", "api_key", "both", "unknown"]
ToolExecutionModel = Literal["external_mcp", "runtime_internal", "hybrid"]
PermissionModel = Literal["nousd", "runtime", "hybrid"]
StateModel = Literal["in_process", "local_disk", "server_side", "hybrid", "unknown"]
ResumeModel = Literal["native", "reconstruct", "none"]
ToolReplaySafety = Literal["safe_replay", "requires_reapproval", "unknown"]
McpSupport = Literal["none", "client_only", "server_only", "both"]
McpTransport = Literal["stdio", "sse", "http"]
CancellationModel = Literal["best_effort", "guaranteed", "unknown"]
IsolationMode = Literal["in_process", "subprocess", "server_side"]
IsolationLevel = Literal["shared", "namespaced", "ephemeral"]
RuntimeTools = Literal["off", "ask", "on"]
SteerModel = Literal["in_turn", "next_turn"]
ReconstructModel = Literal["structured", "text"]

DEFAULT_NAMESPACE: Final = "default"

Namespace = Annotated[
    str,
    Meta(
        # The lookahead is for Python, where $ also matches before a trailing LF.
        pattern=r"^(default|user:[A-Za-z0-9_.@+-]{1,64})$(?!\n)",
        examples=["user:anna"],
    ),
]
"""The owner of the log-in that a runtime's program uses: the daemon's user (``default``) or another."""


class RuntimeCapabilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The capabilities of a runtime."""

    supports_streaming: bool
    supports_reasoning: bool
    supports_tool_calls: bool
    supports_parallel_tool_calls: bool
    supports_stop: bool
    supports_images: bool
    supports_session_create: bool
    supports_session_resume: bool
    supports_usage_reporting: bool
    supports_non_interactive: bool
    auth_model: AuthModel
    tool_execution_model: ToolExecutionModel
    permission_model: PermissionModel
    state_model: StateModel
    resume_model: ResumeModel
    reconstruct_model: ReconstructModel
    steer_model: SteerModel
    tool_replay_safety: ToolReplaySafety
    mcp_support: McpSupport
    mcp_transports: tuple[McpTransport, ...]
    cancellation_model: CancellationModel
    supported_isolation_modes: tuple[IsolationMode, ...]
    recommended_isolation_mode: IsolationMode
    max_outstanding_tool_calls: int | UnsetType = UNSET
    thinking_levels: tuple[Thinking, ...] = ()


class VersionRange(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a program from the oldest to the newest."""

    oldest: str
    newest: str


class AuthFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a runtime's program is logged in, as far as can be seen without asking a server. Contains
    no secrets.
    """

    instructions: str
    is_logged_in: bool | UnsetType = UNSET
    account: str | UnsetType = UNSET
    details: dict[str, bool] = {}
    login: tuple[str, ...] = ()
    logout: tuple[str, ...] = ()
    isolation: IsolationLevel | UnsetType = UNSET
    home: str | UnsetType = UNSET
