"""The parts of the messages of the Agent Client Protocol, version 1, that nousd reads.

Unknown keys are ignored. The protocol lets agents send null for missing values.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from nousd.runtimes.agents.plans import PlanEntry
from nousd.runtimes.agents.tools.call_reports import Content, ToolCall


class _Read(msgspec.Struct, rename="camel"):
    """The base of everything that a program sends."""


# --- answers to requests of nousd ------------------------------------------------------------


class Implementation(_Read):
    """The program's name and version."""

    name: str = ""
    version: str = ""


class PromptCapabilities(_Read):
    """The content types that a prompt may have in addition to text and links."""

    image: bool = False


class SessionCapabilities(_Read):
    """The supported operations on sessions; an empty object means that one is supported."""

    resume: dict[str, Any] | None = None


class AgentCapabilities(_Read):
    """The capabilities of the program."""

    load_session: bool = False
    prompt_capabilities: PromptCapabilities = msgspec.field(default_factory=PromptCapabilities)
    session_capabilities: SessionCapabilities = msgspec.field(default_factory=SessionCapabilities)


class AuthMethod(_Read):
    """A way to log in."""

    id: str
    name: str = ""
    description: str | None = None


class Initialized(_Read):
    """The answer to ``initialize``."""

    protocol_version: int
    agent_capabilities: AgentCapabilities = msgspec.field(default_factory=AgentCapabilities)
    agent_info: Implementation | None = None
    auth_methods: list[AuthMethod] = []


class Choice(_Read):
    """A value of an option, or a group of values."""

    value: str = ""
    options: list[Choice] = []


class ConfigOption(_Read):
    """A setting of the program's session."""

    id: str
    category: str | None = None
    options: list[Choice] = []


class Mode(_Read):
    """A mode of the program's session."""

    id: str


class Modes(_Read):
    """The modes of the program's session."""

    current_mode_id: str = ""
    available_modes: list[Mode] = []


class Model(_Read):
    """A model of a program that does not list models as a setting."""

    model_id: str


class Models(_Read):
    """The models of a program that does not list them as a setting."""

    available_models: list[Model] = []


class Opened(_Read):
    """The answer to the requests that begin, load or resume a session."""

    session_id: str = ""
    modes: Modes | None = None
    models: Models | None = None
    config_options: list[ConfigOption] | None = None


class TokenCounts(_Read):
    """Tokens of a turn. The input excludes tokens that were read from or written to a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None


class QuotaCounts(msgspec.Struct):
    """Tokens of a turn, as Gemini CLI reports them."""

    input_tokens: int = 0
    output_tokens: int = 0


class Quota(msgspec.Struct):
    """The figures of a turn, as Gemini CLI and codex-acp report them."""

    token_count: QuotaCounts | None = None


class PromptMeta(msgspec.Struct):
    """Further facts at the end of a turn."""

    quota: Quota | None = None


class PromptEnded(_Read):
    """The answer to ``session/prompt``, which ends the turn."""

    stop_reason: str
    usage: TokenCounts | None = None
    meta: PromptMeta | None = msgspec.field(name="_meta", default=None)


# --- events of a turn ------------------------------------------------------------------------


class Notification(_Read):
    """``session/update``."""

    session_id: str
    update: Raw


class UpdateHead(_Read):
    """The kind of an update."""

    session_update: str


class Subagent(_Read):
    """The call that a subagent works for, as Claude's program for the protocol reports it."""

    parent_tool_use_id: str | None = None


class ChunkMeta(_Read):
    """Facts that programs add to a piece of a message."""

    claude_code: Subagent | None = None


class Chunk(_Read):
    """``agent_message_chunk`` and ``agent_thought_chunk``."""

    content: Content
    message_id: str | None = None
    meta: ChunkMeta | None = msgspec.field(default=None, name="_meta")

    @property
    def parent(self) -> str | None:
        """The call whose subagent has written the text; None for a text of the agent itself."""
        return (
            self.meta.claude_code.parent_tool_use_id
            if self.meta and self.meta.claude_code
            else None
        )


class Cost(_Read):
    """The cost of the program's session so far."""

    amount: float
    currency: str


class UsageUpdate(_Read):
    """``usage_update``."""

    cost: Cost | None = None


class Plan(_Read):
    """``plan``: all steps."""

    entries: list[PlanEntry]


class PermissionOption(_Read):
    """An answer that the user may give."""

    option_id: str
    kind: str = ""


class PermissionAsked(_Read):
    """``session/request_permission``."""

    session_id: str
    tool_call: ToolCall
    options: list[PermissionOption]
