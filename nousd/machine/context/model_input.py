"""The input of a model, in no vendor's dialect.

The transcript fold makes a ``ModelInput`` from entries, each provider encodes it for its own API. It
is a value: equal inputs give equal requests.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from nousd.wire.objects.entries import Attachment, ReasoningBlock, Sampling, Thinking
from nousd.wire.objects.run_options import ToolChoice


class ModelChoice(msgspec.Struct, frozen=True):
    """Which model is asked, at which provider; ``thinking`` None leaves that to the model, as does
    ``sampling``.
    """

    provider: str
    model: str
    thinking: Thinking | None = None
    sampling: Sampling | None = None


def with_own(sampling: Sampling | None, own: Sampling) -> Sampling:
    """Return ``sampling`` with the fields that ``own`` sets replaced."""
    said = {
        name: value for name, value in msgspec.structs.asdict(own).items() if value is not UNSET
    }
    return Sampling(**said) if sampling is None else msgspec.structs.replace(sampling, **said)


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is offered to a model; ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """A message of the user. An attachment's bytes are not part of it, only their hash."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class ModelToolCall(msgspec.Struct, frozen=True):
    """A call the model made earlier. ``id`` pairs it with its result within one request."""

    id: str
    name: str
    args: dict[str, Any]


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """A message of the model; ``text`` may be empty where there are calls.

    ``reasoning`` is there only if the model that is asked wrote it: no other takes it back.
    """

    text: str
    tool_calls: tuple[ModelToolCall, ...] = ()
    reasoning: tuple[ReasoningBlock, ...] = ()


class ToolResultMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """The result of one call; every call has exactly one, right behind its message."""

    tool_call_id: str
    tool_name: str
    text: str
    is_error: bool


ModelMessage = UserMessage | AssistantMessage | ToolResultMessage


class ModelInput(msgspec.Struct, frozen=True, kw_only=True):
    """One model call.

    Invariants: each ``AssistantMessage`` with calls is followed by one ``ToolResultMessage`` per call
    in order; the last message is never an ``AssistantMessage``; there is a ``tool_choice`` only where
    there are tools, and None leaves it to the model.
    """

    messages: tuple[ModelMessage, ...]
    model: str
    provider: str = ""
    purpose: Literal["answer", "summary"] = "answer"
    system: str = ""
    thinking: Thinking | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice | None = None
    sampling: Sampling | None = None
