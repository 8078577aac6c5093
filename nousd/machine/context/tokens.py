"""The estimated size of a model input in tokens, without a tokenizer.

Rough on purpose: the same input has the same estimate every time and for every model. The exact count is
in the server's response (``usage_reported``).

Code that runs for each entry or message of a long context tests for the usual type first, or for the
exact type: ``isinstance`` takes ten times as long to return False for a struct.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET

from nousd.machine.context.model_input import AssistantMessage, ModelMessage, ToolSpec, UserMessage
from nousd.wire.objects.entries import Attachment, Entry, MessageEntry

CHARS_PER_TOKEN: Final = 4
"""Rough for English and code, and an overestimate for most tokenizers."""

MESSAGE_TOKENS: Final = 8
"""Approximate cost of the role and the separators of one message."""

IMAGE_TOKENS: Final = 1_600
"""Approximate cost of a large image; no provider counts much more."""

BYTES_PER_DOCUMENT_TOKEN: Final = 16
"""For documents with pages, whose fonts and layout cost no tokens."""

DOCUMENT_TOKENS_MAX: Final = 50_000
"""Maximum estimate of one document. Beyond some pages its size comes from pictures, not from text, and
an estimate must not reject a document that the server might accept."""


def entry_tokens(entry: Entry) -> int:
    """Estimate the tokens of an entry as model input, without its reasoning."""
    if not isinstance(entry, MessageEntry):
        return text_tokens(len(entry.summary))
    chars = len(entry.text)
    if entry.tool_calls is not UNSET:
        chars += sum(len(call.name) + _chars(call.args) for call in entry.tool_calls)
    attached = 0 if entry.attachments is UNSET else attachment_tokens(entry.attachments)
    return text_tokens(chars) + attached


def estimate_tokens(entries: Iterable[Entry]) -> int:
    """Estimate the tokens of entries as model input."""
    return sum(map(entry_tokens, entries))


def message_tokens(message: ModelMessage) -> int:
    """Estimate the tokens of a message, with everything in it."""
    chars = len(message.text)
    attached = 0
    if type(message) is AssistantMessage:
        if message.tool_calls:
            chars += sum(len(call.name) + _chars(call.args) for call in message.tool_calls)
        if message.reasoning:
            chars += sum(_chars(block.data) for block in message.reasoning)
    elif type(message) is UserMessage and message.attachments:
        attached = attachment_tokens(message.attachments)
    return text_tokens(chars) + attached


def tool_tokens(tools: Iterable[ToolSpec]) -> int:
    """Estimate the tokens of tool definitions."""
    return sum(tool.json_bytes // CHARS_PER_TOKEN for tool in tools)


def system_tokens(system: str) -> int:
    """Estimate the tokens of a system prompt."""
    return text_tokens(len(system)) if system else 0


def text_tokens(chars: int) -> int:
    """Estimate the tokens of a message with that many characters."""
    return MESSAGE_TOKENS + chars // CHARS_PER_TOKEN


def attachment_tokens(attachments: Iterable[Attachment]) -> int:
    """Estimate the tokens of attached files."""
    return sum(map(_file_tokens, attachments))


def _file_tokens(file: Attachment) -> int:
    if file.media_type.startswith("image/"):
        return IMAGE_TOKENS
    if file.media_type == "application/pdf":
        return min(file.size_bytes // BYTES_PER_DOCUMENT_TOKEN, DOCUMENT_TOKENS_MAX)
    return file.size_bytes // CHARS_PER_TOKEN


def _chars(value: Any) -> int:
    """Return the approximate length of a value's JSON."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is dict:
        return 2 + sum(len(key) + 4 + _chars(item) for key, item in value.items())
    if kind is list or kind is tuple:
        return 2 + sum(1 + _chars(item) for item in value)
    return 5
