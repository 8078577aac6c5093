"""The transcript fold: turns entries into the messages of a model call.

Pure and deterministic. The rules (protocol/semantics/models.md): the last compaction's summary
replaces everything before its first kept entry; every tool call is followed by exactly one result, which
is ``interrupted`` if none was stored; an answer without content is omitted; after an answer of the model
at the end, a request to continue is added. Two user messages in a row stay separate.

A context usually grows at its end: ``GrowingTranscript`` folds only the new entries, and gives the same
messages as a fold of the whole context. ``compiler`` limits the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelChoice,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    UserMessage,
    begins_with,
)
from nousd.machine.context.tokens import message_tokens
from nousd.wire.codec.canonical_json import expressible
from nousd.wire.events.models import Omitted
from nousd.wire.objects.entries import (
    Attachment,
    CompactionEntry,
    Entry,
    MessageEntry,
    ReasoningBlock,
    ToolCall,
)

SUMMARY_INTRODUCTION: Final = "Summary of the conversation so far:\n\n"
CONTINUE: Final = "[The answer above broke off. Continue.]"
INTERRUPTED: Final = "tool_error: interrupted"

Accepts = Callable[[str], bool]
"""Returns whether a model accepts a file of a media type."""


def in_context(path: Sequence[Entry]) -> list[Entry]:
    """Return the effective part of a path (root to leaf): if there is a compaction, the last one, the
    entries that it kept, and all later entries.
    """
    for index in range(len(path) - 1, -1, -1):
        compaction = path[index]
        if not isinstance(compaction, MessageEntry):
            kept = _from_entry(path[:index], compaction.first_kept_entry_id)
            return [compaction, *kept, *path[index + 1 :]]
    return list(path)


def with_entry(context: Sequence[Entry], entry: Entry) -> list[Entry]:
    """Return a context after an entry is appended to it."""
    path = [*context, entry]
    return in_context(path) if isinstance(entry, CompactionEntry) else path


def _from_entry(path: Sequence[Entry], entry_id: str) -> list[Entry]:
    for index, entry in enumerate(path):
        if entry.id == entry_id:
            return [kept for kept in path[index:] if isinstance(kept, MessageEntry)]
    return []


def find_unanswered_calls(context: Sequence[Entry]) -> tuple[ToolCall, ...]:
    """Return the calls at the end of a context that have no result, in order.

    There are none if anything else follows them.
    """
    settled: set[str] = set()
    for entry in reversed(context):
        if not isinstance(entry, MessageEntry) or entry.role == "user":
            return ()
        if entry.role == "assistant":
            calls = entry.tool_calls or ()
            last = max(
                (i for i, call in enumerate(calls) if call.tool_call_id in settled), default=-1
            )
            return calls[last + 1 :]
        settled.add(entry.tool_call_id or "")
    return ()


class ModelTranscript(NamedTuple):
    """The messages that a context becomes for a model, and the entries left out.

    Args:
        omitted: ``empty``: an answer without text and calls; ``no_call``: a result without its call;
            ``attachment``: a file that the model does not accept.
        closing: number of messages at the end that are not from the context and belong to this call
            only.
        tokens: the estimated size of the messages.
        attachments: the files in them.
    """

    messages: tuple[ModelMessage, ...]
    omitted: tuple[Omitted, ...]
    closing: int
    tokens: int
    attachments: tuple[Attachment, ...]


def build_transcript(
    context: Iterable[Entry], choice: ModelChoice, accepts: Accepts
) -> ModelTranscript:
    """Return the messages of a model call that continues ``context``.

    Args:
        choice: the model to call; only reasoning that it wrote is included.
    """
    fold = _Fold(choice, accepts)
    for entry in context:
        fold.take(entry)
    return fold.end()


class GrowingTranscript:
    """Folds contexts, each of which usually continues the previous one.

    ``accepts`` must depend only on the provider and the name of the model.
    """

    def __init__(self) -> None:
        self._entries: Sequence[Entry] = ()
        self._model = ("", "")
        self._fold: _Fold | None = None

    def count_common_entries(self, context: Sequence[Entry]) -> int:
        """Return the number of entries that a context has in common with the previous one."""
        return len(self._entries) if begins_with(context, self._entries) else 0

    def build(
        self, context: Sequence[Entry], choice: ModelChoice, accepts: Accepts
    ) -> ModelTranscript:
        """Return what ``build_transcript`` returns for these arguments."""
        model = (choice.provider, choice.model)
        known = self.count_common_entries(context)
        if self._fold is None or model != self._model or not known:
            self._fold, known = _Fold(choice, accepts), 0
        for entry in context[known:]:
            self._fold.take(entry)
        self._entries, self._model = context, model
        return self._fold.end()


class _Fold:
    """Takes entries one by one, and tracks the calls without a result."""

    def __init__(self, choice: ModelChoice, accepts: Accepts) -> None:
        self._choice = choice
        self._accepts = accepts
        self._messages: list[ModelMessage] = []
        self._omitted: list[Omitted] = []
        self._unanswered_calls: dict[str, ModelToolCall] = {}
        self._tokens = 0
        self._attachments: list[Attachment] = []

    def take(self, entry: Entry) -> None:
        if isinstance(entry, MessageEntry) and entry.role == "tool":
            self._settle(entry)
            return
        if self._unanswered_calls:
            self._settle_rest()
        if not isinstance(entry, MessageEntry):
            self._add(UserMessage(SUMMARY_INTRODUCTION + entry.summary))
        elif entry.role == "user":
            self._add(self._user(entry))
        else:
            self._answer(entry)

    def end(self) -> ModelTranscript:
        """Return the transcript so far; more entries may follow."""
        last: list[ModelMessage] = [
            _build_interrupted_result(call) for call in self._unanswered_calls.values()
        ]
        closing = 0
        if isinstance((last or self._messages or (None,))[-1], AssistantMessage):
            last.append(UserMessage(CONTINUE))
            closing = 1
        return ModelTranscript(
            (*self._messages, *last),
            tuple(self._omitted),
            closing,
            self._tokens + sum(map(message_tokens, last)),
            tuple(self._attachments),
        )

    def _add(self, message: ModelMessage) -> None:
        self._messages.append(message)
        self._tokens += message_tokens(message)

    def _user(self, entry: MessageEntry) -> UserMessage:
        if entry.attachments is UNSET:
            return UserMessage(entry.text)
        accepted = tuple(file for file in entry.attachments if self._accepts(file.media_type))
        self._attachments += accepted
        if len(accepted) == len(entry.attachments):
            return UserMessage(entry.text, accepted)
        self._omitted.append(Omitted(entry.id, "attachment"))
        remarks = [
            _describe_omitted_file(file) for file in entry.attachments if file not in accepted
        ]
        return UserMessage("\n".join([entry.text, *remarks]), accepted)

    def _answer(self, entry: MessageEntry) -> None:
        if not entry.tool_calls:  # or UNSET
            if entry.text.strip():
                self._add(AssistantMessage(entry.text, (), _reasoning(entry, self._choice)))
            else:
                self._omitted.append(Omitted(entry.id, "empty"))
            return
        calls = tuple(
            ModelToolCall(call.tool_call_id, call.name, expressible(call.args))
            for call in entry.tool_calls
        )
        self._add(AssistantMessage(entry.text, calls, _reasoning(entry, self._choice)))
        self._unanswered_calls = {call.id: call for call in calls}

    def _settle(self, entry: MessageEntry) -> None:
        """Add a result, after adding results for earlier calls that never got one."""
        call_id = "" if entry.tool_call_id is UNSET else entry.tool_call_id
        if call_id not in self._unanswered_calls:
            self._omitted.append(Omitted(entry.id, "no_call"))
            return
        for earlier in list(self._unanswered_calls):
            call = self._unanswered_calls.pop(earlier)
            if earlier == call_id:
                break
            self._add(_build_interrupted_result(call))
        is_error = entry.is_error is True
        self._add(ToolResultMessage(call_id, call.name, entry.text, is_error))

    def _settle_rest(self) -> None:
        for call in self._unanswered_calls.values():
            self._add(_build_interrupted_result(call))
        self._unanswered_calls.clear()


def _reasoning(entry: MessageEntry, choice: ModelChoice) -> tuple[ReasoningBlock, ...]:
    is_own = entry.provider == choice.provider and entry.model == choice.model
    return entry.reasoning_blocks if is_own and entry.reasoning_blocks is not UNSET else ()


def _build_interrupted_result(call: ModelToolCall) -> ToolResultMessage:
    return ToolResultMessage(call.id, call.name, INTERRUPTED, is_error=True)


def _describe_omitted_file(file: Attachment) -> str:
    name = "" if file.name is UNSET else f"{file.name} "
    return f"[The file {name}({file.media_type}) was left out: the model cannot take it.]"
