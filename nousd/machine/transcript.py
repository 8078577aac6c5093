"""Entries to what a model is given: the transcript fold.

Pure and deterministic. The rules (protocol/v1.md, "History"): the last compaction's summary stands for
everything before its first kept entry; every tool call is followed by exactly one result, one that says
``interrupted`` where none was kept; an answer without content is left out; a model never continues its
own last words, it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from nousd.machine.model_input import (
    AssistantMessage,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    UserMessage,
)
from nousd.wire.entries import CompactionEntry, Entry, MessageEntry
from nousd.wire.events import Omitted

SUMMARY_INTRODUCTION: Final = "Summary of the conversation so far:\n\n"
CONTINUE: Final = "[The answer above broke off. Continue.]"
INTERRUPTED: Final = "tool_error: interrupted"

CHARS_PER_TOKEN: Final = 4
"""Rough for English and code, and on the safe side of most tokenizers for both."""

MESSAGE_TOKENS: Final = 8
"""What roles and separators of one message cost, about."""


def in_context(path: Sequence[Entry]) -> list[Entry]:
    """Returns what of a path (root -> leaf) still counts: the last compaction first, if any."""
    for index in range(len(path) - 1, -1, -1):
        compaction = path[index]
        if isinstance(compaction, CompactionEntry):
            kept = _from_entry(path[:index], compaction.first_kept_entry_id)
            return [compaction, *kept, *path[index + 1 :]]
    return list(path)


def _from_entry(path: Sequence[Entry], entry_id: str) -> list[Entry]:
    for index, entry in enumerate(path):
        if entry.id == entry_id:
            return [kept for kept in path[index:] if isinstance(kept, MessageEntry)]
    return []


class Compiled(NamedTuple):
    """What a model is told of a context, and which of its entries it is not told."""

    messages: tuple[ModelMessage, ...]
    omitted: tuple[Omitted, ...]


def compiled(context: Iterable[Entry]) -> Compiled:
    """Returns the messages of a model call that is to go on from ``context``."""
    messages: list[ModelMessage] = []
    omitted: list[Omitted] = []
    owed: dict[str, ModelToolCall] = {}
    for entry in context:
        if isinstance(entry, MessageEntry) and entry.role == "tool":
            if not _settle(messages, owed, entry):
                omitted.append(Omitted(entry.id, "no_call"))
            continue
        _settle_rest(messages, owed)
        message = _message(entry)
        if message is None:
            omitted.append(Omitted(entry.id, "empty"))
            continue
        messages.append(message)
        if isinstance(message, AssistantMessage):
            owed = {call.id: call for call in message.tool_calls}
    _settle_rest(messages, owed)
    if messages and isinstance(messages[-1], AssistantMessage):
        messages.append(UserMessage(CONTINUE))
    return Compiled(tuple(messages), tuple(omitted))


def _message(entry: Entry) -> ModelMessage | None:
    if isinstance(entry, CompactionEntry):
        return UserMessage(SUMMARY_INTRODUCTION + entry.summary)
    if entry.role == "user":
        return UserMessage(entry.text)
    calls = () if entry.tool_calls is UNSET else entry.tool_calls
    if not entry.text.strip() and not calls:
        return None
    return AssistantMessage(
        entry.text,
        tuple(ModelToolCall(call.tool_call_id, call.name, call.args) for call in calls),
    )


def _settle(
    messages: list[ModelMessage], owed: dict[str, ModelToolCall], entry: MessageEntry
) -> bool:
    """Adds a result, with results for the calls before it that never got one.

    Returns False, and adds nothing, for the result of a call that is not owed one.
    """
    call_id = "" if entry.tool_call_id is UNSET else entry.tool_call_id
    if call_id not in owed:
        return False
    for earlier in list(owed):
        call = owed.pop(earlier)
        if earlier == call_id:
            break
        messages.append(_interrupted(call))
    is_error = entry.is_error is True
    messages.append(ToolResultMessage(call_id, call.name, entry.text, is_error))
    return True


def _settle_rest(messages: list[ModelMessage], owed: dict[str, ModelToolCall]) -> None:
    messages.extend(_interrupted(call) for call in owed.values())
    owed.clear()


def _interrupted(call: ModelToolCall) -> ToolResultMessage:
    return ToolResultMessage(call.id, call.name, INTERRUPTED, is_error=True)


def estimate_tokens(entries: Iterable[Entry]) -> int:
    """Estimates what entries cost as model input, in tokens."""
    return sum(entry_tokens(entry) for entry in entries)


def entry_tokens(entry: Entry) -> int:
    """Estimates what one entry costs as model input, in tokens."""
    if isinstance(entry, CompactionEntry):
        chars = len(entry.summary)
    else:
        chars = len(entry.text)
        if entry.tool_calls is not UNSET:
            chars += sum(len(call.name) + len(str(call.args)) for call in entry.tool_calls)
    return MESSAGE_TOKENS + chars // CHARS_PER_TOKEN
