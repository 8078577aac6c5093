"""The parts of the messages of Codex's app-server that nousd reads; unknown keys are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, rename="camel"):
    """The base of all messages: their keys are in camel case."""


class Config(Message, rename=None):
    """The program's effective settings, which are the user's."""

    mcp_servers: dict[str, Any] | None = None


class ConfigRead(Message):
    """The result of ``config/read``."""

    config: Config


class Thread(Message):
    """A session of the program."""

    id: str
    cli_version: str = ""


class ThreadBegun(Message):
    """The result of ``thread/start`` and of ``thread/resume``."""

    thread: Thread
    model: str = ""


class Fault(Message):
    """The failure of a turn."""

    message: str = ""
    codex_error_info: Any = None
    additional_details: str | None = None


class Turn(Message):
    """A turn of the program. ``status`` is ``inProgress`` until it has ended."""

    id: str
    status: str = ""
    error: Fault | None = None


class Model(Message):
    """A model of the program."""

    id: str


class ModelList(Message):
    """The result of ``model/list``."""

    data: list[Model] = []


class TurnBegun(Message):
    """The result of ``turn/start``."""

    turn: Turn


class TurnNote(Message):
    """``turn/started`` and ``turn/completed``."""

    turn: Turn
    thread_id: str = ""


class Item(Message):
    """A part of a turn: a message of the user or of the model, or a call."""

    type: str
    id: str = ""
    text: str = ""
    client_id: str | None = None
    changes: list[Any] = []
    status: str = ""
    command: str = ""
    cwd: str = ""
    aggregated_output: str | None = None
    exit_code: int | None = None
    query: str = ""
    path: str = ""


class ItemNote(Message):
    """``item/started`` and ``item/completed``."""

    item: Item
    thread_id: str = ""


class Delta(Message):
    """A piece of a text or of reasoning."""

    delta: str
    item_id: str = ""
    thread_id: str = ""


class ErrorNote(Message):
    """``error``: a model call has failed."""

    thread_id: str = ""


class TokenCounts(Message):
    """Tokens; ``input_tokens`` includes those read from the cache."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    total_tokens: int = 0


class TokenUsage(Message):
    """Tokens of a whole thread."""

    total: TokenCounts


class UsageNote(Message):
    """``thread/tokenUsage/updated``."""

    token_usage: TokenUsage
    thread_id: str = ""


class ToolCall(Message):
    """``item/tool/call``: a call of an offered tool."""

    call_id: str
    tool: str
    arguments: Any = None


class CommandApproval(Message):
    """``item/commandExecution/requestApproval``."""

    item_id: str
    command: str | None = None
    cwd: str | None = None


class ChangeApproval(Message):
    """``item/fileChange/requestApproval``."""

    item_id: str
