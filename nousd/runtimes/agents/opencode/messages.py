"""The parts of the answers and events of OpenCode's server that nousd reads; unknown keys are
ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, field

from nousd.runtimes.agents.plans import PlanEntry


class Health(msgspec.Struct):
    """The answer to ``GET /global/health``."""

    version: str = ""


class Provider(msgspec.Struct):
    """A provider that the program can use, with the names of its models."""

    id: str
    models: dict[str, Raw] = {}


class Providers(msgspec.Struct):
    """The answer to ``GET /config/providers``."""

    providers: list[Provider] = []


class Session(msgspec.Struct):
    """A session of the program."""

    id: str


class ServerState(msgspec.Struct):
    """The state of an MCP server: ``connected``, or why it is not."""

    status: str = ""
    error: str = ""


class Event(msgspec.Struct):
    """An event of the program."""

    type: str
    properties: Raw = field(default_factory=lambda: Raw(b"{}"))


class Note(msgspec.Struct):
    """The properties of an event. An event about the program itself has no session id."""

    session_id: str = field(name="sessionID", default="")


class Info(msgspec.Struct):
    """A message without its parts. ``summary`` is true if the program writes it for itself."""

    id: str
    role: str
    summary: Any = None
    provider_id: str = field(name="providerID", default="")
    model_id: str = field(name="modelID", default="")


class MessageNote(Note):
    """``message.updated``."""

    info: Info = field(default_factory=lambda: Info("", ""))


class CacheCounts(msgspec.Struct):
    """Tokens of the model's cache."""

    read: int = 0
    write: int = 0


class TokenCounts(msgspec.Struct):
    """Tokens of a model call; ``input`` excludes cached tokens, ``output`` excludes reasoning."""

    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: CacheCounts = field(default_factory=CacheCounts)


class Times(msgspec.Struct):
    """The times of a part; ``end`` is None until the part has ended."""

    end: float | None = None


class ToolState(msgspec.Struct):
    """The state of a tool call: ``pending``, ``running``, ``completed`` or ``error``."""

    status: str = ""
    input: dict[str, Any] = {}
    output: str = ""
    error: str = ""


class Part(msgspec.Struct):
    """A part of a message. Each type of part has only some of the fields."""

    id: str
    type: str
    message_id: str = field(name="messageID", default="")
    text: str = ""
    metadata: dict[str, Any] | None = None
    time: Times | None = None
    tool: str = ""
    call_id: str = field(name="callID", default="")
    state: ToolState | None = None
    reason: str = ""
    tokens: TokenCounts | None = None
    cost: float | None = None


class PartNote(Note):
    """``message.part.updated``."""

    part: Part = field(default_factory=lambda: Part("", ""))


class Delta(Note):
    """``message.part.delta``."""

    part_id: str = field(name="partID", default="")
    field_name: str = field(name="field", default="")
    delta: str = ""


class Status(msgspec.Struct):
    """The activity of the session: ``idle``, ``busy`` or ``retry``."""

    type: str = ""


class StatusNote(Note):
    """``session.status``."""

    status: Status = field(default_factory=Status)


class Fault(msgspec.Struct):
    """A failure; its message is in ``data``."""

    name: str = ""
    data: dict[str, Any] = {}


class FaultNote(Note):
    """``session.error``."""

    error: Fault | None = None


class CallPlace(msgspec.Struct):
    """The call that a permission request belongs to."""

    call_id: str = field(name="callID", default="")


class PermissionNote(Note):
    """``permission.asked``."""

    id: str = ""
    permission: str = ""
    metadata: dict[str, Any] = {}
    tool: CallPlace | None = None


class TodoNote(Note):
    """``todo.updated``: all steps."""

    todos: list[PlanEntry] = []
