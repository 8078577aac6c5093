"""The parts of the messages of Claude Code's stream that nousd reads; unknown keys are ignored."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw


class Head(msgspec.Struct):
    """The kind of a message."""

    type: str
    subtype: str = ""


class Delta(msgspec.Struct):
    """A piece of a message."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    stop_reason: str | None = None


class TokenCounts(msgspec.Struct):
    """Tokens of a model call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Block(msgspec.Struct):
    """A part of a whole message."""

    type: str
    text: str = ""


class ModelMessage(msgspec.Struct):
    """A message of the model."""

    id: str = ""
    model: str = ""
    content: list[Block] = []
    usage: TokenCounts = msgspec.field(default_factory=TokenCounts)


class ModelEvent(msgspec.Struct):
    """An event of the model's stream, as its server sends it."""

    type: str
    message: ModelMessage = msgspec.field(default_factory=ModelMessage)
    delta: Delta = msgspec.field(default_factory=Delta)
    usage: TokenCounts | None = None


class StreamEvent(msgspec.Struct):
    """``stream_event``. An event of a subagent names the call that the subagent works for."""

    event: ModelEvent
    parent_tool_use_id: str | None = None


class Assistant(msgspec.Struct):
    """``assistant``: a message, as far as it is complete. ``error`` names the failure of a model
    call.
    """

    message: ModelMessage
    error: str | None = None
    parent_tool_use_id: str | None = None


class ToolResultBlock(msgspec.Struct):
    """The result of a tool call, or another part of a message."""

    type: str
    tool_use_id: str = ""
    content: str | list[Block] = ""
    is_error: bool = False


class ResultMessage(msgspec.Struct):
    """A message of results."""

    content: str | list[ToolResultBlock] = ""


class Results(msgspec.Struct):
    """``user``: results of tool calls, among other content."""

    message: ResultMessage = msgspec.field(default_factory=ResultMessage)


class Lifecycle(msgspec.Struct):
    """``command_lifecycle``: the state of a text of the user."""

    command_uuid: str
    state: str


class Init(msgspec.Struct):
    """``system`` ``init``, at the beginning of each turn."""

    session_id: str = ""
    claude_code_version: str = ""
    model: str = ""


class Result(msgspec.Struct):
    """``result``: the end of a turn."""

    subtype: str = ""
    is_error: bool = False
    result: str = ""
    errors: list[str] = []
    terminal_reason: str = ""
    total_cost_usd: float = 0.0
    api_error_status: int | None = None


class Model(msgspec.Struct):
    """A model of the program."""

    value: str


class Initialized(msgspec.Struct):
    """The result of ``initialize``."""

    models: list[Model] = []


class Fault(msgspec.Struct):
    """The answer to a request of nousd."""

    request_id: str
    subtype: str
    error: str = ""
    response: Raw = Raw(b"{}")


class ControlResponse(msgspec.Struct):
    """``control_response``."""

    response: Fault


class ProgramRequest(msgspec.Struct):
    """A request of the program."""

    subtype: str
    tool_name: str = ""
    input: Any = None
    tool_use_id: str = ""
    server_name: str = ""
    message: Raw = Raw(b"{}")


class ControlRequest(msgspec.Struct):
    """``control_request``."""

    request_id: str
    request: ProgramRequest


class ControlCancel(msgspec.Struct):
    """``control_cancel_request``: the program no longer wants an answer."""

    request_id: str


class HookInput(msgspec.Struct):
    """The input of a ``PreToolUse`` hook."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""


class McpMessage(msgspec.Struct):
    """A message of the program's MCP client to nousd's server."""

    method: str = ""
    id: int | str | None = None
    params: Raw = Raw(b"{}")
