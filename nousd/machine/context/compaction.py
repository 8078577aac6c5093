"""Compaction: chooses where to cut a transcript that grows too long, and summarises the part before the
cut.

A cut keeps the newest entries and never separates a tool call from its result. The model writes the
summary; if that fails, a mechanical one replaces it. Both are bounded, and a summary includes the
earlier one, so that it does not grow with the number of compactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
from msgspec import UNSET

from nousd.machine.context.compiler import CompiledInput
from nousd.machine.context.model_input import ModelChoice, ModelInput, UserMessage
from nousd.machine.context.tokens import CHARS_PER_TOKEN, entry_tokens, text_tokens
from nousd.wire.codec.unset import or_unset
from nousd.wire.events.models import Omitted, Saving
from nousd.wire.limits import SUMMARY_CHARS_MAX
from nousd.wire.objects.entries import CompactionEntry, Entry, MessageEntry

_PREVIOUS_CHARS_MAX: Final = 6_000
_LINE_CHARS_MAX: Final = 160
_ENTRY_CHARS_MAX: Final = 4_000
_ARGS_CHARS_MAX: Final = 400
_LINES_AT_ONCE: Final = 1_000

_TASK: Final = (
    "Summarise the conversation below so that another assistant can carry on with it. Keep goals, "
    "decisions, file names, commands, open problems and what was asked last. Leave out courtesies. "
    "At most 1,000 words."
)


class CutPoint(msgspec.Struct, frozen=True):
    """A cut: ``dropped`` is summarised, ``first_kept`` and everything after it stays."""

    dropped: tuple[Entry, ...]
    first_kept: MessageEntry
    tokens_before: int


def plan_cut(context: Sequence[Entry], keep_tokens: int) -> CutPoint | None:
    """Return a cut that keeps about ``keep_tokens``; None if nothing can be dropped.

    The newest turn stays whole if it fits; a turn that is too long, alone or preceded only by a summary,
    is cut between its model calls.
    """
    places = [
        index
        for index, entry in enumerate(context)
        if index and isinstance(entry, MessageEntry) and entry.role != "tool"
    ]
    if places and isinstance(context[0], CompactionEntry) and places[0] == 1:
        # A cut right after the last summary would summarise only that summary.
        places.pop(0)
    if not places:
        return None
    tokens_from = _tokens_from_each(context)
    fits = [tokens <= keep_tokens for tokens in tokens_from]
    turns = [place for place in places if _begins_turn(context[place])]
    if tokens_from[0] <= keep_tokens:
        # A client requested a compaction of a short transcript: keep the newest turn.
        candidates = turns[-1:]
    else:
        candidates = (
            [place for place in turns if fits[place]][:1]
            or [place for place in places if fits[place]][:1]
            or places[-1:]
        )
    if not candidates:
        return None
    first_kept = context[candidates[0]]
    assert isinstance(first_kept, MessageEntry)
    return CutPoint(tuple(context[: candidates[0]]), first_kept, tokens_from[0])


def _tokens_from_each(context: Sequence[Entry]) -> list[int]:
    """Return for each entry the tokens of it and of all later entries."""
    backwards = accumulate(entry_tokens(entry) for entry in reversed(context))
    return list(backwards)[::-1]


def _begins_turn(entry: Entry) -> bool:
    return isinstance(entry, MessageEntry) and entry.role == "user"


def summary_input(
    cut: CutPoint, *, choice: ModelChoice, instruction: str | None, window: int
) -> CompiledInput:
    """Return the model call that summarises the dropped part, fitted into the window."""
    room = max(window * CHARS_PER_TOKEN // 2, 8_000)
    lines = [_render_entry(entry, _ENTRY_CHARS_MAX) for entry in cut.dropped]
    shown = _count_fitting(lines, room)
    addition = f"\n\nThe user adds: {instruction}" if instruction else ""
    text = _join_lines(
        [f"{_TASK}{addition}\n\n<conversation>", *_newest(lines, shown), "</conversation>"]
    )
    request = ModelInput(
        model=choice.model,
        provider=choice.provider,
        messages=(UserMessage(text),),
        purpose="summary",
    )
    _clear_lines(lines)
    omitted = _list_omitted(cut.dropped, shown)
    savings = dict.fromkeys(_SAVINGS[each.reason] for each in omitted)
    return CompiledInput(
        request=request,
        omitted=omitted,
        closing=0,
        strategy=tuple(savings) or ("full",),
        tokens=text_tokens(len(text)),
        entries=cut.dropped,
        context_entries=len(cut.dropped),
        window=window,
    )


_SAVINGS: Final[dict[str, Saving]] = {"oldest": "oldest_dropped", "preview": "previews"}


def _list_omitted(dropped: Sequence[Entry], shown: int) -> tuple[Omitted, ...]:
    """List the dropped entries that the summariser receives shortened or not at all."""
    first = len(dropped) - shown
    return tuple(
        Omitted(entry.id, "oldest" if index < first else "preview")
        for index, entry in enumerate(dropped)
        if index < first or _is_shortened(entry)
    )


def _is_shortened(entry: Entry) -> bool:
    if isinstance(entry, CompactionEntry):
        return False
    calls = () if entry.tool_calls is UNSET else entry.tool_calls
    return (
        len(entry.text) > _ENTRY_CHARS_MAX
        or any(len(str(call.args)) > _ARGS_CHARS_MAX for call in calls)
        or len(_render_calls(entry)) > _ENTRY_CHARS_MAX // 2
    )


def truncate_summary(text: str) -> str:
    """Return a model's summary, truncated to the bound."""
    return _truncate(text.strip(), SUMMARY_CHARS_MAX)


