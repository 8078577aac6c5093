"""The context compiler: turns a transcript, the tools and the settings into the exact input of a model.

Pure: equal arguments give equal inputs, byte for byte. If the context is too long, it is reduced in this
order: large old tool outputs become previews that name the artifact with the whole output; then the
transcript is compacted (this takes a model call, so the caller does it if ``crowded`` is true); then the
oldest turns are left out. A tool call never appears without its result, nor a result without its call.
Everything that is left out or shortened is listed.

Both savings of this module move in steps of a quarter of the budget, counted from the start of the
context. So consecutive inputs usually begin with the same bytes, on which prompt caches and the chain of
stored inputs depend.

An ``InputCache`` remembers the common part of consecutive inputs, so that only new entries are folded.
It affects only the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.machine.context.model_input import (
    ModelChoice,
    ModelInput,
    ModelMessage,
    ToolSpec,
    UserMessage,
    begins_with,
)
from nousd.machine.context.tokens import (
    entry_tokens,
    message_tokens,
    system_tokens,
    text_tokens,
    tool_tokens,
)
from nousd.machine.context.transcript import (
    CONTINUE,
    Accepts,
    GrowingTranscript,
    ModelTranscript,
    build_transcript,
)
from nousd.wire.events.models import Omitted, Saving
from nousd.wire.objects.entries import Attachment, CompactionEntry, Entry, MessageEntry
from nousd.wire.objects.run_options import ToolChoice

LARGE_CHARS: Final = 4 * 1024
"""Minimum length in characters of a tool output that can become a preview."""

PREVIEW_CHARS: Final = 1024

LEFT_OUT: Final = "[Earlier messages were left out here, for want of room.]"

_ANSWER_SHARE: Final = 16
"""Divisor of the window: this fraction of it is kept free for the answer."""

_STEPS: Final = 4
"""Divisor of the budget: savings move in steps of this fraction of it."""

_READ_WINDOWS_MAX: Final = 3
"""Size of a context before previews, in windows, beyond which a compaction is due; lower than the limit
up to which a transcript is read."""


class Frame(msgspec.Struct, frozen=True, dict=True):
    """Everything in a model call except the transcript.

    Args:
        accepts: whether the model accepts a file of a media type.
        tool_choice: whether the model may, must not or must call tools.
    """

    choice: ModelChoice
    system: str
    tools: tuple[ToolSpec, ...]
    accepts: Accepts
    tool_choice: ToolChoice | None = None

    @cached_property
    def tokens(self) -> int:
        """The estimated size of the system prompt and the tools, in tokens."""
        return system_tokens(self.system) + tool_tokens(self.tools)


class Budget(NamedTuple):
    """The budget of an input, in tokens, everything included.

    Args:
        soft: above it, savings are made as long as they lose no message.
        hard: no larger input is sent.
        recent: approximate size of the newest part of the transcript, which is exempt from savings.
        window: the context window of the model, including its answer.
    """

    soft: int
    hard: int
    recent: int
    window: int


class CompiledInput(NamedTuple):
    """A compiled model input, and the facts about its compilation.

    Args:
        omitted: every entry that is left out or shortened, in order.
        closing: number of messages at the end that belong to this call only.
        tokens: its estimated size; more than the budget if nothing more can be left out.
        entries: the entries in it, with their texts as included.
        context_entries: the number of entries in the context.
        window: the context window of the model, including its answer.
        attachments: the files in its messages.
        crowded: whether a compaction is due.
    """

    request: ModelInput
    omitted: tuple[Omitted, ...]
    closing: int
    strategy: tuple[Saving, ...]
    tokens: int
    entries: tuple[Entry, ...]
    context_entries: int
    window: int
    attachments: tuple[Attachment, ...] = ()
    crowded: bool = False


class InputCache:
    """The common part of one session's inputs; at most one input uses it at a time."""

    def __init__(self) -> None:
        self.full = GrowingTranscript()
        self.shortened = GrowingTranscript()
        self.previews: dict[str, Entry] = {}
        """id -> the preview of a large output."""
        self.sizes = Sizes()
        self.is_saving = False
        """Whether the last input needed savings; then the next one takes long, too."""

    def new_entries(self, context: Sequence[Entry]) -> int:
        """Return how many entries of a context are not folded yet."""
        return len(context) - self.full.count_common_entries(context)

    def measure(self, context: Sequence[Entry]) -> Sizes:
        """Return the sizes of a context's entries."""
        if not self.sizes.are_continued_by(context):
            self.sizes, self.previews = Sizes(), {}
        self.sizes.take(context)
        return self.sizes


