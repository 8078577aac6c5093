"""Policy decisions about tool calls, and where and how a call was executed."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import PermissionMode

PolicyDecision = Literal["allow", "deny", "ask", "abstain"]
"""The decision of one policy source. ``abstain``: it leaves the decision to the others."""


ExecutedBy = Literal["nousd", "mcp", "extension", "runtime"]
"""Whose code executed a call: nousd's, an MCP server's, an extension's, or another agent program's."""


ExecutionEnv = Literal["host", "sandbox", "remote", "unknown"]
"""Where a call has its effects: on this machine as its user, in a sandbox, or in another program."""


ConfirmDecision = Literal["once", "session", "always", "deny", "deny_session"]
"""The user's decision about a call. ``session`` and ``always`` also allow similar calls from then on, in
its session or in every one; ``deny_session`` denies them in its session.
"""


ToolCallState = Literal[
    "requested", "waiting", "approved", "denied", "started", "completed", "not_started"
]
"""The state of an attempt at a call. ``waiting``: the user is asked. ``not_started``: it was approved
and ended without having started."""


class PolicySource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The decision of one policy source about a call."""

    source: str
    decision: PolicyDecision
    reason: str
    rule: str | UnsetType = UNSET


class PolicySnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The permission mode of a started call, and the decision of each policy source, in order."""

    sources: tuple[PolicySource, ...]
    permission_mode: PermissionMode | UnsetType = UNSET


class ObeyedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a program obeys even if its user only reads, such as a repository's config."""

    path: str
    program: str
    when: str


class SandboxFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sandbox in which the programs of a call ran, and its limits."""

    backend: str
    network: bool
    mounts: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    is_partial: bool = False
    left: tuple[ObeyedFile, ...] = ()
    is_left_partial: bool = False
