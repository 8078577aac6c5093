"""What a model is given, in no vendor's dialect.

The transcript fold makes a ``ModelInput`` from entries, each provider encodes it for its own API. It
is a value: equal inputs give equal requests.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is offered to a model; ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """What the user said."""

    text: str


class ModelToolCall(msgspec.Struct, frozen=True):
    """A call the model made earlier. ``id`` pairs it with its result within one request."""

    id: str
    name: str
    args: dict[str, Any]


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the model said; ``text`` may be empty where there are calls."""

    text: str
    tool_calls: tuple[ModelToolCall, ...] = ()


class ToolResultMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """The result of one call; every call has exactly one, right behind its message."""

    tool_call_id: str
    tool_name: str
    text: str
    is_error: bool


ModelMessage = UserMessage | AssistantMessage | ToolResultMessage


class ModelInput(msgspec.Struct, frozen=True):
    """One model call.

    Invariants: each ``AssistantMessage`` with calls is followed by one ``ToolResultMessage`` per call
    in order; the last message is never an ``AssistantMessage``.
    """

    model: str
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    purpose: Literal["answer", "summary"] = "answer"