class Sizes:
    """The estimated sizes of a context's entries, for savings.

    Args:
        ends: the tokens up to the end of each entry.
        large: the indexes of the tool outputs that can become previews.
        newest_answer: the tokens before the last answer of the model.
    """

    def __init__(self) -> None:
        self._entries: Sequence[Entry] = ()
        self.ends: list[int] = []
        self.large: list[int] = []
        self.newest_answer = 0

    def are_continued_by(self, context: Sequence[Entry]) -> bool:
        return begins_with(context, self._entries)

    def take(self, context: Sequence[Entry]) -> None:
        """Measure the new entries of a context that continues the previous one."""
        total = self.ends[-1] if self.ends else 0
        for index in range(len(self._entries), len(context)):
            entry = context[index]
            if isinstance(entry, MessageEntry) and entry.role == "assistant":
                self.newest_answer = total
            if _is_large(entry):
                self.large.append(index)
            total += entry_tokens(entry)
            self.ends.append(total)
        self._entries = context

    def begin(self, index: int) -> int:
        """Return the tokens before an entry."""
        return self.ends[index - 1] if index else 0


def budget_of(window: int, frame: Frame, *, compact_at: float, keep_recent: int) -> Budget:
    """Return the budget of a model call.

    The frame leaves less space for the transcript; at least half of that space is used before a
    compaction, so that the next call does not need another one.
    """
    hard = window - window // _ANSWER_SHARE
    fixed = frame.tokens
    soft = min(max(int(compact_at * window), fixed + (hard - fixed) // 2), hard)
    recent = max(min(keep_recent, (soft - fixed) // 2), 0)
    return Budget(soft, hard, recent, window)


def compile_input(
    context: Sequence[Entry], frame: Frame, budget: Budget, cache: InputCache | None = None
) -> CompiledInput:
    """Compile the input of the model call that continues ``context``.

    Args:
        cache: the cache of the session's inputs. It must not be used elsewhere until this returns.
    """
    cache = cache or InputCache()
    draft = _Draft(frame, context, budget.window, cache)
    full = draft.compile(cache.full)
    cache.is_saving = full.tokens > budget.soft
    if not cache.is_saving:
        return full
    draft.shorten_old_outputs(budget)
    shortened = draft.compile(cache.shortened)
    crowded = (
        shortened.tokens > budget.soft or draft.tokens_read > _READ_WINDOWS_MAX * budget.window
    )
    if shortened.tokens > budget.hard:
        draft.leave_out_oldest(budget)
        shortened = draft.compile()
        if shortened.tokens > budget.hard:
            draft.shorten_what_is_left()
            shortened = draft.compile()
    return shortened._replace(crowded=crowded)


def what_is_largest(compiled: CompiledInput) -> str:
    """Describe the largest part of an input, for people."""
    request = compiled.request
    parts = [
        (tool_tokens(request.tools), "the tools take"),
        (system_tokens(request.system), "the system prompt and the instructions take"),
        *((entry_tokens(entry), f"{_describe_entry(entry)} takes") for entry in compiled.entries),
    ]
    tokens, subject = max(parts, key=lambda part: part[0])
    return f"{subject} about {tokens:,} of {compiled.window:,} tokens"


def _describe_entry(entry: Entry) -> str:
    if isinstance(entry, CompactionEntry):
        return f"the summary {entry.id}"
    author = f"tool {entry.tool_name}" if entry.role == "tool" else entry.role
    return f"entry {entry.id} ({author})"


class _Draft:
    """A context that is being turned into an input; records which entries are shortened or left out."""

    def __init__(
        self, frame: Frame, context: Sequence[Entry], window: int, cache: InputCache
    ) -> None:
        self._frame = frame
        self._window = window
        self._context = context
        self._cache = cache
        self._sizes = Sizes()
        self._entries: list[Entry] = list(context)
        self._omitted: dict[str, Omitted] = {}
        self._left_out = False

    @property
    def tokens_read(self) -> int:
        """The estimated size of the transcript before any saving."""
        return self._sizes.ends[-1] if self._sizes.ends else 0

    def compile(self, growing: GrowingTranscript | None = None) -> CompiledInput:
        """Return the current input.

        Args:
            growing: the fold to continue; by default a new one.
        """
        entries = tuple(self._entries)
        growing = growing or GrowingTranscript()
        transcript = growing.build(entries, self._frame.choice, self._frame.accepts)
        messages: tuple[ModelMessage, ...] = transcript.messages
        tokens = self._frame.tokens + transcript.tokens
        if self._left_out:
            begin = int(bool(entries) and isinstance(entries[0], CompactionEntry))
            remark = UserMessage(LEFT_OUT)
            messages = (*messages[:begin], remark, *messages[begin:])
            tokens += message_tokens(remark)
        choice = self._frame.choice
        request = ModelInput(
            messages=messages,
            model=choice.model,
            provider=choice.provider,
            system=self._frame.system,
            thinking=choice.thinking,
            sampling=choice.sampling,
            tools=self._frame.tools,
            tool_choice=self._frame.tool_choice if self._frame.tools else None,
        )
        return CompiledInput(
            request,
            self._list_omitted(transcript.omitted),
            transcript.closing,
            self._strategy(),
            tokens,
            entries,
            len(self._context),
            self._window,
            transcript.attachments,
        )

    def _list_omitted(self, in_transcript: Sequence[Omitted]) -> tuple[Omitted, ...]:
        if not self._omitted:
            return tuple(in_transcript)
        reasons = self._omitted | {omitted.entry_id: omitted for omitted in in_transcript}
        return tuple(
            reasons[entry_id]
            for entry_id in dict.fromkeys(entry.id for entry in self._context)
            if entry_id in reasons
        )

    def _strategy(self) -> tuple[Saving, ...]:
        savings: list[Saving] = []
        if any(omitted.reason == "preview" for omitted in self._omitted.values()):
            savings.append("previews")
        if self._entries and isinstance(self._entries[0], CompactionEntry):
            savings.append("compacted")
        if self._left_out:
            savings.append("oldest_dropped")
        return tuple(savings) or ("full",)

    # --- previews ----------------------------------------------------------------------------

    def shorten_old_outputs(self, budget: Budget) -> None:
        """Turn large tool outputs into previews, oldest first, as many as necessary, in steps.

        The age of an output is the position of its beginning, however long it is; an output that the
        model has not answered yet is new.
        """
        self._sizes = self._cache.measure(self._context)
        step = max(budget.hard // _STEPS, 1)
        newest = min(self.tokens_read - budget.recent, self._sizes.newest_answer)
        excess = self._frame.tokens + self.tokens_read - budget.soft
        reached = 0
        for index in self._sizes.large:
            begin = self._sizes.begin(index)
            if excess <= 0 and begin >= reached:
                break
            if excess > 0:
                reached = (begin // step + 1) * step
            if reached > newest:
                break
            excess -= self._shorten(index)

    def shorten_what_is_left(self) -> None:
        """Turn every remaining large tool output into a preview."""
        for index, entry in enumerate(self._entries):
            if _is_large(entry):
                self._shorten(index)

    def _shorten(self, index: int) -> int:
        """Turn a tool output into a preview; return the number of tokens saved."""
        entry = self._entries[index]
        shorter = self._cache.previews.get(entry.id)
        if shorter is None:
            assert isinstance(entry, MessageEntry)
            shorter = msgspec.structs.replace(entry, text=preview(entry))
            self._cache.previews[entry.id] = shorter
        self._entries[index] = shorter
        self._omitted[entry.id] = Omitted(entry.id, "preview")
        return entry_tokens(entry) - entry_tokens(shorter)

    # --- leaving out -------------------------------------------------------------------------

    def leave_out_oldest(self, budget: Budget) -> None:
        """Leave out the oldest turns, in steps, and finally the summary. The user's last message and
        the newest message with its results stay.
        """
        groups = self._groups()
        room = budget.hard - self._frame.tokens - _REMARKS_TOKENS
        excess = sum(group.tokens for group in groups) - room
        step = max(budget.hard // _STEPS, 1)
        reached = 0
        left_out: set[int] = set()
        for unit in _units(groups):
            end = groups[unit[-1]].end
            if excess <= 0 and end > reached:
                break
            if excess > 0:
                reached = -(-end // step) * step
            left_out.update(unit)
            excess -= sum(groups[index].tokens for index in unit)
        if excess > 0 and groups and _may_lose_summary(groups):
            left_out.add(0)
        self._keep([group for index, group in enumerate(groups) if index not in left_out])

    def _keep(self, groups: Sequence[_Group]) -> None:
        kept = [entry for group in groups for entry in group.entries]
        places = {id(entry) for entry in kept}
        for entry in self._entries:
            if id(entry) not in places:
                self._omitted[entry.id] = Omitted(entry.id, "oldest")
        self._left_out = len(kept) < len(self._entries)
        self._entries = kept

    def _groups(self) -> list[_Group]:
        groups: list[list[Entry]] = []
        ends: list[int] = []
        for entry, end in zip(self._entries, self._sizes.ends, strict=True):
            if groups and isinstance(entry, MessageEntry) and entry.role == "tool":
                groups[-1].append(entry)
                ends[-1] = end
            else:
                groups.append([entry])
                ends.append(end)
        return [
            _Group(tuple(entries), self._count_tokens(entries), end)
            for entries, end in zip(groups, ends, strict=True)
        ]

    def _count_tokens(self, entries: Iterable[Entry]) -> int:
        transcript = build_transcript(entries, self._frame.choice, self._frame.accepts)
        return transcript.tokens - sum(map(message_tokens, _list_closing(transcript)))


def _list_closing(transcript: ModelTranscript) -> tuple[ModelMessage, ...]:
    return transcript.messages[len(transcript.messages) - transcript.closing :]


class _Group(NamedTuple):
    """An entry with the results of its calls, the size of the messages, and the end in the context."""

    entries: tuple[Entry, ...]
    tokens: int
    end: int

    @property
    def begins_turn(self) -> bool:
        head = self.entries[0]
        return isinstance(head, MessageEntry) and head.role == "user"

    @property
    def is_summary(self) -> bool:
        return isinstance(self.entries[0], CompactionEntry)


_REMARKS_TOKENS: Final = text_tokens(len(LEFT_OUT)) + text_tokens(len(CONTINUE))


def _units(groups: Sequence[_Group]) -> list[list[int]]:
    """Return the units that may be left out, oldest first: turn by turn, and message by message of the
    newest turn. Entries that must stay are in none of them.
    """
    last_turn = max((index for index, group in enumerate(groups) if group.begins_turn), default=-1)
    newest = max((index for index, group in enumerate(groups) if group.tokens), default=-1)
    units: list[list[int]] = []
    for index, group in enumerate(groups):
        if group.is_summary or index in (last_turn, newest):
            continue
        if units and index < last_turn and not group.begins_turn:
            units[-1].append(index)
        else:
            units.append([index])
    return units


def _may_lose_summary(groups: Sequence[_Group]) -> bool:
    """Return whether the summary may be left out; it must stay if it covers the user's last message."""
    return groups[0].is_summary and any(group.begins_turn for group in groups)


def _is_large(entry: Entry) -> bool:
    return (
        isinstance(entry, MessageEntry) and entry.role == "tool" and len(entry.text) > LARGE_CHARS
    )


def preview(entry: MessageEntry) -> str:
    """Return the beginning of a tool's output, and the location of the whole output."""
    if entry.artifact_id is not UNSET:
        location = f"artifact {entry.artifact_id}"
    elif entry.text_ref is not UNSET:
        location = f"artifact {entry.text_ref}"
    else:
        location = f"entry {entry.id}"
    return f"{entry.text[:PREVIEW_CHARS]}\n[... the whole output: {location}]"
