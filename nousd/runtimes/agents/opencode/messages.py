"""What OpenCode's server answers and reports, as far as we read it; further keys are passed over."""

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
    """Something that has happened in the program."""

    type: str
    properties: Raw = field(default_factory=lambda: Raw(b"{}"))


class Note(msgspec.Struct):
    """The properties of an event, which belongs to a session unless it is about the program."""

    session_id: str = field(name="sessionID", default="")


class Info(msgspec.Struct):
    """A message without its parts. ``summary`` is true for one that the program writes for itself."""

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
    """Tokens of a model call; ``input`` is without the cached ones, ``output`` without reasoning."""

    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: CacheCounts = field(default_factory=CacheCounts)


class Times(msgspec.Struct):
    """When a part was begun and ended."""

    end: float | None = None


class ToolState(msgspec.Struct):
    """How far a tool call is: ``pending``, ``running``, ``completed`` or ``error``."""

    status: str = ""
    input: dict[str, Any] = {}
    output: str = ""
    error: str = ""


class Part(msgspec.Struct):
    """A part of a message: of the types that are read, each has its own fields."""

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
    """What the program is about: ``idle``, ``busy`` or ``retry``."""

    type: str = ""


class StatusNote(Note):
    """``session.status``."""

    status: Status = field(default_factory=Status)


class Fault(msgspec.Struct):
    """What has failed; its words are in ``data``."""

    name: str = ""
    data: dict[str, Any] = {}


class FaultNote(Note):
    """``session.error``."""

    error: Fault | None = None


class CallPlace(msgspec.Struct):
    """The call that a question belongs to."""

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
