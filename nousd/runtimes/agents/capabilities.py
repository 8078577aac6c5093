"""The capabilities that most agent programs share."""

from __future__ import annotations

from typing import Final

from nousd.wire.objects.runtimes import RuntimeCapabilities

USUAL: Final = RuntimeCapabilities(
    supports_streaming=True,
    supports_reasoning=True,
    supports_tool_calls=True,
    supports_parallel_tool_calls=True,
    supports_stop=True,
    supports_images=True,
    supports_session_create=True,
    supports_session_resume=True,
    supports_usage_reporting=True,
    supports_non_interactive=True,
    auth_model="both",
    tool_execution_model="external_mcp",
    permission_model="nousd",
    state_model="local_disk",
    resume_model="native",
    reconstruct_model="text",
    steer_model="next_turn",
    tool_replay_safety="requires_reapproval",
    mcp_support="client_only",
    mcp_transports=("stdio",),
    cancellation_model="best_effort",
    supported_isolation_modes=("subprocess",),
    recommended_isolation_mode="subprocess",
    max_outstanding_tool_calls=16,
)
"""The capabilities of a local process that keeps its sessions and makes several tool calls at a time.
Each adapter replaces those that differ.
"""