def mechanical_summary(cut: CutPoint) -> str:
    """Summarise without a model: the earlier summary and one line per message, keeping the newest."""
    previous = [
        _truncate(entry.summary, _PREVIOUS_CHARS_MAX)
        for entry in cut.dropped
        if isinstance(entry, CompactionEntry)
    ]
    lines = [
        " ".join(_render_entry(entry, _LINE_CHARS_MAX).split())
        for entry in cut.dropped
        if isinstance(entry, MessageEntry)
    ]
    room = SUMMARY_CHARS_MAX - sum(map(len, previous)) - 2
    return "\n\n".join([*previous[-1:], "\n".join(_newest(lines, _count_fitting(lines, room)))])


def _render_entry(entry: Entry, chars_max: int) -> str:
    if isinstance(entry, CompactionEntry):
        return f"summary: {_truncate(entry.summary, SUMMARY_CHARS_MAX)}"
    author = f"tool {entry.tool_name}" if entry.role == "tool" else entry.role
    calls = _truncate(_render_calls(entry), chars_max // 2)
    return f"{author}: {_truncate(entry.text, chars_max)}{calls}"


def _render_calls(entry: MessageEntry) -> str:
    calls = () if entry.tool_calls is UNSET else entry.tool_calls
    return "".join(
        f" [calls {call.name} {_truncate(str(call.args), _ARGS_CHARS_MAX)}]" for call in calls
    )


def _newest(lines: Sequence[str], count: int) -> list[str]:
    """Return that many of the newest lines, after a remark if older ones are left out."""
    left_out = len(lines) - count
    remark = [f"[{left_out} earlier messages left out]"] if left_out else []
    return [*remark, *lines[left_out:]]


def _join_lines(lines: Sequence[str]) -> str:
    """Join lines in portions: while Python joins 50,000 at once, no other thread runs."""
    starts = range(0, len(lines), _LINES_AT_ONCE)
    return "\n".join("\n".join(lines[start : start + _LINES_AT_ONCE]) for start in starts)


def _clear_lines(lines: list[str]) -> None:
    """Empty a list of lines in portions, for the same reason."""
    while lines:
        del lines[-_LINES_AT_ONCE:]


def _count_fitting(lines: Sequence[str], chars_max: int) -> int:
    """Return how many of the newest lines fit, with room for the remark of ``_newest``."""
    room = chars_max - 40
    for count, line in enumerate(reversed(lines)):
        room -= len(line) + 1
        if room < 0:
            return count
    return len(lines)


def _truncate(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 4]} ..."


def compaction_entry(
    cut: CutPoint,
    summary: str,
    *,
    entry_id: str,
    parent_id: str | None,
    trigger: str,
    created_at: str,
    run_id: str | None,
    instruction: str | None,
) -> CompactionEntry:
    """Return the entry that applies a cut."""
    return CompactionEntry(
        id=entry_id,
        parent_id=or_unset(parent_id),
        summary=summary,
        first_kept_entry_id=cut.first_kept.id,
        tokens_before=cut.tokens_before,
        trigger=trigger,  # type: ignore[arg-type]
        created_at=created_at,
        run_id=or_unset(run_id),
        instruction=or_unset(instruction),
    )
