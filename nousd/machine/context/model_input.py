"""The input of a model, independent of vendors.

The transcript fold builds a ``ModelInput`` from entries; each provider encodes it for its API. It is a
value: equal inputs give equal requests.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, final

import msgspec
from msgspec import UNSET

from nousd.wire.objects.entries import Attachment, ReasoningBlock, Sampling, Thinking
from nousd.wire.objects.run_options import ToolChoice


class ModelChoice(msgspec.Struct, frozen=True):
    """The model to call, and its provider. Where ``thinking`` or ``sampling`` is None, the model's
    default applies.
    """

    provider: str
    model: str
    thinking: Thinking | None = None
    sampling: Sampling | None = None


def with_own(sampling: Sampling | None, own: Sampling) -> Sampling:
    """Return ``sampling`` with the fields that ``own`` sets replaced."""
    set_fields = {
        name: value for name, value in msgspec.structs.asdict(own).items() if value is not UNSET
    }
    return (
        Sampling(**set_fields)
        if sampling is None
        else msgspec.structs.replace(sampling, **set_fields)
    )


class ToolSpec(msgspec.Struct, frozen=True, dict=True):
    """A tool as offered to a model; ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]

    @cached_property
    def json_bytes(self) -> int:
        """The size of the tool as JSON; cached because the same tools are offered again and again."""
        return len(msgspec.json.encode(self))


@final
class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """A message of the user. It contains the hash of each attachment, not the bytes."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class ModelToolCall(msgspec.Struct, frozen=True):
    """A call that the model made earlier. ``id`` pairs it with its result within one request."""

    id: str
    name: str
    args: dict[str, Any]


@final
class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """A message of the model; ``text`` may be empty if there are calls.

    ``reasoning`` is only present if the called model wrote it, because no other model accepts it.
    """

    text: str
    tool_calls: tuple[ModelToolCall, ...] = ()
    reasoning: tuple[ReasoningBlock, ...] = ()


@final
class ToolResultMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """The result of one call; every call has exactly one, directly after its message."""

    tool_call_id: str
    tool_name: str
    text: str
    is_error: bool


ModelMessage = UserMessage | AssistantMessage | ToolResultMessage


def begins_with(items: Sequence[Any], prefix: Sequence[Any]) -> bool:
    """Return whether a sequence begins with the same objects as another. No Python runs per item."""
    return len(prefix) <= len(items) and all(map(operator.is_, prefix, items))


class ModelInput(msgspec.Struct, frozen=True, kw_only=True):
    """One model call.

    Invariants: each ``AssistantMessage`` with calls is followed by one ``ToolResultMessage`` per call
    in order; the last message is never an ``AssistantMessage``; ``tool_choice`` is only set if there
    are tools, and None leaves the choice to the model.
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
